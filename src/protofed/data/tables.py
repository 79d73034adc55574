"""Parquet and ``.npz`` files to listings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from protofed.data.arrow import Columns, from_arrow
from protofed.data.checks import as_labels
from protofed.data.pool import Listing
from protofed.errors import DataError


def read_parquet(files: Sequence[Path], columns: Columns, where: str) -> Listing:
    """Return the rows of ``files``, one after the other, as one listing.

    Raises:
        DataError: For unreadable files, files that do not go together, or columns that cannot be told.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for file in files:
        try:
            tables.append(pq.read_table(file))
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{file}: not a readable parquet file ({type(error).__name__})") from None
        if tables[-1].column_names != tables[0].column_names:
            raise DataError(
                f"{file}: columns {', '.join(tables[-1].column_names)}, but {files[0].name} has "
                f"{', '.join(tables[0].column_names)}: "
                "files of one data set need the same columns"
            )
    try:
        return from_arrow(pa.concat_tables(tables), columns, where)
    except pa.ArrowException as error:
        raise DataError(f"{where}: files of one data set differ in column types ({error})") from None


def read_npz(path: Path) -> Listing:
    """Return an ``.npz`` file with ``x`` and ``y`` (and optionally ``ids``, ``class_names``) as a listing.

    uint8 arrays ``(n, H, W)``, ``(n, C, H, W)`` or ``(n, H, W, C)`` are images; the rest becomes float32.

    Raises:
        DataError: For an unreadable file, missing arrays, or arrays that do not go together.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except Exception as error:  # zip, header and pickle errors are of many kinds
        raise DataError(f"{path}: not a readable .npz file ({type(error).__name__})") from None
    for name in ("x", "y"):
        if name not in arrays:
            raise DataError(f"{path}: no array {name!r}; it holds {', '.join(sorted(arrays)) or 'nothing'}")
    x, ids = arrays["x"], arrays.get("ids")
    labels = as_labels(arrays["y"], str(path))
    for name, array in (("x", x), ("ids", ids)):
        if array is not None and (array.ndim == 0 or len(array) != len(labels)):
            raise DataError(f"{path}: {name} has shape {array.shape}, but y has {len(labels)} entries")
    if x.dtype.kind not in "fiub" or x.ndim < 2:
        raise DataError(f"{path}: x is {x.dtype} of shape {x.shape}: expected numbers of shape (n, ...)")
    names = arrays.get("class_names")
    tensor = _as_images(x) if x.dtype == np.uint8 and x.ndim in (3, 4) else torch.from_numpy(x).float()
    return Listing(
        labels, lambda rows: tensor[rows], str(path), None if names is None else tuple(map(str, names)), ids
    )


def _as_images(x: np.ndarray) -> Tensor:
    if x.ndim == 3:
        x = x[:, None]
    elif x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(x))
