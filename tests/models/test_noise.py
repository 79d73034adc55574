"""Dropout that is a function of a key."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap
from torchvision.ops import StochasticDepth

from protofed.models import build, key_noise
from protofed.models.layers import noise_keys, uniform

pytestmark = pytest.mark.fast


def key(number: int) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.int64)


def test_numbers_are_uniform_and_depend_on_the_key():
    a, b = uniform(key(3), (1000, 50)), uniform(key(4), (1000, 50))
    for numbers in (a, b):
        assert 0 <= numbers.min() < numbers.max() < 1
        counts = torch.histc(numbers, 50, 0, 1)
        expected = numbers.numel() / 50
        assert ((counts - expected).square() / expected).sum() < 100  # chi-squared with 49 degrees of freedom
    pairs = (a.flatten(), b.flatten()), (a[:, 0], a[:, 1]), (a[:-1, 0], a[1:, 0])
    for x, y in pairs:
        assert torch.corrcoef(torch.stack([x, y]))[0, 1].abs() < 4 / len(x) ** 0.5
    assert torch.equal(a, uniform(key(3), (1000, 50)))
    assert torch.equal(a[:10], uniform(key(3), (10, 50)))  # padding rows change nothing before them
    assert not torch.equal(uniform(key(3 + 2**32), (1000, 50)), a)


@pytest.mark.parametrize(
    ("layer", "constant"),
    [
        (nn.Dropout(0.3), ()),
        (nn.Dropout1d(0.3), (2,)),
        (nn.Dropout2d(0.3), (2, 3)),
        (StochasticDepth(0.3, "row"), (1, 2, 3)),
        (StochasticDepth(0.3, "batch"), (0, 1, 2, 3)),
    ],
)
def test_each_kind_of_layer(layer, constant):
    model = key_noise(nn.Sequential(nn.Linear(2, 2), layer))
    x = torch.ones((400, 30, 4) if constant == (2,) else (400, 30, 4, 5))
    out = model[1](x)
    assert set(out.unique().tolist()) <= {0.0, torch.tensor(1 / 0.7).item()}
    for dim in constant:
        assert torch.equal(out, out.narrow(dim, 0, 1).expand_as(out))
    if constant != (0, 1, 2, 3):
        assert abs((out == 0).float().mean().item() - 0.3) < 0.08
        assert not torch.equal(model[1](x), out)  # every pass draws anew
    model.eval()
    assert torch.equal(model[1](x), x)


def test_the_key_decides_alone():
    model = key_noise(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)))
    x = torch.randn(8, 4)
    results = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        model[1].key.fill_(7)
        results.append(model(x))
    assert torch.equal(*results)
    assert "1.key" not in model.state_dict()
    assert list(noise_keys(model)) == ["1.key"]


def test_stacked_models_draw_what_single_ones_draw():
    models = [key_noise(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))) for _ in range(3)]
    for n, model in enumerate(models):
        model[1].key.fill_(n)
    x = torch.randn(3, 8, 4)
    base = copy.deepcopy(models[0])
    stacked = {n: torch.stack([dict(m.named_parameters())[n] for m in models]) for n, _ in base.named_parameters()}
    keys = {"1.key": torch.stack([m[1].key for m in models])}
    for _ in range(2):
        together = vmap(lambda p, k, x: functional_call(base, {**p, **k}, (x,)))(stacked, keys, x)
        alone = torch.stack([m(part) for m, part in zip(models, x, strict=True)])
        torch.testing.assert_close(together, alone)
    assert keys["1.key"].tolist() == [n + 2 * 2**32 for n in range(3)]


def test_ends_of_the_range():
    model = key_noise(nn.Sequential(nn.Linear(2, 2), nn.Dropout(1.0), nn.Dropout(0.0)))
    x = torch.randn(5, 2)
    assert torch.equal(model[1](x), torch.zeros(5, 2))
    assert torch.equal(model[2](x), x)


def test_a_source_of_noise_for_losses():
    model = build("mlp", input_shape=(6,), num_classes=3, d=4)
    model.add_noise("noise")
    assert list(noise_keys(model)) == ["extras.noise.key"]
    assert not model.state_dict().keys() & {"extras.noise.key"}
    source, like = model.extras["noise"], torch.zeros((), dtype=torch.float64)
    source.key.fill_(7)
    first, second = source((5, 3), like), source((5, 3), like)
    assert first.dtype == torch.float64
    assert not torch.equal(first, second)
    source.key.fill_(7)
    assert torch.equal(source((2, 3), like), first[:2]), "numbers belong to positions"
    source.eval()
    assert torch.equal(source((5, 3), like), source((5, 3), like))
