"""The files with prototypes: of a finished run, or at the last checkpoint of one that goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofed.errors import CheckpointError
from protofed.runs.border import Border, Signature
from protofed.runs.run import Run

if TYPE_CHECKING:
    from torch import Tensor

MOST_ROWS = 120
"""Of more classes, every second, third, … is shown."""

MOST_CELLS = 24_000
"""Of more entries, every second, third, … dimension is shown."""


@dataclass(frozen=True)
class PrototypeFile:
    """A file with prototypes, as it is at the moment.

    Attributes:
        client: Of a record in a checkpoint; ``""`` for any other file.
        table: Name of the ``(K, d)`` tensor.
        present: Name of the ``(K,)`` tensor of the classes with a prototype.
        signature: Changes when the file does.
    """

    path: Path
    client: str
    table: str
    present: str
    round: int
    signature: Signature


def source(run: Run, border: Border, client: str = "") -> PrototypeFile | None:
    """Return where to find the prototypes of the server, or of one client; None if there are none yet.

    Args:
        client: ``""`` for the server.

    Raises:
        CheckpointError: If the file leads out of the folder that is shown, or is no ordinary file.
    """
    place = run.directory / "prototypes.safetensors"
    signature = border.signature(place)
    if signature is not None:
        name = f"local.{client}" if client else "global"
        return PrototypeFile(place, "", f"{name}.prototypes", f"{name}.present", run.last_round, signature)
    for folder in sorted((run.directory / "checkpoint").glob("round-*"), reverse=True):
        number = folder.name.removeprefix("round-")
        place = folder / ("clients.records" if client else "server.safetensors")
        signature = border.signature(place)
        if signature is not None and number.isdigit():
            name = "state." if client else ""
            return PrototypeFile(place, client, f"{name}prototypes", f"{name}present", int(number), signature)
    return None


def read(source: PrototypeFile, classes: int) -> tuple[Tensor, Tensor] | None:
    """Return ``(K, d)`` prototypes and ``(K,)`` which classes have a finite one; None if the file holds none.

    Only these two tensors are read, however large the models beside them are.
    """
    try:
        tensors = _of_client(source) if source.client else _of_file(source)
    except FileNotFoundError:
        return None  # a checkpoint gives way to the next one
    if source.table not in tensors or source.present not in tensors:
        return None
    table, present = tensors[source.table], tensors[source.present]
    if table.dim() != 2 or present.shape != (classes,) or len(table) != classes or not table.is_floating_point():
        raise CheckpointError(f"{source.path}: expected {classes} rows in {source.table} and {source.present}")
    return table, present.bool() & table.isfinite().all(1)


def _of_client(source: PrototypeFile) -> Mapping[str, Tensor]:
    from protofed.rounds.checkpoint import read_rest

    return read_rest(source.path.parent, source.client)


def _of_file(source: PrototypeFile) -> Mapping[str, Tensor]:
    from protofed.storage.files import read_tensors

    if not source.path.exists():
        raise FileNotFoundError(source.path)
    return read_tensors(source.path, [source.table, source.present])


def geometry(table: Tensor, present: Tensor, names: list[str]) -> dict[str, Any]:
    """Return distances, margins and entries of prototypes as plain lists; None where there is no prototype.

    Returns:
        ``distances``: rows of Euclidean distances, None on the diagonal. ``margins``: per class, normalised.
        ``entries``: rows of entries. ``names``: of the rows shown, of every ``row_step``-th class;
        ``column_step``: of how many dimensions one is shown.
    """
    from protofed.prototypes.geometry import normalise_margins, pairwise_distances

    nothing = table.new_tensor(float("nan"))
    clean = table.where(present.unsqueeze(1), table.new_zeros(())).double()
    margins = normalise_margins(clean, present).where(present, nothing)
    row_step = -(-len(names) // MOST_ROWS)
    kept, there = clean[::row_step], present[::row_step]
    column_step = max(1, -(-kept.numel() // MOST_CELLS))
    distances = pairwise_distances(kept)
    distances.fill_diagonal_(float("nan"))
    both = there.unsqueeze(0) & there.unsqueeze(1)
    return {
        "distances": _plain(distances.where(both, nothing)),
        "margins": _plain(margins.unsqueeze(0))[0],
        "entries": _plain(kept.where(there.unsqueeze(1), nothing)[:, ::column_step]),
        "names": names[::row_step],
        "row_step": row_step,
        "column_step": column_step,
    }


def _plain(matrix: Tensor) -> list[list[float | None]]:
    return [[None if not math.isfinite(v) else float(f"{v:.4g}") for v in row] for row in matrix.tolist()]
