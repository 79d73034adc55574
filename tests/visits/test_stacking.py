"""Layers of a stack, beside those of torch on each client's own rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from protofed.visits.stacked import evaluation_batches
from protofed.visits.stacking import StackingError, WithBatchingRules, skeleton, stack
from support import samples


@pytest.mark.parametrize("momentum", [0.3, None])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d])
def test_batch_norm_sees_no_padding(kind, affine, momentum):
    """None is torch's cumulative mean: the n-th batch counts 1/n."""
    g = torch.Generator().manual_seed(0)
    norm = kind(3, momentum=momentum, affine=affine, dtype=torch.float64)
    if affine:
        nn.init.uniform_(norm.weight, generator=g)
        nn.init.uniform_(norm.bias, generator=g)
    padded = skeleton(norm)
    for rows in (5, 2, 4):
        x = torch.randn(6, 3, *[4] * 2 * (kind is nn.BatchNorm2d), generator=g, dtype=torch.float64)
        padded.rows = (torch.arange(6) < rows).double()
        torch.testing.assert_close(padded(x)[:rows], norm(x[:rows]))
    for name, buffer in norm.named_buffers():
        torch.testing.assert_close(dict(padded.named_buffers())[name], buffer)
    torch.testing.assert_close(padded.eval()(x), norm.eval()(x))


@pytest.mark.parametrize(
    "other", [{"a": torch.ones(3)}, {"b": torch.ones(2)}, {}, {"a": torch.ones(2), "b": torch.ones(2)}]
)
def test_clients_with_other_tensors_are_no_stack(other):
    with pytest.raises(StackingError, match="its clients hold tensors of different shapes"):
        stack([{"a": torch.ones(2)}, other])


def test_every_row_is_evaluated_once_whoever_has_more_of_them():
    parts = [samples([0, 1, 2] * 20), samples([0, 1, 2, 3] * 150), samples([]), samples([3] * 256)]
    found = [[], [], [], []]
    for batch, sizes in evaluation_batches(parts, torch.float64):
        for client, size in enumerate(sizes):
            found[client].append((batch.x[client, :size], batch.y[client, :size]))
    for part, own in zip(parts, found, strict=True):
        assert torch.equal(torch.cat([x for x, _ in own]), part.x.double())
        assert torch.equal(torch.cat([y for _, y in own]), part.y)


@pytest.mark.parametrize("size", [1, (1, 1), [1, 1], 2, (2, 1)])
def test_pooling_is_torchs(size):
    x = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = F.adaptive_avg_pool2d(x, size)
    with WithBatchingRules():
        for found in (F.adaptive_avg_pool2d(x, size), F.adaptive_avg_pool2d(x, output_size=size)):
            torch.testing.assert_close(found, expected)
