"""The command line. Heavy imports happen inside commands, so that ``--help`` is fast."""

from __future__ import annotations

import atexit
import errno
import gc
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.markup import escape

from protofed import __version__
from protofed.cli import trained as commands
from protofed.cli.common import (
    Budget,
    Commands,
    DataDir,
    Device,
    Jobs,
    Overrides,
    Quiet,
    Seeds,
    console,
    errors,
    integers_of,
    names_of,
    overrides_of,
    report_progress,
    signals,
)
from protofed.compute import numerics
from protofed.errors import CheckpointError, ConfigError, ProtofedError
from protofed.storage.processes import get_ready

if TYPE_CHECKING:
    from protofed.runs.run import Run

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Prototype-based federated learning: different models, different data, a few kilobytes per round.",
)

Out = Annotated[Path | None, typer.Option(help="Output directory (default: a new one below runs/).")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")]
LogFormat = Annotated[
    str, typer.Option(help="auto (bars in a terminal, else lines), text (lines) or json (one object per line).")
]
Track = Annotated[str, typer.Option(help="Trackers, separated by commas: tensorboard, wandb, mlflow.")]
From = Annotated[
    Path | None, typer.Option("--from", metavar="RUN", help="Start from the trained clients of a finished run.")
]
Methods = Annotated[str, typer.Option(help="Methods, separated by commas, or all (default: the recipe's).")]
Full = Annotated[bool, typer.Option("--full", help="Print every rule, all traffic and the notes.")]
Format = Annotated[
    str,
    typer.Option("--format", help="Print the results: csv or markdown, by run and rule; latex, means over seeds."),
]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"protofed {__version__}")
        raise typer.Exit


@app.callback()
def protofed(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Accept options that belong to no command."""


@app.command()
def run(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE] [NAME=VALUE]...",
            help="A built-in recipe or TOML file (default: quickstart, or with --resume the recipe of what lies in "
            "--out), then options by dotted name, e.g. method.name=fedproto method.lambda=10 rounds=40.",
        ),
    ] = None,
    out: Out = None,
    resume: Resume = False,
    device: Device = "auto",
    data_dir: DataDir = None,
    quiet: Quiet = False,
    engine: Annotated[str, typer.Option(help="local, or flower for Flower's simulation engine.")] = "local",
    start: From = None,
    track: Track = "",
    log_format: LogFormat = "auto",
    full: Full = False,
) -> None:
    """Run a recipe: train, evaluate, and write a run directory with a report."""
    if not any(each.startswith("method.name=") for each in arguments or ()):
        get_ready()  # of a comparison, as most such runs are
    from protofed import api

    recipe, items = _split_recipe(arguments or [])
    overrides = overrides_of(items, device, data_dir)
    if start is not None:
        overrides["model.start"] = str(start.resolve())
    with report_progress(quiet=quiet, log_format=log_format, full=full) as progress:
        result = api.run(
            recipe,
            overrides,
            out=out,
            resume=resume,
            progress=progress,
            engine=engine,
            track=names_of(track),
            jobs=0,
        )
    _show(result, table=log_format != "json", full=full)


@app.command()
def compare(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE] [NAME=VALUE[,VALUE]...]...",
            help="A built-in recipe or TOML file (default: the recipe of what goes on in --out), then options by "
            "dotted name; of several values every combination runs, e.g. method.s=50,150 rounds=40.",
        ),
    ] = None,
    methods: Methods = "",
    seeds: Seeds = "",
    jobs: Annotated[
        int, typer.Option(min=0, help="Simultaneous runs (0: as many as cores and memory permit, if it pays).")
    ] = 0,
    budget: Budget = "",
    out: Out = None,
    resume: Resume = False,
    device: Device = "auto",
    data_dir: DataDir = None,
    quiet: Quiet = False,
    track: Track = "",
    log_format: LogFormat = "auto",
    form: Format = "",
    full: Full = False,
) -> None:
    """Run several methods, or values of options, on the same federation; compare them in one table and report."""
    if jobs != 1:
        get_ready()
    from protofed import api
    from protofed.analysis.table import check_format, format_table
    from protofed.experiments.batch import seconds

    if form:
        check_format(form)  # before anything runs
    limit = seconds(budget)
    recipe, items = _split_recipe(arguments or [])
    with report_progress(quiet=quiet or bool(form), log_format=log_format, full=full) as progress:
        result = api.compare(
            recipe,
            names_of(methods),
            integers_of(seeds),
            overrides_of([], device, data_dir),
            vary=items,
            out=out,
            resume=resume,
            progress=progress,
            jobs=jobs,
            budget=limit,
            track=names_of(track),
        )
    if form and any(result.runs.values()):
        typer.echo(format_table(result.to_frame(), form), nl=False)
    _show(result, table=log_format != "json" and not form, full=full)


@app.command()
def tune(
    recipe: Annotated[str, typer.Argument(help="A built-in recipe or TOML file.")],
    items: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=LOW..HIGH[:log]|NAME=VALUE[,VALUE]...",
            help="Options by dotted name, e.g. method.lambda=0.1..10:log method.scaling=true,false rounds=40.",
        ),
    ],
    method: Annotated[str, typer.Option(help="Method or variant to tune (default: the recipe's).")] = "",
    seeds: Seeds = "",
    trials: Annotated[int, typer.Option(min=1, help="Number of trials in all.")] = 30,
    jobs: Jobs = 1,
    budget: Budget = "",
    out: Annotated[
        Path | None, typer.Option(help="Output directory, which may hold parts (default: below runs/).")
    ] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    quiet: Quiet = False,
) -> None:
    """Search for good values of options by accuracy on validation samples, never on test samples."""
    from protofed import api
    from protofed.analysis.tables import trials_table
    from protofed.experiments.batch import seconds

    limit = seconds(budget)
    with report_progress(quiet=quiet, resume=False) as progress:
        result = api.tune(
            recipe,
            items,
            method,
            integers_of(seeds),
            overrides_of([], device, data_dir),
            out=out,
            progress=progress,
            trials=trials,
            jobs=jobs,
            budget=limit,
        )
    console.print(trials_table(result.trials))
    if result.unfinished:
        console.print(
            f"Time is up after {len(result.trials)} of {trials} trials; repeat the command to go on.",
            highlight=False,
        )
    if result.best:
        best = " ".join(f"{name}={_toml(value)}" for name, value in result.best.values.items())
        console.print(f"Best: {best}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"Trials: {result.directory / 'tuning.json'}", soft_wrap=True)


@app.command(name="list")
def list_(
    kind: Annotated[
        str,
        typer.Argument(
            help="methods, models, encoders, datasets, partitions, recipes, variants, figures or options; without "
            "it, what there is."
        ),
    ] = "",
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these, e.g. list methods fedproto.")
    ] = None,
) -> None:
    """List the names that can be used in a recipe, with options and their defaults."""
    from protofed.cli.catalogue import KINDS, entries

    if not kind:
        for each in KINDS:
            found = ", ".join(entry.name for entry in entries(each))
            console.print(f"[bold]{each}[/]  {escape(found)}", highlight=False, soft_wrap=True)
        return
    for entry in entries(kind, names or ()):
        console.print(f"[bold]{entry.name}[/]  {entry.summary}", highlight=False, soft_wrap=True)
        for name, default, doc in entry.options:
            console.print(f"    {name} = {default!r}  [dim]{doc}[/]", highlight=False, soft_wrap=True)


@app.command()
def inspect(
    recipe: Annotated[str, typer.Argument(help="A built-in recipe or TOML file.")],
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="Output path of the heat map without suffix (PNG and SVG).")] = Path(
        "split"
    ),
    data_dir: DataDir = None,
) -> None:
    """Print and draw how a recipe divides its data (client × class), without training."""
    from protofed.analysis.split import inspect_split

    tables, drawn = inspect_split(recipe, overrides_of(overrides or [], "auto", data_dir), out, console.width)
    for table in tables:
        console.print(table)
    console.print(f"Drawn: {', '.join(str(path) for path in drawn)}", soft_wrap=True)


@app.command()
def report(
    directories: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run or comparison directories.")],
    figure: Annotated[
        str, typer.Option(metavar="NAME", help="Draw one of `protofed list figures` instead, as PNG and SVG.")
    ] = "",
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Option of the figure; may be repeated.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Output file (default: report.html in the first directory), or path of the figure without suffix "
            "(default: its name)."
        ),
    ] = None,
) -> None:
    """Rebuild the report of one run, compare several runs side by side, or draw a figure of them."""
    from protofed.analysis.figures import draw_figure, figures, save_figure
    from protofed.analysis.report import write_report
    from protofed.config.schema import parse_overrides
    from protofed.runs.loading import load_runs

    if option and not figure:
        raise ConfigError(f"--option {option[0]}: names an option of no figure: add --figure NAME")
    if figure:
        figures.get(figure)
        drawn = draw_figure(figure, load_runs(directories), parse_overrides(option or []))
        console.print(f"Drawn: {', '.join(map(str, save_figure(drawn, out or Path(figure))))}", soft_wrap=True)
        return
    left_out: list[CheckpointError] = []
    path = write_report(directories, out or directories[0] / "report.html", left_out)
    for reason in left_out:
        errors.print(f"left out: {reason}", style="yellow", highlight=False, soft_wrap=True, markup=False)
    console.print(f"Report: {path}", soft_wrap=True)


def _show(result: Any, *, table: bool = True, full: bool = False) -> None:
    """Print the table and the report's path of a run or comparison; end with status 1 if all of it is worthless."""
    from protofed.experiments import Comparison
    from protofed.runs.trouble import ruin

    runs = [run for group in result.runs.values() for run in group] if isinstance(result, Comparison) else [result]
    if table and runs:
        _print(result, full)
    if isinstance(result, Comparison):
        for label, why in result.failed.items():
            errors.print(f"{label}: {why}", style="yellow", highlight=False, soft_wrap=True, markup=False)
        if missing := len(result.waiting):
            errors.print(f"Time is up: {missing} runs are not finished; repeat the command to go on.")
    ruined = {str(run.directory): found for run in runs if (found := ruin(run.rounds))}
    for directory, found in ruined.items():
        text = f"{directory}: {found}" if len(runs) > 1 else found
        errors.print(f"[bold white on red]FAILED[/] [bold red]{escape(text)}[/]", highlight=False, soft_wrap=True)
    if ruined:
        raise typer.Exit(1)


def _print(result: Any, full: bool) -> None:
    """Print the answer of a run or comparison, one line per method, and remarks."""
    from protofed.analysis import grid
    from protofed.analysis.answer import ROWS, answer, answer_table
    from protofed.analysis.differing import remarks
    from protofed.experiments import Comparison
    from protofed.runs.loading import load_runs

    runs = load_runs([result.directory]) if isinstance(result, Comparison) else [result]
    runs = [run for run in runs if run.finished]
    if isinstance(result, Comparison) and result.axes:
        console.print(grid.table(grid.rows_of(runs, result.axes), result.axes))
    else:
        if found := answer(runs):
            for sentence in found.sentences:
                console.print(sentence, markup=False, highlight=False)
            console.print(answer_table(found, len(found.results) if full else ROWS))
        if full:
            _print_all(runs)
    notes = remarks(runs)
    if full:
        for note in notes:
            console.print(note.text, style="yellow", markup=False, highlight=False, soft_wrap=True)
    elif notes:
        titles = "; ".join(dict.fromkeys(note.title for note in notes))
        console.print(f"Notes in the report, or with --full: {titles}.", style="yellow", highlight=False)
    console.print(f"Report: {result.report}", soft_wrap=True)


def _print_all(runs: Sequence[Run]) -> None:
    """Print every rule, the traffic and the metrics of some runs."""
    from protofed.analysis.tables import metrics_table, results_table, summaries_of, traffic_table
    from protofed.runs.run import by_label, rules_of

    groups = summaries_of(by_label(runs))
    tables = [results_table(groups, rules_of(runs)), traffic_table(groups)]
    for table in [*tables, *([metrics_table(runs)] if any(run.measured for run in runs) else [])]:
        console.print()
        console.print(table)


def _split_recipe(arguments: list[str]) -> tuple[str, list[str]]:
    """Return the recipe (the first argument, if it has no ``=``) and the overrides."""
    if arguments and "=" not in arguments[0]:
        return arguments[0], arguments[1:]
    return "", arguments


def _toml(value: Any) -> str:
    """Return a value as an override has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


app.add_typer(commands.app)
for _entry in sorted(entry_points(group="protofed.commands"), key=lambda entry: entry.name):
    _command = _entry.load()
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_entry.name)
    else:
        app.command(name=_entry.name)(_command)


DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""Error numbers of disk problems, which may also occur inside a library or while printing to a file."""


def main(command: typer.Typer = app) -> None:
    """Run a command line; errors are one line with exit status 2, or 130 after Ctrl-C and 143 after SIGTERM."""
    numerics.prepare()
    signals.clear()
    # Imports leave hardly any garbage: searching for it took a sixth of their time, and a second at the end.
    gc.set_threshold(5_000)
    atexit.register(gc.freeze)
    for stream in (sys.stdout, sys.stderr):  # what a locale such as POSIX has no character for
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")

    def stop(number: int, frame: object) -> None:
        signals.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)  # a run ends and cleans up as after Ctrl-C
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # `nohup` and `&` ignore it
        signal.signal(signal.SIGINT, stop)
    try:
        status = command(standalone_mode=False)
    except ProtofedError as error:
        _fail(str(error))
    except OSError as error:
        if error.errno not in DISK:
            raise
        _fail(f"{error.filename or 'a file'}: cannot be written ({error.strerror})")
    except typer.Abort:
        _fail("nothing was answered")
    except Exception as error:
        if not (hasattr(error, "format_message") and hasattr(error, "ctx")):
            raise
        if said := error.format_message():  # Typer's, of how a command is used; "" where its help was shown
            _fail(f"{said} See {error.ctx.command_path} --help.")
        status = 2
    # Typer makes 130 of a KeyboardInterrupt; what a command returns is no status.
    sys.exit(143 if signal.SIGTERM in signals and status == 130 else status if type(status) is int else 0)


def _fail(reason: str) -> NoReturn:
    errors.print(f"[bold red]error:[/] {escape(reason)}", highlight=False, soft_wrap=True, markup=True)
    sys.exit(2)


if __name__ == "__main__":
    main()
