"""Write ``digits.npz``, the digits of ``protofed demo``: ``python tools/demo_digits.py``.

This needs a local copy of MNIST (``PROTOFED_DATA``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import protofed_lab
from protofed.compute.seeding import generator
from protofed.data import DataOptions
from protofed.data.local import data_dirs
from protofed.data.options import Columns
from protofed.data.partition import choose
from protofed.data.tabular import read_parquet
from protofed.untrusted.limits import Budget

OUT = Path(protofed_lab.__file__).parent / "demo/digits.npz"
PER_CLASS = {"train": 64, "test": 36}
SOURCE = (
    "1,000 images of the MNIST database of handwritten digits (Yann LeCun, Corinna Cortes and Christopher J.C. "
    "Burges, http://yann.lecun.com/exdb/mnist/), unchanged: 64 of each digit from its training images, 36 from its "
    "test images. MNIST is made available under the Creative Commons Attribution-Share Alike 3.0 licence "
    "(https://creativecommons.org/licenses/by-sa/3.0/)."
)


def main() -> None:
    """Choose images of every digit from both splits and write them to one compressed file."""
    arrays: dict[str, Any] = {"source": np.array(SOURCE)}
    for split, number in PER_CLASS.items():
        files = sorted((data_dirs(DataOptions())[0] / "mnist").glob(f"{split}-*.parquet"))
        listing = read_parquet(files, Columns("", "", "", 0, 0), "mnist", Budget(4.0))
        y = torch.from_numpy(np.asarray(listing.labels).astype(np.int64))
        mask = choose(y, torch.full((10,), number), generator(0, "demo digits", split))
        rows = mask.nonzero().flatten()
        rows = rows[torch.argsort(y[rows], stable=True)]  # sorted by digit, which compresses better
        arrays[f"{split}_x"] = listing.read(rows)[:, 0].numpy().astype(np.uint8)
        arrays[f"{split}_y"] = y[rows].numpy().astype(np.uint8)
    np.savez_compressed(OUT, allow_pickle=False, **arrays)
    print(f"{OUT.name}: {OUT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
