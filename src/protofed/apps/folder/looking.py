"""Everything that is to know about a folder before a run, and the recipe that follows from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protofed.apps.folder import others, tables
from protofed.apps.folder.notice import Notice, combined
from protofed.apps.folder.recipe import text_of
from protofed.apps.folder.scan import ONE_TABLE, DataFolder, SiteTable, divided, look, sheets
from protofed.config.schema import resolve
from protofed.data import DataOptions
from protofed.errors import DataError
from protofed.experiments.loading import load_data
from protofed.options import build_options
from protofed.untrusted.reading import parse_toml

UNDIVIDED = Notice(
    "",
    "",
    "nothing names a site",
    "divide the samples among six sites at random (of a table, --site names a column)",
    {"partition.name": "dirichlet", "partition.alpha": 1.0, "data.clients": 6},
)


@dataclass(frozen=True)
class Survey:
    """What a folder holds and what should be done about it.

    Attributes:
        folder: The folder.
        kind: ``table``, ``vector``, ``series`` or ``image``.
        sites: Name and number of samples of each site.
        notices: What was found, in the order in which to read it.
        source: Options by which the data are found, by dotted name.
    """

    folder: DataFolder
    kind: str
    sites: Mapping[str, int]
    notices: Sequence[Notice]
    source: Mapping[str, Any]

    def recipe(self, taken: Sequence[Notice]) -> str:
        """Return a recipe, as TOML, that carries out the proposals of some of the notices.

        Raises:
            ProtofedError: If it does not run: the data are read as a run would read them.
        """
        text = text_of(self.kind, taken, self.source)
        load_data(resolve(parse_toml(text)))
        return text


def inspected(path: Path, label: str = "", site: str = "") -> Survey:
    """Look at a folder.

    Args:
        path: A folder with a file or folder per site, a federation folder, or one table with a column of sites.
        label: The column to predict; "" to guess it.
        site: The column of a single table that names the sites; "" to guess it.

    Raises:
        DataError: If there is nothing to learn from, or a named column is not there.
    """
    folder = look(path)
    unread = [Notice(name, "", "is no data", "it is not read") for name in folder.unread]
    if folder.kind == "tables":
        return _of_tables(folder, unread, label, site)
    if folder.kind == "images":
        (found, held), kind = others.images(folder), "image"
    else:
        found, held, dimensions = others.arrays(folder, DataOptions())
        kind = {1: "vector", 2: "series"}.get(dimensions, "image")
    if len(folder.sites) == 1:
        unread.append(UNDIVIDED)
    sizes = {name: counts.total() for name, counts in held.items()}
    return Survey(folder, kind, sizes, [*unread, *found], folder.options)


def _of_tables(folder: DataFolder, unread: list[Notice], label: str, site: str) -> Survey:
    held, wrong = sheets(folder, DataOptions())
    damaged = [Notice(name, "", why.split(": ", 1)[-1], "correct the file", open=True) for name, why in wrong]
    if not held:
        raise DataError("; ".join(why for _, why in wrong[:3]))
    source = dict(folder.options)
    if list(folder.sites) == [ONE_TABLE]:
        held, more, told = _divided(held[0], site)
        source |= more
        unread += told
    held, spelt = tables.renamed(held)
    found, judged = _judged(held, label)
    if odd := combined(judged).get("data.nothing"):  # what stands for a missing value changes what columns are
        read, _ = sheets(folder, build_options(DataOptions, {"nothing": tuple(odd)}, "data"))
        if list(folder.sites) == [ONE_TABLE]:
            read = _divided(read[0], site)[0]
        _, again = _judged(tables.renamed(read)[0], label)
        judged = [f for f in judged if "data.nothing" in f.options] + again
    notices = [*unread, *damaged, *spelt, found, *judged]
    return Survey(folder, "table", {sheet.site: sheet.rows for sheet in held}, notices, source)


def _judged(held: Sequence[SiteTable], label: str) -> tuple[Notice, list[Notice]]:
    name, found = tables.label_of(held, label)
    return found, tables.judge(held, name)


def _divided(sheet: SiteTable, site: str) -> tuple[list[SiteTable], dict[str, Any], list[Notice]]:
    """Return the sites of a single table, and the options and notices that go with them."""
    if site and site not in sheet.columns:
        raise DataError(f"{sheet.file}: has no column {site!r}; its columns are {', '.join(sheet.columns)}")
    column = site or tables.name_of_site(sheet)
    if not column:
        return [sheet], {}, [UNDIVIDED]
    parts = divided(sheet, column)
    sizes = ", ".join(f"{part.site} ({part.rows:,})" for part in parts[:6]) + ", …" * (len(parts) > 6)
    options = {"partition.name": "natural", "data.clients": 0, "data.options.id_column": column}
    return parts, options, [Notice("", column, f"{len(parts)} sites: {sizes}", "one client each")]
