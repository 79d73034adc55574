"""The command ``protofed reproduce``. Heavy imports happen inside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from protofed.cli.common import (
    Budget,
    DataDir,
    Device,
    Jobs,
    Quiet,
    Seeds,
    console,
    integers_of,
    overrides_of,
    report_progress,
)
from protofed.errors import ConfigError


def reproduce(
    target: Annotated[
        str,
        typer.Argument(
            help="A paper or a part of one, e.g. protonorm/table1, gfpl/figure3a, fedproto/claim2; or all. "
            "Without one, everything is listed with its state.",
        ),
    ] = "",
    items: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUE]...", help="Options that differ from the paper's, e.g. rounds=30."),
    ] = None,
    scale: Annotated[
        str, typer.Option(help="full: as printed; tenth: a tenth of the images; smoke: seconds, other data.")
    ] = "full",
    seeds: Seeds = "0,1,2",
    jobs: Jobs = 1,
    budget: Budget = "",
    run: Annotated[bool, typer.Option("--run/--no-run", help="Run what is missing, or show what is there.")] = True,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE,…", help="Run only these cells, e.g. dataset=mnist; repeatable."),
    ] = None,
    rule: Annotated[
        str, typer.Option(help="Show accuracies by another inference rule than the paper's, e.g. head.")
    ] = "",
    out: Annotated[Path, typer.Option(help="Folder of runs and results.")] = Path("runs/reproduction"),
    device: Device = "auto",
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Reproduce the papers' tables, figures and claims, with intervals over seeds and verdicts."""
    from protofed.experiments.batch import seconds
    from protofed_papers import running, showing

    if "=" in target:
        raise ConfigError(f"{target}: name what to reproduce first, e.g. protonorm/table1 {target}")
    numbers = tuple(integers_of(seeds))
    scope = showing.scope(scale, numbers, overrides_of(items or [], "auto", None), rule)
    if not target:
        for line in showing.listing(scope, out):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        return
    cells = showing.only(only or [])
    place = overrides_of([], device, data_dir)
    request = running.Reproduction(target, scope, out, jobs, seconds(budget), run, cells, place)
    with report_progress(quiet=quiet or not run, resume=False) as progress:
        found = running.reproduce(request, progress)
    showing.show(found, request, lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True))
