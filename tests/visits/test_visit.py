"""A client's visit: batches, optimisers, what counts as a sample."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protofed.errors import ConfigError
from protofed.experiments.assemble import assemble
from protofed.visits.batches import batch_rows, normalise
from protofed.visits.client import LocalPlan
from support import client, experiment, federated, ordinary, visited

pytestmark = pytest.mark.fast


@given(st.integers(0, 200), st.integers(1, 64), st.booleans())
def test_every_row_is_in_one_batch(n, size, even):
    order = torch.randperm(n)
    batches = batch_rows(order, size, even=even)
    assert torch.equal(torch.cat(list(batches)), order)
    sizes = [len(b) for b in batches]
    if n:
        assert len(sizes) == -(-n // size)
        assert max(sizes) <= size
        assert not even or max(sizes) - min(sizes) <= 1


def test_images_are_normalised_and_features_are_not():
    assert normalise(torch.tensor([0, 255], dtype=torch.uint8), torch.float32).tolist() == [-1.0, 1.0]
    assert normalise(torch.tensor([0.0, 255.0]), torch.float64).tolist() == [0.0, 255.0]


def test_the_plan_builds_any_torch_optimiser():
    plan = LocalPlan(optimizer="Adam", settings={"lr": 0.1, "betas": (0.5, 0.9)})
    optimizer = plan.build([torch.nn.Parameter(torch.zeros(2))])
    assert isinstance(optimizer, torch.optim.Adam)
    assert optimizer.defaults["betas"] == (0.5, 0.9)
    other = plan.build([torch.nn.Parameter(torch.zeros(2))], {"name": "SGD", "lr": 0.3})
    assert isinstance(other, torch.optim.SGD)
    with pytest.raises(ConfigError, match="unknown optimizer 'Optimizer'"):
        LocalPlan(optimizer="Optimizer")


def test_client_settings_override_the_experiment():
    data = federated(client("ann", [0, 1] * 4, epochs=3, batch_size=2, lr=0.5), client("bob", [0, 1]))
    federation, _ = assemble(experiment(), data)
    ann, bob = (c.plan for c in visited(federation).values())
    assert (ann.epochs, ann.batch_size, ann.settings["lr"]) == (3, 2, 0.5)
    assert (bob.epochs, bob.batch_size, bob.settings["lr"]) == (1, 4, 0.1)
    with pytest.raises(ConfigError, match="bob: batch_size must be at least 1"):
        assemble(experiment(), federated(client("bob", [0, 1], batch_size=0)))


def test_initial_weights_are_shared_or_own():
    for init, same in (("same", True), ("own", False)):
        federation, _ = assemble(experiment(model__init=init), ordinary())
        a, b, _ = (c.model.state_dict()["head.weight"] for c in visited(federation).values())
        assert torch.equal(a, b) is same


def test_a_single_sample_takes_no_step_with_batch_norm():
    data = federated(client("one", [1]), client("two", [0, 1]))
    federation, _ = assemble(experiment(model__name="support:WithBatchNorm", model__options={}), data)
    before = {n: c.model.head.weight.clone() for n, c in visited(federation).items()}
    record = next(federation.run())
    changed = {n: not torch.equal(before[n], c.model.head.weight) for n, c in visited(federation).items()}
    assert changed == {"one": False, "two": True}
    assert record.losses["total"] is not None


@pytest.mark.parametrize(
    ("executor", "training", "evaluation"), [("sequential", 2.0, 1.0), ("fused", 4 / 3, 1 / 3)]
)
def test_seconds_of_a_visit(executor, training, evaluation, monkeypatch):
    """A second passes whenever the clock is read. Stacked clients share a visit, but each has an upload."""
    federation, _ = assemble(experiment(execution__executor=executor), ordinary())
    ticks = map(float, itertools.count(7))
    monkeypatch.setattr("protofed.visits.visit.time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    messages = dict.fromkeys(federation.names)
    trained = federation.executor.train(federation.names, messages, 1)
    assert [visit.seconds for visit in trained] == pytest.approx([training] * 3)
    scored = federation.executor.evaluate(federation.names, None, 1)
    assert [visit.seconds for visit in scored] == pytest.approx([evaluation] * 3)
