"""The command line, called as a user calls it."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import EntryPoints
from pathlib import Path

import pytest
import typer
from rich.console import Console
from safetensors.torch import load_file

from protofed import __version__ as protofed_version
from protofed.cli import main as cli
from protofed.cli.catalogue import KINDS
from protofed.cli.common import console
from protofed.runs.loading import load_run
from rundirs import make_run
from support import assert_mistake, command, few, write_vectors

SMALL = [
    "data.samples=300",
    "data.clients=3",
    "partition.alpha=0.5",
    "rounds=2",
    "model.name=mlp",
    "model.d=8",
    "execution.threads=1",
]


def inside(monkeypatch, capsys, cwd: Path, *arguments: str, main=cli.main) -> tuple[int, str, str]:
    """Call the same entry point in this process; return exit status, output and errors."""
    monkeypatch.chdir(cwd)
    monkeypatch.setenv("COLUMNS", "200")
    return command(monkeypatch, capsys, *arguments, main=main)


def test_run_prints_one_table_and_where_the_report_is(tmp_path, monkeypatch, capsys):
    arguments = ("run", "quickstart", "method.name=fedproto", *SMALL, "--out", "run", "--full")
    status, output, _ = inside(monkeypatch, capsys, tmp_path, *arguments)
    assert status == 0
    assert re.search(r"fedproto +[\d.]+ ± [\d.]+ +[\d.]+ kB", output)
    assert re.search(r"fedproto +final +[\d.]+", output)
    for heading in ("head", "local = the class whose prototype", "own = the nearest global", "up", "time"):
        assert heading in " ".join(output.split())
    assert "2/2" in output
    assert "Report: run/report.html" in output
    assert (tmp_path / "run" / "report.html").is_file()


@pytest.mark.slow
def test_run_without_a_recipe_compares_the_quickstart_methods(tmp_path, monkeypatch, capsys):
    status, output, _ = inside(monkeypatch, capsys, tmp_path, "run", *SMALL, "--quiet")
    assert status == 0
    for method in ("local", "local_lda-fixed", "fedlda-fixed", "beacon", "fedproto", "fedtgp"):
        assert re.search(rf"{method} +\d", output)
    assert (tmp_path / "runs" / "quickstart" / "report.html").is_file()
    _, output, _ = inside(monkeypatch, capsys, tmp_path, "run", *SMALL, "--quiet")
    assert "runs/quickstart-2/report.html" in output


@pytest.mark.slow
def test_compare_prints_a_table_of_two_options_within_80_columns(tmp_path, monkeypatch, capsys):
    chosen = [*SMALL, "method.s=2,4", "method.scaling=true,false", "--methods", "local,tinyproto", "--quiet"]
    monkeypatch.setattr(cli, "console", Console(width=80))
    status, output, _ = inside(monkeypatch, capsys, tmp_path, "compare", "quickstart", *chosen, "--seeds", "0,1")
    assert status == 0
    assert max(map(len, output.splitlines())) <= 80
    assert re.search(r"tinyproto *\ntrue +[\d.]+ ±[\d.]+ / [\d.]+ [\d.]+ ±", output)
    assert "Columns: method.s." in output
    assert "Report: runs/quickstart-sweep/report.html" in output


def test_a_sweep_without_time_is_refused_and_one_with_little_goes_on(tmp_path, monkeypatch, capsys):
    chosen = ["compare", "quickstart", *SMALL, "--methods", "local,fedproto", "--quiet"]
    status, _, told = inside(monkeypatch, capsys, tmp_path, *chosen, "--budget", "0")
    assert (status, len(told.strip().splitlines())) == (2, 1)
    assert "must be a time such as 2h" in told
    for form in ((), ("--format", "latex")):
        status, output, told = inside(monkeypatch, capsys, tmp_path, *chosen, "--budget", "0.000001s", *form)
        assert (status, output) == (0, "")
        assert "Time is up: 2 runs are not finished" in told


@few(
    ("name", "instead"),
    [
        ("figure", "command 'figure' is gone: protofed report RUN --figure NAME"),
        ("sweep", "command 'sweep' is gone: protofed compare takes several values of an option"),
        ("worth", "command 'worth' is gone: protofed try FOLDER or RECIPE"),
        ("compare", "See protofed compare --help."),
        ("rnu", "unknown command 'rnu': did you mean 'run'? Valid: audit, compare, "),
    ],
    5,
)
def test_what_is_gone_or_misspelt_is_told_in_a_line(name, instead, tmp_path, monkeypatch, capsys):
    status, _, told = inside(monkeypatch, capsys, tmp_path, name, "quickstart", "method.gamma=1,3", "--rows", "x")
    assert (status, told.count("\n")) == (2, 1)
    assert instead in told


@pytest.mark.fast
def test_compare_several_seeds(tmp_path, monkeypatch, capsys):
    chosen = [*SMALL, "--methods", "local,fedproto", "--seeds", "0,1", "--out", "c"]
    status, output, _ = inside(monkeypatch, capsys, tmp_path, "compare", "quickstart", *chosen)
    assert status == 0
    assert "95 % interval over test samples and 2 seeds" in output
    assert re.search(r"local +[\d.]+ ± [\d.]+ +control +0 B", output)
    _, output, _ = inside(monkeypatch, capsys, tmp_path, "report", "c", "--out", "again.html")
    assert "again.html" in output
    assert (tmp_path / "again.html").read_text() == (tmp_path / "c" / "report.html").read_text()


@few("kind", ["methods", "models", "datasets", "partitions", "recipes", "variants", "figures", "options"], 3)
def test_list(kind, tmp_path, monkeypatch, capsys):
    status, output, _ = inside(monkeypatch, capsys, tmp_path, "list", kind)
    assert status == 0
    lines = output.splitlines()
    entries = [line for line in lines if not line.startswith("    ")]
    assert len(entries) >= 3
    assert all(re.match(r"\S+  \S", line) for line in entries), entries


def test_inspect_prints_and_draws_the_split(tmp_path, monkeypatch, capsys):
    status, output, _ = inside(monkeypatch, capsys, tmp_path, "inspect", "quickstart", *SMALL, "--out", "split")
    assert status == 0
    rows = [line for line in output.splitlines() if "client-" in line]
    assert {row.split()[1] for row in rows} == {"client-00", "client-01", "client-02"}
    assert (tmp_path / "split.png").stat().st_size > 1000
    assert (tmp_path / "split.svg").is_file()


@few(
    ("arguments", "expected"),
    [
        (["run", "quikstart"], "unknown recipe 'quikstart': did you mean 'quickstart'?"),
        (["run", str(Path(__file__).parent)], "/tests: a folder, and no recipe: protofed try "),
        (["run", "method.name=fedprot"], "did you mean 'fedproto'?"),
        (["run", "quickstart", "method.lamda=3"], "did you mean 'lambda'?"),
        (["run", "data.source=nmist"], "did you mean 'mnist'?"),
        (["run", "model.name=cnn3"], "unknown model 'cnn3'"),
        (["run", "quickstart", "lambda"], "must read NAME=VALUE"),
        (["run", "data.source=path", "data.path=nowhere"], "nowhere"),
        (["run", "method.name=fedproto", "model.name=resnet8", "data.source=spiral"], "resnet8"),
        (["run", "--data-dir", "nowhere"], "no such folder"),
        (["compare", "quickstart", "--seeds", "a"], "'a' is not an integer"),
        (["compare", "quickstart", "--seeds", "1" * 5000], "is not an integer of at most 20 digits"),
        (["compare", "mnist-dirichlet"], "nothing to compare"),
        (["list", "method"], "did you mean 'methods'?"),
        (["report", "nowhere"], "nowhere"),
        (["report", "[bold]nowhere[/]"], "[bold]nowhere[/]"),
    ],
    4,
)
def test_mistakes_are_one_line(arguments, expected, tmp_path, monkeypatch, capsys):
    status, _, error = inside(monkeypatch, capsys, tmp_path, *arguments)
    assert_mistake(status, error, expected)
    assert list(tmp_path.iterdir()) == []


def test_a_locale_with_few_characters_ends_no_command(monkeypatch):
    written = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", written)
    monkeypatch.setattr(sys, "argv", ["protofed"])
    with pytest.raises(SystemExit) as ended:
        cli.main(one_command(lambda: console.print("ε … done")))
    written.flush()
    assert (ended.value.code, written.buffer.getvalue()) == (0, b"? ? done\n")


def one_command(function):
    app = typer.Typer()
    app.command()(function)
    return app


def test_names_of_folders_are_printed_as_text(tmp_path, monkeypatch, capsys):
    folder = make_run(tmp_path / "r\x1b[31m\x07")
    status, output, _ = inside(monkeypatch, capsys, tmp_path, "report", str(folder))
    assert status == 0
    assert "r\\x1b[31m\\x07/report.html" in output
    assert output.replace("\n", "").isprintable()


@pytest.mark.slow
def test_a_mistake_in_a_process_of_its_own_where_the_package_is_the_command(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "protofed", "run", "quikstart"], cwd=tmp_path, capture_output=True, text=True
    )
    assert_mistake(result.returncode, result.stderr, "error: unknown recipe 'quikstart'")


@pytest.mark.parametrize(("number", "ends"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_that_a_library_turned_into_its_own_error(number, ends, tmp_path, monkeypatch, capsys):
    def run(*_, **__):
        try:
            os.kill(os.getpid(), number)
            time.sleep(10)
        except KeyboardInterrupt:
            raise ValueError("could not determine the shape") from None

    handlers = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setattr("protofed.api.run", run)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background a shell has it ignored
    try:
        status, _, errors = inside(monkeypatch, capsys, tmp_path, "run", "quickstart", "--quiet")
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
    assert status == ends
    assert (
        errors == "stopped before the first round: nothing was kept; repeat the command with --resume to continue\n"
    )


def test_a_stop_says_what_was_kept_and_how_to_go_on(tmp_path, monkeypatch, capsys):
    directory = make_run(tmp_path / "r", finished=False)
    (directory / "checkpoint" / "round-000004").mkdir(parents=True)
    record = load_run(directory).rounds[4]

    def run(*_, progress, **__):
        progress.started("fedproto", 30, 0, directory)
        progress.round("fedproto", record)
        signal.raise_signal(signal.SIGINT)

    handlers = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setattr("protofed.api.run", run)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        status, output, errors = inside(monkeypatch, capsys, tmp_path, "run", "quickstart")
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
    assert status == 130
    assert "fedproto round 5/30: " in output
    assert errors == (
        f"fedproto stopped after round 5 of 30: {directory} holds a checkpoint of round 4; repeat the command with "
        f"--resume to continue, and --out {directory}\n"
    )


@pytest.mark.parametrize(
    ("typed", "called"), [(("tune", "quickstart", "method.lambda=1..2"), "protofed.api.tune")]
)  # papers' command is tested by it, too
def test_commands_that_go_on_by_themselves_say_what_was_kept(typed, called, tmp_path, monkeypatch, capsys):
    directory = make_run(tmp_path / "r", finished=False)
    (directory / "checkpoint" / "round-000004").mkdir(parents=True)
    record = load_run(directory).rounds[4]
    at_work = iter([True, False])

    def run(*given, **named):
        progress = named.get("progress") or given[-1]
        progress.started("first", 30, 0, directory)
        progress.round("first", record)
        if not next(at_work):
            progress.finished("first", None)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(called, run)
    before = signal.getsignal(signal.SIGTERM)
    try:
        for said in (
            f"first stopped after round 5 of 30: {directory} holds a checkpoint of round 4",
            "stopped between two runs: what had finished is kept",
        ):
            status, _, errors = inside(monkeypatch, capsys, tmp_path, *typed, "--quiet")
            assert (status, errors) == (143, f"{said}; repeat the command to continue\n")
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_version_and_what_there_is(tmp_path, monkeypatch, capsys):
    assert inside(monkeypatch, capsys, tmp_path, "--version") == (0, f"protofed {protofed_version}\n", "")
    _, output, _ = inside(monkeypatch, capsys, tmp_path, "list")
    assert [line.split()[0] for line in output.splitlines()] == list(KINDS)
    _, output, _ = inside(monkeypatch, capsys, tmp_path, "list", "options", "evaluation")
    assert output.startswith("evaluation  Evaluation")
    assert "    patience = 0  " in output
    _, output, _ = inside(monkeypatch, capsys, tmp_path, "list", "methods", "fedtgp", "local")
    assert [line.split()[0] for line in output.splitlines() if line[0] != " "] == ["fedtgp", "local"]
    status, _, error = inside(monkeypatch, capsys, tmp_path, "list", "methods", "fedtgpp")
    assert (status, error.count("\n")) == (2, 1)
    assert "did you mean 'fedtgp'?" in error


@few("width", [50, 80], 1)
def test_a_split_is_readable_in_a_narrow_terminal(width, tmp_path, monkeypatch):
    """Every class has its column, no line is longer than the terminal, and no number is cut."""
    from rich.console import Console

    from protofed.analysis.split import inspect_split

    overrides = {"data.samples": 300, "data.clients": 3}
    tables, _ = inspect_split("quickstart", overrides, tmp_path / "split", width)
    console = Console(width=width, record=True, file=io.StringIO())
    for table in tables:
        console.print(table)
    lines = console.export_text().splitlines()
    assert all(len(line) <= width for line in lines)
    assert "…" not in "".join(lines)
    heads = [cell for line in lines if line.startswith("┃") for cell in line.strip("┃").replace("┃", " ").split()]
    assert [name for name in heads if name.isdigit()] == list("0123456789")
    assert heads.count("train") == 1


@pytest.mark.slow
def test_killed_and_resumed_equals_uninterrupted(tmp_path, monkeypatch, capsys):
    data = write_vectors(tmp_path / "data")
    arguments = ["run", "quickstart", "data.source=path", f"data.path={data}", "method.name=fedproto"]
    arguments += ["model.name=mlp", "model.d=8", "rounds=20", "--quiet"]
    assert inside(monkeypatch, capsys, tmp_path, *arguments, "--out", "whole")[0] == 0
    process = subprocess.Popen([sys.executable, "-m", "protofed", *arguments, "--out", "cut"], cwd=tmp_path)
    rounds = tmp_path / "cut" / "rounds.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (rounds.is_file() and rounds.read_bytes().count(b"\n") > 5):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "cut" / "summary.json").exists()
    assert inside(monkeypatch, capsys, tmp_path, *arguments, "--out", "cut", "--resume")[0] == 0
    for path in (tmp_path / "whole").rglob("*.safetensors"):
        cut = tmp_path / "cut" / path.relative_to(tmp_path / "whole")
        assert path.read_bytes() == cut.read_bytes(), path
    assert load_file(cut)


@few(
    ("name", "instead"),
    [
        ("reproduce", "command 'reproduce' is of protofed-papers: in a checkout, uv run protofed reproduce"),
        ("deploy", "command 'deploy' needs protofed-flower: pip install protofed-flower"),
        ("demo", "command 'demo' needs protofed-lab: pip install protofed-lab"),
        ("--engine flower", "engine 'flower' needs protofed-flower: pip install protofed-flower"),
    ],
    3,
)
def test_a_command_whose_distribution_is_not_installed_names_it(name, instead, tmp_path, monkeypatch, capsys):
    if name.startswith("--"):
        monkeypatch.setattr("protofed.api.entry_points", lambda group: EntryPoints())
    for kind in ("commands", "groups"):
        kept = [each for each in getattr(cli.app, f"registered_{kind}") if each.name != name]
        monkeypatch.setattr(cli.app, f"registered_{kind}", kept)
    monkeypatch.setattr(typer.main, "get_command", typer.main.get_command.__wrapped__)  # built anew
    arguments = ("run", *name.split()) if name.startswith("--") else (name, "all")
    status, _, error = inside(monkeypatch, capsys, tmp_path, *arguments)
    assert (status, error) == (2, f"error: {instead}\n")
