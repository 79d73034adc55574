"""Lines of values that were recorded round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from protofed.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = Mapping[int, float]  #: Round → value


def scalars(diagnostics: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the single numbers among (nested) diagnostics, under dotted names; lists are left out."""
    numbers: dict[str, float] = {}
    for name, value in diagnostics.items():
        if isinstance(value, Mapping):
            numbers |= scalars(value, f"{prefix}{name}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            numbers[prefix + name] = float(value)
    return numbers


def read_numbers(run: Run, part: str, name: str) -> dict[int, float]:
    """Return round → a number among its ``losses`` or ``diagnostics``, NaN where it is missing; {} if always."""
    values = {r.round: scalars(getattr(r, part)).get(name) for r in run.rounds}
    known = any(v is not None for v in values.values())
    return {t: float("nan") if v is None else v for t, v in values.items()} if known else {}


def band(ax: Axes, curves: Sequence[Curve], line: dict[str, Any], label: str, *, ring: bool = False) -> list[float]:
    """Draw mean ± sample standard deviation over the rounds that all curves have; return the values drawn."""
    import numpy as np

    rounds = sorted(set.intersection(*(set(c) for c in curves))) if curves else []
    if not rounds:
        return []
    values = np.array([[curve[t] for t in rounds] for curve in curves], dtype=float)
    mean = values.mean(0)
    ax.plot(rounds, mean, label=label, markevery=max(1, len(rounds) // 12), **line)
    if ring:
        best = int(mean.argmax())
        ax.plot(rounds[best], mean[best], "o", ms=9, mfc="none", mec=line["color"], mew=1.3)
    if len(curves) == 1:
        result: list[float] = mean.tolist()
        return result
    spread = values.std(0, ddof=1)
    ax.fill_between(rounds, mean - spread, mean + spread, color=line["color"], alpha=0.16, linewidth=0)
    return [*(mean - spread).tolist(), *(mean + spread).tolist()]
