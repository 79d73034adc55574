"""The peak memory of a run, and of a process with all that it starts."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading
from pathlib import Path

import torch

from protofed.data.options import memory_gb

PROCESS = 5e8  #: Least bytes of a process


class PeakMemory:
    """Peak memory since the creation of this object: of the GPU if that is the device, else of the process.

    Systems other than Linux cannot reset the peak of the process, so there it covers the time before as well.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, see proc(5)

    def bytes(self) -> int:
        """Return the peak so far, in bytes."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        try:
            status = Path("/proc/self/status").read_text()
            return int(status.split("VmHWM:")[1].split()[0]) * 1024
        except (OSError, IndexError):
            unit = 1 if sys.platform == "darwin" else 1024
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class TreeMemory:
    """Peak memory of a process and those that it has started, looked at several times a second inside the block.

    Memory that processes share counts once. Systems other than Linux tell only about this process.
    """

    INTERVAL = 0.25

    def __init__(self, process: int | None = None) -> None:
        self.process, self.peak = process, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)

    def __enter__(self) -> TreeMemory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.peak = max(self.peak, tree_bytes(self.process))
            if self._ended.wait(self.INTERVAL):
                return


def room() -> int:
    """Return how many processes like this one have room in memory beside it."""
    return int(0.8e9 * memory_gb() / max(tree_bytes(), PROCESS)) - 1


def tree_bytes(process: int | None = None) -> int:
    """Return the memory of a process (by default this one) and its descendants in bytes; 0 where unknown."""
    folder = Path("/proc") / str(process or os.getpid())
    try:
        rollup = (folder / "smaps_rollup").read_text()
        total = int(rollup.split("Pss:")[1].split()[0]) * 1024
        children = [child for task in folder.glob("task/*/children") for child in task.read_text().split()]
    except (OSError, IndexError):
        return 0
    return total + sum(tree_bytes(int(child)) for child in children)
