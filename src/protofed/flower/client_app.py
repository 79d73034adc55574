"""The ClientApp: hands what Flower brings to the node, and the node's answers to Flower."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from protofed.errors import ConfigError, PayloadError, ProtofedError
from protofed.flower.grid import RECORD, STATES
from protofed.flower.messages import Job, Values, description_values, evaluated_values, sizes_values, trained_values
from protofed.flower.node import Node
from protofed.flower.sources import source_of

app = ClientApp()
"""The ClientApp, of a simulation and of a deployment, that runs any method."""


@app.query()
def query(message: Message, context: Context) -> Message:
    """Tell the server whose data are here, or how large the model of a client is."""

    def act(values: Values) -> Values:
        if "client" in values:
            return sizes_values(_node(context, Path()).fit(Job.of(values)))
        config = values.get("config")
        if not isinstance(config, str):
            raise PayloadError("config: missing")
        return description_values(_node(context, Path()).describe(config))

    return _answer(message, act)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train one client."""
    return _visit(message, context, lambda node, job: trained_values(node.train(job)))


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Score one client."""
    return _visit(message, context, lambda node, job: evaluated_values(node.evaluate(job), node.counts(job)))


def _visit(message: Message, context: Context, work: Callable[[Node, Job], Values]) -> Message:
    """Return what the node makes of a job."""

    def act(values: Values) -> Values:
        job = Job.of(values)
        return work(_node(context, _states(context, job)), job)

    return _answer(message, act)


def _answer(message: Message, act: Callable[[Values], Values]) -> Message:
    """Return what ``act`` makes of a message, or what is wrong with it in one line."""
    given = message.content.get(RECORD)
    values = dict(given) if isinstance(given, ConfigRecord) else {}
    try:
        found = act(values)
    except ProtofedError as error:
        found = {"error": str(error), "client": str(values.get("client", ""))}
    content: dict[str, Any] = {RECORD: ConfigRecord(found)}
    return Message(RecordDict(content), reply_to=message)


def _node(context: Context, states: Path) -> Node:
    device = context.node_config.get("device", "auto")
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device={device!r} in --node-config: must be auto, cpu or cuda")
    return Node(source_of(context.node_config), states, device)  # type: ignore[arg-type]


def _states(context: Context, job: Job) -> Path:
    """Return where the node keeps its clients' models; only nodes of a simulation let the server say."""
    config = context.node_config
    if "state-dir" in config:
        return Path(str(config["state-dir"])).expanduser()
    if "client-dir" in config or not job.home:
        raise ConfigError('the node has no place for its model: add state-dir="FOLDER" to --node-config')
    return Path(job.home) / STATES
