"""Conversion of ``.npz`` files to listings; headers are checked before memory is allocated."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from protofed.data import apart
from protofed.data.checks import as_labels, check_names, check_sample
from protofed.data.pool import Listing
from protofed.errors import DataError
from protofed.untrusted import limits
from protofed.untrusted.limits import Budget

ARRAYS = ("x", "y", "ids", "class_names")
"""Arrays that are read; any others in the file are ignored."""


def read_npz(path: Path, budget: Budget) -> Listing:
    """Return an ``.npz`` file with ``x`` and ``y`` (and optionally ``ids``, ``class_names``) as a listing.

    uint8 arrays ``(n, H, W)``, ``(n, C, H, W)`` or ``(n, H, W, C)`` are images; other features become float32.
    """
    arrays = apart.read_arrays(path, budget, ARRAYS, ("x", "y"))
    x, ids, names = arrays["x"], arrays.get("ids"), arrays.get("class_names")
    labels = as_labels(arrays["y"], str(path), budget)
    if len(labels) > limits.SAMPLES:
        raise DataError(f"{path}: has {len(labels)} samples, more than {limits.SAMPLES}")
    for name, array in (("x", x), ("ids", ids)):
        if array is not None and (array.ndim == 0 or len(array) != len(labels)):
            raise DataError(f"{path}: {name} has shape {array.shape}, but y has {len(labels)} entries")
    if ids is not None and (ids.ndim != 1 or ids.dtype.kind not in "iubfUS"):
        raise DataError(f"{path}: ids are {ids.dtype} of shape {ids.shape}: expected one number or name per sample")
    if names is not None and (names.ndim != 1 or names.dtype.kind != "U"):
        raise DataError(f"{path}: class_names are {names.dtype} of shape {names.shape}: expected a list of names")
    known = None if names is None else check_names(map(str, names), str(path))
    tensor = _features(x, str(path), budget)
    return Listing(labels, lambda rows: tensor[rows], str(path), known, ids)


def _features(x: np.ndarray, where: str, budget: Budget) -> Tensor:
    if x.dtype.kind not in "fiub" or x.ndim < 2:
        raise DataError(f"{where}: x is {x.dtype} of shape {x.shape}: expected numbers of shape (n, ...)")
    check_sample(math.prod(x.shape[1:]), where)
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        if x.ndim == 3:
            x = x[:, None]
        elif x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3):
            x = x.transpose(0, 3, 1, 2)
        return torch.from_numpy(np.ascontiguousarray(x))
    if x.dtype == np.float32 and x.flags.c_contiguous:
        return torch.from_numpy(x)
    budget.take(4 * x.size, where)
    with np.errstate(over="ignore"):  # overflow gives infinity, which is reported later with its row
        tensor = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    budget.give_back(x.nbytes)
    return tensor
