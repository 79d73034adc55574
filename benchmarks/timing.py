"""Timing of variants of the same work in turn, so that other load on the machine affects all of them equally."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from benchmarks.request import Note
from protofed.compute.numerics import cores

MOST_COUNTS = 8


class Variant(NamedTuple):
    """An implementation of a round with a number of torch threads; only ``run`` is timed."""

    name: str
    threads: int
    prepare: Callable[[], object]
    run: Callable[[], object]


class Timings:
    """Seconds per round of variants that took turns, by name and number of threads."""

    def __init__(self, seconds: Mapping[tuple[str, int], Sequence[float]]) -> None:
        self.seconds = {key: list(values) for key, values in seconds.items()}

    @property
    def names(self) -> list[str]:
        """The names of the implementations, in order."""
        return list(dict.fromkeys(name for name, _ in self.seconds))

    def median(self, name: str, threads: int) -> float:
        """Return the median seconds per round of a variant."""
        return statistics.median(self.seconds[name, threads])

    def best(self, name: str) -> int:
        """Return the number of threads with the smallest median."""
        return min(
            (threads for other, threads in self.seconds if other == name),
            key=lambda threads: self.median(name, threads),
        )

    def ratio(self, name: str, to: str, threads: int | None = None) -> float | None:
        """Return the median over rounds of the ratio of two times.

        Args:
            name: Implementation in the numerator, with its best number of threads.
            to: Implementation in the denominator, with ``threads`` or its best number; None if not measured.
        """
        if to not in self.names or (threads and (to, threads) not in self.seconds):
            return None
        pairs = zip(self.seconds[name, self.best(name)], self.seconds[to, threads or self.best(to)], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def figures(self) -> dict[str, dict[str, list[float]]]:
        """Return the seconds of every round as plain values, by name and number of threads."""
        return {name: {str(t): s for (n, t), s in self.seconds.items() if n == name} for name in self.names}


def take_turns(variants: Sequence[Variant], rounds: int, note: Note) -> Timings:
    """Run all variants in turn, in alternating order: once to warm up and then several timed rounds."""
    seconds: dict[tuple[str, int], list[float]] = {(v.name, v.threads): [] for v in variants}
    before = torch.get_num_threads()
    try:
        for number in range(rounds + 1):
            for variant in variants if number % 2 == 0 else reversed(variants):
                threads = f"{variant.threads} thread{'s' if variant.threads > 1 else ''}"
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


def thread_counts(device: torch.device, wanted: Sequence[int]) -> list[int]:
    """Return the numbers of threads to try.

    Args:
        wanted: Numbers given by the user; if empty, 1 to all cores (powers of two if there are more than eight).
    """
    if wanted:
        return list(dict.fromkeys(wanted))
    if device.type != "cpu":
        return [torch.get_num_threads()]
    most = cores()
    if most <= MOST_COUNTS:
        return list(range(1, most + 1))
    return [*(2**i for i in range(most.bit_length()) if 2**i < most), most]
