"""The folder that is shown: nothing outside it is read."""

from __future__ import annotations

import stat
from pathlib import Path

from protofed.errors import CheckpointError
from protofed.untrusted import limits
from protofed.untrusted.reading import reason

Signature = tuple[int, int, int]  #: Identity, size and time of the last change of a file


class Border:
    """A folder that links must not leave."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def holds(self, path: Path) -> bool:
        """Return whether a path, with all links followed, lies inside."""
        try:
            return path.resolve().is_relative_to(self.root)
        except (OSError, RuntimeError, ValueError):
            return False

    def signature(self, path: Path) -> Signature | None:
        """Return a value that changes when a file does; None if there is no such file."""
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({reason(error)})") from None
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{path}: is no ordinary file")
        if not self.holds(path):
            raise CheckpointError(f"{path}: leads out of {self.root}")
        if status.st_size > limits.RUN_FILE_BYTES:
            raise CheckpointError(
                f"{path}: has {status.st_size} bytes, more than {limits.RUN_FILE_BYTES}: it is not read"
            )
        return status.st_ino, status.st_size, status.st_mtime_ns
