"""Resume takes the recipe of what lies in the directory, and a refused command leaves every file as it was."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

import protofed
from support import SMALL_RUN, command, few

OPTIONS = {**SMALL_RUN, "model.d": 16}
SMALL = [f"{name}={value}" for name, value in OPTIONS.items()]
KILLED = """
import os, signal, sys
name, sys.argv = sys.argv[1], ["protofed", *sys.argv[2:]]
replace = os.replace
def stopped(source, target):
    if str(target).endswith(name):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)
os.replace = stopped
from protofed.cli.main import main
main()
"""
"""A command that dies when a file is about to get its name."""


def quietly(monkeypatch, capsys, *arguments):
    return command(monkeypatch, capsys, *arguments, "--quiet")


def killed(name, *arguments):
    """Run a command that is killed when a file of a name is about to be written."""
    done = subprocess.run([sys.executable, "-c", KILLED, name, *map(str, arguments), "--quiet"], check=False)
    assert done.returncode == -signal.SIGKILL


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def results(folder):
    """Return what a run or comparison computed: not its times, nor its report."""
    found = content(folder)
    kept = {
        name: data for name, data in found.items() if name.endswith((".safetensors", ".toml", "comparison.json"))
    }
    return kept, [name for name in found if ".partial" in name]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "X"
    protofed.run("quickstart", {**OPTIONS, "method.name": "fedproto"}, out=out)
    return out


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    out = tmp_path_factory.mktemp("compared") / "X"
    protofed.compare("quickstart", ["local", "fedproto"], overrides=OPTIONS, out=out)
    return out


def test_a_finished_run_stays_what_it_is(run, monkeypatch, capsys):
    """Without a recipe, it is its own: nothing changes but the report."""
    before = content(run)
    status, out, _ = quietly(monkeypatch, capsys, "run", "--resume", "--out", run)
    after = content(run)
    assert status == 0
    assert "fedproto" in out
    assert {name for name in after if after[name] != before.get(name)} <= {"report.html"}
    assert before.keys() == after.keys()
    assert protofed.load_run(run).summary.method == "fedproto"


@few(
    ("arguments", "why"),
    [
        (["run", "quickstart", "--resume"], "is not empty and holds no comparison"),
        (["run", "quickstart"], "is not empty and holds no comparison"),
        (["compare", "quickstart", "--resume"], "is not empty and holds no comparison"),
        (["compare", "--methods", "fedproto", "--resume"], "is not empty and holds no comparison"),
        (["compare", "--resume"], "nothing to compare"),
        (["compare", "quickstart", "method.lambda=1,2", "--methods", "fedproto"], "is not empty and holds no runs"),
        (["run", "method.lambda=3", "--resume"], "holds a run with another configuration"),
        (["run", "quickstart", *SMALL, "method.name=local", "--resume"], "with another configuration (method.name"),
        (["run", "quickstart", *SMALL, "method.name=fedproto"], "holds a finished run of this configuration"),
    ],
    1,
)
def test_a_command_that_is_refused_in_a_run_changes_nothing(arguments, why, run, monkeypatch, capsys):
    before = content(run)
    status, _, told = quietly(
        monkeypatch, capsys, *arguments, *(SMALL if arguments[1:2] == ["quickstart"] else ()), "--out", run
    )
    assert (status, told.count("\n")) == (2, 1)
    assert why in told
    assert content(run) == before


def test_a_finished_comparison_stays_what_it_is(compared, monkeypatch, capsys):
    before = content(compared)
    for arguments in (["run"], ["compare"]):
        status, out, _ = quietly(monkeypatch, capsys, *arguments, "--resume", "--out", compared)
        after = content(compared)
        assert status == 0
        assert "local" in out
        assert "fedproto" in out
        assert {name for name in after if after[name] != before.get(name)} <= {"report.html"}
        assert before.keys() == after.keys()


@few(
    ("arguments", "why"),
    [
        (
            ["compare", "quickstart", *SMALL, "--methods", "local", "--resume"],
            "(fedproto-seed0 is no run of this one)",
        ),
        (["compare", "quickstart", *SMALL, "--methods", "fedtgp", "--resume"], "with another configuration"),
        (["compare", "quickstart", *SMALL, "--methods", "local,fedproto"], "pass --resume"),
        (["compare", "training.lr=0.5", "--resume"], "another configuration (training.lr"),
        (["run", "training.lr=0.5", "--resume"], "another configuration (training.lr"),
        (["run", "method.name=local", "--resume"], "is not empty and holds no run"),
        (["run", "quickstart", "method.name=local"], "is not empty and holds no run"),
        (["compare", "quickstart", "method.lambda=1,2", "--methods", "fedproto"], "is not empty and holds no runs"),
    ],
    4,
)
def test_a_command_that_is_refused_in_a_comparison_changes_nothing(arguments, why, compared, monkeypatch, capsys):
    before = content(compared)
    status, _, told = quietly(monkeypatch, capsys, *arguments, "--out", compared)
    assert (status, told.count("\n")) == (2, 1), told
    assert why in told
    assert content(compared) == before


def test_a_comparison_takes_more_seeds(tmp_path, monkeypatch, capsys):
    """A recipe of which what lies there is a part."""
    one = tmp_path / "one"
    protofed.compare("quickstart", ["local"], [0], OPTIONS, out=one)
    before = content(one / "local-seed0")
    status, _, _ = quietly(monkeypatch, capsys, "compare", "--seeds", "0,1", "--resume", "--out", one)
    assert status == 0
    assert content(one / "local-seed0") == before
    assert (one / "local-seed1" / "summary.json").is_file()


@pytest.mark.slow
def test_other_folders_are_left_alone(tmp_path, monkeypatch, capsys):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("dear")
    before = content(tmp_path)
    for arguments in (["run"], ["run", "--resume"], ["compare", "--resume"], ["run", "quickstart"]):
        status, _, told = quietly(monkeypatch, capsys, *arguments, "--out", tmp_path / "letters")
        assert (status, told.count("\n")) == (2, 1)
    status, _, told = quietly(monkeypatch, capsys, "run", "--resume", "--out", tmp_path / "nowhere")
    assert "holds no recipe of a run or comparison to continue: name the recipe" in told
    assert content(tmp_path) == before


@few("name", ["rounds.jsonl", "config.toml", "client-01/model.safetensors", "summary.json"], 1)
def test_a_killed_run_goes_on_without_its_recipe(name, run, tmp_path, monkeypatch, capsys):
    out = tmp_path / "X"
    killed(name, "run", "quickstart", *SMALL, "method.name=fedproto", "--out", out)
    status, _, told = quietly(monkeypatch, capsys, "run", "--resume", "--out", out)
    if name == "config.toml":  # nothing that could be continued
        assert (status, told.count("\n")) == (2, 1)
        return
    assert status == 0
    assert results(out) == results(run)


@pytest.mark.slow
@few("name", ["local-seed0/summary.json", "comparison.json", "fedproto-seed0/config.toml", "X/report.html"], 1)
def test_a_killed_comparison_goes_on_without_its_recipe(name, compared, tmp_path, monkeypatch, capsys):
    out = tmp_path / "X"
    chosen = ["--methods", "local,fedproto"]
    killed(name, "compare", "quickstart", *SMALL, *chosen, "--out", out)
    assert quietly(monkeypatch, capsys, "run", "--resume", "--out", out)[0] == 0
    assert results(out) == results(compared)


@pytest.mark.slow
def test_a_comparison_killed_before_its_recipe_begins_again(compared, tmp_path, monkeypatch, capsys):
    out = tmp_path / "X"
    whole = ["compare", "quickstart", *SMALL, "--methods", "local,fedproto", "--out", out]
    killed("recipe.toml", *whole)
    (left,) = content(out)
    assert left.startswith(".recipe.toml.")
    assert quietly(monkeypatch, capsys, "run", "--resume", "--out", out)[0] == 2
    assert quietly(monkeypatch, capsys, *whole)[0] == 0
    assert results(out) == results(compared)


@pytest.mark.slow
def test_a_sweep_goes_on_without_its_recipe(tmp_path, monkeypatch, capsys):
    out = tmp_path / "X"
    killed(
        "report.html", "compare", "quickstart", *SMALL, "method.lambda=1,2", "--methods", "fedproto", "--out", out
    )
    before = content(out)
    status, _, _ = quietly(monkeypatch, capsys, "compare", "--out", out)
    assert status == 0
    assert (out / "report.html").is_file()
    changed = {name for name, data in content(out).items() if data != before.get(name)}
    assert {name for name in changed if "partial" not in name} <= {"grid.csv", "report.html"}
    before = content(out)
    status, _, told = quietly(monkeypatch, capsys, "run", "--resume", "--out", out)
    assert (status, told.count("\n")) == (2, 1)
    assert "holds a sweep" in told
    assert content(out) == before


def test_code_that_a_folder_names_is_not_imported(run, tmp_path, monkeypatch, capsys):
    """A run directory of a stranger is not trusted, also to be continued."""
    (tmp_path / "mine.py").write_text("raise SystemExit(77)")
    for name, text in (
        ("config.toml", '[method]\nname = "mine.py:Own"\n'),
        ("config.toml", '[[model.members]]\nname = "mine.py:Own"\n'),
        ("recipe.toml", '[compare]\nmethods = ["mine.py:Own"]\n'),
        ("recipe.toml", '[compare]\nmethods = ["x"]\n[variants.x.method]\nname = "mine.py:Own"\n'),
        ("recipe.toml", '[methods."mine.py:Own"]\na = 1\n'),
        ("config.toml", "[data]\ntrust_code = true\n"),
    ):
        out = tmp_path / "X"
        out.mkdir(exist_ok=True)
        (out / name).write_text(text)
        monkeypatch.chdir(tmp_path)
        status, _, told = quietly(monkeypatch, capsys, "run", "--resume", "--out", "X")
        assert (status, told.count("\n")) == (2, 1)
        assert "names code of its own" in told
        (out / name).unlink()


@pytest.mark.parametrize("more", [(), ("--out", "new"), ("method.lambda=1,2", "--out", "new")])
def test_without_a_recipe_or_anything_to_continue_one_is_asked_for(more, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    status, _, told = quietly(monkeypatch, capsys, "compare", *more)
    assert status == 2
    assert "recipe" in told
    assert not [*tmp_path.iterdir()]
