"""Measure the speed of protofed on this machine: ``python -m benchmarks [BENCHMARK] [NAME=VALUE]...``."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.report import Report
from benchmarks.request import Request, Result
from benchmarks.running import ALL, measure
from protofed.analysis.figures import save_figure
from protofed.cli.common import console, integers_of, names_of
from protofed.cli.main import main
from protofed.config.schema import parse_overrides
from protofed.errors import ConfigError

app = typer.Typer(pretty_exceptions_enable=False)


@app.command()
def bench(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BENCHMARK] [NAME=VALUE]...",
            help="overhead, peer, scaling, until, felt or all (the default), then options by dotted name.",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Number of rounds to measure, after one to warm up.")] = 3,
    cases: Annotated[
        str, typer.Option(help="Cases of overhead, peer and until, or rows of felt, separated by commas.")
    ] = "",
    threads: Annotated[str, typer.Option(help="Numbers of threads to try (default: 1 to all cores).")] = "",
    processes: Annotated[
        int, typer.Option(help="Processes of the executor workers (0: one per core, 1: leave it out).")
    ] = 0,
    peer: Annotated[Path | None, typer.Option(help="A clone of github.com/TsingZ0/HtFLlib.")] = None,
    clients: Annotated[str, typer.Option(help="Numbers of clients for scaling.")] = "20,100,500,1000",
    per_client: Annotated[int, typer.Option(help="Number of samples per client for scaling.")] = 60,
    target: Annotated[float, typer.Option(help="Accuracy that until waits for, from 0 to 1.")] = 0.93,
    limit: Annotated[int, typer.Option(help="Rounds after which until gives up.")] = 60,
    seeds: Annotated[str, typer.Option(help="Seeds of until.")] = "0,1,2",
    json: Annotated[Path | None, typer.Option(help="Output file for the figures and facts of the machine.")] = None,
    figure: Annotated[
        Path | None,
        typer.Option(help="until: path without suffix for a picture of accuracy against seconds and bytes."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only tables.")] = False,
) -> None:
    """Measure the speed of protofed against alternatives, as ratios.

    overhead: against a bare PyTorch loop, and executors against each other; peer: against a clone of HtFLlib;
    scaling: time and memory for growing numbers of clients; until: seconds, rounds, steps and bytes until an
    accuracy, and those of the clone if --peer is given; felt: what people wait for; all (the default): overhead and
    scaling, and peer if --peer is given. What was measured before an error or an interruption is printed.
    """
    items = arguments or []
    name = items.pop(0) if items and "=" not in items[0] else ALL
    request = Request(
        rounds,
        parse_overrides(items),
        names_of(cases),
        integers_of(threads, "--threads"),
        processes,
        peer,
        integers_of(clients, "--clients"),
        per_client,
        target,
        limit,
        integers_of(seeds),
    )
    if figure is not None and name != "until":
        raise ConfigError(f"--figure: only until has a picture, not {name}")
    results = Report(json, items)
    console.print(results.machine_line(), highlight=False, soft_wrap=True)
    found: dict[str, Result] = {}
    try:
        # A display that refreshes often would slow down the measurement.
        with nullcontext() if quiet else console.status("starting", refresh_per_second=1) as status:
            for measured, result in measure(name, request, status.update if status else lambda text: None):
                found[measured] = result
                results.add(measured, result)
    finally:
        for result in found.values():
            console.print(result.table)
    for result in found.values():
        if figure is not None and result.draw is not None:
            drawn = save_figure(result.draw(), figure)
            console.print(f"Drawn: {', '.join(map(str, drawn))}", soft_wrap=True)


if __name__ == "__main__":
    main(app)
