"""A file that counts what a deployment has published, so that nothing is forgotten when its server is restarted."""

from __future__ import annotations

import os
from pathlib import Path

from protofed.errors import writing


class Ledger:
    """Counts releases, with one byte of a file for each.

    In a deployment, a repeated round has new noise, so it is paid for twice.

    Attributes:
        repeated: Releases beyond one per round, because a server had to repeat rounds.
        path: The file, or None.
    """

    def __init__(self) -> None:
        self.repeated = 0
        self.path: Path | None = None
        self._last = 0

    def keep(self, path: Path, round: int, number: int) -> None:
        """Count in a file from now on; it says how many releases there were before a server was restarted.

        Args:
            path: The file; there need not be one yet.
            round: Number of rounds completed.
            number: Number of releases in them, had none been repeated.
        """
        self.path, self._last = path, round
        before = path.stat().st_size if path.is_file() else 0
        self.repeated = max(0, before - number)

    def publish(self, round: int) -> None:
        """Count the release of a round before anybody sees it; once, however often this is called for it.

        Args:
            round: The round, from 1.
        """
        if self.path is None or round <= self._last:
            return
        self._last = round
        with writing(self.path), self.path.open("ab") as file:
            file.write(b".")
            file.flush()
            os.fsync(file.fileno())
