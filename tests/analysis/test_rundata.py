import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofed.analysis import load_run, load_runs, main_rule, prototypes
from protofed.errors import CheckpointError
from protofed.runs.labels import tell_apart
from protofed.runs.loading import check_run
from protofed.runs.run import by_label, select_finished


def test_a_run_is_read_back(run_at):
    run = load_run(run_at(rounds=8, clients=4, classes=3))
    assert (run.label, run.method, run.recipe, run.seed) == ("fedproto", "fedproto", "fake-images", 0)
    assert run.finished
    assert run.last_round == run.planned_rounds == 8
    assert run.rules == ("head", "local", "global", "global_own")
    assert sorted(run.accuracy("global")) == list(range(1, 9))
    assert run.client_accuracies("head")[-1] is None
    assert len(run.clients) == 4
    assert run.class_names == ["class 0", "class 1", "class 2"]


def test_bytes_add_up_over_rounds_and_directions(run_at):
    run = load_run(run_at(rounds=3))
    totals = [sum(r.bytes.values()) for r in run.rounds]
    assert run.sent() == {1: totals[0], 2: totals[0] + totals[1], 3: sum(totals)}


def test_prototypes(run_at):
    run = load_run(run_at(clients=2, classes=3))
    assert prototypes(run, "global")["prototypes"].shape == (3, 64)
    assert prototypes(run, "local.client_01")["present"].shape == (3,)
    assert prototypes(run, "local.nobody") == {}
    assert prototypes(load_run(run_at("open", finished=False)), "global") == {}


def test_an_unfinished_run(run_at):
    run = load_run(run_at(rounds=5, planned=9, finished=False))
    assert not run.finished
    assert (run.last_round, run.planned_rounds) == (5, 9)
    assert run.outcome.rounds == 5


def test_a_line_being_written_is_left_out(run_at):
    path = run_at(rounds=4, finished=False)
    with (path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 5, "partici')
    assert load_run(path).last_round == 4


def test_a_user_defined_method_is_called_by_its_class(run_at):
    assert load_run(run_at(method="my_package.mine:MyMethod")).label == "MyMethod"


def test_the_label_of_the_summary_wins(run_at):
    path = run_at()
    summary = json.loads((path / "summary.json").read_text()) | {"label": "FedProto"}
    (path / "summary.json").write_text(json.dumps(summary))
    assert load_run(path).label == "FedProto"


def test_counts_must_fit_the_classes(run_at):
    path = run_at() / "federation.json"
    content = json.loads(path.read_text())
    content["clients"][1]["train"].append(4)
    path.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="client 2 has 4 train counts for 3 classes"):
        load_run(path.parent)


def test_damaged_prototypes(run_at):
    path = run_at()
    (path / "prototypes.safetensors").write_bytes(b"12")
    with pytest.raises(CheckpointError, match=r"prototypes\.safetensors: cannot be read"):
        prototypes(load_run(path), "global")


def test_comparisons_and_folders(run_at, comparison_at, tmp_path):
    compared = comparison_at(["fedproto", "local"], (0, 1))
    assert [(r.label, r.seed) for r in load_runs([compared])] == [
        ("fedproto", 0),
        ("fedproto", 1),
        ("local", 0),
        ("local", 1),
    ]
    single = run_at("single", "fedtgp")
    assert len(load_runs([tmp_path])) == 5
    assert len(load_runs([single, tmp_path, single])) == 5


def test_runs_that_have_not_begun_are_left_out(comparison_at):
    path = comparison_at(["fedproto"], (0, 1))
    (path / "fedproto-seed1" / "rounds.jsonl").unlink()
    assert [r.seed for r in load_runs([path])] == [0]


def test_an_unfinished_run_of_a_comparison_shares_its_label(comparison_at):
    path = comparison_at(["fedproto"], (0, 1))
    summary = path / "fedproto-seed0" / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"label": "FedProto"}))
    (path / "fedproto-seed1" / "summary.json").unlink()
    runs = load_runs([path])
    assert list(by_label(runs)) == ["FedProto"]
    assert [r.seed for r in select_finished(runs)] == [0]
    assert len(select_finished(runs[1:])) == 1


def test_nothing_there(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(CheckpointError, match="no run here"):
            load_runs([path])


def test_runs_that_differ_in_options_are_not_averaged(run_at):
    paths = [run_at("a"), run_at("b", seed=1), run_at("c", recipe="other")]
    assert [r.label for r in load_runs(paths)] == [
        "fedproto, fake-images",
        "fedproto, fake-images",
        "fedproto, other",
    ]
    config = paths[1] / "config.toml"
    config.write_text(config.read_text().replace("lambda = 1.0", "lambda = 10.0"))
    assert [r.label for r in load_runs(paths[:2])] == [
        "fedproto, method.lambda=1.0",
        "fedproto, method.lambda=10.0",
    ]


def test_main_rule():
    assert main_rule(["head", "local", "global"]) == "global"
    assert main_rule(["etf", "head"]) == "head"
    assert main_rule(["etf"]) == "etf"
    assert main_rule([]) == "head"
    assert main_rule(["head", "local", "global"], "local") == "local"
    assert main_rule(["head", "global"], "local") == "global"


def test_the_main_rule_that_was_asked_for(run_at):
    assert [load_run(run_at(m, m, rule="local")).main_rule for m in ("fedproto", "fedavg", "local")] == [
        "local",
        "global_model",
        "head",
    ]


def test_options_of_another_partition_go_without_saying():
    skewed = {"method": {"name": "a"}, "partition": {"name": "dirichlet", "alpha": 0.1, "min_size": 10}}
    flat = {"method": {"name": "a"}, "partition": {"name": "iid"}}
    milder = {"method": {"name": "a"}, "partition": {"name": "dirichlet", "alpha": 0.5, "min_size": 10}}
    assert tell_apart(["a", "a"], [skewed, flat]) == ["a, partition.name=dirichlet", "a, partition.name=iid"]
    assert tell_apart(["a", "a"], [skewed, milder]) == ["a, partition.alpha=0.1", "a, partition.alpha=0.5"]


def test_in_a_folder_of_all_sorts_labels_name_what_is_unusual_and_stay_distinct():
    usual = {"rounds": 10, "data": {"source": "digits", "samples": 0}, "training": {"lr": 0.1, "batch_size": 8}}
    changed = [usual, usual, usual | {"rounds": 20}, usual | {"data": {"source": "path", "samples": 5}}]
    changed.append(usual | {"training": {"lr": 0.5, "batch_size": 8}})
    assert tell_apart(["a"] * 5, changed) == [
        "a",
        "a",
        "a, rounds=20",
        "a, data.samples=5, data.source=path",
        "a, training.lr=0.5",
    ]


values = st.sampled_from([0, 1, 2, None, "x", (1, 2)])


@given(st.lists(st.fixed_dictionaries(dict.fromkeys("pqrstu", values)), min_size=1, max_size=6))
def test_labels_are_equal_exactly_where_configurations_are(configurations):
    labels = tell_apart(["a"] * len(configurations), configurations)
    for one, label in zip(configurations, labels, strict=True):
        for other, another in zip(configurations, labels, strict=True):
            assert (label == another) == (one == other)


def test_scores_on_validation_samples_are_of_all_clients(run_at):
    run = load_run(run_at(clients=4))
    run.rounds[-1].validation = replace(run.rounds[-1].accuracy, clients={"head": []})
    with pytest.raises(CheckpointError, match="has 0 accuracies for 4 clients"):
        check_run(run)
