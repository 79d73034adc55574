"""Attacks that see the honest uploads: their formulas against naive ones, and where they stay within the honest."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch

from protofed.methods.contract import Upload
from protofed.stages.attack.colluding import COLLUDING, alie, craft_uploads, inner_product, limit, min_max
from protofed.stages.robust.vectors import parts_of
from protofed.wire.schema import prototype_schema


@pytest.fixture
def honest() -> torch.Tensor:
    return torch.randn(9, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64) + 2.0


def columns(vectors: torch.Tensor) -> list[tuple[float, float]]:
    """Return mean and standard deviation of each coordinate, in plain Python."""
    found = []
    for column in zip(*vectors.tolist(), strict=True):
        mean = sum(column) / len(column)
        found.append((mean, math.sqrt(sum((v - mean) ** 2 for v in column) / len(column))))
    return found


def test_a_little_is_enough(honest):
    """Of 12 clients 3 are hostile: 4 honest ones are needed for a majority of 7, so 5 of 9 may be nearer."""
    z = NormalDist().inv_cdf(5 / 9)
    expected = [mean - z * deviation for mean, deviation in columns(honest)]
    assert alie(honest, 3, 1.0).tolist() == pytest.approx(expected)


def test_against_the_mean(honest):
    assert inner_product(honest, 3, 0.5).tolist() == pytest.approx([-0.5 * mean for mean, _ in columns(honest)])
    found = limit(honest, 3, 2.0)
    assert float(found.norm()) == pytest.approx(2 * sorted(honest.norm(dim=1).tolist())[4])
    assert float(torch.cosine_similarity(found, honest.mean(0), dim=0)) == pytest.approx(-1.0)


def test_as_far_as_honest_ones_are_apart(honest):
    most = max(math.dist(a, b) for a in honest.tolist() for b in honest.tolist())
    found = min_max(honest, 3, 1.0)
    far = max(math.dist(found.tolist(), row) for row in honest.tolist())
    assert far == pytest.approx(most, rel=1e-6)
    step = found - honest.mean(0)
    assert float(torch.cosine_similarity(step, -honest.std(0, unbiased=False), dim=0)) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", sorted(COLLUDING))
def test_one_honest_vector_or_equal_ones_give_finite_vectors(kind):
    for vectors in (torch.ones(1, 3).double(), torch.ones(4, 3).double(), torch.zeros(4, 3).double()):
        assert COLLUDING[kind](vectors, 2, 1.0).isfinite().all()


@pytest.mark.parametrize("kind", sorted(COLLUDING))
def test_only_hostile_clients_send_something_else_class_by_class(kind):
    schema = prototype_schema(3, 2, {})
    generator = torch.Generator().manual_seed(0)
    classes = {"a": [0, 1], "b": [0, 2], "c": [0], "d": [1, 2]}
    uploads = [
        Upload(name, {"classes": torch.tensor(held), "prototypes": torch.randn(len(held), 2, generator=generator)})
        for name, held in classes.items()
    ]
    counts = {name: torch.ones(3, dtype=torch.int64) for name in classes}
    found = craft_uploads(kind, uploads, ["c", "d"], parts_of(schema), counts, 1.0)
    assert set(found) == {"c", "d"}
    assert found["d"].payload["classes"].tolist() == [1, 2]
    own = {
        u.client: dict(zip(u.payload["classes"].tolist(), u.payload["prototypes"], strict=True)) for u in uploads
    }
    holders = {0: "ab", 1: "a", 2: "b"}
    for client, place, label in (("c", 0, 0), ("d", 0, 1), ("d", 1, 2)):
        source = (label + 1) % 3 if kind == "swapped_means" else label
        known = torch.stack([own[name][source] for name in holders[source]]).double()
        expected = COLLUDING[kind](known, 1, 1.0).float()
        assert torch.allclose(found[client].payload["prototypes"][place], expected)
