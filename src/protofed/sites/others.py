"""What a person should know about images, series and vectors of several sites before they learn together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch

from protofed.config.schema import apply_overrides
from protofed.data import DataOptions
from protofed.data.apart import read_schema
from protofed.data.arrow import choose
from protofed.data.images import read_image_folder, read_npz
from protofed.data.options import Columns
from protofed.data.pool import Listing, open_dataset
from protofed.errors import DataError
from protofed.options import build_options
from protofed.sites.recipe import Notice, combine
from protofed.sites.scan import NESTED, DataFolder, files_of
from protofed.sites.tables import (
    TEST_FRACTION,
    ask_renamed,
    find_spellings,
    format_classes,
    note_classes,
    rename_counts,
)
from protofed.text import sides

Held = dict[str, Counter[str]]  #: Number of samples of each class, by site
SIDE = 64  #: Longest side in pixels to which images are scaled where they differ
LOOKED = 500  #: Samples of a site, or of one data set, that are read


def in_one_column(folder: DataFolder) -> bool:
    """Return whether a data set has its samples in one column, of encoded images or lists, rather than a table."""
    (path,) = folder.sites.values()
    if path.is_file() and path.suffix != ".parquet":
        return False
    chosen = choose(read_schema(files_of(path)[0]), Columns(labelled=False), str(folder.path))
    return chosen.encoded or chosen.listed


def open_listing(source: Mapping[str, Any]) -> Listing:
    """Return the data that options, by dotted name, name."""
    data = build_options(DataOptions, apply_overrides({}, source)["data"], "data")
    return open_dataset(data.source, data, data.options, 0)


def samples(listing: Listing, names: Mapping[str, str]) -> tuple[list[Notice], Held, str]:
    """Return the notices for one data set, its samples by class and site, and the kind of samples."""
    found: list[Notice] = []
    labels = _names(listing)
    ids = [str(value) for value in listing.ids.tolist()] if listing.ids is not None else [""] * len(labels)
    held: Held = {}
    for site, label in zip(ids, labels, strict=True):
        held.setdefault(site, Counter())[label] += 1
    first = listing.read(torch.arange(1))
    try:
        listing.read(torch.arange(min(len(listing), LOOKED)))
    except DataError as error:
        if not is_of_sizes(error):
            raise
        options = {"data.options.resize": SIDE}
        found.append(Notice("", "", "images of several sizes", f"scale them to {SIDE} pixels", options))
    kind = {1: "vector", 2: "series"}.get(first.dim() - 1, "image")
    return [*_classes(held, names), *found], held, "table" if listing.columns is not None else kind


def in_files(folder: DataFolder, data: DataOptions) -> tuple[list[Notice], Held, int]:
    """Return the notices for ``.npz`` files or class folders, the samples by class, and a sample's dimensions."""
    found: list[Notice] = []
    shapes: dict[str, tuple[int, ...]] = {}
    held: Held = {}
    budget, images, several = data.budget(), folder.kind == "images", False
    for site, path in folder.sites.items():
        files = [path] if images or path.is_file() else sorted(path.glob("*.npz"))
        if not files:
            raise DataError(f"{path}: holds no .npz file {NESTED}")
        for file in files:
            try:
                listing = read_image_folder(file, budget) if images else read_npz(file, budget)
                held.setdefault(site, Counter()).update(_names(listing))
                if len(listing):
                    shapes.setdefault(site, tuple(listing.read(torch.arange(1)).shape[1:]))
                    listing.read(torch.arange(min(len(listing), LOOKED)))
            except DataError as error:
                if several := several or is_of_sizes(error):
                    continue
                told = str(error).removeprefix(f"{file}: ").removeprefix(f"{file}/")
                found.append(Notice(site, "", told, "correct the file", open=True))
    if images and (several or len({shape[1:] for shape in shapes.values()}) > 1):
        side = min(SIDE, *(n for shape in shapes.values() for n in shape[1:]))
        options = {"data.options.resize": side}
        found.append(Notice("", "", "images of several sizes", f"scale them to {side} pixels", options))
    usual = Counter(shapes.values()).most_common(1)[0][0] if shapes else ()
    for site, shape in shapes.items():
        if shape != usual and not images:
            told = f"samples of {sides(shape)}, elsewhere {sides(usual)}"
            found.append(Notice(site, "", told, "cut or pad them to one shape", open=True))
    return [*_classes(held, data.labels), *found], held, len(usual)


def is_of_sizes(error: DataError) -> bool:
    """Return whether images could not be read because they differ in size."""
    return str(error).endswith("set data.options.resize")


def _names(listing: Listing) -> list[str]:
    known = dict(enumerate(listing.class_names or ()))
    return [str(known.get(label, label)) for label in listing.labels.tolist()]


def _classes(held: Held, names: Mapping[str, str]) -> list[Notice]:
    """Return what the classes are, how sites spell them, and which sites lack some or have few test samples."""
    given = {site: rename_counts(counts, names) for site, counts in held.items()}
    found = [*ask_renamed(given, "", "data.labels", names), *find_spellings(given, "", "data.labels")]
    meant = {site: rename_counts(counts, combine(found).get("data.labels", {})) for site, counts in given.items()}
    found.append(Notice("", "", format_classes(sum(meant.values(), Counter()))))
    for site, counts in meant.items():
        found += note_classes(meant, site, round(TEST_FRACTION * counts.total()))
    return found
