"""The peak memory of a run."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

import torch


class PeakMemory:
    """Peak memory since the creation of this object: of the GPU if that is the device, else of the process.

    Systems other than Linux cannot reset the peak of the process, so there it covers the time before as well.

    Args:
        device: The device of the run.
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
