"""Public image data sets in the Hugging Face hub's layout, read from a local copy or else from the hub."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from protofed.data.arrow import from_arrow
from protofed.data.columns import Columns
from protofed.data.copies import data_dirs, find_parquet
from protofed.data.options import DataOptions
from protofed.data.parquet import read_parquet
from protofed.data.pool import Dataset, Listing, datasets
from protofed.errors import DataError
from protofed.options import Options, option
from protofed.untrusted.limits import Budget


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
    for place in places:
        files = find_parquet(place, spec.splits) if place.is_dir() else []
        if files:
            return read_parquet(files, columns, str(place), data.budget())
    return _download(spec, columns, places, data.budget())


def _download(spec: HubSpec, columns: Columns, places: list[Path], budget: Budget) -> Listing:
    import datasets as hf
    import pyarrow as pa

    try:
        with _quiet(), _offline_if_unreachable():
            parts = [hf.load_dataset(spec.hub, split=split) for split in spec.splits]
    except Exception as error:  # offline, gated, renamed: the hub's client raises many types
        looked = f"in {', '.join(map(str, places))}" if places else "(no data folder is set)"
        raise DataError(
            f"data set {spec.name!r}: no local copy {looked}, and {spec.hub!r} could not be fetched from the "
            f"Hugging Face hub ({type(error).__name__}): put its parquet files in DIR/{spec.name} and set "
            "PROTOFED_DATA=DIR or --data-dir DIR"
        ) from None
    table = pa.concat_tables([part.data.table for part in parts])
    # Class names are stored in the metadata of the hub's parquet files.
    table = table.replace_schema_metadata(parts[0].features.arrow_schema.metadata)
    return from_arrow(table, columns, spec.hub, budget)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings, log messages below level ERROR, and Hugging Face's progress bars."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import datasets as hf

        level = logging.root.manager.disable
        shown = not hf.are_progress_bars_disabled()
        hf.disable_progress_bars()
        logging.disable(max(level, logging.WARNING))
        try:
            yield
        finally:
            logging.disable(level)
            if shown:
                hf.enable_progress_bars()


@contextmanager
def _offline_if_unreachable() -> Iterator[None]:
    """Use only the hub client's cache if the hub does not answer; the client's own retries take half a minute."""
    from huggingface_hub import constants, get_session

    before = constants.HF_HUB_OFFLINE
    try:
        if not before:
            get_session().head(constants.ENDPOINT, timeout=5)
    except Exception:
        constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


for _spec in SPECS:
    datasets.register(_spec.name)(Dataset(_spec.summary, partial(open_hub, _spec), _spec.Options))
