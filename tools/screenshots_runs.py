"""Screenshots of ``protofed ui``: a comparison on real digits, and a run in progress."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from browsing import WAIT_MS, Served

METHODS = ("fedproto", "fedtgp", "protonorm", "tinyproto", "local")


def runs(take: Callable[..., None], folder: Path) -> None:
    """Take the overview of all runs, and the accuracies and prototypes of one run."""
    import protofed

    study = folder / "runs"
    protofed.compare("quickstart", METHODS, (0, 1), {"rounds": 30}, out=study / "methods")
    command = [
        sys.executable,
        "-m",
        "protofed.cli.main",
        "run",
        "quickstart",
        "method.name=gfpl",
        "rounds=2000",
        "--quiet",
    ]
    with subprocess.Popen([*command, "--out", str(study / "still-running")], cwd=folder) as going:
        served = Served(["ui", "runs"], folder)

        def charts(page: Any) -> None:
            drawn = "[...document.querySelectorAll('.nicegui-echart')].every((e) => Number(e.dataset.fed) > 0)"
            page.wait_for_function(f"document.querySelector('.nicegui-echart') && {drawn}", timeout=WAIT_MS)

        def overview(page: Any) -> None:
            page.locator(".pill", has_text="running").first.wait_for(state="attached")
            charts(page)

        def prototypes(page: Any) -> None:
            charts(page)
            page.get_by_text("After round 30.").wait_for()
            page.get_by_role("heading", name="Prototypes").evaluate("(e) => window.scrollTo(0, e.offsetTop - 12)")

        take("runs", served.address, overview)
        address = served.address + "/run/methods/protonorm-seed0"
        take("run", address, charts, full=False)
        take("run-prototypes", address, prototypes, full=False)
        going.terminate()
        served.stop()
