"""Gradients are clipped for each network by itself, alone and stacked."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from protofed.visits.plain import clip

NAMES = ["extractor.map.weight", "head.bias", "extras.meme.head.weight", "extras.meme.head.bias", "extras.map"]
SHAPES = [(3, 2), (4,), (2, 2), (), (1, 5)]


def drawn(seed: int, scale: float) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(shape, generator=g, dtype=torch.float64) for shape in SHAPES]


@pytest.mark.parametrize("limit", [0.5, 2.0, 1e6])
def test_every_network_has_its_own_norm(limit):
    gradients = drawn(0, 1.0)
    found = clip(NAMES, gradients, limit)
    for rows in ([0, 1], [2, 3], [4]):
        parameters = [torch.nn.Parameter(gradients[i].clone()) for i in rows]
        for p in parameters:
            p.grad = p.detach().clone()
        clip_grad_norm_(parameters, limit)
        for i, p in zip(rows, parameters, strict=True):
            torch.testing.assert_close(found[i], p.grad)


def test_stacked_clients_have_their_own_norms():
    clients = [drawn(seed, scale) for seed, scale in ((1, 0.01), (2, 1.0), (3, 100.0))]
    together = clip(NAMES, [torch.stack(parts) for parts in zip(*clients, strict=True)], 0.7, stacked=True)
    for c, gradients in enumerate(clients):
        for found, expected in zip(together, clip(NAMES, gradients, 0.7), strict=True):
            torch.testing.assert_close(found[c], expected)


def test_parameters_without_a_gradient_stay_without():
    assert clip(["head.weight", "head.bias"], [None, torch.ones(4)], 1.0)[0] is None
