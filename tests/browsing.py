"""Pages in a real browser: the command as a user starts it, and Chromium looking at it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WAIT_MS = 60_000  #: Patience, not a measurement: machines that run tests may be slow


def chromium() -> str:
    """Return the path of Chromium, or skip the test that asks for it."""
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("needs a browser: pip install 'protofed[dev]' for playwright")
    named = os.environ.get("PROTOFED_CHROMIUM", "")
    found = named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not found:
        pytest.skip("needs a browser: no chromium on the path and none named by PROTOFED_CHROMIUM")
    return found


class Visitor:
    """A browser's window that notes whatever a page should not do."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.context.set_default_timeout(WAIT_MS)
        self.address = address
        self.faults: list[str] = []
        self.page = self.tab()

    def tab(self) -> Any:
        """Open another tab."""
        page = self.context.new_page()
        page.on("console", lambda m: self.faults.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("request", self._request)
        return page

    def check(self) -> None:
        """Fail if there are faults, and forget them: whoever looks next begins with none."""
        faults, self.faults = self.faults, []
        assert not faults, faults

    def _request(self, request: Any) -> None:
        here = self.address.partition("://")[2]
        if not re.match(rf"(https?|wss?)://{re.escape(here)}/|data:|blob:", request.url):
            self.faults.append(f"asked elsewhere: {request.url}")


class Served:
    """A command that serves pages.

    Attributes:
        process: It.
        address: What it printed.
    """

    def __init__(self, arguments: list[str], cwd: Path, browser: bool = True) -> None:
        if browser:
            chromium()
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "protofed", *arguments, "--no-browser", "--port", "0"],
            cwd=cwd,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        self.printed = self.process.stdout.readline()
        found = re.search(r"http://\S+", self.printed)
        assert found, self.printed + self.process.stdout.read()
        self.address = found[0]

    def stop(self) -> str:
        """Press Ctrl-C, wait for the end, and return what was printed since the address."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        # Not communicate(), which passes over what readline() has read ahead.
        rest = self.process.stdout
        if rest is None or rest.closed:
            return ""
        with rest:
            return rest.read()
