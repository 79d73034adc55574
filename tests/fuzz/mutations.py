"""Mutations of bytes and of plain values: seeded, so that what is found can be made again."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any

NUMBERS = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
TEXTS = ["", "\0", "a\nb", "../../x", "\x1b[2J", "a" * 300, "\u202e", "'\"<b>&", "NaN", "1e999", "é"]
VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    *NUMBERS,
    10**30,
    *TEXTS,
    b"",
    b"\xff" * 9,
    [],
    {},
    [[]],
    [None],
    {"": None},
    [0] * 70_000,
]


def mutated(seeds: Sequence[bytes], rng: random.Random) -> bytes:
    """Return one of ``seeds`` with a few changes."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        _change(data, seeds, rng)
    return bytes(data)


def _change(data: bytearray, seeds: Sequence[bytes], rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice((1, 2, 4, 8, 64, 1024)))
    kind = rng.randrange(8)
    if kind == 0 and at < len(data):
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1 and at < len(data):
        data[at] = rng.randrange(256)
    elif kind == 2:
        del data[at:end]
    elif kind == 3:
        data[at:at] = data[at:end] * rng.choice((1, 2, 50))
    elif kind == 4:
        del data[at:]
    elif kind == 5:
        width = rng.choice((1, 2, 4, 8))
        number = (rng.choice(NUMBERS) % 256**width).to_bytes(width, rng.choice(("little", "big")))
        data[at : at + width] = number
    elif kind == 6:
        other = rng.choice(seeds)
        start = rng.randrange(len(other) + 1)
        data[at:end] = other[start : start + end - at]
    else:
        data[at:at] = rng.choice(TEXTS).encode()


def changed(value: Any, rng: random.Random) -> Any:
    """Return a copy of a plain value with a few of its parts exchanged, dropped, doubled or moved."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2, 4))):
        value = _exchange(value, rng, rng.randrange(1, 6))
    return value


def _exchange(value: Any, rng: random.Random, depth: int) -> Any:
    if isinstance(value, str) and depth and rng.random() < 0.5 and value[:1] in ("{", "["):
        return (
            as_json(_exchange(json.loads(value), rng, depth - 1)).decode(errors="replace")
            if _is_json(value)
            else value
        )
    if not depth or not isinstance(value, (dict, list)) or not value:
        return copy.deepcopy(rng.choice(VALUES))
    key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
    kind = rng.randrange(8)
    if kind == 0:
        del value[key]
    elif kind == 1 and isinstance(value, dict):
        value[rng.choice(TEXTS)] = value[key]
    elif kind == 1:
        value.append(copy.deepcopy(value[key]))
    else:
        value[key] = _exchange(value[key], rng, depth - 1)
    return value


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def as_json(value: Any) -> bytes:
    """Return a value as JSON, what JSON lacks as text."""
    return json.dumps(value, default=repr).encode("utf-8", "surrogatepass")
