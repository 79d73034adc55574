"""FedAvg: the mean, its weights, and who may take part."""

from __future__ import annotations

import copy

import pytest
import torch

from protofed.errors import ConfigError
from protofed.experiments.assemble import assemble
from support import client, experiment, federated, ordinary, visited


def one_round(**overrides):
    federation, data = assemble(experiment("fedavg", rounds=1, evaluation__at="trained", **overrides), ordinary())
    start = {n: t.clone() for n, t in federation.server.items()}
    record = next(federation.run())
    return federation, data, start, record


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_the_server_holds_the_weighted_mean_of_the_clients(weighting):
    federation, data, start, _ = one_round(method__weighting=weighting)
    sizes = [len(c.train) if weighting == "samples" else 1 for c in data.clients]
    for name, mean in federation.server.items():
        weights = [c.model.state_dict()[name].double() for c in visited(federation).values()]
        expected = sum(n * w for n, w in zip(sizes, weights, strict=True)) / sum(sizes)
        torch.testing.assert_close(mean, expected.float(), rtol=1e-6, atol=1e-7)
        assert not torch.equal(mean, start[name])


@pytest.mark.parametrize("at", ["broadcast", "trained"])
def test_both_models_are_scored(at):
    """The global model and the one the client's own training left behind, each by its own rule."""
    federation, data = assemble(experiment("fedavg", rounds=2, evaluation__at=at), ordinary())
    run = federation.run()
    next(run)
    opening = {n: w.clone() for n, w in federation.server.items()}
    record = next(run)
    assert list(record.accuracy.weighted) == ["global_model", "head"]
    for place, (own, c) in enumerate(zip(data.clients, visited(federation).values(), strict=True)):
        scored = federation.server if at == "broadcast" else opening
        for rule, weights in (("global_model", scored), ("head", c.model.state_dict())):
            model = copy.deepcopy(c.model).eval()
            model.load_state_dict({**model.state_dict(), **weights})
            hits = (model(own.test.x).logits.argmax(-1) == own.test.y).float().mean()
            assert record.accuracy.clients[rule][place] == pytest.approx(float(hits))
        assert any(not torch.equal(c.model.state_dict()[n], w) for n, w in federation.server.items())


def test_a_client_that_never_trained_keeps_its_initial_model():
    data = federated(client("ann", [0, 1, 2, 3] * 3), client("bob", [], [0, 1, 2, 3]))
    federation, _ = assemble(experiment("fedavg", rounds=1), data)
    before = visited(federation)["bob"].model.state_dict()
    next(federation.run())
    bob = visited(federation)["bob"]
    assert all(torch.equal(w, before[n]) for n, w in bob.model.state_dict().items())
    assert all(torch.equal(w, federation.server[n]) for n, w in bob.received.items())


def test_different_dimensions_are_refused_by_name():
    data = federated(client("ann", [0, 1]), client("bob", [0, 1], d=9))
    with pytest.raises(ConfigError, match=r"fedproto exchanges features .* ann has d=5 and bob has d=9"):
        assemble(experiment("fedproto"), data)
    assemble(experiment("local"), data)
