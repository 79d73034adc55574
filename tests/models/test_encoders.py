"""Encoders against other implementations of the same formulas, and what they promise to every client."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from protofed.errors import ConfigError, ModelError
from protofed.models.encoders import EncoderOptions, build_encoder, encoders, width_of
from protofed.models.encoders.building import orthonormal
from protofed.models.encoders.contract import RandomOptions, ScatteringOptions
from protofed.models.encoders.fixed import Filters, Kernels, Waves
from protofed.models.encoders.scattering import Scattering
from support import few, one_line

IMAGES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 30, 41)]
KYMATIO = Path(__file__).with_name("kymatio.npz")
"""Images, and what kymatio 0.3.0 makes of them (Scattering2D with J=2, L=8, max_order=2)."""


def made(name, shape, **options):
    return build_encoder(EncoderOptions(name=name, **options), shape)


def pictures(n, shape, seed=0):
    return torch.randint(0, 256, (n, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("side", [28, 32])
def test_scattering_is_that_of_kymatio(side):
    with np.load(KYMATIO) as stored:
        images, expected = torch.from_numpy(stored[f"x{side}"]), torch.from_numpy(stored[f"s{side}"])
    found = Scattering((1, side, side), ScatteringOptions(grid=side // 4), 0)(images[:, None])
    angle = [(3 - number) % 8 for number in range(8)]  # kymatio counts angles downwards from 3
    first = [1 + 8 * scale + angle[a] for scale in range(2) for a in range(8)]
    second = [17 + 8 * angle[a] + angle[b] for a in range(8) for b in range(8)]
    maps = found.reshape(len(images), 81, side // 4, side // 4)[:, [0, *first, *second]]
    torch.testing.assert_close(maps, expected, rtol=0, atol=1e-4)


def test_scattering_for_other_programs_is_the_same():
    from protofed.models.encoders.scattering import dft, dft_modulus

    x = torch.randn(3, 20, 36, generator=torch.Generator().manual_seed(6))
    spectrum = torch.fft.fft2(x)
    torch.testing.assert_close(dft(x), torch.view_as_real(spectrum), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(dft_modulus(dft(x)), x.abs(), rtol=1e-4, atol=1e-5)


@few("shape", IMAGES, 1)
@few("name", ["scattering", "random", "identity", "auto"], 2)
def test_equal_samples_have_equal_features_whatever_is_beside_them(name, shape):
    encoder, x = made(name, shape), pictures(37, shape)
    assert encoder.width == width_of(EncoderOptions(name=name), shape)
    order = torch.randperm(37, generator=torch.Generator().manual_seed(0))
    whole = torch.cat([*encoder.batches(x)])
    assert whole.shape == (37, encoder.width)
    assert whole.dtype == torch.float32
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert torch.equal(torch.cat([*encoder.batches(x[order])]), whole[order])
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(torch.cat([*encoder.batches(x[5:6])]), whole[5:6])
    torch.testing.assert_close(encoder(x), whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(encoder(x.float() / 255), whole, rtol=1e-4, atol=1e-5)
    assert torch.equal(torch.cat([*made(name, shape).batches(x)]), whole)


def test_random_filters_by_hand():
    encoder = Filters((3, 9, 10), RandomOptions(filters=4), 5)
    x = torch.rand(2, 3, 9, 10, generator=torch.Generator().manual_seed(2))
    filters = encoder.filters.double()
    torch.testing.assert_close(filters.sum((1, 2, 3)), torch.zeros(4).double(), rtol=0, atol=1e-5)
    torch.testing.assert_close(filters.square().sum((1, 2, 3)), torch.ones(4).double(), rtol=0, atol=1e-5)
    maps = torch.zeros(2, 8, 4, 5).double()
    for n in range(2):
        for row in range(4):
            for column in range(5):
                patch = x[n, :, row : row + 6, column : column + 6].double()
                spread = (patch.var(unbiased=False) + 10 / 255**2).sqrt()
                response = (filters * patch).sum((1, 2, 3)) / spread
                both = torch.cat([response - 0.25, -response - 0.25])
                maps[n, :, row, column] = both.clamp(min=0)
    expected = nn.functional.adaptive_avg_pool2d(maps, (4, 4)).flatten(1)
    torch.testing.assert_close(encoder(x).double(), expected, rtol=1e-4, atol=1e-5)
    assert Filters((1, 28, 28), RandomOptions(), 0).width == 3600
    assert Filters((3, 32, 32), RandomOptions(), 0).width == 6400


def test_random_waves_approach_the_gaussian_kernel():
    x = torch.randn(6, 12, generator=torch.Generator().manual_seed(3))
    found = Waves((12,), RandomOptions(waves=20000), 0)(x)
    assert torch.equal(found[:, :12], x)
    kernel = torch.exp(-torch.cdist(x, x).square() / (2 * 12))
    torch.testing.assert_close(found[:, 12:] @ found[:, 12:].t(), kernel, rtol=0, atol=0.05)


def test_random_kernels_of_series_by_hand():
    encoder = Kernels((2, 40), RandomOptions(kernels=30), 1)
    x = torch.randn(3, 2, 40, generator=torch.Generator().manual_seed(4)) * 3 + 1
    mean, spread = x.double().mean(2), x.double().std(2, unbiased=False)
    standard = (x.double() - mean[..., None]) / spread[..., None]
    parts = [mean, spread]
    for place, (length, dilation, padded, number) in enumerate(encoder.groups):
        weights = encoder.get_buffer(f"weights{place}").double()
        biases = encoder.get_buffer(f"biases{place}").double()
        margin = padded * (length - 1) * dilation // 2
        series = nn.functional.pad(standard, (margin, margin))
        steps = series.shape[2] - (length - 1) * dilation
        values = torch.stack(
            [
                torch.stack(
                    [
                        (series[:, :, t : t + (length - 1) * dilation + 1 : dilation] * weights[k]).sum((1, 2))
                        for t in range(steps)
                    ],
                    1,
                )
                + biases[k]
                for k in range(number)
            ],
            1,
        )
        parts += [(values > 0).double().mean(2), values.amax(2)]
    assert encoder.width == 64
    torch.testing.assert_close(encoder(x).double(), torch.cat(parts, 1), rtol=1e-4, atol=1e-4)


def test_the_map_has_orthonormal_columns_and_follows_the_seed():
    matrix = orthonormal(300, 40, 7).double()
    torch.testing.assert_close(matrix.t() @ matrix, torch.eye(40).double(), rtol=0, atol=1e-5)
    assert not torch.equal(orthonormal(300, 40, 8).double(), matrix)
    x = pictures(3, (1, 28, 28))
    whole, mapped = made("random", (1, 28, 28)), made("random", (1, 28, 28), dim=40)
    torch.testing.assert_close(mapped(x), whole(x) @ orthonormal(3600, 40, 0))


@pytest.mark.parametrize(
    ("options", "shape", "why"),
    [
        ({"name": "scattering"}, (12,), "is for images, not for samples of shape 12"),
        ({"name": "scattering"}, (2, 50), "is for images, not"),
        ({"name": "both"}, (1, 28, 28), "unknown encoder 'both'"),
        ({"name": "random"}, (1, 7, 7), "takes images of 8 to 1024 pixels a side, not 7×7"),
        ({"name": "scattering"}, (3, 65536, 32), "takes images of 8 to 1024 pixels"),
        ({"name": "random"}, (1, 5), "needs series of at least 7 steps, not 5"),
        ({"name": "scattering", "dim": 2000}, (1, 28, 28), "but scattering gives 1296 numbers: at most 1296"),
        ({"name": "scatering"}, (1, 28, 28), "did you mean 'scattering'"),
        ({"name": "clip"}, (1, 28, 28), "Valid: (?!.* (identity),.* \\1,)"),  # each of them once
        ({"name": "wordllama"}, (12,), "set data.text=COLUMN .data.text_as=vectors. and encoder.name=identity"),
        ({"name": "random", "options": {"filter": 3}}, (1, 28, 28), "did you mean 'filters'"),
        ({"name": "random", "weights": "w.pt"}, (1, 28, 28), "random has no weights"),
        ({"name": "resnet18"}, (3, 32, 32), "set encoder.weights to a file"),
        ({"name": "mlp", "weights": "w.pt"}, (3, 32, 32), "its weights are not published"),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(options, shape, why):
    with one_line(ConfigError, why):
        build_encoder(EncoderOptions(**options), shape)


def test_options_without_an_encoder_are_refused():
    with pytest.raises(ValueError, match=r"set encoder\.name"):
        EncoderOptions(dim=8)


def test_missing_weights(tmp_path):
    with pytest.raises(ModelError, match="not found on this machine"):
        build_encoder(EncoderOptions(name="resnet18", weights=str(tmp_path / "none.pt")), (3, 32, 32))


@pytest.mark.slow
def test_a_published_network_with_weights_from_a_file(tmp_path):
    from torchvision.models import resnet18

    torch.manual_seed(0)
    network = resnet18().eval()
    for save in (lambda w, p: torch.save(w, p), save_file):
        path = tmp_path / "weights"
        save(network.state_dict(), path)
        encoder = made("resnet18", (1, 32, 32), weights=str(path))
        x = pictures(2, (1, 32, 32))
        network.fc = nn.Identity()
        images = (x.float() / 255).expand(-1, 3, -1, -1)
        mean, std = (torch.tensor(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
        with torch.no_grad():
            torch.testing.assert_close(encoder(x), network((images - mean) / std), rtol=1e-4, atol=1e-4)
        assert not any(p.requires_grad for p in encoder.parameters())
        network = resnet18().eval()
    other = made("resnet18", (1, 32, 32), weights=str(path))
    assert other.key != made("resnet18", (1, 32, 32), weights=str(_saved(tmp_path, resnet18()))).key
    with pytest.raises(ModelError, match="does not fit mobilenet_v2"):
        build_encoder(EncoderOptions(name="mobilenet_v2", weights=str(path)), (3, 32, 32))


def _saved(folder, network):
    path = folder / "other.pt"
    torch.save(network.state_dict(), path)
    return path


OWN = """
import torch
class Rows(torch.nn.Module):
    def __init__(self, input_shape, out=3):
        super().__init__()
        self.layer = torch.nn.Linear(input_shape[-1], out)
    def forward(self, x):
        return self.layer(x).mean((1, 2))
class Tuple(torch.nn.Module):
    def forward(self, x):
        return x, x
"""


def test_a_network_of_ones_own(tmp_path):
    code = tmp_path / "own_encoder.py"
    code.write_text(OWN)
    layer = nn.Linear(8, 5)
    save_file(
        {"layer.weight": layer.weight.detach(), "layer.bias": layer.bias.detach()}, tmp_path / "w.safetensors"
    )
    encoder = made(f"{code}:Rows", (1, 8, 8), weights=str(tmp_path / "w.safetensors"), options={"out": 5}, dim=4)
    x = pictures(3, (1, 8, 8))
    expected = layer(x.float() / 255).mean((1, 2)) @ orthonormal(5, 4, 0)
    torch.testing.assert_close(encoder(x), expected.detach())
    with pytest.raises(ModelError, match="not a tensor of one row per sample"):
        made(f"{code}:Tuple", (1, 8, 8))
    with pytest.raises(ModelError, match=r"does not fit .*layer\.weight is 5×8"):
        made(f"{code}:Rows", (1, 8, 8), weights=str(tmp_path / "w.safetensors"))


def test_keys_tell_encoders_apart():
    shape = (1, 28, 28)
    keys = [made(name, shape).key for name in ("scattering", "random", "identity")]
    keys += [made("random", shape, dim=9).key, made("random", shape, seed=1).key]
    assert len(set(keys)) == len(keys)
    assert made("auto", shape).key == made("scattering", shape).key
    assert made("random", (4,)).key == made("random", (9,)).key  # a node knows its own columns alone
    assert set(encoders) == {"scattering", "random", "identity", "hashing"}
    assert math.isclose(made("identity", (4,))(torch.ones(1, 4)).sum(), 4)
