"""The registry of benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from benchmarks.felt import check_felt, felt
from benchmarks.overhead import check_overhead, overhead
from benchmarks.peer import check_peer, peer
from benchmarks.request import Note, Request, Result
from benchmarks.scaling import check_scaling, scaling
from benchmarks.until import check_until, until
from protofed.errors import ConfigError, unknown_name


class Benchmark(NamedTuple):
    """A check of the settings, and the benchmark, which yields the result so far whenever a case is measured."""

    check: Callable[[Request], None]
    measure: Callable[[Request, Note], Iterator[Result]]


BENCHMARKS = {
    "overhead": Benchmark(check_overhead, overhead),
    "peer": Benchmark(check_peer, peer),
    "scaling": Benchmark(check_scaling, scaling),
    "until": Benchmark(check_until, until),
    "felt": Benchmark(check_felt, felt),
}
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
        BENCHMARKS[benchmark].check(request)
    for benchmark in chosen:
        for result in BENCHMARKS[benchmark].measure(request, partial(_note, note, benchmark)):
            yield benchmark, result


def _note(note: Note, benchmark: str, text: str) -> None:
    note(f"{benchmark}: {text}")
