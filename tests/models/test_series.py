"""Architectures and the group for time series, and the group for tables."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from protofed.errors import ConfigError, ModelError
from protofed.experiments.assemble import assemble
from protofed.models import build, groups, parameter_count
from protofed.samples import ClientData, FederatedData, Samples
from support import experiment, few, ordinary

pytestmark = pytest.mark.fast

K = 3


def series(shape: tuple[int, ...] = (2, 20), clients: int = 4) -> FederatedData:
    """Return clients whose classes differ in frequency."""

    def part(n: int, seed: int) -> Samples:
        y = torch.arange(n) % K
        source = torch.Generator().manual_seed(seed)
        x = torch.sin(torch.arange(shape[-1]) * (y[:, None] + 1) * 0.4 + torch.rand(n, 1, generator=source) * 6)
        x = x if len(shape) == 1 else torch.stack([x] * shape[0], dim=1)
        return Samples(x + 0.1 * torch.randn(x.shape, generator=source), y)

    everyone = tuple(ClientData(f"c{i}", part(10 + i, i), part(6, 100 + i)) for i in range(clients))
    return FederatedData(everyone, K, tuple("abc"), shape)


@pytest.mark.parametrize("name", ["cnn1d", "fcn1d"])
def test_shapes(name):
    for shape in ((3, 50), (1, 1), (40,)):
        model = build(name, input_shape=shape, num_classes=K, d=12)
        out = model.eval()(torch.randn(5, *shape))
        assert out.features.shape == (5, 12)
        assert out.logits.shape == (5, K)
    with pytest.raises(ModelError, match=f"{name} takes series .*not samples of shape 3×8×8: use cnn2"):
        build(name, input_shape=(3, 8, 8), num_classes=K, d=12)


def test_a_vector_is_a_series_of_one_channel():
    one, flat = (build("cnn1d", input_shape=s, num_classes=K, d=12, seed=1) for s in ((1, 30), (30,)))
    x = torch.randn(4, 30)
    assert torch.equal(one(x[:, None]).logits, flat(x).logits)


def test_fcn_is_that_of_the_paper():
    """Wang, Yan and Oates (2017): convolutions of 128, 256 and 128 channels with kernels of 8, 5 and 3 steps."""
    model = build("fcn1d", input_shape=(1, 100), num_classes=2, d=128)
    weights = 8 * 128 + 128 * 256 * 5 + 256 * 128 * 3  # no bias before BatchNorm
    assert parameter_count(model) == weights + 2 * (128 + 256 + 128) + 129 * 2
    x = torch.randn(3, 1, 100)
    body = model.eval().extractor.backbone
    expected = x
    for i, kernel in enumerate((8, 5, 3), start=1):
        expected = F.conv1d(expected, getattr(body, f"conv{i}").weight, padding=kernel // 2)
        expected = getattr(body, f"norm{i}")(expected).relu()
    assert torch.allclose(model(x).features, expected.mean(2), atol=1e-6)
    with pytest.raises(ConfigError, match="channels has 2 numbers and kernels 3"):
        build("fcn1d", input_shape=(1, 9), num_classes=2, d=4, options={"channels": [4, 4]})


@few(("group", "shape"), [("series4", (2, 20)), ("mlp4", None)], 1)
def test_groups_train_alike_on_every_executor(group, shape):
    """One round of FedProto with four architectures; `fused` differs by rounding alone."""
    data = series(shape) if shape else ordinary()
    assert len(groups.get(group).members) == 4
    losses = []
    for executor in ("sequential", "fused"):
        options = {"model__name": group, "model__options": {}, "model__d": 8, "execution__executor": executor}
        federation, _ = assemble(experiment("fedproto", rounds=2, **options), data)
        losses.append([record.losses for record in federation.run()])
    for one, other in zip(*losses, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert one[name] == pytest.approx(other[name], rel=1e-4)
