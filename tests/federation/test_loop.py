"""The round loop: refusals, traffic, accuracies, participation."""

from __future__ import annotations

import pytest
import torch

from protofed.errors import ConfigError
from protofed.experiments.assemble import assemble
from protofed.federation import Accuracy
from protofed.methods.fedproto import FedProto
from protofed.runs import Refusal
from support import client, degenerate, experiment, federated, ordinary


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
    messages = federation._messages(["bob"], 2)
    record = type("Record", (), {"add_traffic": lambda *_: None, "refuse": None})()
    trained = federation.executor.train(["bob"], messages, 2)
    uploads = federation._uploads(trained, [], record, federation.method.upload_schema)
    after = federation.method.aggregate(federation.server, uploads, 2).state["prototypes"]
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
