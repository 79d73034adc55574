"""Random numbers that depend on their purpose, never on global state or the order of events."""

from __future__ import annotations

import hashlib
import os
from types import TracebackType

import numpy as np
import torch


def derive(seed: int, *scope: str | int) -> int:
    """Return a 63-bit seed for one purpose, e.g. ``derive(0, "shuffle", round, client)``.

    The same arguments give the same number in every process and on every platform; different scopes give
    independent streams.
    """
    text = "\x1f".join([str(seed), *(f"{type(s).__name__}:{s}" for s in scope)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, *scope: str | int) -> torch.Generator:
    """Return a new CPU generator seeded with :func:`derive`."""
    return torch.Generator().manual_seed(derive(seed, *scope))


class Stream:
    """Seeding of torch's default generators inside ``with`` blocks; each block continues where the last one ended.

    The previous state of the generators is restored after each block.
    """

    def __init__(self, seed: int, *scope: str | int) -> None:
        self._seed = derive(seed, *scope)
        self._states: list[torch.Tensor] = []
        self._outer: list[torch.Tensor] = []

    def __enter__(self) -> None:
        generators = _default_generators()
        self._outer = [g.get_state() for g in generators]
        for number, g in enumerate(generators):
            if number < len(self._states):
                g.set_state(self._states[number])
            else:
                g.manual_seed(self._seed)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        generators = _default_generators()
        self._states = [g.get_state() for g in generators]
        for g, state in zip(generators, self._outer, strict=False):
            g.set_state(state)


seeded = Stream
"""Seed torch's default generators inside a ``with`` block (initial weights, dropout) and restore them after."""


def uniform_from_system(n: int) -> torch.Tensor:
    """Return numbers in ``(0, 1)``, ``(n,)`` float64, from the operating system: nobody can repeat them."""
    bits = np.frombuffer(os.urandom(8 * n), dtype=np.uint64)
    return torch.from_numpy(((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)


def _default_generators() -> list[torch.Generator]:
    # torch.manual_seed does the same, but records a stack trace each time if CUDA was never used.
    cuda = list(torch.cuda.default_generators) if torch.cuda.is_initialized() else []
    return [torch.default_generator, *cuda]
