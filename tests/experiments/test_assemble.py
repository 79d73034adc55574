"""What methods are given to build with."""

from __future__ import annotations

import pytest
import torch

from protofed.errors import ConfigError
from protofed.experiments.assemble import assemble
from support import experiment, ordinary


def test_an_auxiliary_network_is_the_same_for_all_parties():
    federation, _ = assemble(experiment("local"), ordinary())
    build = federation.method.task.auxiliary
    first, again = build("", {}, None), build("", {}, None)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert (first.feature_dim, first.num_classes) == (5, 4)
    assert first.extractor.backbone[1].out_features == 7, "the clients' architecture with its options"
    other = build("mlp", {"hidden": [3]}, 2)
    assert (other.feature_dim, other.extractor.backbone[1].out_features) == (2, 3)
    shared = assemble(experiment("local", model__shared="support:NoBias", model__d=8), ordinary())[0]
    assert shared.method.task.auxiliary("", {}, None).head.bias is None, "without the options of model.name"
    with pytest.raises(ConfigError, match="did you mean 'mlp'"):
        build("mpl", {}, None)
