"""Sites whose training samples are all of one class: what a run, a comparison and ``predict`` say of them."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer

import support
from protofed import load_run
from protofed.experiments.assemble import assemble
from protofed.methods import methods
from protofed.runs.loading import load_runs
from support import experiment, ordinary

NORTH = (
    "Trained on one class alone: north (benign). Always giving that class is right on 100.0% of its own test "
    "samples and on 57.1% of all clients’, so its accuracy says nothing about other classes. "
)


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """Four hospitals with scikit-learn's breast cancer data, of which north has benign samples alone."""
    root = tmp_path_factory.mktemp("hospitals")
    data = load_breast_cancer()
    table = pd.DataFrame(data.data, columns=[name.replace(" ", "_") for name in data.feature_names])
    table["diagnosis"] = np.where(data.target == 1, "benign", "malignant")
    table = table.sample(frac=1, random_state=0)
    benign, malignant = (table[table.diagnosis == name] for name in ("benign", "malignant"))
    sites = {"north": benign[:40]}
    for number, name in enumerate(("south", "east", "west")):
        own = slice(40 + 40 * number, 80 + 40 * number)
        sites[name] = pd.concat([benign[own], malignant[own.start - 40 : own.stop - 40]]).sample(
            frac=1, random_state=1
        )
    for name, own in sites.items():
        folder = root / "data" / "clients" / name
        folder.mkdir(parents=True)
        fourth = len(own) // 4
        own[fourth:].to_csv(folder / "train.csv", index=False)
        own[:fourth].to_csv(folder / "test.csv", index=False)
    held = pd.concat([benign[160:220], malignant[120:180]])
    held.drop(columns="diagnosis").to_csv(root / "patients.csv", index=False)
    held[["diagnosis"]].to_csv(root / "truth.csv", index=False)
    return root


@pytest.fixture
def command(hospitals, monkeypatch, capsys):
    """Return a function that runs a command as a user types it, and returns its output."""
    monkeypatch.chdir(hospitals)

    def run(line: str) -> tuple[str, str]:
        status, out, err = support.command(monkeypatch, capsys, *line.split())
        assert not status, err
        return out, err

    return run


DATA = "data.source=path data.path=data data.label_column=diagnosis rounds=8 execution.executor=sequential"


def top(page) -> str:
    """Return what a report says before anything else."""
    text = page.read_text()
    return text[text.index("<main>") :].partition("<section>")[0]


def right(hospitals, table: str) -> float:
    given, truth = pd.read_csv(hospitals / table)["class"], pd.read_csv(hospitals / "truth.csv")["diagnosis"]
    return float((given == truth).mean())


@pytest.mark.slow
def test_a_run_says_what_the_accuracy_of_such_a_site_is_worth(hospitals, command):
    out, _ = command(f"run hospital-tables method.name=beacon {DATA} --quiet --full --out beacon")
    (told,) = [line for line in out.splitlines() if line.startswith("Trained on one class alone: ")]
    run = load_run("beacon")
    assert told.startswith(NORTH)
    assert told.endswith("Predictions for it are by all_classes.")
    scores = run.client_accuracies("head")
    assert scores[run.names.index("north")] == 1.0
    assert top(hospitals / "beacon" / "report.html").count("Trained on one class alone: north (benign).") == 1


@pytest.mark.slow
def test_predictions_are_by_the_rule_on_all_classes(hospitals, command):
    """What half of the patients was told wrongly before."""
    command(f"run hospital-tables method.name=beacon {DATA} --quiet --full --out again")
    _, err = command("predict again north patients.csv --out all.csv")
    assert err == (
        "warning: north was trained on class benign alone: answers are by rule all_classes, learned from all "
        "clients (--rule head for the run's main rule)\n"
    )
    assert right(hospitals, "all.csv") > 0.9
    _, err = command("predict again north patients.csv --rule head --out head.csv")
    assert err == (
        "warning: north was trained on class benign alone: by rule head it may never answer anything else "
        "(--rule all_classes can)\n"
    )
    assert right(hospitals, "head.csv") == 0.5
    _, err = command("predict again south patients.csv --out south.csv")
    assert err == ""
    run = load_run("again")
    patients = pd.read_csv("patients.csv")
    with pytest.warns(
        UserWarning, match="north was trained on class benign alone: answers are by rule all_classes"
    ):
        found = run.predict("north", patients)
    assert found.rule == "all_classes"
    assert found.classes == pd.read_csv("all.csv")["class"].tolist()
    assert run.client("north").rule("") == "all_classes"
    assert run.client("south").rule("") == "head"
    # Metrics are of what the models answer by default, and of one rule where that is asked for.
    rules = {name: each.rule for name, each in run.metrics().clients.items()}
    assert rules == {"east": "", "north": "all_classes", "south": "", "west": ""}
    assert {each.rule for each in run.metrics("head").clients.values()} == {""}
    assert (run.metrics().rule, run.metrics("head").rule) == ("head", "head")
    # Runs that were written before say no more, but answer alike.
    path = hospitals / "again" / "federation.json"
    path.write_text(json.dumps({n: v for n, v in json.loads(path.read_text()).items() if n != "rules"}))
    assert load_run("again").client("north").rule("") == "all_classes"


@pytest.mark.slow
def test_a_method_without_such_a_rule_says_so(hospitals, command):
    command(f"run hospital-tables method.name=local {DATA} --quiet --full --out local")
    _, err = command("predict local north patients.csv --out local.csv")
    assert (
        err == "warning: north was trained on class benign alone: by rule head it may never answer anything else\n"
    )
    assert right(hospitals, "local.csv") == 0.5


@pytest.mark.slow
def test_a_comparison_says_it_once(hospitals, command):
    line = f"compare hospital-tables --methods beacon,local,fedproto {DATA} evaluation.on=union"
    out, _ = command(f"{line} --quiet --full --out compared")
    (told,) = [line for line in out.splitlines() if line.startswith("Trained on one class alone: ")]
    assert told.startswith(NORTH)
    assert "Predictions of beacon for it are by all_classes." in told
    assert top(hospitals / "compared" / "report.html").count("Trained on one class alone: ") == 1


def test_splits_that_differ_are_named_by_seed(tmp_path, monkeypatch, capsys):
    options = "data.samples=120 data.clients=4 partition.alpha=0.05 model.name=mlp rounds=1 execution.device=cpu"
    monkeypatch.chdir(tmp_path)
    line = f"compare quickstart --methods local --seeds 0,1 {options} --quiet --full --out c"
    _, printed, _ = support.command(monkeypatch, capsys, *line.split())
    lone = {
        run.seed: [f"{c.name} ({c.only_class})" for c in run.clients if c.only_class is not None]
        for run in load_runs([tmp_path / "c"])
    }
    assert lone[0] != lone[1]
    named = "; ".join(f"seed {seed}: {', '.join(names)}" for seed, names in lone.items() if names)
    assert f"Trained on one class alone: {named}. " in printed


@pytest.mark.parametrize("name", sorted(methods()))
def test_the_rule_that_a_method_declares_is_one_of_its_own(name):
    rules = assemble(experiment(name), ordinary())[0].method.declared.rules
    assert sum(rule.open for rule in rules) <= 1


def test_a_network_that_is_not_shared_knows_no_other_class():
    for name, options in (("beacon", {"method__exchange": False}), ("fedgen", {"method__preset": "htfl"})):
        method = assemble(experiment(name, **options), ordinary())[0].method
        assert not any(rule.open for rule in method.declared.rules)
