"""A summary of each client's data, as rows for a table."""

from __future__ import annotations

from dataclasses import dataclass

from protofed.samples import FederatedData


@dataclass(frozen=True)
class ClientRow:
    """The data of one client.

    Attributes:
        n_validation: 0 if none are held out.
        counts: Per class, over training, test and validation together.
    """

    client: str
    n_train: int
    n_test: int
    n_validation: int
    classes: tuple[int, ...]
    counts: tuple[int, ...]


def describe(federated: FederatedData) -> list[ClientRow]:
    """Return one row per client, in the order of the clients."""
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
