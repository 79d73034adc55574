"""Transforms of many images at once are those of torchvision, image by image."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as tv

from protofed.compute.seeding import generator
from protofed.data import TransformOptions, augmentation, normalisation
from protofed.data.transforms import crop_and_flip, rotate
from protofed.errors import ConfigError
from protofed.models import Normalisation, Preparation
from protofed.samples import Samples
from protofed.visits.batches import normalise
from support import few, one_line

SHAPES = st.tuples(st.integers(1, 3), st.integers(2, 12), st.integers(2, 12))
DTYPES = [torch.uint8, torch.float32, torch.float64]


def images(n: int, shape: tuple[int, ...], dtype: torch.dtype = torch.uint8, seed: int = 0) -> torch.Tensor:
    x = torch.randint(0, 256, (n, *shape), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return x if dtype == torch.uint8 else x.to(dtype) / 255


@pytest.mark.parametrize("dtype", DTYPES)
@given(SHAPES, st.integers(0, 15), st.integers(0, 99))
def test_crops_and_flips(dtype, shape, padding, seed):
    source = torch.Generator().manual_seed(seed)
    x = images(5, shape, dtype, seed)
    top, left = torch.randint(0, 2 * padding + 1, (2, 5), generator=source)
    flips = torch.rand(5, generator=source) < 0.5
    found = crop_and_flip(x, top - padding, left - padding, flips)
    for i in range(5):
        expected = tv.crop(tv.pad(x[i], [padding]), int(top[i]), int(left[i]), *shape[1:])
        assert torch.equal(found[i], tv.horizontal_flip(expected) if flips[i] else expected)


@pytest.mark.parametrize("dtype", DTYPES)
@few("name", ["nearest", "bilinear"], 1)
@settings(max_examples=15)
@given(SHAPES, st.lists(st.floats(-180, 180), min_size=3, max_size=3))
def test_rotations(name, dtype, shape, degrees):
    x = images(3, shape, dtype)
    found = rotate(x, torch.tensor(degrees, dtype=torch.float64), name)
    assert found.dtype == dtype
    for i, angle in enumerate(degrees):
        # Slightly beyond 0, 90 and 180 degrees, for which torchvision takes another way with ties of its own.
        if abs(angle / 90 - round(angle / 90)) < 1e-3:
            continue
        expected = tv.rotate(x[i], angle, InterpolationMode(name))
        apart = (found[i].double() - expected.double()).abs()
        # In 8 bits, what lies between two numbers may be rounded up here and down there; at 60 degrees, say, single
        # pixels lie between two of which either is the nearest.
        assert name == "nearest" or apart.max() <= (1 if dtype == torch.uint8 else 1e-4)
        assert (apart > 1e-4).double().mean() <= 0.1


def test_right_angles_and_large_numbers_of_images(monkeypatch):
    x = images(7, (3, 8, 8))
    angles = torch.tensor([0.0, 90.0, 180.0, -90.0, 33.0, -7.0, 120.0], dtype=torch.float64)
    found = rotate(x, angles, "nearest")
    assert torch.equal(found[0], x[0])
    for i, turns in ((1, 1), (2, 2), (3, 3)):
        assert torch.equal(found[i], x[i].rot90(turns, (1, 2)))
    monkeypatch.setattr("protofed.data.transforms._ROTATED_AT_ONCE", 100)
    assert torch.equal(rotate(x, angles, "nearest"), found)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_normalisation(dtype, channels):
    x = images(4, (channels, 5, 6), dtype)
    mean, std = (0.49, 0.48, 0.44)[:channels], (0.2, 0.3, 0.25)[:channels]
    given = Normalisation(*normalisation(TransformOptions(mean=mean, std=std)))
    found = Preparation(given, centred=dtype == torch.uint8)(normalise(x, torch.float32))
    scaled = tv.to_dtype(x, torch.float32, scale=dtype == torch.uint8)
    torch.testing.assert_close(found, tv.normalize(scaled, list(mean), list(std)), rtol=1e-5, atol=2e-6)


def test_one_value_is_for_all_channels_and_a_missing_one_is_a_half():
    assert normalisation(TransformOptions()) is None
    assert normalisation(TransformOptions(mean=(0.25,), std=(0.1, 0.2))) == ((0.25, 0.25), (0.1, 0.2))
    halves = normalisation(TransformOptions(std=(0.5,)))
    assert halves == ((0.5,), (0.5,))
    preparation = Preparation(Normalisation(*halves), centred=True)
    assert not preparation.state_dict()
    x = torch.linspace(-1, 1, 12).view(1, 1, 3, 4)
    assert torch.equal(preparation(x), x)


def test_parameters_are_drawn_for_each_sample_from_the_whole_range():
    """An image of its own coordinates tells how it was moved."""
    place = torch.arange(1, 101, dtype=torch.uint8).view(1, 1, 10, 10).expand(400, 1, 10, 10)
    samples = Samples(place, torch.zeros(400, dtype=torch.int64))
    augment = augmentation(TransformOptions(crop=2))
    found = augment(samples, generator(0, "augment", 1, "ann"))
    corner = found.x[:, 0, 2, 2].long()  # of rows and columns 0 … 4
    assert sorted(corner.unique().tolist()) == [1 + 10 * row + column for row in range(5) for column in range(5)]
    assert torch.equal(augment(samples, generator(0, "augment", 1, "ann")).x, found.x)
    for scope in ((1, "augment", 1, "ann"), (0, "augment", 2, "ann"), (0, "augment", 1, "bob")):
        assert not torch.equal(augment(samples, generator(*scope)).x, found.x)
    flipped = augmentation(TransformOptions(flip=0.25))(samples, generator(0, "flips")).x
    moved = (flipped != place).flatten(1).any(1)
    assert 60 < int(moved.sum()) < 140
    assert torch.equal(flipped[moved], place[moved].flip(3))
    assert augmentation(TransformOptions(flip=1.0))(samples, generator(0, "flips")).x[0, 0, 0, 0] == 10


def test_the_layout_and_the_labels_stay():
    x = images(6, (3, 8, 8)).to(memory_format=torch.channels_last)
    y = torch.arange(6)
    found = augmentation(TransformOptions(crop=1, flip=0.5, rotation=30))(Samples(x, y), generator(0, "a"))
    assert found.x.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found.y, y)
    assert torch.equal(x, images(6, (3, 8, 8))), "the client's own samples are left alone"
    assert augmentation(TransformOptions(mean=(0.5,))) is None


@pytest.mark.parametrize(
    ("options", "shape", "expected"),
    [
        ({"crop": 1}, (64,), r"transforms\.crop is for images .* samples have the shape \(64,\)"),
        ({"std": (0.5,)}, (64,), r"transforms\.std is for images"),
        ({"crop": 8}, (1, 9, 8), r"transforms\.crop = 8: images of 9×8 pixels need less"),
        ({"mean": (0.5, 0.5)}, (3, 8, 8), r"transforms\.mean has 2 values, but images have 3 channels"),
        ({"std": (0.5,) * 3}, (1, 8, 8), r"transforms\.std has 3 values, but images have 1 channels"),
    ],
)
def test_what_does_not_suit_the_samples_is_told_in_one_line(options, shape, expected):
    with one_line(ConfigError, expected):
        TransformOptions(**options).check(shape)
