"""Models that are trained in part, in their head alone, or not at all, on every executor."""

from __future__ import annotations

import pytest
import torch

from support import build, few

METHODS = ["local", "fedproto", "fedper", "fedrep", "fedavg", "fednh", "fedfa", "beacon", "gfpl", "fedlda"]
MODELS = ["identity", "support:Frozen", "support:AllFrozen"]


@few("method", METHODS, 1)
@pytest.mark.parametrize("executor", ["sequential", "fused"])
@pytest.mark.parametrize("name", MODELS)
def test_frozen_weights_stay_as_they_are(name, executor, method):
    """Without weights in the extractor, with frozen ones, or with nothing to train."""
    if name == "identity" and method in ("fedper", "fedrep"):
        pytest.skip("they share the extractor, which has no weights")
    federation = build(
        method, model__name=name, model__options={}, execution__executor=executor, training__clip=1.0
    )
    before = {n: t.clone() for n, t in federation.executor.clients.snapshot("ann").model.items() if "frozen" in n}
    for record in federation.run():
        assert not record.refused
        assert all(value is not None for value in record.losses.values())
    after = federation.executor.clients.snapshot("ann").model
    assert all(torch.equal(after[n], t) for n, t in before.items())
    assert bool(before) == (name != "identity")


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize("name", MODELS)
def test_frozen_weights_have_no_gradients_to_protect(name, optimizer):
    chosen = {"privacy__mode": "sample", "privacy__noise": 1.0, "training__optimizer": optimizer}
    federation = build("fedavg", model__name=name, model__options={}, **chosen)
    assert all(not record.refused for record in federation.run())
