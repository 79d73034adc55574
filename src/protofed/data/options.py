"""The typed ``data`` section of a configuration, and the columns of a table that it asks for."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from protofed.data.dates import DAY
from protofed.data.tables import Missing, RawColumn, Standardise, category
from protofed.data.text import LENGTH, Form
from protofed.errors import ConfigError
from protofed.options import Options, build_options, option, remote
from protofed.untrusted import limits
from protofed.untrusted.limits import Budget

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class DataOptions(Options):
    """The data, their amount, and each client's held-out share."""

    source: str = option("digits", "name of a data set, or 'path'")
    path: str = option(
        "", "source=path: a federation folder, an image folder, parquet or CSV files or an .npz file"
    )
    data_dir: str = option("", "folder with local copies of named data sets; default: PROTOFED_DATA")
    clients: int = option(
        20, "number of clients a data set is divided among (0 = all, partition=natural only)", least=0
    )
    samples: int = option(0, "use only this many samples, chosen per class (0 = all)", least=0)
    test_fraction: float = option(0.25, "share of each client's samples held out for testing", least=0, below=1)
    validation_fraction: float = option(0.0, "share of each client's training part held out", least=0, below=1)
    train_samples: int = option(
        0, "most training samples per client, chosen per class; the rest is left out (0 = all)", least=0
    )
    classes: int = remote(0, "number of classes K (0 = as the data say)", least=0, most=limits.CLASSES)
    image_column: str = option("", "column with the images or features ('' = detect)")
    label_column: str = option("", "column with the labels ('' = detect)")
    labels: dict[str, str] = option({}, 'class names in place of those in the data: {M = "malignant"}')
    drop: tuple[str, ...] = option((), "columns of a table that are not read, e.g. patient")
    keep: tuple[str, ...] = option((), "columns of a table that are used although they look like identifiers")
    text: tuple[str, ...] = option(
        (), "columns of a table that hold free text: each becomes 256 numbers, or tokens (see text_as)"
    )
    text_as: Literal["vectors", "tokens"] = option(
        "vectors",
        "texts become the mean of their tokens' rows in the static table of the package wordllama | numbers of "
        "their first words, for networks that learn from texts (model.name=text4) and the encoder hashing",
    )
    text_length: int = option(128, "text_as=tokens: tokens of a text that are used", least=1, most=LENGTH)
    tokenizer: str = option(
        "",
        "text_as=tokens: a tokenizer.json of Hugging Face, or a folder with it ('' = hashes of words, which need "
        "no vocabulary)",
    )
    categories: dict[str, Any] = option(
        {},
        "columns of a table that hold categories, with these in order ([] = all that occur), or with names in "
        'place of others: {ward = [1, 2], sex = {f = "female"}}',
    )
    rename: dict[str, str] = option(
        {}, 'columns that have another name in some files: {Age = "age", patient_age = "age"}'
    )
    columns: dict[str, Any] = option(
        {},
        "columns that every site of a network must have, in order, if sites do not disclose theirs: "
        '{age = "number", sex = ["f", "m"]}',
    )
    dates: dict[str, str] = option(
        {},
        "columns of dates, which become numbers: day for the days since 2000-01-01, or the column of dates from "
        'which days are counted back: {admitted = "day", born = "admitted"}',
    )
    month_first: bool = option(False, "dates with slashes and the year last begin with the month, as in 5/31/2024")
    unlabelled: Literal["refuse", "drop"] = option("refuse", "rows of a table without a label: an error | left out")
    na_values: tuple[str, ...] = option(
        (), "texts that stand for a missing value, beside '', ?, NA, NaN, null of CSV and Excel files: unknown, -"
    )
    encoding: str = option("", "encoding of CSV files that are neither UTF-8 nor UTF-16, such as Excel's cp1252")
    missing: Missing = option(
        "refuse", "missing values of a table: an error | the mean (no category) | also an input that says so"
    )
    ranges: dict[str, Any] = option(
        {},
        "columns of numbers with the least and the largest value that they can have, known without the samples; "
        "values are clamped and mapped to [-1, 1] (* = all other columns of numbers): {age = [0, 110]}",
    )
    standardise: Literal["auto", "none", "site", "federated", "chosen"] = option(
        "auto",
        "(x - mean) / standard deviation of each number of a table or vector, or channel of a series, over the "
        "training samples of each site | of all sites, from sums | chosen: closed forms use it for federated and "
        "let each client choose between both; auto: site for tables, else none",
    )
    max_gb: float = option(
        0.0,
        "most GB of memory for data (0 = half of the machine's)",
        least=0,
        below=float("inf"),
    )
    trust_code: bool = option(
        False, "import models that client.toml files of a federation folder name as package.module:callable"
    )
    options: Any = option(None, "options of the data set: a mapping or an instance of its Options class")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokenizer and self.text_as != "tokens":
            raise ValueError("tokenizer is for texts as tokens: set data.text_as=tokens")
        for name, values in self.categories.items():
            if isinstance(values, Mapping):
                _check_renames(values, f"categories.{name}")
            elif not isinstance(values, (list, tuple)) or len(set(map(category, values))) < len(values):
                raise ValueError(
                    f"categories.{name} must be a list of different categories, [] for all that occur, or a table "
                    "that renames them"
                )
        try:
            "a".encode(self.encoding or "utf-8")  # of nothing, Python would not look the encoding up
        except (LookupError, ValueError):
            raise ValueError(f"unknown text encoding {self.encoding!r}, e.g. cp1252") from None
        _check_renames(self.labels, "labels")
        _check_renames(self.rename, "rename")
        for name, other in self.dates.items():
            if other != DAY and (other == name or self.dates.get(other) != DAY):
                raise ValueError(
                    f"dates.{name} must be {DAY!r} or another column whose dates are {DAY!r}, not {other!r}"
                )
        for name, kind in self.columns.items():
            listed = isinstance(kind, (list, tuple)) and len(set(map(category, kind))) == len(kind) > 0
            if kind not in ("number", "text") and not listed:
                raise ValueError(f"columns.{name} must be number, text or a list of different categories")
        for name, value in self.ranges.items():
            ends = value if isinstance(value, (list, tuple)) and len(value) == 2 else (0, 0)
            if {*map(type, ends)} - {int, float} or not -limits.LARGEST < ends[0] < ends[1] <= limits.LARGEST:
                raise ValueError(f"ranges.{name} must be [least, largest], e.g. [0, 110], not {value}")
        if self.ranges and self.standardise == "none":
            raise ValueError("ranges map columns to [-1, 1], but standardise=none leaves them as they are")

    @property
    def expected(self) -> tuple[RawColumn, ...]:
        """Columns that every site of a network must have."""
        found: list[RawColumn] = []
        for name, kind in self.columns.items():
            if kind == "text":
                found += self.form.columns(name)
            else:
                number = kind == "number"
                found += [RawColumn(name) if number else RawColumn(name, "category", tuple(map(category, kind)))]
        return tuple(found)

    @property
    def reading(self) -> str:
        """Hash of the options that turn columns into inputs, which must agree at all sites."""
        shaping = (self.missing, self.standardise_by(table=True), self.ranges, self.text_as, self.text_length)
        text = json.dumps([*shaping, Path(self.tokenizer).name], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def declared(self) -> dict[str, tuple[str, ...]]:
        """Categories in order, by column, of the columns that may have no others."""
        lists = {name: values for name, values in self.categories.items() if not isinstance(values, Mapping)}
        return {name: tuple(map(category, values)) for name, values in lists.items() if values}

    @property
    def renamed(self) -> dict[str, dict[str, str]]:
        """Categories in place of others, by each column that holds categories whatever its type."""
        given = {name: v if isinstance(v, Mapping) else {} for name, v in self.categories.items()}
        return {name: {category(old): category(new) for old, new in v.items()} for name, v in given.items()}

    @property
    def form(self) -> Form:
        """What becomes of a column of text."""
        return Form(self.text_as, self.text_length, self.tokenizer)

    def within(self, folder: str) -> DataOptions:
        """Return the options with the tokenizer in a folder, by its name; "" to keep the path."""
        if not (self.tokenizer and folder):
            return self
        return dataclasses.replace(self, tokenizer=str(Path(folder, Path(self.tokenizer).name)))

    def standardise_by(self, table: bool) -> Standardise:
        """Return whether the data, a table or not, are standardised by site or over all sites."""
        if self.standardise == "auto":
            return "site" if table or self.ranges else "none"
        return self.standardise

    def budget(self) -> Budget:
        """Return the memory budget of all loaded data together."""
        return Budget(self.max_gb or memory_gb() / 2)


def _check_renames(names: Mapping[Any, Any], what: str) -> None:
    """Check that a mapping renames without chains."""
    if not all(isinstance(name, str) and name.strip() for name in (*names, *names.values())):
        raise ValueError(f'{what} must map names to names, such as {{M = "malignant"}}')
    for new in names.values():
        if names.get(new, new) != new:
            raise ValueError(f"{what}: {new!r} is both a name and given another: give each name its last one")


def memory_gb() -> float:
    """Return the memory in GB of this machine, or of the container in which this process runs."""
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # "max" is not a number
        size = min(size, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return size / 1e9


def resolve_options(kind: type[T], given: Any, section: str) -> T:
    """Return ``given``, an instance, mapping or None for the defaults, as an instance of an options dataclass."""
    if isinstance(given, kind):
        return given
    if given is None:
        return kind()
    if not isinstance(given, Mapping):
        raise ConfigError(f"{section}: expected a mapping or {kind.__name__}, got {type(given).__name__}")
    return build_options(kind, given, section)


@dataclass(frozen=True)
class Columns:
    """The columns to read and how to read them, as ``data`` has it; ``""`` and 0 mean "detect"."""

    image: str = ""
    label: str = ""
    id: str = ""
    channels: int = 0
    resize: int = 0
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    #: Categories whatever their type, with names in place of others
    categories: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    missing: bool = False
    labelled: bool = True  #: The samples have labels; otherwise columns that are not read may be absent too
    ranged: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    form: Form = field(default_factory=Form)
    dates: Mapping[str, str] = field(default_factory=dict)
    month_first: bool = False
    unlabelled: bool = False
    rename: Mapping[str, str] = field(default_factory=dict)
    na_values: tuple[str, ...] = ()
    anywhere: bool = False  #: Columns to drop may be absent, because other sites have them
    encoding: str = ""

    @property
    def described(self) -> tuple[str, ...]:
        """Columns that are no identifiers, because they are kept, are dates or have a range."""
        return (*self.keep, *self.ranged, *self.dates)

    @property
    def as_texts(self) -> tuple[str, ...]:
        """Columns that stay text in files without types."""
        return (*self.categories, *self.text, *self.dates)

    def called(self, names: Sequence[str]) -> list[str]:
        """Return the names of a file's columns after ``data.rename``."""
        return [self.rename.get(name, name) for name in names]

    @classmethod
    def of(cls, data: DataOptions, identifier: str = "", resize: int = 0) -> Columns:
        """Return the columns that the options ask for."""
        alike = ("drop", "keep", "text", "form", "dates", "month_first", "rename", "na_values", "encoding")
        return cls(
            *(data.image_column, data.label_column, identifier),
            resize=resize,
            categories=data.renamed,
            missing=data.missing != "refuse",
            ranged=tuple(data.ranges),
            unlabelled=data.unlabelled == "drop",
            **{name: getattr(data, name) for name in alike},
        )
