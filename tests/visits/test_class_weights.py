"""``training.class_weights``: w_c = n / (K' n_c), the same on every executor and node."""

from __future__ import annotations

import copy
from contextlib import closing

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight

from protofed.experiments.assemble import assemble
from protofed.visits.batches import epoch_rows
from protofed.visits.client import balance
from support import client, experiment, federated, few, ordinary, visited

EXACT = {"rounds": 2, "execution__precision": "fp64", "wire__codec": "float64"}
BALANCED = {"training__class_weights": "balanced"}
METHODS = ["local", "fedproto", "fedavg", "fedgen", "gfpl", "beacon"]


def test_factors_are_those_of_scikit_learn():
    y = torch.tensor([0] * 5 + [2] * 3 + [3])
    expected = compute_class_weight("balanced", classes=np.array([0, 2, 3]), y=y.numpy())
    found = balance(torch.bincount(y, minlength=5))
    assert found[[0, 2, 3]].tolist() == pytest.approx(expected.tolist())
    assert found[[1, 4]].tolist() == [0, 0]
    assert float(found[y].mean()) == pytest.approx(1)
    assert balance(torch.zeros(3, dtype=torch.int64)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("executor", ["sequential", "fused"])
def test_a_round_is_that_of_weighted_cross_entropy(executor):
    """Each step descends the mean over the batch of w_y times the cross-entropy."""
    data = federated(client("ann", [0] * 7 + [1, 1, 2]), client("bob", [1] * 5 + [3] * 2))
    options = {**EXACT, **BALANCED, "rounds": 1, "execution__executor": executor}
    federation, _ = assemble(experiment("local", **options), data)
    models = {name: copy.deepcopy(c.model).train() for name, c in visited(federation).items()}
    list(federation.run())
    for name, now in visited(federation).items():
        train = federation.executor.clients[name].train
        counts = torch.bincount(train.y).double()
        weight = len(train) / ((counts > 0).sum() * counts)
        optimizer = torch.optim.SGD(models[name].parameters(), 0.1)
        for rows in epoch_rows(len(train), 4, False, 0, 1, name, 0, 0):
            x, y = train.x[rows].double(), train.y[rows]
            errors = F.cross_entropy(models[name](x).logits, y, reduction="none")
            optimizer.zero_grad()
            (errors * weight[y]).mean().backward()
            optimizer.step()
        for mine, theirs in zip(now.model.parameters(), models[name].parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


def weights(method: str, executor: str, **options):
    federation, _ = assemble(experiment(method, execution__executor=executor, **EXACT, **options), ordinary())
    with closing(federation.executor):
        list(federation.run())
        assert not getattr(federation.executor, "refused", None)
        return {name: federation.executor.clients.snapshot(name).model for name in federation.names}


@few("method", METHODS, 1)
def test_executors_agree(method):
    one, stacked = (weights(method, executor, **BALANCED) for executor in ("sequential", "fused"))
    plain = weights(method, "sequential")
    for name, tensors in one.items():
        for n, tensor in tensors.items():
            torch.testing.assert_close(stacked[name][n], tensor, rtol=1e-6, atol=1e-8)
    assert any(not torch.equal(t, plain[name][n]) for name, own in one.items() for n, t in own.items())


def test_clients_of_one_class_train_as_before():
    """Every factor is 1."""
    data = federated(client("ann", [2] * 6), client("bob", [0] * 5))

    def trained(**options):
        federation, _ = assemble(experiment("local", **EXACT, **options), data)
        list(federation.run())
        return visited(federation)["ann"].model.state_dict()

    plain, balanced = trained(), trained(**BALANCED)
    assert all(torch.equal(balanced[n], t) for n, t in plain.items())
