"""The ClientApp: hands what Flower brings to the node, and the node's answers to Flower."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from protofed.errors import ConfigError, PayloadError, ProtofedError
from protofed.flower.grid import RECORD
from protofed.flower.messages import Job, Values, description_values, evaluated_values, trained_values
from protofed.flower.node import Node
from protofed.flower.sources import source_of


def client_app(state: Path | None = None) -> ClientApp:
    """Return the ClientApp that runs any method.

    Args:
        state: Folder for the clients' states in a simulation; a deployed node names its own (``state-dir``).
    """
    app = ClientApp()

    def answer(message: Message, context: Context, act: Callable[[Node, dict[str, Any]], Values]) -> Message:
        given = message.content.get(RECORD)
        values = dict(given) if isinstance(given, ConfigRecord) else {}
        try:
            found = act(_node(context, state), values)
        except ProtofedError as error:
            found = {"error": str(error), "client": str(values.get("client", ""))}
        content: dict[str, Any] = {RECORD: ConfigRecord(found)}
        return Message(RecordDict(content), reply_to=message)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        def act(node: Node, values: dict[str, Any]) -> Values:
            config = values.get("config")
            if not isinstance(config, str):
                raise PayloadError("config: missing")
            return description_values(node.describe(config))

        return answer(message, context, act)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return answer(message, context, lambda node, values: trained_values(node.train(Job.of(values))))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return answer(message, context, lambda node, values: evaluated_values(node.evaluate(Job.of(values))))

    return app


def _node(context: Context, state: Path | None) -> Node:
    config = context.node_config
    if "state-dir" in config:
        state = Path(str(config["state-dir"])).expanduser()
    elif "client-dir" in config:
        raise ConfigError('the node has no place for its model: add state-dir="FOLDER" to --node-config')
    elif state is None:
        state = Path(str(context.run_config.get("out", "runs/flower"))) / "nodes"
    device = config.get("device", "auto")
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device={device!r} in --node-config: must be auto, cpu or cuda")
    return Node(source_of(config), state, device)  # type: ignore[arg-type]


app = client_app()
"""The ClientApp of this repository as a Flower App."""
