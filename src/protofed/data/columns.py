"""The columns of a table that a user asked for, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from protofed.data.options import DataOptions
from protofed.data.text import Form


@dataclass(frozen=True)
class Columns:
    """The columns to read and how to read them, as ``data`` has it; ``""`` and 0 mean "detect".

    Attributes:
        categories: Categories whatever their type, with names in place of others.
        labelled: The samples have labels; otherwise columns that are not read may be absent too.
        anywhere: Columns to drop may be absent, because other sites have them.
    """

    image: str = ""
    label: str = ""
    id: str = ""
    channels: int = 0
    resize: int = 0
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    categories: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    missing: bool = False
    labelled: bool = True
    ranged: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    form: Form = field(default_factory=Form)
    dates: Mapping[str, str] = field(default_factory=dict)
    month_first: bool = False
    unlabelled: bool = False
    rename: Mapping[str, str] = field(default_factory=dict)
    na_values: tuple[str, ...] = ()
    anywhere: bool = False
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
