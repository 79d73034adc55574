"""Metrics of finished runs: scikit-learn's, on every engine the same, and null with a reason where undefined."""

from __future__ import annotations

import json
import shutil
import warnings

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn

import protofed
from protofed.errors import CheckpointError, ConfigError, DataError
from protofed.methods import methods
from protofed.runs.loading import load_run
from protofed.runs.metrics import HEADLINES, METRICS, Metrics, SampleMetrics
from protofed.trained.metrics import compute, of_samples, store
from support import SMALL_RUN, command, few, one_line, write_vectors


def drawn(seed, K, n, absent=()):
    """Return random classes without some, random scores as log-probabilities, and the classes they give."""
    rng = np.random.default_rng(seed)
    y = rng.choice([c for c in range(K) if c not in absent], n)
    scores = rng.normal(size=(n, K)) + 1.5 * np.eye(K)[y]
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    return y, scores.argmax(1), np.log(probabilities)


def run_of(directory, **options):
    return protofed.run("quickstart", {**SMALL_RUN, "method.name": "fedproto", **options}, out=directory)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("measured") / "run").directory


# Against scikit-learn.


@few("seed", range(5), 1)
@pytest.mark.parametrize(("K", "absent"), [(2, ()), (5, ()), (6, (0,)), (7, (2, 6))])
def test_metrics_are_those_of_scikit_learn(seed, K, absent):
    """The functions that papers name, each on the whole labels; areas naively, by counting pairs."""
    y, given, scores = drawn(seed, K, 60, absent)
    found = of_samples(y, given, scores)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "y_pred contains classes", UserWarning)
        assert found.balanced_accuracy == pytest.approx(sklearn.balanced_accuracy_score(y, given))
    assert found.accuracy == sklearn.accuracy_score(y, given)
    assert found.macro_f1 == pytest.approx(sklearn.f1_score(y, given, average="macro"))
    assert (found.matrix(K) == sklearn.confusion_matrix(y, given, labels=range(K))).all()
    if not absent:
        chosen = np.exp(scores) if K > 2 else np.exp(scores[:, 1])
        expected = sklearn.roc_auc_score(y, chosen, multi_class="ovr", average="macro")
        assert found.auroc == pytest.approx(expected)
    for each in found.classes:
        mine, theirs = y == each.label, given == each.label
        assert each.samples == mine.sum()
        assert each.recall == (pytest.approx((mine & theirs).sum() / mine.sum()) if mine.any() else None)
        assert each.specificity == pytest.approx((~mine & ~theirs).sum() / (~mine).sum())
        own, other = scores[mine, each.label][:, None], scores[~mine, each.label][None]
        pairs = ((own > other) + 0.5 * (own == other)).mean() if mine.any() else None
        assert each.auroc == (None if pairs is None else pytest.approx(pairs))
    assert sorted(c.label for c in found.classes) == sorted({*y, *given})
    assert found.undefined == {}


def test_what_is_not_defined_is_none_with_a_reason():
    nothing = of_samples(np.zeros(0, int), np.zeros(0, int), np.zeros((0, 3)))
    assert [getattr(nothing, name) for name in ("accuracy", *HEADLINES)] == [None] * 4
    assert set(nothing.undefined.values()) == {"no test samples"}
    one = of_samples(np.full(4, 1), np.array([1, 1, 1, 2]), np.zeros((4, 3)))
    assert (one.balanced_accuracy, one.auroc) == (0.75, None)
    assert one.undefined == {"auroc": "all test samples are of one class"}
    assert one.classes[0].specificity is None, "there is no sample of another class"
    assert (one.classes[1].recall, one.classes[1].f1) == (None, 0.0)
    # A diverged model: one sample is given no class, which is wrong, and is in no column.
    y, given, scores = drawn(0, 3, 9)
    given[0], scores[0] = -1, np.nan
    diverged = of_samples(y, given, scores)
    assert diverged.accuracy == sklearn.accuracy_score(y, given)
    assert (diverged.auroc, diverged.undefined) == (None, {"auroc": "some samples have no finite scores"})
    assert diverged.matrix(3).sum() == 8
    assert -1 not in {c.label for c in diverged.classes}


@pytest.mark.parametrize("scale", [1.0, 60.0, 400.0])
def test_areas_do_not_depend_on_how_certain_scores_are(scale):
    """Beyond a gap of 37 the log-probability of the larger score is rounded to 0."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 200)
    apart = rng.normal(size=200) + 2 * y
    scores = torch.from_numpy(np.stack([np.zeros(200), scale * apart], axis=1)).log_softmax(-1).numpy()
    found = of_samples(y, scores.argmax(1), scores)
    assert [c.auroc for c in found.classes] == pytest.approx([sklearn.roc_auc_score(y, apart)] * 2, abs=1e-12)


def test_calibration_does_not_depend_on_the_order_of_samples():
    y = np.repeat([0, 1], [90, 10])
    scores = np.log(np.tile([0.9, 0.1], (100, 1)))
    labels = np.zeros(100, np.int64)
    for order in (np.arange(100), np.random.default_rng(0).permutation(100)):
        assert of_samples(y[order], labels, scores).calibration_error == pytest.approx(0.0, abs=1e-12)


def test_areas_are_right_where_probabilities_are_ones_or_impossible():
    """Prototypes of which one is 1e3 nearer: probabilities of 1 cannot be told apart, log-probabilities can."""
    y = np.array([0, 0, 1, 1])
    scores = np.array([[0.0, -900.0], [0.0, -800.0], [0.0, -700.0], [0.0, -np.inf]])
    found = of_samples(y, np.zeros(4, int), scores)
    assert [c.auroc for c in found.classes] == [0.5, 0.5]
    found = of_samples(y[:3], np.zeros(3, int), scores[:3])
    assert found.classes[1].recall == 0.0
    assert [c.auroc for c in found.classes if c.label == 1] == [1.0]


# Of runs.


@pytest.mark.parametrize("method", sorted(methods()))
def test_the_metrics_of_every_method_are_of_what_it_scored(method, tmp_path):
    """The correct answers of the confusion matrix are those of the last round, at every client."""
    options = {"model.options.hidden": [8], "rounds": 1, "data.samples": 100, "model.d": 10}
    options["data.labels"] = dict(zip("0123456789", "abcdefghij", strict=True))  # fedtsp takes no numbers
    if methods().get(method).traits(methods().get(method).Options()).alike == "architecture":
        options["model.name"] = "mlp"
    run = run_of(tmp_path / "run", **{"method.name": method, **options})
    found = run.metrics()
    last = run.rounds[-1].accuracy
    assert found.rule == run.main_rule
    assert [found.clients[name].accuracy for name in run.names] == pytest.approx(last.clients[found.rule])
    assert found.overall.accuracy == pytest.approx(last.weighted[found.rule])
    assert np.trace(found.overall.matrix(10)) == round(found.overall.accuracy * found.overall.samples)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["workers", "fused"])
def test_executors_agree(executor, finished, tmp_path):
    other = run_of(tmp_path / "run", **{"execution.executor": executor, "execution.workers": 2})
    ours, theirs = protofed.load_run(finished).metrics(), other.metrics()
    assert theirs.overall.confusion == ours.overall.confusion
    for name in HEADLINES:
        assert theirs.over_clients(name) == pytest.approx(ours.over_clients(name), abs=1e-4)


def test_the_command_writes_and_shows_them(finished, tmp_path, monkeypatch, capsys):
    place = shutil.copytree(finished, tmp_path / "run")
    monkeypatch.setenv("COLUMNS", "100")
    status, printed, _ = command(monkeypatch, capsys, "metrics", place, "--rule", "head")
    assert status == 0
    stored = load_run(place).measured
    assert (stored.rule, stored.round) == ("head", 2)
    assert f"{100 * stored.overall.balanced_accuracy:.1f}" in printed
    page = (place / "report.html").read_text()
    assert "Recall (sensitivity)" in page
    assert "Balanced accuracy" in page
    run = protofed.load_run(place)
    frame = run.clients_frame()
    expected = [stored.clients[name].macro_f1 for name in run.names]
    assert frame["macro_f1"].tolist() == pytest.approx([np.nan if v is None else v for v in expected], nan_ok=True)
    assert run.metrics("head") == stored
    assert run.metrics().rule == "global", "those of another rule are computed"
    assert run.metrics("prototypes").rule == "global"
    with pytest.raises(ConfigError, match="rule of fedproto"):
        run.metrics("heat")


@pytest.mark.slow
def test_a_run_measures_itself_and_a_longer_one_anew(tmp_path):
    data = {"data.source": "path", "data.path": str(write_vectors(tmp_path / "data")), "data.samples": 0}
    run = run_of(tmp_path / "run", **{"evaluation.metrics": True, "rounds": 1, **data})
    first = run.measured
    assert first.round == 1
    assert first == compute(run)
    longer = {**SMALL_RUN, **data, "method.name": "fedproto", "evaluation.metrics": True, "rounds": 2}
    again = protofed.run("quickstart", longer, out=tmp_path / "run", resume=True)
    assert again.measured.round == 2
    # Metrics are no part of what was run: they are added to a run without.
    (tmp_path / "run" / METRICS).unlink()
    asked = protofed.run("quickstart", {**longer, "evaluation.metrics": False}, out=tmp_path / "run", resume=True)
    assert asked.measured is None
    added = protofed.run("quickstart", longer, out=tmp_path / "run", resume=True)
    assert added.measured == again.measured
    np.savez(tmp_path / "data" / "clients" / "c0" / "test.npz", x=np.zeros((2, 64), "f4"), y=np.array([0, 1]))
    from protofed.experiments.loading import _load_data

    _load_data.cache_clear()
    with pytest.raises(DataError, match="c0 has other test samples now than in the run"):
        compute(added)


def test_an_unfinished_run_is_refused(finished, tmp_path):
    place = shutil.copytree(finished, tmp_path / "run")
    (place / "summary.json").unlink()
    with pytest.raises(CheckpointError, match="has not finished"):
        store(load_run(place))
    assert not (place / METRICS).exists()


# The file.


def test_what_is_written_is_read(finished):
    found = compute(load_run(finished))
    names = [client.name for client in load_run(finished).clients]
    assert Metrics.from_dict(json.loads(json.dumps(found.to_dict())), "x", names, 10) == found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "of another format"),
        ({"rule": 3}, "rule: expected text"),
        ({"round": -1}, "round: must be from 0"),
        ({"clients": {}}, "was written for other clients"),
        ({"overall": 3}, "overall: expected a table"),
        ({"overall": {"accuracy": 1.5}}, "overall.accuracy: must be from 0 to 1"),
        ({"overall": {"auroc": "high"}}, "overall.auroc: expected a number or none"),
        ({"overall": {"confusion": [[0, 0]]}}, r"confusion\[0\]: expected a list of 3, not a list of 2"),
        ({"overall": {"confusion": [[0, 10, 1]]}}, "class 10 is beyond the 10 of the run"),
        ({"overall": {"classes": [{"label": 10, "samples": 1}]}}, "class 10 is beyond the 10"),
        (
            {"overall": {"classes": [{"label": 1, "samples": 1, "recall": -0.1}]}},
            r"\[0\].recall: must be from 0 to 1",
        ),
        ({"overall": {"undefined": {"auroc": 3}}}, "overall.undefined.auroc: expected text"),
    ],
)
def test_a_damaged_file_is_one_line(change, message, finished):
    run = load_run(finished)
    names = [client.name for client in run.clients]
    each = SampleMetrics(0, undefined={})
    whole = json.loads(json.dumps(Metrics("head", 2, each, dict.fromkeys(names, each)).to_dict()))
    inner = change.get("overall")
    changed = (
        {**whole, "overall": {**whole["overall"], **inner}} if isinstance(inner, dict) else {**whole, **change}
    )
    with one_line(CheckpointError, message):
        Metrics.from_dict(changed, "metrics.json", names, 10)
