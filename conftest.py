"""What all tests share: where real data lie, one thread, a small federation."""

from __future__ import annotations

import functools
import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import choosing
from protofed.compute import numerics

numerics.prepare()  # before torch computes
os.environ["PROTOFED_CACHE"] = ""  # features of one test are no matter of the next
REPOSITORY = Path(__file__).resolve().parent

sys.dont_write_bytecode = False  # tests start many processes, each of which would compile the package again
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the slow tests be run a part at a time."""
    parser.addoption(
        "--shard", help="of the slow tests run only those of this shard, such as 0/8; with -m '' or -m slow"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Leave slow cases out of fast tests; try more generated examples where slow ones are run, too."""
    marks = config.option.markexpr
    ordinary = marks == "not slow" or marks.startswith("fast") or (not marks and config.option.shard)
    if not config.getoption("hypothesis_profile", None):
        hypothesis.settings.register_profile("tests", max_examples=25 if ordinary else 100, deadline=None)
        hypothesis.settings.load_profile("tests")
    if config.option.markexpr == "fast":
        config.option.markexpr = "fast and not slow"
    if not config.option.numprocesses or hasattr(config, "workerinput"):
        from typer import main  # here, before typer.testing has a copy of the function

        # A command line is built of its functions' signatures, once in a user's process and not for every test.
        main.get_command = functools.cache(main.get_command)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Leave libraries and tests, which stay to the end, out of the search for what can be freed."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files without fast tests unread when only those are run: reading all takes as long as the tests."""
    if collection_path.suffix == ".py" and config.option.markexpr.startswith("fast"):
        return None if "mark.fast" in collection_path.read_text() else True
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Begin with files that wait for others, which a process of pytest-xdist takes whole."""
    choosing.spare_methods(items)
    if config.option.shard:
        left = choosing.shard(items, config.option.shard)
        config.hook.pytest_deselected(items=left)
        out = set(left)
        items[:] = [item for item in items if item not in out]
    yield
    waiting = {item.path for item in items if item.get_closest_marker("waits")}
    items.sort(key=lambda item: item.path not in waiting)


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


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    from browsing import chromium

    executable = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield launched
        launched.close()
