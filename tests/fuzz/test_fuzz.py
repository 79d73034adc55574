"""Mutations of all that is read from others: what is no good is refused in one line, in bounded time and memory.

A short round belongs to the ordinary tests. The long one is ``pytest -m slow tests/fuzz``, with as many mutations
of each kind as ``PROTOFED_FUZZ`` says; ``PROTOFED_FUZZ_FROM`` begins further on, to find new ones or one again.
"""

from __future__ import annotations

import os
import random
import warnings
from pathlib import Path

import pytest

from fuzz.targets import TARGETS
from hostile.bounds import frugal, hasty
from support import few

SHORT = {"parquet": 60, "rounds.jsonl": 60, "prototypes.safetensors": 30}
LONG = int(os.environ.get("PROTOFED_FUZZ", "10000"))
FROM = int(os.environ.get("PROTOFED_FUZZ_FROM", "0"))


def fuzz(name: str, count: int, folder: Path, start: int = 0) -> int:
    """Read ``count`` mutations; return how many of them were refused."""
    target, refused = TARGETS[name], 0
    for i in range(start, start + count):
        try:
            with hasty(5), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                target.call(random.Random(f"{name} {i}"), folder)
        except target.error as error:
            refused += 1
            told = str(error)
            assert told, f"{name} {i}"
            assert told.isprintable(), f"{name} {i}: {told!r}"
            assert len(told) < 3000, f"{name} {i}: {told[:200]}"
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"{name} {i}: {type(error).__name__}: {error}") from error
    return refused


@few("name", TARGETS, 4)
def test_short_round(name, tmp_path):
    count = SHORT.get(name, 150)
    with frugal(600):
        assert 0 < fuzz(name, count, tmp_path) <= count


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_long_round(name, tmp_path):
    with frugal(800):
        fuzz(name, LONG, tmp_path, FROM)
