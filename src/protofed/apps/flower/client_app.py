"""The ClientApp: passes Flower's messages to the node and the node's answers to Flower."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from protofed.compute import numerics
from protofed.compute.imports import uncollected
from protofed.errors import ConfigError, PayloadError, ProtofedError

numerics.prepare()
with uncollected():  # each message is answered by a new process
    from protofed.apps.flower import held
    from protofed.apps.flower.messages import (
        Job,
        Values,
        description_values,
        evaluated_values,
        sizes_values,
        trained_values,
    )
    from protofed.apps.flower.node import Node
    from protofed.apps.flower.nodes import part
    from protofed.apps.flower.policy import Policy
    from protofed.apps.flower.sources import source_of
    from protofed.apps.flower.state import RUNS
    from protofed.config.schema import check_device

app = ClientApp()
"""The ClientApp for any method, in simulations and deployments."""


@app.query()
def query(message: Message, context: Context) -> Message:
    """Describe the node's clients to the server, or state the size of one client's model or that its state is here.

    Args:
        message: A job if it is about one client, else the experiment's configuration.
    """

    def act(values: Values) -> Values:
        if "client" in values:
            node, job = _node(context), Job.of(values)
            if not job.after:
                return sizes_values(node.fit(job))
            node.check_held(job)
            return {}
        config = values.get("config")
        if not isinstance(config, str):
            raise PayloadError("config: missing")
        found = (node := _node(context)).describe(config)
        for client in found:
            held.check_agreement(context.node_config, client.name, node.keeps_uploads(config))
        return description_values(found)

    return _answer(message, act)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train one client."""
    return _visit(message, context, partial(_train, context))


@app.query("secure")
def secure(message: Message, context: Context) -> Message:
    """Answer a stage of secure aggregation for one client.

    Args:
        context: The client's secrets rest here between the stages of a round.
    """
    known = partial(held.peers_of, context.node_config)
    return _answer(message, lambda values: held.answer(context.state, values, _node(context).state, known))


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate one client, and train it for the next round if the message has a job for that as well."""
    anew: dict[str, str] = {}  # clients that start afresh in this message do so once

    def work(node: Node, job: Job) -> Values:
        if job.trains:
            return _train(context, node, replace(job, after=anew.get(job.client, job.after)))
        result, left = node.evaluate(job)
        if left.anew:
            anew[job.client] = left.generation
        return evaluated_values(result, node.counts(job)) | left.to_values()

    return _visit(message, context, work)


def _train(context: Context, node: Node, job: Job) -> Values:
    """Train one client; with secure aggregation, its upload stays in the context."""
    secure = node.keeps_uploads(job.config)
    held.check_agreement(context.node_config, job.client, secure)
    if secure:
        held.check(node.state, job)
    result, left = node.train(job)
    if result.message is not None and secure:
        result = replace(result, message=held.keep(context.state, job, result.message))
    return trained_values(result) | left.to_values()


def _visit(message: Message, context: Context, work: Callable[[Node, Job], Values]) -> Message:
    """Answer a message that carries a job."""

    def act(values: Values) -> Values:
        return work(_node(context), Job.of(values))

    return _answer(message, act)


def _answer(message: Message, act: Callable[[Values], Values]) -> Message:
    """Answer each part of a message with the result of ``act``, or with a one-line error."""
    content: dict[str, Any] = {}
    for number in range(max(1, len(message.content))):
        given = message.content.get(part(number))
        values = dict(given) if isinstance(given, ConfigRecord) else {}
        try:
            answer = act(values)
        except ProtofedError as error:
            answer = {"error": str(error), "client": str(values.get("client", ""))}
        content[part(number)] = ConfigRecord(answer)
    return Message(RecordDict(content), reply_to=message)


def _node(context: Context) -> Node:
    config = context.node_config
    device, fresh = config.get("device", "auto"), config.get("fresh", False)
    check_device(str(device), "device in --node-config")
    if not isinstance(fresh, bool):
        raise ConfigError(f"fresh={fresh!r} in --node-config: must be true or false")
    runs = config.get("runs", RUNS)
    if type(runs) is not int or runs < 1:
        raise ConfigError(f"runs={runs!r} in --node-config: must be a whole number, at least 1")
    place = Path(str(config["state-dir"])).expanduser() if "state-dir" in config else None
    if place is None and "client-dir" in config:
        raise ConfigError('the node has no folder for its model: add state-dir="FOLDER" to --node-config')
    weights = Path(str(config.get("weights-dir", config.get("client-dir", "")))).expanduser()
    folder = str(weights) if {"weights-dir", "client-dir"} & config.keys() else ""
    return Node(source_of(config), place, str(device), fresh, folder, runs, Policy.of(config))
