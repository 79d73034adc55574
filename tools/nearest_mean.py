"""Accuracy by a rule that every model has and that needs no exchange: ``python tools/nearest_mean.py RUN…``.

Each client's test samples are given the class with the nearest mean of the client's own training features, by the
model with which the run ended. For runs of FedProto with prototypes made after training, it is the rule ``local``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

from protofed.experiments import load_run
from protofed.experiments.metrics import _data
from protofed.experiments.trained import TrainedClient, open_client
from protofed.prototypes.means import class_means, class_sums
from protofed.samples import Samples


@torch.no_grad()
def features(client: TrainedClient, samples: Samples) -> Tensor:
    """Return ``(n, d)`` features of a client's samples."""
    classifier = client.classifier
    return torch.cat([classifier.model(classifier.prepare(part)).features for part in samples.x.cpu().split(512)])


def accuracy(directory: Path) -> float:
    """Return the accuracy over all clients' own test samples."""
    run = load_run(directory)
    clients = {client.name: client for client in _data(run.data, trust_code=False).clients}
    right = number = 0
    for name in run.clients:
        trained, (train, test) = open_client(run.data, name), (clients[name].train, clients[name].test)
        means = class_means(*class_sums(features(trained, train), train.y.cpu(), len(run.class_names)))
        distances = torch.cdist(features(trained, test), means.rows).masked_fill(~means.present, torch.inf)
        right += int((distances.argmin(1) == test.y.cpu()).sum())
        number += len(test)
    return right / number


def main() -> None:
    for name in sys.argv[1:]:
        print(f"{name}: {100 * accuracy(Path(name)):.2f} %")


if __name__ == "__main__":
    main()
