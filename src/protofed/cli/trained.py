"""Commands for trained models: metrics, predictions, export, and removal of a client."""

from __future__ import annotations

import csv
import io
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from protofed.cli.common import Directory, TrustCode, console
from protofed.errors import printable

Client = Annotated[str, typer.Argument(help="Name of a client of the run.")]
Rule = Annotated[
    str,
    typer.Option(
        help="Inference rule, e.g. head, global, prototypes, or validated for the most accurate one on the "
        "client's validation samples (default: the run's main rule; for a client with samples of one class, the "
        "method's rule on all classes)."
    ),
]


app = typer.Typer()


@app.command()
def metrics(
    directories: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Directories of finished runs, or of comparisons.")
    ],
    rule: Rule = "",
    trust_code: TrustCode = False,
) -> None:
    """Compute balanced accuracy, macro F1, AUROC, recall per class and confusion matrices of the final models.

    They are written to metrics.json of each run, whose data must be at hand, and shown in its report.
    """
    from protofed.analysis.report import write_report
    from protofed.analysis.tables import metrics_table
    from protofed.errors import CheckpointError
    from protofed.runs.loading import load_runs
    from protofed.trained.metrics import store

    for run in load_runs(directories):
        if not run.finished:
            raise CheckpointError(f"{run.directory}: the run has not finished: continue it with --resume")
        store(run, rule, trust_code)
    console.print(metrics_table(load_runs(directories)))
    for directory in directories:
        console.print(f"Report: {write_report([directory], directory / 'report.html')}", soft_wrap=True)


@app.command()
def predict(
    directory: Directory,
    client: Client,
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILES...", help="Images, folders of images, .csv, .parquet, .npy or .npz files."),
    ],
    rule: Rule = "",
    resize: Annotated[
        int | None, typer.Option(min=0, help="Side in pixels to which images are scaled (default: the run's).")
    ] = None,
    unknown: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Level of the column typical below which the class is unknown (closed forms)."
        ),
    ] = 0.0,
    out: Annotated[Path | None, typer.Option(help="Output file (default: standard output).")] = None,
    trust_code: TrustCode = False,
) -> None:
    """Classify images or tables with a trained client, as CSV: the class, and the probability of every class."""
    import numpy as np

    from protofed.api import load_run
    from protofed.storage.files import write_text
    from protofed.trained.inputs import from_files

    trained = load_run(directory, trust_code).client(client)
    chosen = trained.rule(rule)
    names = [f"p({name})" for name in trained.classifier.class_names]
    rows: list[list[Any]] = []
    more: list[str] = []
    side = trained.resize if resize is None else resize
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = lambda message, *_: typer.echo(f"warning: {message}", err=True)
        for places, samples in from_files(files, trained, side):
            found = trained.predict(samples, chosen, unknown)
            values = found.probabilities
            if found.typical is not None:
                more, values = ["typical"], np.column_stack([found.typical, values])
            each = zip(places, found.classes, found.confidences, values.tolist(), strict=True)
            rows += [[file, "" if row is None else row, name, p, *own] for (file, row), name, p, own in each]
    rows = [["file", "row", "class", "probability", *more, *names], *rows]
    if out is None:
        csv.writer(sys.stdout, lineterminator="\n").writerows(rows)
        return
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(out, text.getvalue())


@app.command()
def export(
    directory: Directory,
    client: Client,
    file_format: Annotated[str, typer.Option("--format", help="onnx, torch_export or safetensors.")] = "onnx",
    out: Annotated[
        Path | None, typer.Option(help="Output file (default: CLIENT with the format's suffix).")
    ] = None,
    rule: Rule = "",
    samples: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Samples on which to check the file, as predict takes them; may be repeated (default: the "
            "client's test samples, if the run's data are at hand).",
        ),
    ] = None,
    trust_code: TrustCode = False,
) -> None:
    """Write a client's model with preprocessing, a rule, class names and a card; check it against predict."""
    from protofed.api import load_run
    from protofed.trained import exporting

    suffix = next((ending for ending, name in exporting.SUFFIXES.items() if name == file_format), "")
    run, path = load_run(directory, trust_code), out or Path(f"{client}{suffix}")
    written = exporting.export(run, run.client(client), path, file_format, rule, samples or (), trust_code)
    told = f"Written: {written.path}, by the rule {written.rule}; {written.checked}. Card: {written.card}"
    typer.echo(printable(told))


@app.command()
def forget(directory: Directory, client: Client, trust_code: TrustCode = False) -> None:
    """Take a client's sums out of a finished run of a closed form, which is then as if it had not taken part."""
    from protofed import api
    from protofed.analysis.report.facts import again
    from protofed.runs.loading import load_run

    run = api.forget(directory, client, trust_code=trust_code)
    typer.echo(
        f"Kept: {client}'s name and all class names, including those that only it had. Copies of the server's "
        "earlier state reveal its class means by subtraction: delete them."
    )
    if run is not None:
        typer.echo(
            f"Forgotten: {client}. The classifier is that of the other {len(run.clients)}. Report: {run.report}"
        )
        return
    typer.echo(f"Forgotten: {client}. The others learn of it when the server runs the rounds again:")
    typer.echo(again(load_run(directory), resume=True))
