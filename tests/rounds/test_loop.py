"""The round loop: refusals, traffic, accuracies, participation."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from protofed.errors import ConfigError, FederationError
from protofed.experiments.assemble import assemble
from protofed.methods.contract import Phase, Round, Update
from protofed.methods.fedproto import FedProto
from protofed.methods.local import LocalTraining
from protofed.runs.records import Absence, Accuracy, Refusal
from protofed.visits.contract import Missing
from protofed.visits.executor import Sequential
from protofed.visits.roster import Roster
from support import client, degenerate, experiment, federated, few, ordinary

pytestmark = pytest.mark.fast


def test_a_refused_upload_is_named_and_the_round_goes_on_without_it(monkeypatch):
    federation, _ = assemble(experiment(rounds=2), ordinary())
    upload = FedProto.upload

    def sabotage(self, local, statistics):
        payload = upload(self, local, statistics)
        if local.name == "bob":
            payload["prototypes"] = payload["prototypes"] * torch.nan
        return payload

    monkeypatch.setattr(FedProto, "upload", sabotage)
    first, second = federation.run()
    assert first.refused == [Refusal("bob", "prototypes", "contains NaN", diverged=True)]
    assert first.bytes["up"] > 0
    assert first.parameters["up"] == 2 * 3 * 5, "of ann's and cid's three prototypes"
    assert second.participants == ["ann", "bob", "cid"]
    assert federation.server["prototypes"].isfinite().all()


def test_traffic_is_what_the_papers_count_and_what_was_encoded():
    """FedProto: Σ_i K_i·d parameters up and M·K·d down per round, nothing down in the first."""
    federation, data = assemble(experiment(rounds=2), ordinary())
    first, second = federation.run()
    held = [int((c.train.counts(4) > 0).sum()) for c in data.clients]
    d, K, M = 5, 4, 3
    assert held == [3, 3, 3]
    assert first.parameters == {"up": sum(held) * d, "down": 0}
    assert second.parameters == {"up": sum(held) * d, "down": M * K * d}
    assert first.bytes == {"up": sum(8 + 2 * k + 4 * k * d for k in held), "down": 0}
    assert second.bytes["down"] == M * (8 + 2 * K + 4 * K * d)


def test_a_class_nobody_reports_keeps_its_prototype_and_a_new_one_has_none():
    data = federated(client("ann", [0, 0, 1, 1]), client("bob", [2, 2, 2]))
    federation, _ = assemble(experiment(rounds=1), data)
    next(federation.run())
    assert federation.server["present"].tolist() == [True, True, True, False]
    before = federation.server["prototypes"].clone()
    uploads = federation.exchange(["bob"], 2)
    after = federation.method.aggregate(federation.server, iter(uploads), 2).state["prototypes"]
    assert torch.equal(before[:2], after[:2])
    assert not torch.equal(before[2], after[2])


def test_every_second_round_is_evaluated_and_always_the_last():
    federation, _ = assemble(experiment(rounds=5, evaluation__every=2), ordinary())
    assert [r.accuracy is not None for r in federation.run()] == [False, True, False, True, True]


def test_without_any_training_sample_nothing_starts():
    with pytest.raises(ConfigError, match="no client has training samples"):
        assemble(experiment(), federated(client("ann", [], [0]), client("bob", [], [1])))


def test_participants_differ_between_rounds_and_repeat_with_the_seed():
    data = federated(*(client(f"c{i}", [0, 1]) for i in range(10)))
    a, b, c = (
        [assemble(experiment(seed=s, participation__fraction=0.3), data)[0].participants(r) for r in range(1, 6)]
        for s in (0, 0, 1)
    )
    assert a == b != c
    assert all(len(names) == 3 and names == sorted(names) for names in a)
    assert len({tuple(names) for names in a}) > 1


@pytest.mark.parametrize(
    ("sampling", "drawn"), [("uniform", "25 12 12 03 34 04 14 13"), ("samples", "15 05 14 24 35 45 45 35")]
)
def test_a_seed_draws_the_same_clients_in_every_version(sampling, drawn):
    data = federated(*(client(f"c{i}", [0, 1] * (i + 1)) for i in range(6)))
    chosen = {"participation__fraction": 0.4, "participation__sampling": sampling, "seed": 3}
    federation, _ = assemble(experiment(**chosen), data)
    assert " ".join("".join(n[1] for n in federation.participants(r)) for r in range(1, 9)) == drawn
    federation.participation.options = replace(federation.participation.options, fraction=0.01)
    assert [len(federation.participants(round_number)) for round_number in (1, 2)] == [1, 1]


class Flaky(Sequential):
    """Clients over a network, of which only the first few answer, by attempt."""

    remote = True
    answers: list[int]

    def train(self, names, messages, round_number):
        answering = self.answers.pop(0)
        for name, result in zip(names, super().train(names, messages, round_number), strict=True):
            yield result if names.index(name) < answering else Missing(name, "no answer")


def flaky(monkeypatch, *answers: int, **overrides):
    """Return a federation over a network; whenever its clock is read, a second has passed."""
    federation, _ = assemble(experiment(rounds=1, participation__min_clients=2, **overrides), ordinary())
    federation.executor = Flaky(federation.executor.trainer, federation.executor.clients)
    federation.executor.answers = list(answers)
    monkeypatch.setattr(Roster, "rests_here", False)
    ticks = map(float, itertools.count(7))
    monkeypatch.setattr("protofed.runs.records.time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    return federation


def test_the_seconds_of_a_round_are_those_of_all_attempts(monkeypatch):
    """Waiting takes one second for each of three clients and one for their end; the rest is aggregation."""
    record = next(flaky(monkeypatch, 3).run())
    assert record.seconds == {"training": 4, "aggregation": 5, "evaluation": 1, "total": 13}
    record = next(flaky(monkeypatch, 1, 2).run())
    assert record.attempts == 2
    assert record.seconds == {"training": 8, "aggregation": 10, "evaluation": 1, "total": 23}


@few(
    ("method", "codec", "lr", "field"),
    [
        ("fedproto", "float32", 1e30, "prototypes"),
        ("fedproto", "float16", 1e6, "prototypes"),  # numbers that do not fit, of a model whose features are finite
        ("fedproto", "int8", 1e30, "prototypes"),
        ("fedavg", "float16", 1e12, "model"),  # finite weights that do not fit, of a model whose features are not
    ],
    2,
)
def test_a_diverged_client_is_named_and_asked_again_after_its_rest(method, codec, lr, field):
    data = federated(client("ann", [0, 1] * 4), client("bob", [0, 1] * 4), client("cid", [1, 2] * 4, lr=lr))
    federation, _ = assemble(experiment(method, rounds=3, participation__max_refusals=1, wire__codec=codec), data)
    first, second, third = federation.run()
    (refusal,) = first.refused
    assert (refusal.client, refusal.field, refusal.diverged) == ("cid", field, True)
    assert refusal.reason.startswith("has diverged (") is (field == "model")
    assert [len(record.participants) for record in (first, second, third)] == [3, 2, 3]


def test_broadcasts_after_a_round_are_those_of_the_next(monkeypatch):
    asked = []
    broadcast = FedProto.broadcast
    monkeypatch.setattr(
        FedProto,
        "broadcast",
        lambda self, state, round_number, *rest: (
            asked.append(round_number) or broadcast(self, state, round_number, *rest)
        ),
    )
    for _ in assemble(experiment(rounds=2), ordinary())[0].run():
        pass
    # The round, the check of the new state, evaluation; …
    assert asked == [1, 2, 2, 2, 3, 3]


def test_a_method_that_reads_half_of_the_uploads_is_told(monkeypatch):
    aggregate = FedProto.aggregate
    monkeypatch.setattr(
        FedProto, "aggregate", lambda self, *rest: aggregate(self, rest[0], [next(rest[1])], rest[2])
    )
    with pytest.raises(AssertionError, match="fedproto left uploads unread"):
        next(assemble(experiment(), ordinary())[0].run())


def test_a_round_is_repeated_as_often_as_the_options_say(monkeypatch):
    federation = flaky(monkeypatch, 0, 1, 0, participation__attempts=2)
    state = {n: t.clone() for n, t in federation.server.items()}
    with pytest.raises(FederationError, match=r"round 1: .* 2 attempts; last cid: .*; bob: .*; cid: no answer"):
        next(federation.run())
    assert federation.executor.answers == [0]
    assert federation.round == 0
    assert all(torch.equal(federation.server[n], t) for n, t in state.items())


def test_missing_clients_are_recorded_and_not_scored(monkeypatch):
    federation = flaky(monkeypatch, 2)
    evaluate = federation.executor.evaluate

    def without_ann(names, messages, round_number):
        for result in evaluate(names, messages, round_number):
            yield Missing("ann", "gone") if result.client == "ann" else result

    federation.executor.evaluate = without_ann
    record = next(federation.run())
    assert record.missing == [Absence("cid", "training", "no answer"), Absence("ann", "evaluation", "gone")]
    scored = record.accuracy.clients["global"]
    assert [share is None for share in scored] == [True, False, False]


@pytest.mark.parametrize(("wrong", "refused"), [(1, True), (3, True), (4, False)])
def test_the_optimisers_of_all_rounds_and_clients_are_checked_before_the_first(wrong, refused, monkeypatch):
    def steps(self, number):
        assert 1 <= number <= 3, "there is no such round"
        chosen = {"nesterov": True, "momentum": 0.0} if number == wrong else {}
        return Round((Phase((Update(self.loss, optimizer=chosen),)),))

    monkeypatch.setattr(LocalTraining, "round", steps)
    if not refused:
        assemble(experiment("local", rounds=3), ordinary())
        return
    with pytest.raises(
        ConfigError, match=r"method local sets \{.*'momentum': 0.0.*\}, but optimizer SGD: Nesterov"
    ):
        assemble(experiment("local", rounds=3), ordinary())


def test_clients_without_training_data_are_scored_but_not_trained():
    federation, _ = assemble(experiment(rounds=1), degenerate())
    record = next(federation.run())
    assert "no-training" not in record.participants
    position = federation.names.index("no-training")
    assert record.accuracy.clients["global"][position] is not None


def test_accuracy_is_weighted_by_samples_and_spread_over_clients():
    accuracy = Accuracy.of([({"head": 9}, 10), ({"head": 0}, 1), ({"head": 0}, 0)], ["head"])
    assert accuracy.weighted["head"] == pytest.approx(9 / 11)
    assert accuracy.clients["head"] == [0.9, 0.0, None]
    assert accuracy.spreads["head"] == pytest.approx((0.45, 0.45))


def test_diverged_models_count_as_wrong():
    """NaN has an argmax too; it must not be credited."""
    federation, _ = assemble(experiment("local", rounds=3, training__lr=1e30), federated(client("ann", [0] * 8)))
    *_, last = federation.run()
    assert last.accuracy.weighted["head"] == 0.0
    assert last.to_dict()["losses"]["total"] is None
