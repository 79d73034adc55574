"""Randomness that depends on what it is for, never on global state or on the order of arrival."""

from __future__ import annotations

import hashlib
from types import TracebackType

import torch


def derive(seed: int, *scope: str | int) -> int:
    """Return a 63-bit seed for ``scope``, e.g. ``derive(0, "shuffle", round, client)``.

    The same arguments give the same number in every process and on every platform; different scopes give
    independent streams.
    """
    text = "\x1f".join([str(seed), *(f"{type(s).__name__}:{s}" for s in scope)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, *scope: str | int) -> torch.Generator:
    """Return a fresh CPU generator seeded with :func:`derive`."""
    return torch.Generator().manual_seed(derive(seed, *scope))


class Stream:
    """Torch's default generators, seeded for one purpose; every ``with`` block goes on where the last one ended.

    What the generators were at is restored after each block.

    Args:
        seed: The experiment's seed.
        scope: What the numbers are for, as in :func:`derive`.
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


def seeded(seed: int, *scope: str | int) -> Stream:
    """Seed torch's default generators inside a ``with`` block (initial weights, dropout); restore them after."""
    return Stream(seed, *scope)


def _default_generators() -> list[torch.Generator]:
    # torch.manual_seed does the same, but where CUDA was never used it records a stack trace each time.
    cuda = list(torch.cuda.default_generators) if torch.cuda.is_initialized() else []
    return [torch.default_generator, *cuda]
