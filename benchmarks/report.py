"""Measurements as a file, with the facts of the machine on which they depend."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import protofed
from benchmarks.request import Result
from protofed.compute.numerics import cores
from protofed.errors import ConfigError
from protofed.storage.files import write_json


class Report:
    """Measurements collected so far.

    Args:
        path: File to rewrite whenever results are added, or None.
        options: Options of every experiment as given, each as ``name=value``, for the file.
    """

    def __init__(self, path: Path | None, options: Sequence[str] = ()) -> None:
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise ConfigError(f"--json {path}: {'a folder' if path.is_dir() else 'no such folder'}: name a file")
        self.path = path
        self.options = list(options)
        self.machine = machine()
        self.results: dict[str, list[dict[str, Any]]] = {}

    def add(self, name: str, result: Result) -> None:
        """Add the figures of a benchmark and write the file."""
        self.results[name] = result.figures
        if self.path is not None:
            facts = {"protofed": protofed.__version__, "machine": self.machine, "options": self.options}
            write_json(self.path, {**facts, **self.results})

    def machine_line(self) -> str:
        """Return a one-line description of the machine, with a warning if it is busy."""
        facts = self.machine
        where = [facts["processor"], f"{facts['cores']} cores", facts["gpu"], f"torch {facts['torch']}"]
        busy = f"; busy: load {facts['load']}, figures will vary" if (facts["load"] or 0) > 0.5 else ""
        return ", ".join(part for part in where if part) + busy


def machine() -> dict[str, Any]:
    """Return the facts of the machine; ``load`` is the average number of processes over the last minute."""
    return {
        "processor": _processor(),
        "cores": cores(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
