"""A browser, windows of it, and commands that serve pages; see ``browsing.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from browsing import Served, Visitor


@pytest.fixture
def visit(browser: Any, serve: Any) -> Iterator[Callable[..., Visitor]]:
    """Open a window on an address; the test fails if a page errs or asks another host for anything.

    Windows are closed before commands are stopped, which is why ``serve`` is here.
    """
    visitors: list[Visitor] = []

    def open_window(address: str, path: str = "/", **options: Any) -> Visitor:
        visitor = Visitor(browser, address, **options)
        visitors.append(visitor)
        visitor.page.goto(address + path)
        return visitor

    yield open_window
    for visitor in visitors:
        visitor.context.close()
    faults = [fault for visitor in visitors for fault in visitor.faults]
    assert not faults, faults


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start ``protofed …`` on a free port; it is stopped at the end of the test."""
    served: list[Served] = []

    def start(*arguments: str) -> Served:
        served.append(Served(list(arguments), tmp_path))
        return served[-1]

    yield start
    for command in served:
        command.stop()
