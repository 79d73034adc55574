"""Metrics of finished runs as texts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from protofed.runs.metrics import Metrics
from protofed.text import mean_std, percent


def area(value: float | None) -> str:
    """Return an area under a curve, by custom a fraction.

    Example:
        >>> area(0.98325), area(None)
        ('0.983', '–')
    """
    return "–" if value is None else f"{value:.3f}"


def writer(name: str) -> Callable[[float | None], str]:
    """Return the function that writes a metric: areas as fractions, all others in percent."""
    return area if name == "auroc" else percent


def overall_text(metrics: Sequence[Metrics], name: str) -> str:
    """Return a metric of all test samples together, mean ± std over runs."""
    return mean_std([getattr(each.overall, name) for each in metrics], writer(name))


def spread_text(metrics: Sequence[Metrics], name: str) -> str:
    """Return mean ± spread over clients of a metric, averaged over runs; a dash where no client has it."""
    found = [over for each in metrics if (over := each.over_clients(name))]
    if not found:
        return "–"
    mean, spread = (
        writer(name)(statistics.fmean(part)).removesuffix("%") for part in list(zip(*found, strict=True))[:2]
    )
    return f"{mean} ± {spread}"
