"""Samples that a user hands to a trained model: arrays, tables, images, and files of either."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from protofed.data.arrow import INDEX, LABEL_NAMES, choose, from_arrow
from protofed.data.dates import convert_dates
from protofed.data.frames import as_arrow
from protofed.data.images import SUFFIXES, decode, read_image, read_npz, visible
from protofed.data.options import Columns, DataOptions
from protofed.data.pool import Listing
from protofed.data.tables import Column, Table, at_row
from protofed.data.tabular import SUFFIXES as DELIMITED
from protofed.data.tabular import parse_csv, parse_parquet, with_nothing
from protofed.errors import DataError
from protofed.models import Classifier
from protofed.text import few
from protofed.untrusted.limits import Budget

if TYPE_CHECKING:
    from protofed.trained.opening import TrainedClient

_BUDGET_GB = 4.0
_SHOWN = 8  #: Columns that a warning names


def as_samples(given: Any, trained: TrainedClient, resize: int = 0) -> Tensor:
    """Return samples as a tensor ``(n, *input_shape)``, standardised if those of the run were.

    Args:
        given: A tensor or array with or without a dimension of samples, images as ``(n, C, H, W)`` or ``(n, H,
            W)`` or ``(n, H, W, C)``; a pandas table; a PIL picture; a path; or a list of such things.
        resize: Side in pixels to which pictures are scaled and centre-cropped; 0 for none.
    """
    classifier = trained.classifier
    if isinstance(given, (str, Path)):
        return torch.cat([samples for _, samples in from_files([Path(given)], trained, resize)])
    if hasattr(given, "select_dtypes"):
        read = as_arrow(
            given,
            "the table",
            {*Columns.of(trained.data).as_texts, *_list_categories(trained)},
            trained.data.na_values,
        )
        return _from_table(_values(read), trained, "the table")
    if hasattr(given, "convert") and hasattr(given, "getbands"):
        return _from_picture(given, classifier, resize)
    if isinstance(given, (list, tuple)) and given and not _is_number(given[0]):
        return torch.cat([as_samples(each, trained, resize) for each in given])
    try:
        x = given if isinstance(given, Tensor) else torch.from_numpy(np.array(given))
    except (TypeError, ValueError) as error:
        raise DataError(f"samples: expected an array, a table, a picture or a file ({error})") from None
    return _prepare_stored(x.detach().cpu(), trained, "samples")


def from_files(
    paths: Sequence[Path], trained: TrainedClient, resize: int = 0
) -> Iterator[tuple[list[tuple[str, int | None]], Tensor]]:
    """Yield the samples of files, and for each sample its file and, in a table or an array, its row from 0.

    Args:
        paths: Images, folders of images, tables (``.csv``, ``.parquet``), ``.npy``, and ``.npz`` as for training.
    """
    budget, classifier = Budget(_BUDGET_GB), trained.classifier
    for path in paths:
        if path.is_dir():
            images = [file for file in visible(path) if file.suffix.lower() in SUFFIXES]
            if not images:
                raise DataError(f"{path}: holds no images ({', '.join(sorted(SUFFIXES))})")
            for image in images:
                yield [(str(image), None)], _from_image(image, classifier, resize, budget)
        elif path.suffix.lower() in SUFFIXES:
            yield [(str(path), None)], _from_image(path, classifier, resize, budget)
        elif path.suffix.lower() in (*DELIMITED, ".parquet", ".npz", ".npy"):
            samples = _from_rows(path, trained, resize)
            yield [(str(path), row) for row in range(len(samples))], samples
        elif not path.exists():
            raise DataError(f"{path}: no such file")
        else:
            raise DataError(f"{path}: expected an image, a folder of images, .csv, .xlsx, .parquet, .npy or .npz")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (
        isinstance(value, (list, tuple)) and bool(value) and _is_number(value[0])
    )


def _prepare_stored(x: Tensor, trained: TrainedClient, where: str) -> Tensor:
    """Return samples as files of the run hold them, as its models take them."""
    if trained.table is None:
        return _shape(x, trained.classifier, where)
    raw = (len(trained.table.columns), *trained.classifier.input_shape[1:])
    x = x[None] if tuple(x.shape) == raw else x
    if tuple(x.shape[1:]) != raw or x.is_complex():
        found, wanted = "×".join(map(str, x.shape)), "×".join(map(str, raw))
        raise DataError(f"{where}: of shape {found}, but the run has samples of {wanted}")
    return _complete(x.double(), trained.table, trained, where)


def _complete(raw: Tensor, table: Table, trained: TrainedClient, where: str) -> Tensor:
    """Return raw samples as models take them; missing values are refused unless the run filled them in."""
    bad = ~raw.isfinite() if trained.data.missing == "refuse" else raw.isinf()
    if bad.any():
        row, column = bad.nonzero()[0, :2].tolist()
        raise DataError(f"{at_row(where, table.columns[column].name, row)} has no finite value")
    for name, (middle, mean) in table.units(raw).items():
        told = f"{where}: column {name}: median {middle:.4g}, but a mean of {mean:.4g} in training: another unit?"
        warnings.warn(told, stacklevel=2)
    return table.apply(raw)


def _shape(x: Tensor, classifier: Classifier, where: str) -> Tensor:
    """Return a tensor as ``(n, *input_shape)``, whatever the order of its channels."""
    shape = classifier.input_shape
    if tuple(x.shape) == shape:
        x = x[None]
    if tuple(x.shape[1:]) == shape:
        return _convert(x, classifier, where)
    if len(shape) == 3:
        C, H, W = shape
        if C == 1 and tuple(x.shape[-2:]) == (H, W) and x.dim() in (2, 3):
            return _convert(x.reshape(-1, 1, H, W), classifier, where)
        if tuple(x.shape[-3:]) == (H, W, C) and x.dim() in (3, 4):
            return _convert(x.reshape(-1, H, W, C).permute(0, 3, 1, 2).contiguous(), classifier, where)
    found, wanted = "×".join(map(str, x.shape)), "×".join(map(str, shape))
    raise DataError(f"{where}: of shape {found}, but the model takes samples of {wanted}")


def _convert(x: Tensor, classifier: Classifier, where: str) -> Tensor:
    if x.is_complex() or x.dtype == torch.bool:
        raise DataError(f"{where}: {x.dtype} cannot be samples")
    if not classifier.eight_bit:
        return x.to(torch.float32) if not x.is_floating_point() else x
    if x.dtype == torch.uint8:
        return x
    low, high = (float(x.min()), float(x.max())) if x.numel() else (0.0, 0.0)
    if x.is_floating_point() and low >= 0 and high <= 1:
        return x
    if not x.is_floating_point() and low >= 0 and high <= 255:
        return x.to(torch.uint8)
    raise DataError(
        f"{where}: values from {low:g} to {high:g}: the model takes 8-bit images (0 to 255, or 0.0 to 1.0)"
    )


def _from_rows(path: Path, trained: TrainedClient, resize: int) -> Tensor:
    """Return the samples of a file of rows, which the readers of training read."""
    budget, where, kind = Budget(_BUDGET_GB), str(path), path.suffix.lower()
    if kind == ".npy":
        return _prepare_stored(_from_npy(path), trained, where)
    if kind == ".npz":  # labels, if any, do not matter
        return _prepare_stored(_features(read_npz(path, budget)), trained, where)
    columns = replace(Columns.of(trained.data, _id_column(trained.data)), labelled=False)
    if kind in DELIMITED:
        table = parse_csv(path, columns, _list_categories(trained), budget)
    else:
        table = with_nothing(parse_parquet(path, columns, budget)[0], columns, _list_categories(trained))
    chosen = choose(table.schema, columns, where)
    if chosen.encoded:
        _check_pictures(trained.classifier, where)
        columns = replace(columns, resize=resize, channels=trained.classifier.input_shape[0])
    if chosen.encoded or chosen.listed:
        return _prepare_stored(_features(from_arrow(table, columns, where, budget)), trained, where)
    return _from_table(_values(table.select(chosen.features)), trained, where)


def _list_categories(trained: TrainedClient) -> list[str]:
    """Return the names of the columns of categories."""
    return [column.name for column in trained.table.columns if column.categories] if trained.table else []


def _id_column(data: DataOptions) -> str:
    return str(data.options.get("id_column", "")) if isinstance(data.options, dict) else ""


def _values(table: Any) -> dict[str, Sequence[Any]]:
    return {name: table[name].to_pylist() for name in table.column_names}


def _from_table(columns: Mapping[str, Sequence[Any]], trained: TrainedClient, where: str) -> Tensor:
    """Return the columns of a table by their names; where the run knows none, all but a label's in their order."""
    if (table := trained.table) is not None:
        empty = trained.data.missing != "refuse"
        columns = {**trained.data.form.replace_texts(columns, trained.data.text, table.raw, where, empty=empty)}
        columns |= _convert_dates(columns, trained.data, where)
        raw = table.encode(columns, where, trained.data.renamed)
        _warn_of_others(trained, columns, where)
        return _complete(raw, table, trained, where)
    wanted = int(np.prod(trained.classifier.input_shape))
    names = [name for name in columns if not INDEX.fullmatch(name)]
    labels = [name for name in names if name in LABEL_NAMES]
    if len(labels) == 1 and len(names) == wanted + 1:
        names.remove(labels[0])
    if len(names) != wanted:
        raise DataError(f"{where}: {len(names)} columns, but the model takes {wanted}, in the order of training")
    table = Table("none", tuple(map(Column, names)))
    x = _complete(table.encode(columns, where), table, trained, where)
    return _shape(x.reshape(-1, *trained.classifier.input_shape), trained.classifier, where)


def _convert_dates(columns: Mapping[str, Sequence[Any]], data: DataOptions, where: str) -> dict[str, Sequence[Any]]:
    """Return the columns of dates as numbers."""
    for name in data.dates:
        if name not in columns:
            raise DataError(f"{where}: lacks the column {name!r}; it has {', '.join(map(str, columns))}")
    dates = convert_dates(columns, data.dates, partial(at_row, where), data.month_first)
    return {name: values.tolist() for name, values in dates.items()}


def _warn_of_others(trained: TrainedClient, columns: Iterable[str], where: str) -> None:
    """Warn of columns that the run did not have; a label and an index are expected."""
    assert trained.table is not None
    data = trained.data
    expected = {column.name for column in trained.table.columns} | {*LABEL_NAMES, data.label_column, *data.drop}
    expected.add(_id_column(data))
    others = [name for name in columns if name not in expected and not INDEX.fullmatch(name)]
    if others:
        names = few([*map(repr, others)], _SHOWN)
        warnings.warn(f"{where}: columns that the run did not have are not used: {names}", stacklevel=5)


def _features(listing: Listing) -> Tensor:
    return listing.read(torch.arange(len(listing)))


def _from_npy(path: Path) -> Tensor:
    try:
        return torch.from_numpy(np.array(np.load(path, mmap_mode="r", allow_pickle=False)))
    except (OSError, ValueError, TypeError, EOFError) as error:
        raise DataError(f"{path}: cannot be read ({next(iter(str(error).splitlines()), '')})") from None


def _from_image(path: Path, classifier: Classifier, resize: int, budget: Budget) -> Tensor:
    option = " (--resize {})"
    x = _decode(lambda row: read_image(path), str(path), classifier, resize, budget, option)
    budget.give_back(x.numel())
    return x


def _from_picture(picture: Any, classifier: Classifier, resize: int) -> Tensor:
    def payload(row: int) -> bytes:
        buffer = io.BytesIO()
        picture.convert("L" if classifier.input_shape[0] == 1 else "RGB").save(buffer, "PNG")
        return buffer.getvalue()

    return _decode(payload, "the picture", classifier, resize, Budget(_BUDGET_GB))


def _decode(
    payload: Callable[[int], bytes],
    where: str,
    classifier: Classifier,
    resize: int,
    budget: Budget,
    option: str = "",
) -> Tensor:
    _check_pictures(classifier, where)
    channels, H, W = classifier.input_shape
    x = decode(payload, torch.zeros(1, dtype=torch.int64), lambda row: where, budget, channels, resize)
    if tuple(x.shape[-2:]) != (H, W):
        size = f"{x.shape[-2]}×{x.shape[-1]} pixels"
        raise DataError(f"{where}: {size}, but the model takes {H}×{W}: pass resize={H}{option.format(H)}")
    return x


def _check_pictures(classifier: Classifier, where: str) -> None:
    if len(classifier.input_shape) != 3 or classifier.input_shape[0] not in (1, 3):
        raise DataError(f"{where}: the model takes {'×'.join(map(str, classifier.input_shape))} numbers, no images")
    if not classifier.eight_bit:
        raise DataError(f"{where}: the model was trained on numbers, not on 8-bit images: pass an array")
