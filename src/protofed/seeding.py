"""Randomness that depends on what it is for, never on global state or on the order of arrival."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def seeded(seed: int, *scope: str | int) -> Iterator[None]:
    """Seed torch's default generators inside the block (initial weights, dropout) and restore them after."""
    # torch.manual_seed does the same, but where CUDA was never used it records a stack trace each time.
    generators = [torch.default_generator]
    if torch.cuda.is_initialized():
        generators += torch.cuda.default_generators
    states = [g.get_state() for g in generators]
    for g in generators:
        g.manual_seed(derive(seed, *scope))
    try:
        yield
    finally:
        for g, state in zip(generators, states, strict=True):
            g.set_state(state)
