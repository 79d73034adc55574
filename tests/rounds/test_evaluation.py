"""What clients are scored on, and by which rule results are summed up."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protofed.errors import ConfigError
from protofed.experiments.assemble import assemble
from protofed.experiments.running import run_experiment
from protofed.methods.contract import Batch, predict
from protofed.rounds.evaluation import Evaluation
from protofed.rounds.options import EvaluationOptions
from protofed.runs.loading import load_run
from protofed.runs.records import Accuracy, RoundRecord
from protofed.runs.summary import Outcome
from protofed.samples import FederatedData, Samples
from protofed.visits.stacking import PooledSamples
from support import K, client, degenerate, experiment, federated, few, ordinary, samples, visited

EXACT = {"execution__precision": "fp64", "wire__codec": "float64"}
SCORED = ("accuracy", "union", "unseen")


def records(method: str, on: str, data=None, **overrides):
    chosen = experiment(method, evaluation__on=on, **{**EXACT, **overrides})
    federation = assemble(chosen, data or ordinary())[0]
    return federation, list(federation.run())


def naive(federation, on: str) -> tuple[dict, dict]:
    """Return each client's (correct, samples) by rule on all test samples, and on classes it does not train on."""
    clients = visited(federation)
    everything = [(x, int(y)) for c in clients.values() for x, y in zip(c.test.x, c.test.y, strict=True)]
    scores = ({}, {})
    for name, own in clients.items():
        own.model.eval()
        trained = set(own.train.y.tolist())
        for rule in federation.method.rules:
            hits: dict[int, list[bool]] = {}
            for x, y in everything:
                batch = Batch(x[None].double(), torch.tensor([y]))
                with torch.no_grad():
                    predicted = predict(federation.method, own.model, batch, own.received, own.state)[rule]
                hits.setdefault(y, []).append(int(predicted) == y)
            for score, classes in zip(scores, (set(hits), set(hits) - trained), strict=True):
                if on == "balanced":
                    counted = sum(sum(hits[c]) / len(hits[c]) for c in classes), len(classes)
                else:
                    counted = sum(sum(hits[c]) for c in classes), sum(len(hits[c]) for c in classes)
                score.setdefault(rule, {})[name] = counted
    return scores


@few("on", ["union", "balanced"], 1)
@few("method", ["fedproto", "fedavg"], 1)
def test_every_client_is_scored_on_everyones_samples(method, on):
    """accuracy_i = Σ_c correct_ic / Σ_c n_c over all classes c, or those with n_i,c = 0 training samples."""
    data = federated(*ordinary().clients, client("dan", [3, 3, 0, 0, 0], [1, 2, 2, 2, 2]))
    federation, found = records(method, on, data)
    for score, part in zip(naive(federation, on), (found[-1].union, found[-1].unseen), strict=True):
        for rule, counted in score.items():
            assert part.clients[rule] == pytest.approx([c / n for c, n in counted.values()])
            correct, total = (sum(column) for column in zip(*counted.values(), strict=True))
            assert part.weighted[rule] == pytest.approx(correct / total)


METHODS = ["local", "fixed_etf", "fedproto", "fedtgp", "tinyproto", "protonorm", "gfpl", "fedavg"]


@few(("method", "on"), [("beacon", "shifted"), ("fedproto", "shifted"), *((m, "balanced") for m in METHODS)], 3)
def test_it_is_the_same_for_a_stack(method, on):
    expected = records(method, on)[1]
    federation, found = records(method, on, execution__executor="fused")
    assert not federation.executor.refused
    for a, b in zip(expected, found, strict=True):
        assert [getattr(a, part) for part in SCORED] == [getattr(b, part) for part in SCORED]


@pytest.mark.slow
@few(("method", "on"), [("fedproto", "balanced"), ("beacon", "shifted")], 1)
def test_it_is_the_same_in_worker_processes(method, on):
    data = degenerate()
    expected = records(method, on, data)[1]
    federation, found = records(method, on, data, execution__executor="workers", execution__workers=2)
    federation.executor.close()
    assert [[getattr(r, part) for part in SCORED] for r in found] == [
        [getattr(r, part) for part in SCORED] for r in expected
    ]


def naive_shifted(federation) -> tuple[dict, dict]:
    """Return each client's score by rule where classes are as frequent as at the next one, and on unseen classes.

    ``Σ_c w_c·(correct_c/n_c) / Σ_c w_c``, where ``w_c`` are the next client's training samples of class c,
    for classes with test samples.
    """
    clients = visited(federation)
    names = [name for name, c in clients.items() if len(c.train)]
    everything = [(x, int(y)) for c in clients.values() for x, y in zip(c.test.x, c.test.y, strict=True)]
    tested = {y for _, y in everything}
    scores = ({}, {})
    for name, own in clients.items():
        own.model.eval()
        later = [n for n in clients if list(clients).index(n) > list(clients).index(name) and n in names]
        successor = (later + [n for n in names if n != name] + [name])[0]
        labels = clients[successor].train.y.tolist()
        weights = {c: labels.count(c) for c in tested}
        state = federation.method.shifted(own.state, torch.tensor([weights.get(c, 0) for c in range(K)]))
        trained = set(own.train.y.tolist())
        for rule in federation.method.rules:
            hits: dict[int, list[bool]] = {c: [] for c in tested}
            for x, y in everything:
                batch = Batch(x[None].double(), torch.tensor([y]))
                with torch.no_grad():
                    predicted = predict(federation.method, own.model, batch, own.received, state)[rule]
                hits[y].append(int(predicted) == y)
            for score, classes in zip(scores, (tested, tested - trained), strict=True):
                right = sum(weights[c] * sum(hits[c]) / len(hits[c]) for c in classes)
                score.setdefault(rule, {})[name] = right, sum(weights[c] for c in classes)
    return scores


def odd() -> FederatedData:
    """Return the ordinary clients, one without training samples in the middle, and no test sample of class 3."""
    ann, bob, cid = ordinary().clients
    return federated(
        client("ann", ann.train.y.tolist(), [0, 1, 1, 2]),
        client("nobody", [], [0, 1]),
        client("bob", bob.train.y.tolist(), [1, 2]),
        client("cid", cid.train.y.tolist(), [0, 0, 1]),
    )


@few("method", ["beacon", "local", "fedproto"], 1)
def test_classes_as_frequent_as_at_the_next_client(method):
    options = {"method__softmax": "balanced"} if method == "local" else {}
    federation, found = records(method, "shifted", odd(), **options)
    for score, part in zip(naive_shifted(federation), (found[-1].union, found[-1].unseen), strict=True):
        for rule, counted in score.items():
            expected = [right / n if n else None for right, n in counted.values()]
            assert part.clients[rule] == [None if e is None else pytest.approx(e) for e in expected], rule
            right, total = (sum(column) for column in zip(*counted.values(), strict=True))
            assert part.weighted[rule] == pytest.approx(right / total)
    after = federation.executor.clients.after
    assert {n: after(n).name for n in federation.names} == {
        "ann": "bob",
        "nobody": "bob",
        "bob": "cid",
        "cid": "ann",
    }


def test_the_only_client_keeps_its_frequencies():
    """Nothing shifts: its score is that on its own classes, weighted as its training samples."""
    data = federated(client("ann", [0, 0, 0, 1], [0, 1, 1, 2]), client("nobody", [], [2]))
    federation, (*_, last) = records("local", "shifted", data)
    assert federation.executor.clients.after("ann").name == "ann"
    (own, _), ann = naive_shifted(federation), visited(federation)["ann"]
    right, n = own["head"]["ann"]
    assert n == len(ann.train) == 4
    assert last.union.clients["head"][0] == pytest.approx(right / n)
    assert last.unseen.clients["head"][0] is None


def test_a_method_without_frequencies_predicts_as_ever():
    """By default a method's state does not depend on them."""
    federation, _ = records("fedproto", "shifted")
    for c in visited(federation).values():
        assert federation.method.shifted(c.state, torch.tensor([9, 0, 0, 0])) is c.state


@pytest.mark.slow
def test_shifted_frequencies_are_forgotten_after_the_score():
    """A client's own score, its training and its stored state are those of a run that is not scored so."""
    expected, found = (records("beacon", on) for on in ("own", "shifted"))
    assert [r.accuracy for r in found[1]] == [r.accuracy for r in expected[1]]
    for name, own in visited(found[0]).items():
        assert own.state.keys() == {"beacon_prior", "prior", "own"}
        assert torch.equal(own.state["prior"], visited(expected[0])[name].state["prior"])


@few("method", ["local", "fixed_etf", "fedproto"], 1)
def test_heads_trained_on_a_clients_own_samples_know_nothing_of_unseen_classes(method):
    last = records(method, "union", rounds=6, training__epochs=5)[1][-1]
    assert last.unseen.weighted["head"] == 0.0
    assert 0.0 < last.union.weighted["head"] < last.accuracy.weighted["head"]


def test_without_unseen_classes_there_is_nothing_to_report_of_them():
    data = federated(client("ann", [0, 1, 2, 3]), client("bob", [0, 1, 2, 3, 3]))
    last = records("local", "union", data)[1][-1]
    assert last.union is not None
    assert last.unseen is None
    assert last.union.clients["head"][0] is not None


@pytest.mark.slow
@given(st.data())
def test_samples_that_clients_share_are_held_once(data):
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    parts = [samples(list(range(n))[:K] * 2, seed=i) for i, n in enumerate(lengths)]
    chosen = [parts[i] for i in data.draw(st.lists(st.integers(0, len(parts) - 1), min_size=1, max_size=7))]
    pool = PooledSamples(chosen)
    assert len(pool.y) == sum(len(p) for p in {id(p): p for p in chosen}.values())
    places, weights, _ = pool.places([[torch.arange(len(p))] for p in chosen])
    for part, where, weight in zip(chosen, places, weights, strict=True):
        rows = where[0][weight[0] > 0]
        assert torch.equal(pool.y[rows], part.y)
        assert not len(part) or torch.equal(pool.x[rows], part.x)


@few("executor", ["sequential", "fused"], 1)
def test_others_samples_are_scored_in_some_rounds_and_the_last(executor):
    _, every = records("fedproto", "union", rounds=5, execution__executor=executor)
    _, some = records("fedproto", "union", rounds=5, execution__executor=executor, evaluation__on_every=2)
    assert [r.round for r in some if r.union is not None] == [2, 4, 5]
    assert [r.round for r in some if r.unseen is not None] == [2, 4, 5]
    assert [r.accuracy for r in some] == [r.accuracy for r in every]
    assert [some[i].union for i in (1, 3, 4)] == [every[i].union for i in (1, 3, 4)]
    final = [Outcome.of(course).accuracy["head"].union.final for course in (some, every)]
    assert final[0] == final[1]


def test_the_union_is_neither_copied_for_a_stack_nor_made_twice():
    federation = records("local", "union")[0]
    union = federation.executor.clients.union
    assert PooledSamples([union] * 9).x is union.x
    assert federation.executor.clients.union is union


# What cannot be done.


def test_test_samples_of_two_kinds_cannot_be_put_together():
    odd = client("odd", [0, 1])
    images = Samples(torch.zeros(2, 6, dtype=torch.uint8), torch.tensor([0, 1]))
    data = federated(client("ann", [0, 1]), type(odd)("odd", images, images))
    with pytest.raises(ConfigError, match=r"needs test samples of one type and shape, not float32 .* and uint8"):
        records("local", "union", data)


def test_without_test_samples():
    with pytest.raises(ConfigError, match=r"evaluation.on=balanced needs test samples of one type .* not none"):
        records("local", "balanced", federated(client("ann", [0, 1], []), client("bob", [2], [])))


@pytest.mark.parametrize("on", ["union", "shifted"])
def test_clients_of_a_network_keep_their_samples(on):
    federation = assemble(experiment(), ordinary())[0]
    federation.executor.remote = True
    with pytest.raises(ConfigError, match=rf"evaluation.on={on} needs all test samples on this machine"):
        Evaluation(experiment(evaluation__on=on).evaluation, federation.method, federation.executor)


@given(st.lists(st.sampled_from([None, 0.2, 0.5, 0.7, 0.9]), max_size=12), st.integers(0, 4))
def test_a_run_has_stalled_after_so_many_evaluations_without_a_better_one(scores, patience):
    federation = assemble(experiment(), ordinary())[0]
    evaluation = Evaluation(EvaluationOptions(), federation.method, federation.executor)
    evaluation.options = EvaluationOptions(patience=patience)
    rounds, best, since = [], -1.0, 0
    for number, score in enumerate(scores, start=1):
        record = RoundRecord(number, ["ann"])
        if score is not None:  # a round that is not evaluated does not count
            record.validation = Accuracy.of([({"global": 100 * score}, 100)], ["global"])
            best, since = (score, 0) if score > best else (best, since + 1)
        rounds.append(record)
    assert evaluation.has_stalled(rounds) is (patience > 0 and since >= patience)


def test_an_unknown_rule_is_named():
    with pytest.raises(ConfigError, match=r"^unknown rule in evaluation.rule 'locl': did you mean 'local'"):
        assemble(experiment(evaluation__rule="locl"), ordinary())


# The main rule.


@pytest.mark.slow
def test_a_method_that_lacks_the_main_rule_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("protofed.experiments.assemble.load_data", lambda _: ordinary())
    runs = {}
    for method in ("fedproto", "fedavg", "local"):
        chosen = experiment(method, evaluation__rule="local", evaluation__on="union")
        run_experiment(chosen, tmp_path / method)
        runs[method] = load_run(tmp_path / method)
    assert {m: run.main_rule for m, run in runs.items()} == {m: run.summary.main_rule for m, run in runs.items()}
    assert [run.main_rule for run in runs.values()] == ["local", "global_model", "head"]
    lacking = "Main rule global_model: the method does not have local (evaluation.rule)."
    assert [lacking in run.notes for run in runs.values()] == [False, True, False]
    fedproto = runs["fedproto"]
    assert fedproto.summary.outcome == fedproto.outcome == Outcome.of(fedproto.rounds)
    assert fedproto.outcome.accuracy["head"].union.final == fedproto.rounds[-1].union.weighted["head"]


def test_the_recipes_of_every_paper_can_name_their_rule():
    """TinyProto scores by Eq. 12 and ProtoNorm by Eq. 6, FedProto's code by the client's own classes."""
    for method, rule in (("tinyproto", "local"), ("protonorm", "local"), ("fedproto", "global_own")):
        assert assemble(experiment(method, evaluation__rule=rule), ordinary())[0].evaluation.main_rule == rule
