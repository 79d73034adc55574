"""Clocks: variants of the same work in turn, so that whatever else the machine does hits all alike."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from protofed.benchmark.request import Note

MOST_COUNTS = 8


class Variant(NamedTuple):
    """One way to do a round with a number of threads.

    Attributes:
        name: Of the way.
        threads: Of this process while it runs.
        prepare: Called before the clock starts.
        run: What is timed; returns only when the work is done.
    """

    name: str
    threads: int
    prepare: Callable[[], object]
    run: Callable[[], object]


class Timings:
    """Seconds per round of variants that took turns.

    Attributes:
        seconds: By name and number of threads, one entry per round.
    """

    def __init__(self, seconds: Mapping[tuple[str, int], Sequence[float]]) -> None:
        self.seconds = {key: list(values) for key, values in seconds.items()}

    @property
    def names(self) -> list[str]:
        """The ways, in their order."""
        return list(dict.fromkeys(name for name, _ in self.seconds))

    def median(self, name: str, threads: int) -> float:
        """Return the median of the rounds."""
        return statistics.median(self.seconds[name, threads])

    def best(self, name: str) -> int:
        """Return the number of threads with the smallest median."""
        return min(
            (threads for other, threads in self.seconds if other == name),
            key=lambda threads: self.median(name, threads),
        )

    def ratio(self, name: str, to: str, threads: int | None = None) -> float | None:
        """Return how many times as long ``name`` takes as ``to``: the median over rounds.

        Each with its best number of threads, or ``to`` with ``threads``. None where that was not tried.
        """
        if to not in self.names or (threads and (to, threads) not in self.seconds):
            return None
        pairs = zip(self.seconds[name, self.best(name)], self.seconds[to, threads or self.best(to)], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def figures(self) -> dict[str, dict[str, list[float]]]:
        """Return the seconds of every round as plain values, by name and number of threads."""
        return {name: {str(t): s for (n, t), s in self.seconds.items() if n == name} for name in self.names}


def take_turns(variants: Sequence[Variant], rounds: int, note: Note) -> Timings:
    """Run every variant once to warm up and then ``rounds`` times, in turn; every other time backwards."""
    seconds: dict[tuple[str, int], list[float]] = {(v.name, v.threads): [] for v in variants}
    before = torch.get_num_threads()
    try:
        for number in range(rounds + 1):
            for variant in variants if number % 2 == 0 else reversed(variants):
                threads = f"{variant.threads} thread{'s' * (variant.threads > 1)}"
                note(f"{f'round {number} of {rounds}' if number else 'warming up'}: {variant.name}, {threads}")
                torch.set_num_threads(variant.threads)
                variant.prepare()
                start = time.perf_counter()
                variant.run()
                if number:
                    seconds[variant.name, variant.threads].append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(before)
    return Timings(seconds)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_counts(device: torch.device, wanted: Sequence[int]) -> list[int]:
    """Return the numbers of threads to try: those wanted, else 1 to all cores (powers of two beyond eight)."""
    if wanted:
        return list(dict.fromkeys(wanted))
    if device.type != "cpu":
        return [torch.get_num_threads()]
    most = cores()
    if most <= MOST_COUNTS:
        return list(range(1, most + 1))
    return [*(2**i for i in range(most.bit_length()) if 2**i < most), most]
