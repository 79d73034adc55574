"""Everything that is to know about a folder before a run, and the recipe that follows from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from protofed.config.schema import apply_overrides, resolve
from protofed.data import DataOptions
from protofed.data.tabular import in_utf8
from protofed.errors import DataError
from protofed.experiments.loading import load_data
from protofed.options import build_options
from protofed.sites import others, tables
from protofed.sites.recipe import Notice, combine, format_notice, text_of
from protofed.sites.scan import ONE_TABLE, DataFolder, SiteTable, divide, files_of, look, read_sheets
from protofed.text import few
from protofed.untrusted.reading import parse_toml

NATURAL: dict[str, Any] = {"partition.name": "natural", "partition.names": True, "data.clients": 0}
"""Options by which a column names the sites."""
ENCODING = "cp1252"  #: Encoding of CSV files of western spreadsheets
TEXTS = (".csv", ".tsv")
SITES = 6  #: Sites among which samples are divided at random
FEWEST = 30  #: Samples of each of them on average, unless there are two


@dataclass(frozen=True)
class Survey:
    """What a folder holds and what should be done about it."""

    folder: DataFolder
    kind: str  #: ``table``, ``vector``, ``series`` or ``image``
    sites: Mapping[str, int]  #: Name and number of samples of each site
    notices: Sequence[Notice]  #: What was found, in the order in which to read it
    source: Mapping[str, Any]  #: Options by which the data are found, by dotted name
    overrides: Mapping[str, Any] = field(default_factory=dict)  #: Options that somebody has set, by dotted name

    def recipe(self, taken: Sequence[Notice]) -> str:
        """Return a recipe, as TOML, that carries out the proposals of some of the notices.

        Raises:
            ProtofedError: If something is open, or it does not run: the data are read as a run would read them.
        """
        self.check()
        tokens = combine(taken).get("data.text_as") == "tokens"
        text = text_of("text" if tokens else self.kind, taken, self.source, self.overrides)
        load_data(resolve(parse_toml(text)))
        return text

    def check(self) -> None:
        """Raise DataError if a person has to settle something first."""
        for notice in self.notices:
            if notice.open:
                raise DataError(f"{self.folder.path}: {format_notice(notice)}")


def inspect_folder(
    path: Path, label: str = "", site: str = "", overrides: Mapping[str, Any] | None = None
) -> Survey:
    """Look at a folder.

    Args:
        path: A folder with a file or folder per site, a federation folder, or one table with a column of sites.
        label: The column to predict; "" to guess it.
        site: The column of a single table that names the sites; "" to guess it.
        overrides: Options of the recipe by dotted name; what they settle is not asked.

    Raises:
        DataError: If there is nothing to learn from, or a named column is not there.
    """
    return survey(look(path), label, site, overrides)


def survey(
    folder: DataFolder, label: str = "", site: str = "", overrides: Mapping[str, Any] | None = None
) -> Survey:
    """Look at a folder whose sites are known; see :func:`inspected`."""
    asked = build_options(DataOptions, apply_overrides({}, overrides or {}).get("data", {}), "data")
    found = _survey(folder, label or asked.label_column, site, asked)
    return replace(found, overrides=overrides or {})


def _survey(folder: DataFolder, label: str, site: str, asked: DataOptions) -> Survey:
    unread = [Notice(name, "", "is no data", "it is not read") for name in folder.unread]
    if folder.kind == "samples" or (list(folder.sites) == [ONE_TABLE] and others.in_one_column(folder)):
        return _of_samples(folder, label, site, asked)
    if site and (folder.kind != "tables" or list(folder.sites) != [ONE_TABLE]):
        raise DataError(f"{folder.path}: is no single table, so no column names its sites: leave out --site {site}")
    if folder.kind == "tables":
        return _of_tables(folder, unread, label, site, asked)
    found, held, dimensions = others.in_files(folder, asked)
    kind = "image" if folder.kind == "images" else {1: "vector", 2: "series"}.get(dimensions, "image")
    sizes = {name: counts.total() for name, counts in held.items()}
    if len(folder.sites) == 1:
        unread.append(_note_undivided(sum(sizes.values())))
    return Survey(folder, kind, sizes, [*unread, *found], folder.options)


def _of_samples(folder: DataFolder, label: str, site: str, asked: DataOptions) -> Survey:
    """Look at images, series or vectors in a column of one data set."""
    named: dict[str, Any] = {"data.label_column": label} if label else {}
    listing = others.open_listing({**folder.options, **named})
    column = site or next((name for name in listing.names if tables.is_site_column(name)), "")
    told = _note_undivided(len(listing))
    if column:
        named |= {**NATURAL, "data.options.id_column": column}
        listing = others.open_listing({**folder.options, **named})
        told = Notice("", column, "names the site of each sample", "one client each")
    found, held, kind = others.samples(listing, asked.labels)
    sizes = {name: counts.total() for name, counts in held.items()}
    return Survey(folder, kind, sizes, [told, *found], {**folder.options, **named})


def _of_tables(folder: DataFolder, unread: list[Notice], label: str, site: str, asked: DataOptions) -> Survey:
    coded = [
        Notice(
            *(site, "", "is not text in UTF-8", f"read it as {ENCODING}, as Excel writes it"),
            {"data.encoding": ENCODING},
        )
        for site, path in folder.sites.items()
        if not asked.encoding and any(f.suffix.lower() in TEXTS and not in_utf8(f) for f in files_of(path))
    ]
    data = DataOptions(encoding=ENCODING if coded else asked.encoding, na_values=asked.na_values)
    held, wrong = read_sheets(folder, data)
    damaged = [Notice(name, "", why.split(": ", 1)[-1], "correct the file", open=True) for name, why in wrong]
    if not held:
        raise DataError(few([why for _, why in wrong], 1, "; "))
    if not any(sheet.rows for sheet in held):
        raise DataError(f"{folder.path}: holds no rows: expected one per sample below the header")
    source = dict(folder.options)
    if list(folder.sites) == [ONE_TABLE]:
        held, more, told = _divide(held[0], site)
        source |= more
        unread += told
    held, spelt = tables.rename_columns(held, asked)
    found, judged = _judge(held, label, asked)
    if odd := combine(judged).get("data.na_values"):  # what stands for a missing value changes what columns are
        read, _ = read_sheets(folder, replace(data, na_values=(*asked.na_values, *odd)))
        if list(folder.sites) == [ONE_TABLE]:
            read = _divide(read[0], site)[0]
        _, again = _judge(tables.rename_columns(read, asked)[0], label, asked)
        judged = [f for f in judged if "data.na_values" in f.options] + again
    notices = sorted([*unread, *damaged, *coded, *spelt, found, *judged], key=lambda notice: not notice.asks)
    return Survey(folder, "table", {sheet.site: sheet.rows for sheet in held}, notices, source)


def _note_undivided(samples: int) -> Notice:
    sites = max(2, min(SITES, samples // FEWEST))
    proposal = f"divide the samples among {sites} sites at random (of a table, --site names a column)"
    options = {"partition.name": "dirichlet", "partition.alpha": 1.0, "data.clients": sites}
    return Notice("", "", "nothing names a site", proposal, options)


def _judge(held: Sequence[SiteTable], label: str, asked: DataOptions) -> tuple[Notice, list[Notice]]:
    name, found = tables.find_label(held, label, asked.labels)
    return found, tables.judge(held, name, asked)


def _divide(sheet: SiteTable, site: str) -> tuple[list[SiteTable], dict[str, Any], list[Notice]]:
    """Return the sites of a single table, and the options and notices that go with them."""
    if site and site not in sheet.columns:
        raise DataError(f"{sheet.file}: has no column {site!r}; its columns are {', '.join(sheet.columns)}")
    column = site or tables.find_site_column(sheet)
    if not column:
        return [sheet], {}, [_note_undivided(sheet.rows)]
    parts = divide(sheet, column)
    if not parts:
        raise DataError(f"column {column!r} names no site in any row: name another as the site")
    sizes = few([f"{part.site} ({part.rows:,})" for part in parts], 6)
    options = {**NATURAL, "data.options.id_column": column}
    return parts, options, [Notice("", column, f"{len(parts)} sites: {sizes}", "one client each")]
