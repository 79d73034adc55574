"""The peak memory of a run."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

import torch


class PeakMemory:
    """Measures peak memory from its creation on: of the GPU if there is one, else resident memory of the process.

    Where the operating system cannot restart its count (anything but Linux), the peak includes what came before.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, see proc(5)

    def bytes(self) -> int:
        """Return the peak so far."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        try:
            status = Path("/proc/self/status").read_text()
            return int(status.split("VmHWM:")[1].split()[0]) * 1024
        except (OSError, IndexError):
            unit = 1 if sys.platform == "darwin" else 1024
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
