"""Accuracy by a rule that every model has and that needs no exchange: ``papers/tools/nearest_mean.py RUN…``.

Each client's test samples are given the class with the nearest of the client's own prototypes, by the model with
which the run ended. For FedProto that is the rule ``local``. For a method that exchanges no prototypes, a run keeps
the class means of its clients' training features in their place.
"""

from __future__ import annotations

import sys
from pathlib import Path

from protofed.analysis.restore import prototypes, restore_features
from protofed.prototypes.inference import closeness
from protofed.prototypes.table import Prototypes
from protofed.runs.loading import load_run


def accuracy(directory: Path) -> float:
    """Return the accuracy over all clients' own test samples."""
    run = load_run(directory)
    right = number = 0
    for client in restore_features(run):
        own = Prototypes.of(prototypes(run, f"local.{client.name}"))
        right += int((closeness(client.features, own).argmax(1) == client.labels).sum())
        number += len(client.labels)
    return right / number


def main() -> None:
    for name in sys.argv[1:]:
        print(f"{name}: {100 * accuracy(Path(name)):.2f} %")


if __name__ == "__main__":
    main()
