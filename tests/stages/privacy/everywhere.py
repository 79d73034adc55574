"""Runs of a tiny private federation on every executor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from protofed.rounds.loop import Federation
from protofed.runs.records import RoundRecord
from support import build

OPTIONS: dict[str, dict[str, Any]] = {"tinyproto": {"method__mu": 0.2}}  #: What methods need to be private


def everywhere(method: str, **chosen: Any) -> Iterator[tuple[Federation, list[RoundRecord]]]:
    """Yield a federation after its run, and the records, for each executor, the sequential one first."""
    # Processes start slowly, so one method is enough for them.
    for executor in ("sequential", "fused", "workers") if method == "fedproto" else ("sequential", "fused"):
        more = {"execution__executor": executor, "execution__workers": 2, "execution__threads": 1}
        federation = build(method, **more, **chosen, **OPTIONS.get(method, {}))
        with closing(federation.executor):
            yield federation, list(federation.run())
