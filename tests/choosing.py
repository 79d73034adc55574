"""Which tests run: slow ones in shards, and tests of every method for the methods that a change touches."""

from __future__ import annotations

import functools
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
KINDS = {"local", "fedproto", "gfpl", "beacon", "fedavg", "fedlda"}
"""A method of each kind. Tests of every method are run for these, and for all others with ``-m slow``."""
SHARED = tuple(
    f"src/protofed/{place}"
    for place in ("methods/parts/", "methods/contract.py", "methods/traits.py", "visits/", "rounds/")
)
"""What every method runs on: a change of it runs the conformance suite for every method."""


@functools.cache
def touched(root: Path = REPOSITORY) -> frozenset[str] | None:
    """Return the files that differ from the parent commit, or None if that commit is not here."""
    try:
        command = ["git", "diff", "--name-only", "HEAD^"]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return frozenset(done.stdout.splitlines())


def methods_to_test(files: Iterable[str] | None, every: dict[str, type], conformance: bool) -> set[str]:
    """Return the methods for which tests of every method run: one of each kind, and those that a change touches.

    Args:
        files: The files that changed. None means unknown: the conformance suite runs for all.
        every: The classes of the methods by name.
        conformance: Whether the tests are those of the conformance suite.
    """
    if conformance and (files is None or any(name.startswith(SHARED) for name in files)):
        return set(every)
    own = [name for name in files or () if not name.startswith(SHARED)]
    modules = {name.removeprefix("src/").removesuffix(".py").replace("/", ".") for name in own}
    return KINDS | {n for n, kind in every.items() if modules & {base.__module__ for base in kind.__mro__}}


def spare_methods(items: list[pytest.Item]) -> None:
    """Mark tests of every method as slow for the methods that others stand for."""
    from protofed.methods import methods

    registry = methods()
    every = {name: registry.get(name) for name in registry}
    tests: dict[tuple[Path, str], list[tuple[pytest.Item, set[str]]]] = defaultdict(list)
    for item in items:
        values = getattr(getattr(item, "callspec", None), "params", {}).values()
        if named := {value for value in values if isinstance(value, str)} & set(every):
            tests[item.path, item.originalname].append((item, named))  # type: ignore[attr-defined]
    for (path, _), cases in tests.items():
        if len(set().union(*(named for _, named in cases))) > len(every) // 2:
            chosen = methods_to_test(touched(), every, path.name == "test_conformance.py")
            for item, named in cases:
                if not named & chosen:
                    item.add_marker("slow")


def shard(items: list[pytest.Item], which: str) -> list[pytest.Item]:
    """Return the slow tests that are not of shard ``which``, such as ``3/8``; the first is 0/8.

    Cases of one test stand beside each other and take about as long, so each shard takes every eighth.
    """
    number, _, count = which.partition("/")
    if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise pytest.UsageError(f"--shard: {which!r} is no shard: expected one such as 0/8 to 7/8")
    slow = sorted((item for item in items if item.get_closest_marker("slow")), key=lambda item: item.nodeid)
    return [item for i, item in enumerate(slow) if i % int(count) != int(number)]
