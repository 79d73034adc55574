"""Runs as a user starts them from Python: directories, resuming, comparing."""

from __future__ import annotations

import json
import tomllib

import pytest
import tomli_w
from safetensors.torch import load_file

import protofed
from protofed.config import schema
from protofed.config.schema import apply_overrides, load_recipe
from protofed.errors import CheckpointError, ConfigError, OutputError
from protofed.experiments import Progress, rundir
from protofed.experiments.comparing import Plan
from protofed.runs.loading import load_runs
from protofed.storage import files
from support import few

SMALL = {
    "data.samples": 300,
    "data.clients": 4,
    "partition.alpha": 0.5,
    "rounds": 3,
    "model.name": "mlp",
    "model.d": 8,
    "execution.device": "cpu",
}


class StopAfter(Progress):
    """Stands in for Ctrl-C after some rounds."""

    def __init__(self, rounds):
        self.rounds = rounds

    def round(self, label, record):
        if record.round == self.rounds:
            raise KeyboardInterrupt


SHARED = 64 * 4 + 4 + 4 * 3 + 3 + 3 * 10 + 10
"""Parameters of a perceptron from 64 pixels over 4 units to d = 3 and 10 classes."""


@few(
    ("method", "added"),
    [("fml", {"meme": SHARED}), ("fedkd", {"mentee": SHARED, "map": 3 * 8}), ("fedgh", {}), ("fedpa", {})],
    1,
)
def test_networks_that_a_method_adds_are_reported_with_their_size(method, added, tmp_path):
    chosen = {"method.auxiliary": "mlp", "method.auxiliary_options": {"hidden": [4]}, "method.auxiliary_d": 3}
    overrides = {**SMALL, "method.name": method, "rounds": 2, **(chosen if added else {})}
    run = protofed.run("quickstart", overrides, out=tmp_path / "run")
    client = json.loads((tmp_path / "run" / "federation.json").read_text())["clients"][0]
    assert client["extras"] == added
    assert ("Added by the method" in (tmp_path / "run" / "report.html").read_text()) is bool(added)
    if method == "fml":
        assert run.outcome.communication.parameters_per_round["down"] == 4 * SHARED


def test_a_run_directory_can_be_read_without_this_package(tmp_path):
    result = protofed.run("quickstart", {**SMALL, "method.name": "fedproto"}, out=tmp_path / "run")
    files = {str(p.relative_to(tmp_path / "run")) for p in (tmp_path / "run").rglob("*") if p.is_file()}
    clients = [f"client-{i:02d}" for i in range(4)]
    assert files == {
        "config.toml",
        "federation.json",
        "rounds.jsonl",
        "summary.json",
        "prototypes.safetensors",
        "server.safetensors",
        "report.html",
        "end.json",
        *(f"clients/{name}/{part}.safetensors" for name in clients for part in ("model", "state")),
    }
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary == result.summary.to_dict()
    assert (summary["method"], summary["seed"], summary["rounds"]) == ("fedproto", 0, 3)
    for rule in ("head", "local", "global", "global_own"):
        assert set(summary["accuracy"][rule]) - {"rounds_to_convergence"} == {
            *("best", "best_round", "best_client_mean", "best_client_std", "final", "client_mean", "client_std"),
            *("union", "unseen"),
        }
    assert summary["main_rule"] == "global"
    assert set(summary["communication"]) == {
        "parameters_up_per_round",
        "parameters_down_per_round",
        "parameters_up_over_all_rounds",
        "parameters_down_over_all_rounds",
        "bytes_up_total",
        "bytes_down_total",
    }
    assert set(summary["seconds"]) == {"total", "training", "evaluation", "aggregation"}
    assert summary["peak_memory_bytes"] > 1e7
    rounds = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert rounds == [record.to_dict() for record in result.rounds]
    assert [r["round"] for r in rounds] == [1, 2, 3]
    assert summary["communication"]["bytes_up_total"] == sum(r["bytes"]["up"] for r in rounds)
    prototypes = load_file(tmp_path / "run" / "prototypes.safetensors")
    assert prototypes["global.prototypes"].shape == (10, 8)
    assert prototypes["local.client-00.prototypes"].shape == (10, 8)
    assert load_file(tmp_path / "run" / "clients" / "client-00" / "model.safetensors")["head.weight"].shape == (
        10,
        8,
    )
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert config["method"]["lambda"] == 1.0
    assert config["data"]["samples"] == 300


def test_config_toml_repeats_the_run(tmp_path):
    first = protofed.run("quickstart", {**SMALL, "method.name": "fedproto"}, out=tmp_path / "a")
    second = protofed.run(tmp_path / "a" / "config.toml", out=tmp_path / "b")
    assert first.outcome.accuracy == second.outcome.accuracy


def test_resume_after_an_interrupt_equals_an_uninterrupted_run(tmp_path):
    overrides = {**SMALL, "method.name": "fedproto", "rounds": 4}
    whole = protofed.run("quickstart", overrides, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        protofed.run("quickstart", overrides, out=tmp_path / "cut", progress=StopAfter(2))
    assert not (tmp_path / "cut" / "summary.json").exists()
    with pytest.raises(ConfigError, match=r"holds an unfinished run .* pass --resume"):
        protofed.run("quickstart", overrides, out=tmp_path / "cut")
    resumed = protofed.run("quickstart", overrides, out=tmp_path / "cut", resume=True)
    assert resumed.outcome.accuracy == whole.outcome.accuracy
    for path in (tmp_path / "whole").rglob("*.safetensors"):
        assert path.read_bytes() == (tmp_path / "cut" / path.relative_to(tmp_path / "whole")).read_bytes()
    again = protofed.run("quickstart", overrides, out=tmp_path / "cut", resume=True)
    assert again.summary == resumed.summary


def test_a_run_from_before_an_option_existed_goes_on(tmp_path):
    overrides = {**SMALL, "method.name": "fedproto", "rounds": 2}
    with pytest.raises(KeyboardInterrupt):
        protofed.run("quickstart", overrides, out=tmp_path / "run", progress=StopAfter(1))
    config = tmp_path / "run" / "config.toml"
    config.write_text("".join(line for line in config.read_text().splitlines(True) if "max_refusals" not in line))
    with pytest.raises(ConfigError, match=r"max_refusals is 0 there and 3 here"):
        protofed.run(
            "quickstart", {**overrides, "participation.max_refusals": 3}, out=tmp_path / "run", resume=True
        )
    assert len(protofed.run("quickstart", overrides, out=tmp_path / "run", resume=True).rounds) == 2


def test_a_run_goes_on_with_the_samples_with_which_it_began(tmp_path):
    table = tmp_path / "a.csv"

    def write(rows: int) -> None:
        table.write_text("size,label\n" + "".join(f"{row % 7},{'ny'[row % 2]}\n" for row in range(rows)))

    write(60)
    chosen = {"data.source": "path", "data.path": str(table), "data.clients": 2, "partition.name": "iid"}
    overrides = {**chosen, "model.name": "mlp", "method.name": "fedproto", "rounds": 2, "training.batch_size": 8}
    with pytest.raises(KeyboardInterrupt):
        protofed.run("quickstart", overrides, out=tmp_path / "run", progress=StopAfter(1))
    write(120)
    with pytest.raises(CheckpointError, match="its clients have other samples now than when the run began"):
        protofed.run("quickstart", overrides, out=tmp_path / "run", resume=True)
    write(60)
    assert len(protofed.run("quickstart", overrides, out=tmp_path / "run", resume=True).rounds) == 2


def test_another_configuration_is_refused_not_overwritten(tmp_path):
    overrides = {**SMALL, "method.name": "local", "rounds": 1}
    protofed.run("quickstart", overrides, out=tmp_path / "run")
    before = (tmp_path / "run" / "summary.json").read_bytes()
    with pytest.raises(ConfigError, match=r"another configuration .training.lr is 0.05 there and 0.5 here"):
        protofed.run("quickstart", {**overrides, "training.lr": 0.5}, out=tmp_path / "run", resume=True)
    with pytest.raises(ConfigError, match="finished run of this configuration"):
        protofed.run("quickstart", overrides, out=tmp_path / "run")
    assert (tmp_path / "run" / "summary.json").read_bytes() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(ConfigError, match="is not empty and holds no run"):
        protofed.run("quickstart", overrides, out=tmp_path / "mine")


@pytest.mark.slow
def test_two_processes_do_not_run_in_one_directory(tmp_path):
    overrides = {**SMALL, "method.name": "fedproto"}
    out = tmp_path / "run"

    class Disturbed(Progress):
        def round(self, label, record):
            before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
            for resume in (True, False):
                with pytest.raises(OutputError) as refused:
                    protofed.run("quickstart", overrides, out=out, resume=resume)
                assert str(refused.value).startswith(f"{out}: another process runs in it: wait until it ends")
            assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before

    run = protofed.run("quickstart", overrides, out=out, progress=Disturbed())
    alone = protofed.run("quickstart", overrides, out=tmp_path / "alone")
    assert [record.accuracy for record in run.rounds] == [record.accuracy for record in alone.rounds]
    assert protofed.run("quickstart", overrides, out=out, resume=True).summary == run.summary


def test_a_directory_in_which_nothing_can_be_written_is_not_left_behind(tmp_path, monkeypatch):
    def full(*_):
        raise OutputError("no room")

    monkeypatch.setattr(rundir, "write_text", full)
    with pytest.raises(OutputError, match="no room"):
        protofed.run("quickstart", {**SMALL, "method.name": "local"}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_runs_go_where_directories_cannot_be_locked(tmp_path, monkeypatch):
    def unable(*_):
        raise OSError("no locks here")

    monkeypatch.setattr(files.fcntl, "flock", unable)
    run = protofed.run("quickstart", {**SMALL, "method.name": "local", "rounds": 1}, out=tmp_path / "run")
    assert len(run.rounds) == 1


def test_a_truncated_checkpoint_is_one_line(tmp_path):
    overrides = {**SMALL, "method.name": "fedproto", "rounds": 4}
    with pytest.raises(KeyboardInterrupt):
        protofed.run("quickstart", overrides, out=tmp_path / "cut", progress=StopAfter(2))
    path = next((tmp_path / "cut" / "checkpoint").rglob("clients.records"))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"clients.records: client-\d+ cannot be read"):
        protofed.run("quickstart", overrides, out=tmp_path / "cut", resume=True)


def test_compare_runs_every_method_and_seed_on_the_same_split(tmp_path):
    result = protofed.compare("quickstart", ["local", "fedproto"], [0, 1], {**SMALL, "rounds": 2}, out=tmp_path)
    assert {name: len(runs) for name, runs in result.runs.items()} == {"local": 2, "fedproto": 2}
    assert result.report.is_file()
    summary = result.summary
    finals = [run.outcome.accuracy["head"].final for run in result.runs["local"]]
    assert summary["local"]["head"]["final_mean"] == pytest.approx(sum(finals) / 2)
    splits = [
        json.loads((run.directory / "federation.json").read_text())["clients"]
        for runs in result.runs.values()
        for run in runs
    ]
    assert splits[0] == splits[2] != splits[1] == splits[3]
    resumed = protofed.compare(
        "quickstart", ["local", "fedproto"], [0, 1], {**SMALL, "rounds": 2}, out=tmp_path, resume=True
    )
    assert resumed.summary == summary


def test_a_comparison_lists_a_variant_beside_its_method(tmp_path):
    tuned = {"method": {"name": "local"}, "training": {"optimizer": "Adam", "lr": 0.01}}
    overrides = {**SMALL, "rounds": 1, "variants.local-tuned": tuned}
    result = protofed.compare("quickstart", ["local", "local-tuned"], [0], overrides, out=tmp_path)
    assert list(result.runs) == ["local", "local-tuned"]
    read = load_runs([tmp_path])
    assert [run.config["training"]["optimizer"] for run in read] == ["SGD", "Adam"]
    assert [run.method for run in read] == ["local", "local"]
    assert [run.label for run in read] == ["local", "local-tuned"]
    assert "local-tuned" in result.report.read_text()


def test_what_is_wrong_with_the_last_method_is_told_before_the_first_runs(tmp_path):
    overrides = {**SMALL, "model.name": "small4", "model.shared": "", "rounds": 1}
    with pytest.raises(ConfigError, match="fedavg shares weights"):
        protofed.compare("quickstart", ["local", "fedavg"], (), overrides, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_validation_gives_an_honest_figure(tmp_path):
    overrides = {**SMALL, "method.name": "local", "data.validation_fraction": 0.2, "evaluation.every": 1}
    run = protofed.run("quickstart", overrides, out=tmp_path / "run")
    head = run.outcome.accuracy["head"]
    validated = [r.validation.weighted["head"] for r in run.rounds]
    chosen = head.best_validated_round
    assert chosen == 1 + validated.index(max(validated))
    assert head.best_validated == run.rounds[chosen - 1].accuracy.weighted["head"]


def test_a_recipe_file_of_ones_own(tmp_path):
    recipe = {"rounds": 1, "data": {"source": "digits", "samples": 200, "clients": 2}, "model": {"name": "mlp"}}
    (tmp_path / "mine.toml").write_text(tomli_w.dumps(recipe))
    run = protofed.run(tmp_path / "mine.toml", out=tmp_path / "run")
    assert run.summary.recipe == "mine"
    assert run.summary.method == "fedproto"


@pytest.mark.slow
def test_jobs_in_other_processes_give_the_same(tmp_path):
    overrides = {**SMALL, "rounds": 2, "execution.threads": 1}
    one, two = (
        protofed.compare("quickstart", ["local", "fedproto"], [0], overrides, out=tmp_path / str(jobs), jobs=jobs)
        for jobs in (1, 2)
    )
    assert one.summary == two.summary


def test_all_methods_are_those_that_suit_the_data(monkeypatch, caplog):
    small = {"data.samples": 100, "data.clients": 2, "rounds": 1}

    def plan(*names):
        return Plan.of(apply_overrides(load_recipe("quickstart"), {**small, "compare.methods": list(names)}))

    monkeypatch.setattr(schema, "every_method", lambda: ["local", "fedtsp", "fedproto"])
    found = plan("all")
    assert found.options.methods == ("local", "fedproto")
    assert {cell.method for cell in found.experiments} == {"local", "fedproto"}
    assert "compare.methods=all: fedtsp is left out: fedtsp turns the names" in caplog.text
    with pytest.raises(ConfigError, match="the classes are called 0, 1, 2"):
        plan("local", "fedtsp")
    monkeypatch.setattr(schema, "every_method", lambda: ["fedtsp"])
    with pytest.raises(ConfigError, match="the classes are called 0, 1, 2"):
        plan("all")
