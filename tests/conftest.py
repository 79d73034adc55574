"""What all tests share: where real data lie, one thread, a small federation."""

from __future__ import annotations

import itertools
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from protofed.compute import numerics

numerics.prepare()  # before torch computes
os.environ["PROTOFED_CACHE"] = ""  # features of one test are no matter of the next
REPOSITORY = Path(__file__).resolve().parents[1]


FAST = (
    "prototypes",
    "wire",
    "data/test_data_p",
    "data/test_data_s",
    "models/test_s",
    "models/test_n",
    "stages/robust/test_rules",
    "visits/test_visit",
    "visits/test_probe",
    "rounds",
    "experiments/test_config",
    "test_architecture",
)
"""Tests of a developer's day, as beginnings of their paths: mathematics, wire, data, the visit, the round loop."""
REPRESENTATIVE = ("[fedproto", "[fedavg", "[gfpl")
"""Methods of three kinds, which stand for all in the conformance tests of a developer's day."""


LONG = ("apps/flower/test_processes.py", "apps/ui/test_demo_pages.py", "apps/ui/test_runs_pages.py")
"""Files whose tests wait for other processes, or share a page: each belongs in the first half of a process."""


KINDS = {
    *("local", "fixed_etf", "fedproto", "fedtgp", "tinyproto", "gfpl"),
    *("beacon", "fedavg", "fedkd", "fesem", "fedlda"),
}
"""A method of each kind. Tests of every method are run for these, and for all others with ``-m slow``."""


def spare_methods(items: list[pytest.Item]) -> None:
    """Mark tests of every method as slow for the methods that others stand for."""
    from protofed.methods import methods

    every = set(methods())
    tests: dict[tuple[Path, str], list[tuple[pytest.Item, set[str]]]] = defaultdict(list)
    for item in items:
        values = getattr(getattr(item, "callspec", None), "params", {}).values()
        if named := {value for value in values if isinstance(value, str)} & every:
            tests[item.path, item.originalname].append((item, named))  # type: ignore[attr-defined]
    for cases in tests.values():
        if len(set().union(*(named for _, named in cases))) > len(every) // 2:
            for item, named in cases:
                if not named & KINDS:
                    item.add_marker("slow")


def path_of(item: pytest.Item) -> str:
    """Return the path of a test's file below this folder."""
    return item.path.as_posix().partition("/tests/")[2]


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return tests so that processes of pytest-xdist, which take equal parts in order, wait at different times."""
    parts: list[list[pytest.Item]] = [[] for _ in range(int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))]
    slow = [item for item in items if item.get_closest_marker("slow")]  # usually not run
    ordinary = [item for item in items if not item.get_closest_marker("slow")]
    rest = iter([item for item in ordinary if path_of(item) not in LONG])
    waiting = [[item for item in ordinary if path_of(item) == path] for path in LONG]
    size = -(-len(ordinary) // len(parts))
    for number, part in enumerate(parts):
        own = waiting[number :: len(parts)]
        part += itertools.islice(rest, max(0, size - sum(map(len, own))))
        for place, group in enumerate(own, start=number):
            middle = len(part) * place // (2 * len(LONG))
            part[middle:middle] = group
    return [*itertools.chain(*parts), *rest, *slow]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests, and mark those of a developer's day."""
    spare_methods(items)
    items[:] = in_order(items)
    for item in items:
        path = path_of(item)
        conforms = path == "methods/test_conformance.py" and any(name in item.name for name in REPRESENTATIVE)
        command = item.name == "test_run_prints_one_table_and_where_the_report_is"
        if (path.startswith(FAST) or conforms or command) and item.get_closest_marker("slow") is None:
            item.add_marker("fast")


def data_root() -> Path | None:
    """Return the folder with real data: ``PROTOFED_DATA``, or ``shared/data`` beside the repository."""
    candidates = [Path(os.environ["PROTOFED_DATA"])] if os.environ.get("PROTOFED_DATA") else []
    candidates.append(REPOSITORY.parent / "shared" / "data")
    return next((path for path in candidates if path.is_dir()), None)


def real_data(name: str) -> Path:
    """Return the folder of a real data set, or skip the test that asks for it."""
    root = data_root()
    if root is None or not (root / name).exists():
        pytest.skip(f"needs real data: no {name!r} in PROTOFED_DATA or ../shared/data")
    return root / name


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tests run in parallel processes and use tiny models."""
    import torch  # here, because pytest reads this file in the process that only hands out tests as well

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def without_pictures() -> Iterator[Callable[..., Any]]:
    """Leave the pictures out of reports: they take ten times as long as the tiny runs reported."""
    from protofed.analysis.report import page

    draw = page.Plots.draw
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page.Plots, "draw", lambda *_, **__: page.PageFigure(None, "left out by this test"))
        yield draw


@pytest.fixture(autouse=True)
def _log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what a program does to the log, such as a ServerApp, so that later tests read theirs."""
    log = logging.getLogger("protofed")
    for name in ("handlers", "level", "propagate"):
        monkeypatch.setattr(log, name, getattr(log, name))


@pytest.fixture(autouse=True)
def _pictures(request: pytest.FixtureRequest, without_pictures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the pictures of reports in tests that are about them."""
    if request.node.get_closest_marker("pictures") is not None:
        from protofed.analysis.report import page

        monkeypatch.setattr(page.Plots, "draw", without_pictures)
