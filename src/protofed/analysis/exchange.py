"""Methods by the content that they send."""

from __future__ import annotations

from collections.abc import Iterable

from protofed.runs.run import Run

EXCHANGES = ("nothing", "prototypes", "logits", "part of the weights", "all weights")
"""Kinds of content that may cross the network, the least first."""


def exchanges(run: Run) -> str:
    """Return a method's kind of messages, one of :data:`EXCHANGES`; ``""`` if not known."""
    from protofed.methods import methods

    if run.federation.exchanges or run.method not in methods():
        return run.federation.exchanges
    kind = methods().get(run.method)
    return kind.traits(kind.Options()).exchanges


def by_exchange(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return runs by their method's kind of messages, the least first."""
    runs = list(runs)
    kinds = dict.fromkeys([*EXCHANGES, *map(exchanges, runs)])
    groups = {kind: [run for run in runs if exchanges(run) == kind] for kind in kinds}
    return {kind: group for kind, group in groups.items() if group}
