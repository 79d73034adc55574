"""Public image data sets in the Hugging Face hub's layout, read from a local copy or else from the hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protofed.data.checks import open_file
from protofed.data.local import data_dirs, find_parquet
from protofed.data.options import Columns, DataOptions
from protofed.data.pool import Dataset, Listing, datasets
from protofed.data.tabular import read_parquet
from protofed.errors import DataError
from protofed.options import Options, option
from protofed.storage.cache import cache_folder, keep, read_kept, remove_kept
from protofed.untrusted.limits import Budget

KEPT = 2**29  #: Most bytes of decoded images that are kept on disk


@dataclass(frozen=True)
class ImageDataOptions(Options):
    """Options of an image data set."""

    resize: int = option(0, "side in pixels: shorter side resized, centre crop (0 = as stored)", least=0)


@dataclass(frozen=True)
class ResizedImageOptions(Options):
    """Options of a data set with images of different sizes."""

    resize: int = option(64, "side in pixels: shorter side resized, centre crop", least=0)


@dataclass(frozen=True)
class HubSpec:
    """The location of a data set on the hub and the names of its columns."""

    name: str
    hub: str
    summary: str
    image: str = "image"
    label: str = "label"
    id: str = ""
    splits: tuple[str, ...] = ("train", "test")
    channels: int = 3
    Options: type = ImageDataOptions


SPECS = (
    HubSpec("mnist", "ylecun/mnist", "70000 handwritten digits, 28x28 grey, 10 classes", channels=1),
    HubSpec(
        "fashion_mnist", "zalando-datasets/fashion_mnist", "70000 garments, 28x28 grey, 10 classes", channels=1
    ),
    HubSpec("cifar10", "uoft-cs/cifar10", "60000 photographs, 32x32 RGB, 10 classes", image="img"),
    HubSpec(
        "cifar100",
        "uoft-cs/cifar100",
        "60000 photographs, 32x32 RGB, 100 classes (data.label_column=coarse_label: 20)",
        image="img",
        label="fine_label",
    ),
    HubSpec(
        *("tiny_imagenet", "zh-plus/tiny-imagenet", "110000 photographs, 64x64 RGB, 200 classes"),
        splits=("train", "valid"),
    ),
    HubSpec(
        *("flowers102", "nelorth/oxford-flowers", "8189 photographs of flowers, RGB, 102 classes, resized"),
        Options=ResizedImageOptions,
    ),
    HubSpec(
        "femnist",
        "flwrlabs/femnist",
        "814277 handwritten characters, 28x28 grey, 62 classes, with writers as natural ids",
        label="character",
        id="writer_id",
        splits=("train",),
        channels=1,
    ),
)


def open_hub(spec: HubSpec, data: DataOptions, options: Any, seed: int) -> Listing:
    """Return all splits of a data set, whose options are ``spec.Options``, as one listing."""
    columns = Columns(
        data.image_column or spec.image, data.label_column or spec.label, spec.id, spec.channels, options.resize
    )
    folders = dict.fromkeys((spec.name, spec.hub.rpartition("/")[2], spec.hub))
    places = [d / folder for d in data_dirs(data) for folder in folders]
    budget = data.budget()
    for place in places:
        where, files = str(place), find_parquet(place, spec.splits) if place.is_dir() else []
        if files:
            break
    else:
        where, files = spec.hub, find_parquet(_fetch(spec, places), spec.splits)
    return _decode_once(read_parquet(files, columns, where, budget), files, columns, budget)


def _decode_once(listing: Listing, files: Sequence[Path], columns: Columns, budget: Budget) -> Listing:
    """Return a listing whose images are decoded once for all runs that read all of them: these data are public."""
    if (folder := cache_folder("images")) is None:
        return listing

    def read(rows: Tensor) -> Tensor:
        if len(rows) < len(listing):
            return listing.read(rows)
        key = blake2b(repr((columns.image, columns.channels, columns.resize)).encode(), digest_size=16)
        for path in files:
            with open_file(path) as file:
                key.update(file_digest(file, "blake2b").digest())  # type: ignore[arg-type]
        place = folder / key.hexdigest()
        for path, found in read_kept(place):
            images = found.get("images", torch.empty(0))
            if images.dtype == torch.uint8 and images.ndim == 4 and len(images) == len(listing):
                budget.take(images.nbytes, listing.where)
                return images[rows]
            remove_kept(path)
        images = listing.read(torch.arange(len(listing)))
        if images.nbytes <= KEPT:
            keep(place, {"images": images})
        return images[rows]

    return replace(listing, read=read)


def _fetch(spec: HubSpec, places: list[Path]) -> Path:
    """Return the folder with a data set's parquet files in the cache of the hub's client, which fetches them."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(spec.hub, repo_type="dataset", allow_patterns="*.parquet", etag_timeout=5))
    except Exception as error:  # offline, gated, renamed: the hub's client raises many types
        looked = f"in {', '.join(map(str, places))}" if places else "(no data folder is set)"
        raise DataError(
            f"data set {spec.name!r}: no local copy {looked}, and {spec.hub!r} could not be fetched from the "
            f"Hugging Face hub ({type(error).__name__}): put its parquet files in DIR/{spec.name} and set "
            "PROTOFED_DATA=DIR or --data-dir DIR"
        ) from None


for _spec in SPECS:
    datasets.register(_spec.name)(Dataset(_spec.summary, partial(open_hub, _spec), _spec.Options))
