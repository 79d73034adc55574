"""Checks on all loaded data; every error message begins with the offending file, folder or data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from protofed.data.comparing import Site, check
from protofed.data.options import DataOptions
from protofed.data.pool import Listing
from protofed.errors import DataError, unknown_name
from protofed.samples import ClientData
from protofed.untrusted import claims, limits
from protofed.untrusted.limits import Budget
from protofed.untrusted.reading import open_ordinary, reason


@contextmanager
def readable(path: Path, what: str = "cannot be read") -> Iterator[None]:
    """Turn an error of reading a file in the block into a DataError."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {what} ({reason(error)})") from None


def open_file(path: Path) -> BinaryIO:
    """Open an ordinary file."""
    with readable(path):
        return open_ordinary(path)


def check_columns(names: Sequence[str], where: str) -> None:
    """Refuse a table with two columns of one name."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise DataError(f"{where}: several columns have the same name, {claims.clean(twice, 80)!r}")


def as_labels(values: np.ndarray, where: str, budget: Budget, at: Callable[[int], str] | None = None) -> np.ndarray:
    """Return ``(n,)`` labels as int64 or as strings; ``at`` names the place of one."""
    at = at or f"{where}: sample {{}}".format
    if values.ndim == 1:
        if values.dtype.kind in "iub" or (values.dtype.kind == "f" and _whole(values, at)):
            return _number_classes(values, at)
        if values.dtype.kind in "US":
            return _name_classes([_text(value, where).strip() for value in values.tolist()], where, budget)
        if values.dtype.kind == "O" and all(isinstance(v, str) for v in values):
            names = [value.strip() for value in values]
            return _name_classes(names, where, budget) if names else np.zeros(0, dtype=np.int64)
    raise DataError(
        f"{where}: labels are {values.dtype} of shape {values.shape}: expected whole numbers or names, "
        "one per sample"
    )


def _whole(values: np.ndarray, at: Callable[[int], str]) -> bool:
    bad = np.flatnonzero(~(np.isfinite(values) & (values == np.floor(values))))
    if len(bad):
        raise DataError(f"{at(bad[0])}: label {values[bad[0]]}: expected whole numbers or names")
    return True


def _number_classes(values: np.ndarray, at: Callable[[int], str]) -> np.ndarray:
    # Compare before converting: numbers beyond the range of int64 would turn negative.
    bad = np.flatnonzero((values >= limits.CLASSES) | (values <= -limits.CLASSES))
    if len(bad):
        raise DataError(
            f"{at(bad[0])}: label {values[bad[0]]}: classes are numbered from 0, and at most {limits.CLASSES} are "
            "allowed"
        )
    return values.astype(np.int64)


def _name_classes(names: list[str], where: str, budget: Budget) -> np.ndarray:
    check_names(set(names), where)
    budget.take(4 * len(names) * max(map(len, names), default=0), where)
    return np.array(names, dtype=str)


def _text(value: str | bytes, where: str) -> str:
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        raise DataError(f"{where}: class name {value!r} is not UTF-8") from None


def check_names(names: Iterable[str], where: str) -> tuple[str, ...]:
    """Return class names after checking them."""
    checked = tuple(names)
    if len(checked) > limits.CLASSES:
        raise DataError(f"{where}: has {len(checked)} classes, more than {limits.CLASSES}")
    for name in checked:
        if len(name) > limits.CLASS_NAME:
            raise DataError(
                f"{where}: class name {name[:20]!r}… of {len(name)} characters: "
                f"at most {limits.CLASS_NAME} are allowed"
            )
        if not name.isprintable():
            raise DataError(f"{where}: class name {name!r} has control characters: rename the class")
    return checked


def check_sample(size: int, where: str) -> None:
    """Check the number of values in a sample."""
    if not 0 < size <= limits.FEATURES:
        raise DataError(f"{where}: samples of {size} numbers: expected 1 to {limits.FEATURES}")


def encode(
    listings: Sequence[Listing], data: DataOptions, names: Sequence[str] = ()
) -> tuple[list[Tensor], tuple[str, ...]]:
    """Compare all listings with each other, and return ``(n,)`` int64 class numbers of each, and the ``K`` names.

    Args:
        listings: All labelled with integers, or all with class names.
        data: ``data.classes`` is ``K``; 0 derives it from ``names``, the names stored with the data, or the
            largest label.
    """
    listings = [rename_classes(item, data.labels) for item in listings]
    check([_site(item) for item in listings if item.columns is not None or len(item)], data, names)
    named = [item for item in listings if item.labels.dtype.kind in "US"]
    if named and any(len(item) and item.labels.dtype.kind not in "US" for item in listings):
        other = next(item for item in listings if len(item) and item.labels.dtype.kind not in "US")
        raise DataError(
            f"{other.where}: numbered labels, but {named[0].where} has class names: use one kind, or set "
            'data.labels={0 = "…", 1 = "…"}'
        )
    if named:
        listings, names = _number(listings, names)
    known = tuple(names) or _common_names(listings)
    largest = max((int(item.labels.max()) for item in listings if len(item)), default=-1)
    K = data.classes or len(known) or largest + 1
    if K > limits.CLASSES:
        raise DataError(f"{listings[0].where}: {K} classes in all: at most {limits.CLASSES} are allowed")
    for item in listings:
        bad = np.flatnonzero((item.labels < 0) | (item.labels >= K))
        if len(bad):
            raise DataError(
                f"{item.place(bad[0])}: label {item.labels[bad[0]]} is outside 0..{K - 1}: correct it or raise "
                "data.classes"
            )
    class_names = tuple(known[c] if c < len(known) else str(c) for c in range(K))
    return [torch.from_numpy(item.labels.astype(np.int64)) for item in listings], class_names


def check_classes(listings: Sequence[Listing], labels: Sequence[Tensor]) -> None:
    """Refuse tables whose label column is constant."""
    found = torch.cat(list(labels)).unique()
    if len(found) == 1 and any(item.columns is not None for item in listings):
        value = next(item.labels[0] for item in listings if len(item))
        raise DataError(
            f"{listings[0].where}: the label column is constant (all samples are {str(value)!r}): set "
            "data.label_column"
        )


def rename_classes(listing: Listing, names: Mapping[str, str]) -> Listing:
    """Return a listing with class names in place of those in the data, which may be numbers."""
    if not names:
        return listing
    old, inverse = find_names(listing)
    if not listing.class_names and names.keys().isdisjoint(old):
        return listing
    return replace(listing, labels=np.array([names.get(n, n) for n in old])[inverse], class_names=None)


def absent(option: str, asked: Iterable[str], found: Iterable[str]) -> tuple[str, ...]:
    """Return a note on an option's names that the data lack, perhaps because only other sites have them."""
    known = set(found)
    missing = [name for name in asked if name not in known]
    return (f"Not in the data ({option}): {', '.join(missing)}.",) if missing else ()


def absent_labels(listings: Sequence[Listing], data: DataOptions) -> tuple[str, ...]:
    """Return a note on classes to rename that no sample has."""
    found = [name for item in listings for name in find_names(item)[0]] if data.labels else ()
    return absent("data.labels", data.labels, found)


def find_names(listing: Listing) -> tuple[list[str], np.ndarray]:
    """Return the names of the classes that occur, as in the data, and the place among them of every sample's."""
    values, inverse = np.unique(listing.labels, return_inverse=True)
    known = dict(enumerate(listing.class_names or ()))
    return [str(known.get(value, value)) for value in values.tolist()], inverse


def _site(listing: Listing) -> Site:
    classes = np.unique(listing.labels).tolist() if listing.labels.dtype.kind in "US" else ()
    return Site(listing.where, tuple(classes), listing.columns)


def _number(listings: Sequence[Listing], names: Sequence[str]) -> tuple[list[Listing], tuple[str, ...]]:
    order = tuple(names) or tuple(sorted({str(v) for item in listings for v in np.unique(item.labels)}))
    code = {name: number for number, name in enumerate(order)}
    numbered = []
    for item in listings:
        values, inverse = np.unique(item.labels.astype(str), return_inverse=True)
        for value in values:
            if value not in code:
                raise DataError(f"{item.where}: {unknown_name('class', str(value), order)}")
        codes = np.array([code[str(v)] for v in values], dtype=np.int64)
        numbered.append(replace(item, labels=codes[inverse], class_names=order))
    return numbered, order


def _common_names(listings: Sequence[Listing]) -> tuple[str, ...]:
    first = next((item for item in listings if item.class_names), None)
    if first is None or first.class_names is None:
        return ()
    for item in listings:
        if item.class_names and item.class_names != first.class_names:
            raise DataError(f"{item.where}: its class names differ from those of {first.where}")
    return first.class_names


def features(listing: Listing, rows: Tensor) -> Tensor:
    """Read and check the features of some samples.

    Returns:
        ``(m, *shape)``, raw values of a table; for ``m = 0``, an empty uint8 tensor of shape ``(0,)``.
    """
    if len(rows) == 0:
        return torch.zeros(0, dtype=torch.uint8)
    x = listing.read(rows).contiguous()
    if x.is_floating_point() and listing.columns is None:
        bad = (~torch.isfinite(x.flatten(1)).all(1)).nonzero().flatten()
        if len(bad):
            raise DataError(
                f"{listing.where}: features of sample {int(rows[bad[0]])} are NaN or infinite: "
                "remove or replace them"
            )
    return x


def same_shape(parts: Sequence[tuple[str, Tensor]]) -> list[Tensor]:
    """Return features ``(n, *shape)`` by name, with empty ones reshaped to match the others."""
    filled = [(where, x) for where, x in parts if len(x)]
    if not filled:
        raise DataError(f"{parts[0][0] if parts else 'data'}: no samples at all")
    home, like = filled[0]
    for where, x in filled:
        if x.shape[1:] != like.shape[1:] or x.dtype != like.dtype:
            images = x.dtype == like.dtype == torch.uint8 and x.dim() == like.dim() == 4
            hint = "set data.options.resize" if images else "all clients must share one shape"
            raise DataError(f"{where}: samples are {_kind(x)}, but those of {home} are {_kind(like)}: {hint}")
    return [x if len(x) else like.new_zeros((0, *like.shape[1:])) for _, x in parts]


def add_channels(x: Tensor, channels: int) -> Tensor:
    """Return images ``(n, C, H, W)`` in colour if they are grey and ``channels`` is 3; else ``x``."""
    if x.dtype == torch.uint8 and x.dim() == 4 and x.shape[1] == 1 and channels == 3:
        return x.expand(-1, 3, -1, -1).contiguous()
    return x


def same_mode(parts: Sequence[tuple[str, Tensor]]) -> tuple[list[tuple[str, Tensor]], list[str]]:
    """Return parts with all images in colour if some are, and the names of those that were grey."""
    images = [x for _, x in parts if x.dtype == torch.uint8 and x.dim() == 4]
    channels = max((x.shape[1] for x in images), default=0)
    converted = [(where, add_channels(x, channels)) for where, x in parts]
    return converted, [where for (where, old), (_, new) in zip(parts, converted, strict=True) if old is not new]


def _kind(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape[1:])}"


def check_validation(client: ClientData, where: str) -> None:
    """Check that a client's validation split leaves it training data."""
    if client.validation and not len(client.train):
        raise DataError(
            f"{where}: its {len(client.validation)} samples for validation leave none for training: move some to "
            "the training split, or leave the validation split out"
        )


def client_names(names: Iterable[str], where: str) -> list[str]:
    """Return the names of clients in Unicode's composed form."""
    seen: dict[str, str] = {}
    for given in names:
        try:
            name = claims.client_name(given)
        except ValueError as error:
            raise DataError(f"{where}: client {error}") from None
        # Names become file names, and some file systems ignore case.
        other = seen.setdefault(claims.twin(name), name)
        if other is not name:
            raise DataError(f"{where}: client names {other!r} and {name!r} are the same: rename one")
    return list(seen.values())
