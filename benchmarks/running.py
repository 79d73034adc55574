"""The registry of benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.felt import check_felt, felt
from benchmarks.overhead import check_overhead, overhead
from benchmarks.peer import check_peer, peer
from benchmarks.request import Note, Request, Result
from benchmarks.scaling import check_scaling, scaling
from benchmarks.until import check_until, until
from protofed.errors import ConfigError, unknown_name

BENCHMARKS: dict[str, tuple[Callable[[Request], None], Callable[[Request, Note], Iterator[Result]]]] = {
    "overhead": (check_overhead, overhead),
    "peer": (check_peer, peer),
    "scaling": (check_scaling, scaling),
    "until": (check_until, until),
    "felt": (check_felt, felt),
}
"""Checks of settings, and benchmarks, which yield the result so far whenever a case is measured."""
ALL = "all"


def measure(name: str, request: Request, note: Note) -> Iterator[tuple[str, Result]]:
    """Run one benchmark, or ``all``: those that take minutes, ``peer`` only if a checkout is given.

    Yields:
        The name of a benchmark and its result so far, whenever a case of it has been measured.
    """
    if name not in (*BENCHMARKS, ALL):
        raise ConfigError(unknown_name("benchmark", name, [*BENCHMARKS, ALL]))
    peers = ["peer"] if request.peer is not None else []
    chosen = [name] if name != ALL else ["overhead", *peers, "scaling"]
    for benchmark in chosen:
        BENCHMARKS[benchmark][0](request)
    for benchmark in chosen:
        named = partial(lambda name, text: note(f"{name}: {text}"), benchmark)
        for result in BENCHMARKS[benchmark][1](request, named):
            yield benchmark, result
