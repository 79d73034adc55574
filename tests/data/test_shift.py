"""Scenarios: domains with transforms of their own, swapped classes, sizes that differ, several data sets as one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from protofed import run
from protofed.compute.seeding import generator
from protofed.config.schema import apply_overrides, load_recipe, resolve
from protofed.data import DataOptions, ShiftOptions, load
from protofed.data.shift import blur, shift_domains
from protofed.data.tables import RawColumn
from protofed.data.transforms import rotate
from protofed.errors import ConfigError
from protofed.experiments.loading import load_data
from protofed.samples import ClientData, FederatedData, Samples
from support import SMALL_RUN, few, one_line

DIGITS = DataOptions(clients=4, samples=200)
EVERYTHING = {"rotation": 40.0, "blur": 1.0, "invert": 0.5, "gain": 0.5, "offset": 0.2, "noise": 0.1, "swap": 0.5}


def federation(x: torch.Tensor, y: list[int], clients: int, classes: int = 4) -> FederatedData:
    """Return clients that share samples round robin; tests are the training samples, in reverse."""
    labels = torch.tensor(y)
    parts = [Samples(x[i::clients], labels[i::clients]) for i in range(clients)]
    each = tuple(ClientData(f"c{i}", p, Samples(p.x.flip(0), p.y.flip(0)), replace(p)) for i, p in enumerate(parts))
    return FederatedData(each, classes, tuple("abcd"[:classes]), tuple(x.shape[1:]))


def bytes_of(n: int, channels: int = 1, side: int = 9) -> torch.Tensor:
    return torch.randint(0, 256, (n, channels, side, side), generator=generator(0, "x"), dtype=torch.uint8)


def moved(data: FederatedData, seed: int = 0, domains: dict[str, str] | None = None, columns=None, **options):
    return shift_domains(data, columns, ShiftOptions(**options), seed, domains or {})


def parts(client: ClientData) -> list[Samples]:
    return [client.train, client.test, client.validation]


def same(one: ClientData, other: ClientData) -> bool:
    return all(
        torch.equal(a.x, b.x) and torch.equal(a.y, b.y) for a, b in zip(parts(one), parts(other), strict=True)
    )


@settings(max_examples=15, deadline=None)
@given(
    names=st.permutations(range(5)),
    seed=st.integers(0, 2**40),
    options=st.fixed_dictionaries({}, optional={n: st.just(v) for n, v in EVERYTHING.items()}),
)
def test_a_domain_depends_on_seed_and_name_alone(names, seed, options):
    data = federation(bytes_of(30), [i % 4 for i in range(30)], 5)
    found = {c.name: c for c in moved(data, seed, **options).clients}
    other = replace(data, clients=tuple(data.clients[i] for i in names))
    again = moved(other, seed, **options)
    assert [c.name for c in again.clients] == [f"c{i}" for i in names]
    assert all(same(c, found[c.name]) for c in again.clients)
    assert all(p.x.dtype == torch.uint8 for c in again.clients for p in parts(c))
    if not options:
        assert again is other


def test_another_seed_and_another_name_are_other_domains():
    x = bytes_of(1).expand(8, 1, 9, 9)
    data = federation(x, [0] * 8, 4)
    for option in ("rotation", "gain", "offset", "blur", "noise"):
        first, second = (moved(data, seed, **{option: 1.0 if option != "rotation" else 90.0}) for seed in (0, 1))
        images = {p.train.x[0].numpy().tobytes() for f in (first, second) for p in f.clients}
        assert len(images) == 8, option


def test_an_option_leaves_the_draws_of_the_others_alone():
    data = federation(bytes_of(20), [0] * 20, 4)
    turned = moved(data, rotation=90.0, gain=0.0)
    both = moved(data, rotation=90.0, gain=1e-9)
    assert all(same(a, b) for a, b in zip(turned.clients, both.clients, strict=True))


def test_clients_of_one_domain_share_its_transform_and_not_its_noise():
    x = bytes_of(1).expand(12, 1, 9, 9)
    data = federation(x, [0] * 12, 4)
    groups = {"c0": "north", "c1": "north", "c2": "south", "c3": "south"}
    a, b, c, d = moved(data, domains=groups, rotation=60.0, gain=1.0, offset=0.3).clients
    assert same(a, b)
    assert same(c, d)
    assert not same(a, c)
    noisy = moved(data, domains=groups, noise=0.3).clients
    assert len({p.x[0].numpy().tobytes() for c in noisy for p in parts(c)}) == 12
    spread = [c.train.x.double().sub(x[0]).std() for c in noisy]
    assert float((spread[0] / spread[1]).log().abs()) < 0.3


def test_transforms_are_the_named_ones():
    """Each against a reference on one image after the other, with the numbers that tell which was drawn."""
    data = federation(bytes_of(12, 3), [0] * 12, 3)
    for client, found in zip(data.clients, moved(data, rotation=90.0).clients, strict=True):
        angles = [
            angle
            for angle in np.linspace(-90, 90, 721)
            if (
                rotate(client.train.x.float(), torch.full((4,), angle, dtype=torch.float64), "bilinear")
                - found.train.x.float()
            )
            .abs()
            .max()
            < 3
        ]
        assert angles
    for share, number in ((0.0, 0), (0.34, 1), (0.67, 2), (1.0, 3)):
        negatives = [
            torch.equal(found.train.x, 255 - client.train.x)
            for client, found in zip(data.clients, moved(data, invert=share).clients, strict=True)
        ]
        assert sum(negatives) == number
    bright = moved(data, gain=3.0).clients
    assert all(c.train.x.max() <= 255 for c in bright)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.2, 8.0), st.integers(1, 12), st.integers(1, 12))
def test_a_blur_is_that_of_scipy(deviation, rows, columns):
    x = torch.rand(2, 2, rows, columns, generator=generator(0, "blur"), dtype=torch.float64)
    reach = int(np.ceil(3 * deviation))
    expected = ndimage.gaussian_filter(
        x.numpy(), (0, 0, deviation, deviation), mode="nearest", radius=(0, 0, reach, reach)
    )
    np.testing.assert_allclose(blur(x, deviation), expected, atol=1e-9)
    assert blur(x, 0.0) is x


def test_units_of_tables_and_series():
    """Gains and offsets are of each column of numbers; categories, texts and missing values stay."""
    columns = [
        RawColumn("age"),
        RawColumn("ward", "category", ("a", "b")),
        RawColumn("dose"),
        RawColumn("t", "text"),
    ]
    x = torch.randn(40, 4, generator=generator(0, "t"), dtype=torch.float64) * torch.tensor([5.0, 1, 0.1, 1]) + 20
    x[3, 0] = torch.nan
    data = federation(x, [i % 2 for i in range(40)], 2, classes=2)
    deviation = torch.cat([c.train.x for c in data.clients])[:, 2].std(correction=0)
    for client, found in zip(data.clients, moved(data, columns=columns, gain=4.0, offset=2.0).clients, strict=True):
        assert torch.equal(found.train.x[:, [1, 3]], client.train.x[:, [1, 3]])
        assert torch.equal(found.train.x.isnan(), client.train.x.isnan())
        for column in (0, 2):
            before, after = client.train.x[:, column], found.train.x[:, column]
            kept = ~before.isnan()
            slope, base = np.polyfit(before[kept].numpy(), after[kept].numpy(), 1)
            assert 0.2 - 1e-9 < slope < 5 + 1e-9
            np.testing.assert_allclose(slope * before[kept] + base, after[kept], rtol=1e-6)
            if column == 2:
                assert abs(base) < 2 * float(deviation) + 1e-6
    series = federation(torch.randn(12, 3, 16, generator=generator(0, "s")), [0] * 12, 3)
    for client, found in zip(series.clients, moved(series, gain=1.0).clients, strict=True):
        ratio = found.test.x / client.test.x
        assert found.test.x.dtype == torch.float32
        assert float(ratio.std((0, 2)).max()) < 1e-4
        assert len({round(float(r), 3) for r in ratio.mean((0, 2))}) == 3


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=8, max_size=24), st.integers(0, 4), st.integers(0, 99))
def test_classes_are_swapped_among_those_that_a_domain_has(y, number, seed):
    number = 2 if number == 1 else number
    data = federation(bytes_of(len(y)), y, 2)
    for share, expected in ((0.0, 0), (0.5, 1), (1.0, 2)):
        found = moved(data, seed, swap=share, swap_classes=number).clients
        changed = 0
        for client, new in zip(data.clients, found, strict=True):
            assert all(torch.equal(a.x, b.x) for a, b in zip(parts(client), parts(new), strict=True))
            held = client.train.y.unique()
            assert torch.equal(new.train.y.unique(), held), "a permutation of its own classes"
            mapping = {
                (int(a), int(b))
                for p, q in zip(parts(client), parts(new), strict=True)
                for a, b in zip(p.y, q.y, strict=True)
            }
            assert len(mapping) == len({a for a, _ in mapping}) == len({b for _, b in mapping})
            away = sum(a != b for a, b in mapping)
            assert away in (0, min(number or len(held), len(held)))
            changed += away > 0
        assert changed <= expected
        if all(len(c.train.y.unique()) > 1 for c in data.clients):
            assert changed == expected


@few("partition", [("dirichlet", {"alpha": 0.5}), ("iid", {}), ("domain", {"domains": 2}), ("quantity", {})], 4)
def test_it_goes_with_every_partition(partition):
    name, options = partition
    plain = load(DIGITS, name, options, 3)
    found = load(DIGITS, name, options, 3, ShiftOptions(gain=1.0, rotation=30.0))
    assert [len(c.train) for c in found.clients] == [len(c.train) for c in plain.clients]
    assert all(torch.equal(a.test.y, b.test.y) for a, b in zip(found.clients, plain.clients, strict=True))
    assert not any(torch.equal(a.test.x, b.test.x) for a, b in zip(found.clients, plain.clients, strict=True))
    assert found.notes == (
        f"Samples are shifted in {2 if name == 'domain' else 4} domains (shift.rotation=30, shift.gain=1).",
    )


def test_a_federation_folder_is_shifted_too(tmp_path):
    for name in ("ann", "bob"):
        folder = tmp_path / "clients" / name
        folder.mkdir(parents=True)
        for split in ("train", "test"):
            np.savez(folder / f"{split}.npz", x=bytes_of(6).numpy(), y=np.arange(6) % 2)
    data = DataOptions(source="path", path=str(tmp_path))
    ann, bob = load(data, "iid", None, 0, ShiftOptions(gain=1.0)).clients
    assert not torch.equal(ann.train.x, bob.train.x)
    assert torch.equal(ann.train.x, ann.test.x)


@pytest.mark.parametrize(
    ("source", "options", "expected"),
    [
        ("digits", {"swap": 0.5, "swap_classes": 1}, "shift.swap_classes = 1: swapping takes two classes"),
        ("breast_cancer", {"rotation": 5.0}, r"shift.rotation is for images .* have the shape \(30,\)"),
        ("motion", {"blur": 1.0}, "shift.blur is for images"),
    ],
)
def test_what_does_not_suit_the_samples_is_one_line(source, options, expected):
    with one_line(ConfigError, expected):
        load(DataOptions(source=source, clients=2), "iid", None, 0, ShiftOptions(**options))


def test_texts_alone_cannot_be_shifted():
    data = federation(torch.rand(8, 2, dtype=torch.float64), [0, 1] * 4, 2, classes=2)
    texts = [RawColumn("note [1]", "text"), RawColumn("note [2]", "text")]
    with pytest.raises(ConfigError, match=r"shift\.noise is for columns of numbers, and these data have none"):
        moved(data, columns=texts, noise=0.1)
    tokens = federation(torch.zeros(8, 5, dtype=torch.int64), [0, 0, 1, 1] * 2, 2, classes=2)
    with pytest.raises(ConfigError, match=r"shift\.gain is for images, series and numbers"):
        moved(tokens, gain=1.0)
    assert moved(tokens, swap=1.0).clients[0].train.y.tolist() == [1, 0, 1, 0]


def test_loaded_data_of_two_shifts_are_two():
    few_digits = {name: value for name, value in SMALL_RUN.items() if name != "partition.alpha"}
    tree = apply_overrides(load_recipe("quickstart"), {**few_digits, "partition.name": "iid"})
    plain, turned = (load_data(resolve(apply_overrides(tree, {"shift.rotation": r}))) for r in (0.0, 90.0))
    assert not torch.equal(plain.clients[0].train.x, turned.clients[0].train.x)
    keys = {resolve(apply_overrides(tree, {"shift.rotation": r})).key for r in (0.0, 90.0)}
    assert len(keys) == 2
    assert resolve(tree).key in keys, "a shift that is not there changes no key"


SCENARIOS = ("domains", "quantity", "concept")


@few("name", SCENARIOS, 1)
def test_a_round_of_a_scenario(name, tmp_path):
    small = {"data.source": "digits", "data.samples": 300, "data.clients": 10, "rounds": 1, "transforms.crop": 0}
    done = run(name, {**small, "method.name": "fedlda", "encoder.name": "auto", "encoder.dim": 32}, out=tmp_path)
    rule = next(iter(done.outcome.accuracy.values()))
    assert rule.union is not None
