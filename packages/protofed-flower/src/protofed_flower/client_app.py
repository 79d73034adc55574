"""The ClientApp: passes Flower's messages to the node and the node's answers to Flower."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from protofed.compute import numerics
from protofed.compute.imports import pause_collection
from protofed.errors import ConfigError, PayloadError, refusal

numerics.prepare()
with pause_collection():  # each message is answered by a new process
    from protofed import __version__
    from protofed.engine import check_device
    from protofed.untrusted import claims
    from protofed_flower import held
    from protofed_flower.folder import check_private
    from protofed_flower.ledger import NAME, NodeLedger
    from protofed_flower.messages import (
        Expected,
        Job,
        Values,
        description_values,
        evaluated_values,
        sizes_values,
        trained_values,
    )
    from protofed_flower.node import Node
    from protofed_flower.nodes import part
    from protofed_flower.policy import Policy
    from protofed_flower.refusals import refusal_values
    from protofed_flower.settings import node_settings
    from protofed_flower.sources import source_of
    from protofed_flower.state import RUNS

log = logging.getLogger("protofed")
app = ClientApp()  #: The ClientApp for any method, in simulations and deployments


@app.query()
def query(message: Message, context: Context) -> Message:
    """Describe the node's clients; for a job, state the size of one client's model or that its state is here."""

    def act(node: Node, values: Values) -> Values:
        if "client" in values:
            job = Job.of(values)
            if not job.after:
                return sizes_values(node.fit(job))
            node.check_held(job)
            return {}
        config = values.get("config")
        if not isinstance(config, str):
            raise PayloadError("config: missing")
        found = node.describe(config, Expected.of(values.get("expected", "{}")))
        for client in found:
            held.check_agreement(node.settings, client.name, node.keeps_uploads(config))
        held.log_ends(node.settings)
        return {**description_values(found), "config": node.reads(config), "time": time.time()}

    return _answer(message, context, act)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train one client."""
    return _visit(message, context, partial(_train, context))


@app.query("secure")
def secure(message: Message, context: Context) -> Message:
    """Answer a stage of secure aggregation for one client, whose secrets rest in the context between stages."""

    def act(node: Node, values: Values) -> Values:
        return held.answer(context.state, values, node.state, partial(held.peers_of, node.settings))

    return _answer(message, context, act)


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
    held.check_agreement(node.settings, job.client, secure)
    if secure:
        held.check(node.state, job)
    result, left = node.train(job)
    if result.message is not None and secure:
        offer = held.keep(context.state, job, result.message, node.architecture(job))
        result = replace(result, message=offer)
    return trained_values(result) | left.to_values()


def _visit(message: Message, context: Context, work: Callable[[Node, Job], Values]) -> Message:
    """Answer a message that carries a job."""

    def act(node: Node, values: Values) -> Values:
        return work(node, Job.of(values))

    return _answer(message, context, act)


def _answer(message: Message, context: Context, act: Callable[[Node, Values], Values]) -> Message:
    """Answer each part of a message with the result of ``act``, or with a one-line error; note it in the ledger."""
    content: dict[str, Any] = {}
    for number in range(max(1, len(message.content))):
        given = message.content.get(part(number))
        values = dict(given) if isinstance(given, ConfigRecord) else {}
        node = None
        try:
            node = _node(context.node_config)
            if (theirs := values.get("version")) != __version__:
                raise refusal(
                    "version",
                    text=f"the server runs protofed {claims.clean(theirs or 'of an older version', 40)}, this node "
                    f"{__version__}: install one version on both",
                )
            with node.importing():
                answer = act(node, values)
        except Exception as error:  # Flower would send the sentence of any
            answer = refusal_values(values.get("client"), error)
        try:
            answer = {**answer, **_enter(node, values, answer)}
        except Exception as error:  # nothing but this refusal leaves that is not in the ledger
            answer = refusal_values(values.get("client"), error)
        content[part(number)] = ConfigRecord({**answer, "version": __version__})
    return Message(RecordDict(content), reply_to=message)


def _enter(node: Node | None, request: Values, answer: Values) -> Values:
    """Enter an answer in the node's ledger, if it has one; return the hash of its line."""
    if node is None or node.state is None:
        return {}
    ledger = NodeLedger(Path(str(node.settings.get("ledger", node.state / NAME))).expanduser())
    return {"ledger": ledger.record(request, answer, node.entered)}


def _node(given: Mapping[str, Any]) -> Node:
    config = node_settings(given)
    device, fresh = config.get("device", "auto"), config.get("fresh", False)
    check_device(str(device), "device in --node-config")
    if not isinstance(fresh, bool):
        raise ConfigError(f"fresh={fresh!r} in --node-config: must be true or false")
    runs = config.get("runs", RUNS)
    if type(runs) is not int or runs < 1:
        raise ConfigError(f"runs={runs!r} in --node-config: must be a whole number, at least 1")
    place = Path(str(config["state-dir"])).expanduser() if "state-dir" in config else None
    if place is not None and place.exists():
        check_private(place)
    if place is None and "client-dir" in config:
        raise ConfigError('the node has no folder for its model: add state-dir="FOLDER" to --node-config')
    weights = Path(str(config.get("weights-dir", config.get("client-dir", "")))).expanduser()
    folder = str(weights) if {"weights-dir", "client-dir"} & config.keys() else ""
    policy = Policy.of(config)
    return Node(source_of(config), place, str(device), fresh, folder, runs, policy, config)
