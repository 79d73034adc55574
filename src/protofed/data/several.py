"""Several data sets of the same classes as one, such as MNIST beside scikit-learn's digits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.compute.seeding import generator
from protofed.data import checks
from protofed.data.options import DataOptions
from protofed.data.partition import subset
from protofed.data.pool import Dataset, Listing, datasets, open_dataset
from protofed.errors import ConfigError
from protofed.options import Options, option


@dataclass(frozen=True)
class SeveralOptions(Options):
    """Data sets, which become the natural ids of their samples; images get the size of the first one's."""

    names: tuple[str, ...] = option((), "data sets whose classes have the same names, e.g. mnist,digits")
    samples: int = option(0, "most samples of each data set, chosen per class (0 = all)", least=0)


def several(data: DataOptions, options: SeveralOptions, seed: int) -> Listing:
    """Return the samples of several data sets with the name of each as natural id; classes agree by name."""
    if len(set(options.names)) < max(2, len(options.names)) or "several" in options.names:
        raise ConfigError(
            "data.source=several: data.options.names must list two or more different data sets, e.g. mnist,digits"
        )
    listings = [open_dataset(name, data, None, seed) for name in options.names]
    for item in listings:
        if item.columns is not None:
            raise ConfigError(f"data.source=several is for images and vectors, and {item.where} is a table")
    labels = [np.array(names)[places] for names, places in map(checks.find_names, listings)]
    codes = [torch.from_numpy(np.unique(y, return_inverse=True)[1].astype(np.int64)) for y in labels]
    rows = [
        subset(y, min(options.samples or len(y), len(y)), generator(seed, "subset", name))
        for name, y in zip(options.names, codes, strict=True)
    ]
    first = listings[0].read(torch.tensor([0]))
    size = tuple(first.shape[2:]) if first.dim() == 4 else ()
    counts = [len(r) for r in rows]
    y = np.concatenate([names[r.numpy()] for names, r in zip(labels, rows, strict=True)])
    where, ids = " and ".join(options.names), np.repeat(options.names, counts)
    return Listing(y, lambda wanted: _join(listings, rows, wanted, size), where, ids=ids)


def _join(listings: Sequence[Listing], rows: Sequence[Tensor], wanted: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return the features of some samples, images in one size and, if some are in colour, all in colour."""
    ends = torch.tensor([0, *map(len, rows)]).cumsum(0)
    owner = torch.bucketize(wanted, ends[1:], right=True)
    parts, order = [], []
    for number, item in enumerate(listings):
        at = (owner == number).nonzero().flatten()
        if len(at):
            x = checks.features(item, rows[number][wanted[at] - ends[number]])
            parts.append((item.where, _resize(x, size)))
            order.append(at)
    x = torch.cat(checks.same_shape(checks.same_mode(parts)[0]))
    return torch.empty_like(x).index_copy_(0, torch.cat(order), x)


def _resize(x: Tensor, size: tuple[int, ...]) -> Tensor:
    if x.dim() != 4 or x.dtype != torch.uint8 or not size or tuple(x.shape[2:]) == size:
        return x
    new = F.interpolate(x.float(), size, mode="bilinear", antialias=True)
    return new.round().clamp(0, 255).to(torch.uint8)


datasets.register("several")(
    Dataset(
        "several data sets of the same classes, e.g. mnist,digits: their names are natural ids",
        several,
        SeveralOptions,
        reads_path=True,
    )
)
