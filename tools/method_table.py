"""A table of the declared requirements and the measured traffic of every method."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple

from protofed.config.schema import apply_overrides, every_method, load_recipe, resolve
from protofed.errors import ConfigError
from protofed.experiments.assemble import assemble
from protofed.methods import Method
from protofed.stages.privacy import PrivacyOptions
from protofed.stages.privacy.clients import layout_of
from protofed.stages.privacy.samples import check
from protofed.stages.secure.sums import SumLayout
from protofed.text import number, size

ROUNDS = 2  #: Prototype methods send nothing down in the first round, so the second is measured
SETTING: dict[str, Any] = {
    "data.clients": 5,
    "data.labels": dict(zip("0123456789", "abcdefghij", strict=True)),  # names in the same order, not numbers
    "encoder.name": "none",
    "model.name": "mlp",
    "rounds": ROUNDS,
    "training.batch_size": 512,  # the traffic is the same, and few steps are taken
    "execution.device": "cpu",
    "execution.executor": "sequential",
}
"""Overrides of the recipe ``quickstart``: one architecture, so that every method runs."""


class ClientTraffic(NamedTuple):
    """Mean traffic of a client per round, in parameters as papers count them and in bytes."""

    parameters_up: float
    parameters_down: float
    bytes_up: float
    bytes_down: float


def measure(name: str) -> tuple[Method, ClientTraffic | None]:
    """Return a method with default options, and the traffic of its second round.

    The traffic is None if it depends on the results of training.
    """
    tree = apply_overrides(load_recipe("quickstart"), SETTING)
    federation, _ = assemble(resolve(tree, method=name))
    with closing(federation.executor):
        schemas = (federation.method.upload_schema, federation.method.broadcast_schema)
        if any(set(schema.limits) - {"k"} for schema in schemas if schema is not None):
            return federation.method, None
        *_, record = federation.run()
    clients = len(record.participants)
    totals = (record.parameters["up"], record.parameters["down"], record.bytes["up"], record.bytes["down"])
    return federation.method, ClientTraffic(*(value / clients for value in totals))


def method_table() -> str:
    """Return a Markdown table of all methods, those that send least first."""
    protections = ["secure sums", "DP of clients", "DP of samples"]
    words = ["method", "exchanges", "different architectures", *protections, "up", "down"]
    numbers = ["numbers up", "numbers down", "bytes up", "bytes down"]
    lines = [[*words, *numbers], ["---"] * len(words) + ["---:"] * len(numbers)]
    for name in every_method():
        method, traffic = measure(name)
        lines.append([f"`{name}`", *_format_traits(method), *_format_traffic(traffic)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _format_traits(method: Method) -> list[str]:
    traits = method.declared
    architectures = {"nothing": "yes", "features": "yes, one d", "architecture": "no"}[traits.alike]
    asked = (lambda: SumLayout(method, 24), lambda: layout_of(method, PrivacyOptions()), lambda: check(method))
    allowed = ["–" if traits.exchanges == "nothing" else "yes" if _works(each) else "no" for each in asked]
    # A bar would end the table's cell.
    formulas = [formula.replace("|", "\\|") for formula in (traits.up, traits.down)]
    return [traits.exchanges, architectures, *allowed, *formulas]


def _works(build: Callable[[], Any]) -> bool:
    try:
        build()
    except ConfigError:
        return False
    return True


def _format_traffic(traffic: ClientTraffic | None) -> list[str]:
    if traffic is None:
        return ["varies"] * 4
    numbers, sizes = traffic[:2], traffic[2:]
    return [*(number(round(n, 1)) for n in numbers), *map(size, sizes)]
