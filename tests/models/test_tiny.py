"""The architecture ``tiny`` as clients' own model and as the one they share; beacon's tests have its layers."""

from __future__ import annotations

import pytest
import torch

from protofed.errors import ConfigError, ModelError
from protofed.experiments.assemble import assemble
from protofed.models import build
from protofed.models.tiny import tiny_width
from protofed.samples import ClientData, FederatedData, Samples
from support import experiment, few, one_line, ordinary

IMAGES, SERIES = (1, 8, 8), (2, 32)


def blobs(shape: tuple[int, ...]) -> FederatedData:
    """Return two clients of three classes."""

    def part(labels: list[int]) -> Samples:
        x = torch.randn(len(labels), *shape, generator=torch.Generator().manual_seed(len(labels)))
        return Samples(x, torch.tensor(labels))

    ann = ClientData("ann", part([0, 0, 1, 1, 2]), part([0, 1, 2]))
    bob = ClientData("bob", part([1, 2, 2, 2, 0, 1, 1]), part([0, 1]))
    return FederatedData((ann, bob), 3, tuple("abc"), shape)


def data(shape: tuple[int, ...]) -> FederatedData:
    return ordinary() if len(shape) == 1 else blobs(shape)


@few("shape", [IMAGES, (3, 9, 7), SERIES, (6,)], 1)
@pytest.mark.parametrize("method", ["fedavg", "fedproto"])
def test_a_model_of_clients(method, shape):
    """For vectors, the number of units follows from their length; d is any other length, by pooling."""
    d = tiny_width(shape)
    federation, _ = assemble(experiment(method, model__name="tiny", model__options={}, model__d=d), data(shape))
    last = list(federation.run())[-1]
    assert all(value is not None for value in last.losses.values())
    assert last.bytes["up"] > 0
    other, _ = assemble(experiment(method, model__name="tiny", model__options={}, model__d=20), data(shape))
    next(other.run())


@few("shape", [IMAGES, SERIES, (6,)], 1)
@pytest.mark.parametrize("method", ["fml", "fedkd"])
def test_the_model_that_clients_share(method, shape):
    """FML's and FedKD's auxiliary model; its weights are those that travel, and no running statistics."""
    d = tiny_width(shape)
    options = {"method__auxiliary": "tiny", "method__auxiliary_d": d, "rounds": 1}
    model = {} if len(shape) == 1 else {"model__name": "mlp", "model__options": {"hidden": [4]}}
    federation, _ = assemble(experiment(method, **options, **model), data(shape))
    (record,) = federation.run()
    network = federation.method.network
    assert not list(network.buffers())
    assert network.feature_dim == d
    if method == "fml":
        clients = len(federation.names)
        assert record.parameters["up"] == clients * sum(p.numel() for p in network.parameters())


def test_the_same_network_for_every_method():
    """With d = 256, FML and FedAvg share what beacon shares: 6,218 weights for 28×28 pixels and ten classes."""
    data = FederatedData(blobs((1, 28, 28)).clients, 10, tuple("abcdefghij"), (1, 28, 28))
    small = {"model__d": 8, "model__options": {"hidden": []}}
    found = []
    for method, options in (
        ("beacon", small),
        ("fml", {**small, "method__auxiliary": "tiny", "method__auxiliary_d": 256}),
        ("fedavg", {"model__name": "tiny", "model__d": 256, "model__options": {}}),
    ):
        federation, _ = assemble(experiment(method, **options), data)
        found.append({n: f.shape for n, f in federation.method.broadcast_schema.fields.items()})
    assert found[0] == found[1] == found[2]
    network = build("tiny", input_shape=(1, 28, 28), num_classes=10, d=256)
    assert sum(p.numel() for p in network.parameters()) == 6218


@pytest.mark.parametrize(
    ("shape", "options", "error", "message"),
    [
        ((1, 2, 8, 8), {}, ModelError, "tiny has no form for samples of shape 1×2×8×8: it takes vectors"),
        ((1, 28, 28), {"channels": []}, ConfigError, "channels must name at least one convolution"),
        ((1, 28, 28), {"channels": [1]}, ConfigError, "channels must be at least 2"),
        ((6,), {"hidden": -1}, ConfigError, "hidden must be at least 0"),
        ((6,), {"hiden": 3}, ConfigError, "did you mean 'hidden'"),
        ((0,), {}, ModelError, "must be positive integers"),
    ],
)
def test_errors_are_one_line(shape, options, error, message):
    with one_line(error, message):
        build("tiny", input_shape=shape, num_classes=3, d=8, options=options)
    if error is ModelError and len(shape) > 3:
        with pytest.raises(ModelError, match=message):
            tiny_width(shape)


@pytest.mark.parametrize(
    ("shape", "channels", "hidden", "width"),
    [
        ((1, 28, 28), (8, 16, 16), 0, 256),
        ((3, 32, 32), (4, 6), 0, 96),
        ((2, 40), (8,), 5, 128),
        ((64,), (8, 16, 16), 0, 81),
        ((64,), (8, 16, 16), 7, 7),
        ((10**6,), (8, 16, 16), 0, 16),
    ],
)
def test_the_length_of_its_features(shape, channels, hidden, width):
    assert tiny_width(shape, channels, hidden) == width
