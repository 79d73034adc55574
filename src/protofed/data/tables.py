"""Typed columns of tables: what sites agree on, standardisation, and an input per category.

A table is read as *raw* columns: numbers, and categories by their number, with NaN for a missing value. Sites
agree on the columns (:func:`agree`), sum up their training samples (:func:`moments`) and so obtain a
:class:`Table`, plain data that turn raw columns into the inputs of a model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor, nn

from protofed.errors import DataError, unknown_name
from protofed.text import few
from protofed.untrusted import limits
from protofed.untrusted.decoding import ClassName, decode, within

Standardise = Literal["none", "site", "federated", "chosen"]
Missing = Literal["refuse", "mean", "indicator"]
Kind = Literal["number", "category", "text", "token", "identifier", "unknown"]
TEXTS: tuple[Kind, ...] = ("text", "token")  #: Kinds of the numbers of a text
Ranges = Mapping[str, tuple[float, float]]
"""Least and largest value of columns of numbers by name; ``*`` for all others."""

_Moderate = Annotated[float, within(least=-2 * limits.LARGEST, most=limits.LARGEST)]
_CONSTANT = 1e-12  #: Relative standard deviation up to which a column counts as constant (rounding errors)
_SHOWN = 8  #: Columns that a note names
_DECIMAL = re.compile(r"[+-]?\d{1,99}(\.\d{0,99})?", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


SPREADSHEETS = (".csv", ".tsv", ".xlsx")  #: Suffixes of files whose rows people count as a spreadsheet does


def number_row(where: str, row: int) -> int:
    """Return the number of a row in messages, given it from 0: in a spreadsheet, the header is row 1."""
    return row + 2 if where.lower().endswith(SPREADSHEETS) else row


def at_row(where: str, column: str, row: int) -> str:
    """Return the place of a value for messages, given the row from 0."""
    return f"{where}: column {column!r}, row {number_row(where, row)}"


@dataclass(frozen=True)
class RawColumn:
    """A column as files hold it."""

    name: str
    #: ``number``; ``category``; ``text`` for one of the numbers of a text, and ``token`` for one of its tokens,
    #: which are used as they are; ``identifier`` if its values hardly repeat; ``unknown`` if it has none
    kind: Kind = "number"
    categories: tuple[str, ...] = ()


UNIT = 4.0
"""Ratio of two medians from which units seem to differ, if the middle halves of the numbers do not overlap."""
HALF = 0.6745  #: Half the width of the middle half of a Gaussian, in standard deviations
_FEW, _FAR = 8, 2.5  #: Of fewer numbers than the first, it takes so many standard deviations


def another_unit(own: tuple[float, float, float], others: tuple[float, float, float]) -> bool:
    """Return whether numbers seem to have different units, given the quartiles of both."""
    ratio = own[1] / others[1] if own[1] > 0 and others[1] > 0 else 1.0
    return not 1 / UNIT < ratio < UNIT and (own[0] > others[2] or own[2] < others[0])


class Moments(NamedTuple):
    """Sums over the values of one column at one site; no single value."""

    number: int = 0
    mean: float = 0.0
    squares: float = 0.0  #: Sum of squared deviations from the mean
    missing: bool = False


@dataclass(frozen=True)
class Column:
    """A column as models take it: ``(value - mean) / scale``, or 1 for the value's category and 0 for others."""

    name: ClassName
    kind: Kind = "number"
    mean: _Moderate = 0.0
    scale: Annotated[float, within(above=0, most=limits.LARGEST)] = 1.0
    fill: _Moderate = 0.0  #: In place of a missing number; a missing category is none of the categories
    categories: tuple[ClassName, ...] = ()
    indicator: bool = False  #: Another input is 1 where the value is missing, and 0 elsewhere
    bounded: bool = False  #: Clamp the input to [-1, 1]: mean and scale are those of a declared range

    def __post_init__(self) -> None:
        _check_categories(self)
        if self.kind not in ("number", "category", *TEXTS):
            raise ValueError(f"column {self.name}: must be number, category, text or token")

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the model's inputs for this column."""
        own = (self.name,) if self.kind != "category" else tuple(f"{self.name}={c}" for c in self.categories)
        return (*own, f"{self.name} missing") if self.indicator else own


@dataclass(frozen=True)
class Table:
    """Preparation of a table: from raw columns to the inputs of a model."""

    standardise: Standardise
    columns: Annotated[tuple[Column, ...], Meta(min_length=1, max_length=limits.COLUMNS)]
    #: If both standardisations stand side by side, for a closed form to choose: the columns as the site
    #: standardises them, the same as ``columns`` where the site is not known
    beside: Annotated[tuple[Column, ...], Meta(max_length=limits.COLUMNS)] = ()

    def __post_init__(self) -> None:
        if len({column.name for column in self.columns}) < len(self.columns):
            raise ValueError("columns: expected columns with different names")

    @property
    def raw(self) -> tuple[RawColumn, ...]:
        """The raw columns that :meth:`apply` takes."""
        return tuple(RawColumn(c.name, c.kind, c.categories) for c in self.columns)

    @property
    def views(self) -> int:
        """Number of times that all inputs stand side by side, each time standardised otherwise."""
        return 2 if self.standardise == "chosen" else 1

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of all inputs of a model, once."""
        return tuple(name for column in self.columns for name in column.inputs)

    @property
    def texts(self) -> tuple[tuple[int, int], ...]:
        """First input and number of inputs of each text that is tokens."""
        return text_places(self.columns)

    def note(self) -> str:
        """Describe the preparation in a sentence for a report."""
        how = {
            "none": "numbers are as they are",
            "site": "numbers are standardised by the training samples of each site",
            "federated": "numbers are standardised by the training samples of all sites, from sums",
            "chosen": "numbers are standardised by the training samples of all sites, from sums, and beside it of "
            "each site",
        }
        names = list(dict.fromkeys(_text_of(c) if c.kind in TEXTS else c.name for c in self.columns))
        listed = few(names, _SHOWN)
        texts = "; those of texts are as they are" if any(c.kind in TEXTS for c in self.columns) else ""
        within = sum(column.bounded for column in self.columns)
        ranged = f"; {within} are clamped to declared ranges and map these to [-1, 1]" if within else ""
        return (
            f"Inputs: {len(self.inputs)} from {len(names)} columns or channels ({listed}); "
            f"{how[self.standardise]} (data.standardise={self.standardise}){ranged}{texts}."
        )

    def apply(self, raw: Tensor) -> Tensor:
        """Return the inputs ``(n, F, …)`` float32 for raw values ``(n, C, …)``."""
        inputs: Tensor = TableInputs(self)(raw)
        return inputs

    def restore(self, inputs: Tensor) -> Tensor:
        """Return raw values ``(n, C, …)`` float64 of which :meth:`apply` makes the inputs ``(n, F, …)``.

        A missing value that was filled in is a number now, and a missing category may be an unknown one.
        """
        parts, at = [], 0
        for c in self.columns:
            own = inputs[:, at : at + len(c.inputs)].double()
            at += len(c.inputs)
            if c.kind != "category":
                value = own[:, 0] * c.scale + c.mean
            else:  # an unknown category has the number after the last
                n = len(c.categories)
                value = torch.cat([own[:, :n], torch.full_like(inputs[:, :1], 0.5)], dim=1).argmax(1).double()
            parts.append(torch.where(own[:, -1] == 1, torch.nan, value) if c.indicator else value)
        return torch.stack(parts, dim=1)

    def beyond(self, raw: Tensor) -> dict[str, int]:
        """Count the raw values ``(n, C, …)`` of each column beyond its range, where any are."""
        found = {}
        for number, c in enumerate(self.columns):
            if c.bounded and (outside := int(((raw[:, number].double() - c.mean).abs() > c.scale).sum())):
                found[c.name] = outside
        return found

    def units(self, raw: Tensor) -> dict[str, tuple[float, float]]:
        """Return median and training mean of columns of raw values ``(n, C, …)`` that seem to have another unit."""
        found = {}
        for c, values in zip(self.columns, raw.double().unbind(1), strict=True):
            known = values[values.isfinite()].numpy()
            if self.standardise == "none" or c.kind != "number" or c.bounded or not len(known):
                continue
            low, middle, high = np.quantile(known, [0.25, 0.5, 0.75]).tolist()
            spread = c.scale * (HALF if len(known) >= _FEW else _FAR)
            if another_unit((low, middle, high), (c.mean - spread, c.mean, c.mean + spread)):
                found[c.name] = (middle, c.mean)
        return found

    def shape(self, raw: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a sample's inputs, given that of a raw sample."""
        return (self.views * len(self.inputs), *raw[1:])

    def encode(
        self,
        columns: Mapping[str, Sequence[Any]],
        where: str = "table",
        renamed: Mapping[str, Mapping[str, str]] | None = None,
    ) -> Tensor:
        """Return raw values ``(n, C)`` float64 of named columns, such as those of a data frame.

        Args:
            columns: Of equal length; None or NaN is missing. Others are ignored.
        """
        for column in self.columns:
            if column.name not in columns:
                raise DataError(f"{where}: lacks the column {column.name!r}; it has {', '.join(map(str, columns))}")
        names = renamed or {}
        found = [_encode(c, list(columns[c.name]), where, names.get(c.name, {})) for c in self.columns]
        return torch.from_numpy(np.column_stack(found))

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: object) -> Table:
        """Return a table from plain values; the inverse of :meth:`to_dict`."""
        return decode(value, cls, error=ValueError, exact=True)


def text_places(columns: Sequence[Column | RawColumn]) -> tuple[tuple[int, int], ...]:
    """Return the first input and the number of inputs of each text that is tokens."""
    found: dict[str, tuple[int, int]] = {}
    at = 0
    for column in columns:
        if column.kind == "token":
            first, number = found.get(_text_of(column), (at, 0))
            found[_text_of(column)] = first, number + 1
        at += len(column.inputs) if isinstance(column, Column) else 1
    return tuple(found.values())


def _text_of(column: Column | RawColumn) -> str:
    """Return the text column from which a numeric column was derived."""
    return column.name.rpartition(" [")[0]


class TableInputs(nn.Module):
    """A preparation as a module, which exported models contain.

    Its numbers are buffers that are not saved, so that a model has the same weights with and without it.
    """

    source: Tensor
    numeric: Tensor
    shown: Tensor
    code: Tensor
    mean: Tensor
    scale: Tensor
    fill: Tensor
    most: Tensor

    def __init__(self, table: Table) -> None:
        super().__init__()
        self.columns = len(table.columns)
        # Of every input: its column, whether it is a number or 1 for a missing value, and its category's number.
        rows: list[tuple[float, ...]] = []
        parts = (table.columns, table.beside or table.columns)[: table.views]
        for i, c in (pair for columns in parts for pair in enumerate(columns)):
            codes = range(len(c.categories)) if c.kind == "category" else [0]
            most = 1.0 if c.bounded else math.inf
            rows += [(i, c.kind != "category", 0, code, c.mean, c.scale, c.fill, most) for code in codes]
            rows += [(i, 0, 1, 0, 0, 1, 0, math.inf)] if c.indicator else []
        kinds = (torch.int64, torch.bool, torch.bool, *[torch.float64] * 5)
        names = ("source", "numeric", "shown", "code", "mean", "scale", "fill", "most")
        for name, kind, values in zip(names, kinds, zip(*rows, strict=True), strict=True):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64).to(kind), persistent=False)

    def forward(self, raw: Tensor) -> Tensor:
        """Return the inputs ``(n, F, …)`` float32 for raw values ``(n, C, …)``; in float64 until the last step."""
        if raw.shape[1] != self.columns:
            raise DataError(f"samples have {raw.shape[1]} columns, not {self.columns}")
        x = raw.double().index_select(1, self.source)
        shape = (-1, *[1] * (x.dim() - 2))
        absent = x.isnan()
        value = torch.where(absent, self.fill.view(shape), x)
        most = self.most.view(shape)
        number = ((value - self.mean.view(shape)) / self.scale.view(shape)).clamp(-most, most)
        flag = torch.where(self.shown.view(shape), absent.double(), (x == self.code.view(shape)).double())
        return torch.where(self.numeric.view(shape), number, flag).float()


def _check_categories(column: Column | SiteColumn) -> None:
    names, kind = column.categories, column.kind
    if len(set(names)) < len(names) or len(names) > limits.CATEGORIES or (names and kind != "category"):
        raise ValueError(f"categories: expected at most {limits.CATEGORIES} different names, of categories only")


def _encode(column: Column, values: list[Any], where: str, renamed: Mapping[str, str]) -> np.ndarray:
    if column.kind in TEXTS:
        return np.array(values, dtype=np.float64)
    codes = {category(name): float(code) for code, name in enumerate(column.categories)}
    found = np.full(len(values), np.nan)
    for row, value in enumerate(values):
        if value is None or value != value or (isinstance(value, str) and not value.strip()):
            continue
        at = at_row(where, column.name, row)
        if column.kind == "category":
            name = category(value)
            name = renamed.get(name, name)
            if name not in codes:
                raise DataError(f"{at}: {unknown_name('category', name, codes)}")
            found[row] = codes[name]
            continue
        try:
            found[row] = float(value if not isinstance(value, str) or is_number(value) else "text")
        except (TypeError, ValueError):
            raise DataError(f"{at}: {str(value)[:40]!r} is not a number") from None
        if not abs(found[row]) <= limits.LARGEST:
            raise DataError(f"{at}: {value} is not a finite number of at most {limits.LARGEST:g}")
    return found


def is_number(text: str) -> bool:
    """Return whether a text is a decimal number, in the form that CSV files have."""
    return _NUMBER.fullmatch(text.strip()) is not None


def category(value: object) -> str:
    """Return a value as the name of a category: text without outer spaces; 1 for 1.0 and 01, too."""
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        value = int(value)
    text = str(value).strip()
    if not _DECIMAL.fullmatch(text):
        return text
    whole, _, decimals = text.partition(".")
    return repr(float(text)) if decimals.strip("0") else str(int(whole))


@dataclass(frozen=True)
class SiteColumn:
    """A network site's statement about one of its columns: names and sums, never a value of a sample."""

    name: ClassName
    kind: Kind
    categories: tuple[ClassName, ...] = ()
    missing: bool = False  #: Training samples lack values, if that adds an input
    #: Values, if sums are asked for; see Moments
    number: Annotated[int, within(least=0, most=limits.CLAIMED_SAMPLES * limits.INPUT_SIDE)] = 0
    mean: _Moderate = 0.0
    squares: Annotated[float, within(least=0, most=limits.LARGEST**3)] = 0.0

    def __post_init__(self) -> None:
        _check_categories(self)

    @property
    def raw(self) -> RawColumn:
        """The column as files hold it."""
        return RawColumn(self.name, self.kind, self.categories)

    @property
    def moments(self) -> Moments:
        """The sums over its values."""
        return Moments(self.number, self.mean, self.squares, self.missing)


def state_columns(
    columns: Sequence[RawColumn],
    sums: Sequence[Moments],
    standardise: Standardise,
    missing: Missing,
    ranges: Ranges = MappingProxyType({}),
) -> tuple[SiteColumn, ...]:
    """Return a site's statements about its columns.

    Args:
        standardise: Sums are stated only if ``federated`` or ``chosen``.
        missing: Missing values are stated only if ``indicator``.
        ranges: Nothing is stated of the values of these columns.

    Raises:
        DataError: If a column has so few values that their sums would almost give them away.
    """
    found = []
    for column, m in zip(columns, sums, strict=True):
        if range_of(column, ranges) is not None:
            found.append(SiteColumn(column.name, column.kind))
            continue
        site = SiteColumn(column.name, column.kind, column.categories, missing == "indicator" and m.missing)
        if standardise in ("federated", "chosen") and column.kind == "number":
            if 0 < m.number < limits.LEAST_SUMMED:
                raise DataError(
                    f"column {column.name!r} has {m.number} values for training, too few to state their mean "
                    f"(at least {limits.LEAST_SUMMED}): choose data.standardise=site"
                )
            site = replace(site, number=m.number, mean=m.mean, squares=m.squares)
        found.append(site)
    return tuple(found)


def recode(raw: Tensor, own: tuple[RawColumn, ...], agreed: tuple[RawColumn, ...]) -> Tensor:
    """Return raw values in the order of the agreed columns, with the numbers of the agreed categories.

    Args:
        raw: ``(n, C)`` float64.
    """
    if own == agreed or not len(raw):
        return raw
    place = {column.name: number for number, column in enumerate(own)}
    parts = []
    for column in agreed:
        values, mine = raw[:, place[column.name]], own[place[column.name]]
        if mine.categories and mine.categories != column.categories:
            codes = torch.tensor([column.categories.index(c) for c in mine.categories], dtype=raw.dtype)
            present = ~values.isnan()
            values = values.masked_scatter(present, codes[values[present].long()])
        parts.append(values)
    return torch.stack(parts, dim=1)


def moments(raw: Tensor) -> tuple[Moments, ...]:
    """Return the sums over the samples of each column.

    Args:
        raw: ``(n, C, …)``; trailing dimensions, such as time, count as further values of the column.
    """
    columns = raw.double().flatten(2).transpose(0, 1).flatten(1) if raw.dim() > 2 else raw.double().t()
    found = []
    for values in columns.numpy():
        present = values[~np.isnan(values)]
        mean = float(present.mean()) if len(present) else 0.0
        squares = float(np.square(present - mean).sum())
        found.append(Moments(len(present), mean, squares, len(present) < len(values)))
    return tuple(found)


def pool_moments(sites: Sequence[Moments]) -> tuple[float, float]:
    """Return mean and population standard deviation of a column over all sites; the latter is 1 for a constant.

    With ``n_i`` values of mean ``m_i`` and squared deviations ``q_i`` at site ``i``, the mean is
    ``m = Σ n_i m_i / n`` and the variance ``(Σ q_i + Σ n_i (m_i - m)²) / n`` (Chan, Golub and LeVeque, 1979). Raw
    sums of squares would lose the digits that mean and values share. The order of the sites has no effect.
    """
    number = sum(s.number for s in sites)
    if not number:
        return 0.0, 1.0
    mean = math.fsum(s.number * s.mean for s in sites) / number
    squares = math.fsum([*(s.squares for s in sites), *(s.number * (s.mean - mean) ** 2 for s in sites)])
    deviation = math.sqrt(squares / number)
    return mean, deviation if deviation > _CONSTANT * abs(mean) else 1.0


def range_of(column: RawColumn, ranges: Ranges) -> tuple[float, float] | None:
    """Return the declared range of a numeric column, or else the one for ``*``, or None."""
    if column.kind == "category":
        if column.name in ranges:
            raise DataError(f"data.ranges.{column.name}: the column holds categories: declare data.categories")
        return None
    return None if column.kind in TEXTS else ranges.get(column.name, ranges.get("*"))


def fit(
    columns: Sequence[RawColumn],
    sites: Sequence[Sequence[Moments]],
    standardise: Standardise,
    missing: Missing,
    ranges: Ranges = MappingProxyType({}),
) -> Table:
    """Return the preparation of the columns on which sites agreed.

    Args:
        standardise: ``federated`` or ``chosen`` for numbers over all sites. With ``site`` and ``chosen`` each site
            has its own, see :func:`own`.
    """
    fitted, told = [], missing == "indicator"
    for number, column in enumerate(columns):
        own = [site[number] for site in sites]
        if (within := range_of(column, ranges)) is not None:
            middle, half = (within[0] + within[1]) / 2, (within[1] - within[0]) / 2
            made = Column(column.name, mean=middle, scale=half, fill=middle, indicator=told, bounded=True)
            fitted.append(made)
            continue
        indicator = told and any(m.missing for m in own)
        made = Column(column.name, column.kind, categories=column.categories, indicator=indicator)
        fitted.append(_scale(made, own, standardise) if standardise in ("federated", "chosen") else made)
    return Table(standardise, tuple(fitted))


def own(table: Table, site: Sequence[Moments]) -> Table:
    """Return the preparation for one site, with its own numbers unless they are those of all sites."""
    if table.standardise == "federated":
        return table
    pairs = zip(table.columns, site, strict=True)
    scaled = tuple(_scale(c, [m], table.standardise) for c, m in pairs)
    return replace(table, beside=scaled) if table.standardise == "chosen" else replace(table, columns=scaled)


def _scale(column: Column, sites: Sequence[Moments], standardise: Standardise) -> Column:
    if column.kind != "number" or column.bounded:
        return column
    mean, scale = pool_moments(sites)
    return (
        replace(column, fill=mean) if standardise == "none" else replace(column, mean=mean, scale=scale, fill=mean)
    )
