"""The budget of differential privacy, and a file that counts what a deployment has published.

Nothing is forgotten when its server is restarted.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from pathlib import Path

from protofed.errors import FederationError, writing
from protofed.rounds.stage import Stage
from protofed.stages.privacy.options import PrivacyOptions

RELEASES = "releases"  #: Name of the file in a run directory


class Ledger:
    """Counts releases, with one byte of a file for each.

    In a deployment, a repeated round has new noise, so it is paid for twice.

    Attributes:
        repeated: Releases beyond one per round, because a server had to repeat rounds.
    """

    def __init__(self) -> None:
        self.repeated = 0
        self.path: Path | None = None
        self._last = 0

    def keep(self, path: Path, round_number: int, number: int) -> None:
        """Count in a file from now on, which may hold the releases before a server was restarted."""
        self.path, self._last = path, round_number
        before = path.stat().st_size if path.is_file() else 0
        self.repeated = max(0, before - number)

    def publish(self, round_number: int) -> None:
        """Count the release of a round before anybody sees it; once, however often this is called for it."""
        if self.path is None or round_number <= self._last:
            return
        self._last = round_number
        with writing(self.path), self.path.open("ab") as file:
            file.write(b".")
            file.flush()
            os.fsync(file.fileno())


class Budgeted(Stage):
    """Base of the stages that spend a budget ε."""

    options: PrivacyOptions
    ledger: Ledger

    @abstractmethod
    def epsilon(self, rounds: int) -> float:
        """Return the ε that the first ``rounds`` rounds cost together."""

    @abstractmethod
    def number(self, rounds: int) -> int:
        """Return the number of releases in the first ``rounds`` rounds, had none been repeated."""

    @property
    def planned(self) -> bool:
        """Return whether the noise was found for just these rounds, so that it keeps the budget up to rounding."""
        return self.options.noise is None and not self.ledger.repeated

    def affords(self, round_number: int) -> bool:
        """Return whether the budget suffices for all rounds up to ``round``."""
        return self.planned or self.epsilon(round_number) <= self.options.budget

    def keep(self, directory: Path, round_number: int) -> None:
        """Count releases in a file of the run directory."""
        self.ledger.keep(directory / RELEASES, round_number, self.number(round_number))
        if not round_number and not self.affords(1):
            raise FederationError(
                f"privacy.epsilon={self.options.budget:g} is spent: {self.ledger.repeated} rounds were lost "
                f"with a killed server ({self.ledger.path}), and with one more ε would be {self.epsilon(1):.3g}"
            )
