"""What each client has, as rows for a table."""

from __future__ import annotations

from dataclasses import dataclass

from protofed.samples import FederatedData


@dataclass(frozen=True)
class ClientRow:
    """One client at a glance.

    Attributes:
        client: Its name.
        n_train: Training samples.
        n_test: Test samples.
        n_validation: Validation samples; 0 if none are held out.
        classes: Numbers of the classes it holds, ascending.
        counts: ``K`` numbers: its samples per class, training, test and validation together.
    """

    client: str
    n_train: int
    n_test: int
    n_validation: int
    classes: tuple[int, ...]
    counts: tuple[int, ...]


def describe(federated: FederatedData) -> list[ClientRow]:
    """Return one row per client, in the clients' order."""
    rows = []
    for client in federated.clients:
        parts = [p for p in (client.train, client.test, client.validation) if p is not None]
        counts = tuple(
            sum(column) for column in zip(*(p.counts(federated.num_classes).tolist() for p in parts), strict=True)
        )
        rows.append(
            ClientRow(
                client.name,
                len(client.train),
                len(client.test),
                0 if client.validation is None else len(client.validation),
                tuple(c for c, n in enumerate(counts) if n),
                counts,
            )
        )
    return rows
