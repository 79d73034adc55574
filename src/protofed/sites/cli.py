"""``protofed init`` and ``protofed try``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from protofed.cli.common import (
    DataDir,
    Device,
    Overrides,
    Quiet,
    console,
    integers_of,
    names_of,
    overrides_of,
    report_progress,
)
from protofed.errors import ConfigError
from protofed.storage.processes import get_ready

if TYPE_CHECKING:
    from protofed.sites.looking import Survey
    from protofed.sites.recipe import Notice
    from protofed.sites.results import TryResult

SITES = 12  #: Most sites that are told apart in a terminal
Source = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="A file or folder per site, or one table with a column of sites.")
]
Label = Annotated[str, typer.Option(help="Column to predict (default: the most likely one).")]
Site = Annotated[str, typer.Option(help="Column of a single table that names the sites.")]


def init(
    folder: Source,
    overrides: Overrides = None,
    label: Label = "",
    site: Site = "",
    out: Annotated[Path, typer.Option(help="The recipe to write.")] = Path("protofed.toml"),
    yes: Annotated[bool, typer.Option("--yes", help="Take every proposal without asking.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a recipe that is there.")] = False,
) -> None:
    """Survey a folder of data, list everything worth knowing, and write a recipe that runs."""
    from protofed.config.schema import parse_overrides
    from protofed.sites.looking import inspect_folder
    from protofed.sites.recipe import write

    if out.exists() and not force:
        raise ConfigError(f"{out}: is there already: choose another --out, or add --force to replace it")
    if out.suffix != ".toml":
        raise ConfigError(f"--out {out}: a recipe's name ends in .toml")
    look = inspect_folder(folder, label, site, parse_overrides(overrides or []))
    show(look)
    proposals = [f for f in look.notices if f.options]
    if not yes and not console.is_terminal:
        console.print("Nothing is written: add --yes to take the proposals.", highlight=False)
        return
    look.check()  # before anything is asked
    taken = proposals if yes else [f for f in proposals if _ask_consent(f)]
    text = look.recipe(taken)
    write(out, text, look.notices, [notice for notice in proposals if notice not in taken])
    console.print(
        f"Written: {out}. Next: protofed run {out}, or protofed try {folder}", soft_wrap=True, markup=False
    )


def attempt(
    source: Annotated[
        str, typer.Argument(metavar="FOLDER|RECIPE", help="A file or folder per site, one table, or a recipe.")
    ],
    overrides: Overrides = None,
    label: Label = "",
    site: Site = "",
    positive: Annotated[str, typer.Option(help="Class whose sensitivity is shown (default: the rarest).")] = "",
    methods: Annotated[
        str | None,
        typer.Option(help='Networks to train, separated by commas, "" for none (default: beacon,local).'),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Of networks (default: the recipe's).")] = "",
    out: Annotated[Path | None, typer.Option(help="Output directory (default: a new one below runs/).")] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Answer whether federating helps these sites, with scikit-learn alone and pooled beside it."""
    get_ready("sklearn.ensemble", "sklearn.linear_model", "matplotlib.backends.backend_svg")
    from protofed.sites.page import arms_table
    from protofed.sites.trying import read_source, run_trial

    def answered(trial: TryResult) -> None:
        for sentence in trial.sentences[:2] * (not quiet):
            console.print(sentence, soft_wrap=True, markup=False, highlight=False)

    look, tree = read_source(source, label, site, overrides_of(overrides or [], device, data_dir))
    if look and not quiet:
        show(look)
    with report_progress(quiet=quiet or not console.is_terminal, resume=False) as progress:
        trial = run_trial(
            tree,
            look,
            integers_of(seeds),
            out,
            progress,
            0,
            methods=None if methods is None else names_of(methods),
            positive=positive,
            answered=answered,
        )
    for sentence in trial.sentences[0 if quiet else 2 :]:
        console.print(sentence, soft_wrap=True, markup=False, highlight=False)
    console.print(arms_table(trial, most=0))
    for each in trial.sites[:SITES]:
        console.print(f"{each.name}: {each.advice}", soft_wrap=True, markup=False, highlight=False)
    console.print(f"Page: {trial.page}", soft_wrap=True, markup=False)


def show(look: Survey) -> None:
    """Print what was found, as one table."""
    samples = sum(look.sites.values())
    console.print(
        f"{escape(str(look.folder.path))}: {samples:,} samples ({look.kind}) at {len(look.sites)} sites",
        highlight=False,
    )
    table = Table("site", "column", "found", "proposal", box=None, pad_edge=False)
    for notice in look.notices:
        proposal = escape(notice.proposal)
        table.add_row(
            escape(notice.site) or "all",
            escape(notice.column),
            escape(notice.found),
            f"[bold red]yours to settle:[/] {proposal}" if notice.open else proposal or "[dim]for information[/]",
        )
    console.print(table)


def _ask_consent(notice: Notice) -> bool:
    where = " ".join(part for part in (notice.site, notice.column) if part)
    return typer.confirm(f"{where}: {notice.found}: {notice.proposal}?", default=True)
