"""Results as a data frame of pandas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from protofed.runs.run import Run

if TYPE_CHECKING:
    from pandas import DataFrame


def frame_of(runs: Iterable[Run], axes: Mapping[str, Sequence[str]]) -> DataFrame:
    """Return one row per run and inference rule.

    Its columns are ``method`` (the arm), one per axis, ``seed``, ``rule``, ``main`` (the method's main rule),
    ``final`` and ``best`` accuracy, ``client_mean`` and ``client_std`` over clients, ``union`` and ``unseen`` in
    percent; ``rounds``, bytes ``up`` and ``down`` of all clients together, ``seconds`` and ``directory``.
    """
    from pandas import DataFrame

    return DataFrame([row for run in runs for row in _rows(run, axes)])


def _rows(run: Run, axes: Mapping[str, Sequence[str]]) -> Iterable[dict[str, Any]]:
    traffic = run.outcome.communication.bytes_total
    for name, found in run.outcome.accuracy.items():
        shares = {part: getattr(found, part) for part in ("final", "best", "client_mean", "client_std")}
        shares |= {"union": found.union and found.union.final, "unseen": found.unseen and found.unseen.final}
        yield {
            "method": run.arm,
            **dict(zip(axes, run.values, strict=False)),
            "seed": run.seed,
            "rule": name,
            "main": name == run.main_rule,
            **{part: None if share is None else 100 * share for part, share in shares.items()},
            "rounds": run.outcome.rounds,
            "up": traffic["up"],
            "down": traffic["down"],
            "seconds": run.outcome.seconds["total"],
            "directory": str(run.directory),
        }
