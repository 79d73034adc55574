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


CONVOLUTIONS = [
    lambda x, w, b: F.conv2d(x, w, b),
    lambda x, w, b: F.conv2d(x, w, bias=b, stride=2, padding=1),
    lambda x, w, b: F.conv2d(x, w[:, :2], None, (1, 2), "valid", 2, 2),
    lambda x, w, b: F.conv2d(x[0], w, b, padding="same"),
    lambda x, w, b: F.conv2d(x, torch.ones_like(w[0, 0]).expand(1, 4, 3, 3), padding=1),
    lambda x, w, b: F.max_pool2d(x + b[:4, None, None], 2),
    lambda x, w, b: F.max_pool2d(F.relu(F.conv2d(x, w, b)), 3, 2, 1, ceil_mode=True),
    lambda x, w, b: F.max_pool2d(x * w[0, 0, 0, 0], 2, return_indices=True)[0],
    lambda x, w, b: F.max_pool2d(x[0] * w[0, 0, 0, 0], 2),
    lambda x, w, b: torch.func.vmap(lambda own: F.conv2d(own[None], w, b))(x),
    lambda x, w, b: torch.func.grad(lambda own: F.conv2d(own, w, b).square().sum())(x),
    lambda x, w, b: F.conv2d(torch.ones(1, 4, 5, 5, dtype=x.dtype), w, b) * x.mean(),
]


@pytest.mark.parametrize("of", CONVOLUTIONS)
@pytest.mark.parametrize("clients", [1, 3])
def test_images_of_clients_side_by_side_give_each_its_own(of, clients):
    """Values and gradients of weights and input, beside those of each client alone."""
    g = torch.Generator().manual_seed(0)
    shapes = ((clients, 2, 4, 9, 8), (clients, 6, 4, 3, 3), (clients, 6))
    tensors = [torch.randn(s, generator=g, dtype=torch.float64).requires_grad_() for s in shapes]

    def together(*own):
        with WithBatchingRules():
            return of(*own)

    found = torch.func.vmap(together)(*tensors)
    expected = torch.stack([of(*(t[c] for t in tensors)) for c in range(clients)])
    torch.testing.assert_close(found, expected)
    upstream = torch.randn(expected.shape, generator=g, dtype=torch.float64)
    mine, theirs = (torch.autograd.grad(y, tensors, upstream, allow_unused=True) for y in (found, expected))
    assert [own is None for own in mine] == [own is None for own in theirs]
    torch.testing.assert_close([own for own in mine if own is not None], [t for t in theirs if t is not None])


def test_clients_side_by_side_are_one_operation_in_the_fast_layout():
    """Which copies no layer: its output goes as it is into the next operation."""
    x, w = torch.randn(3, 2, 4, 8, 8), torch.randn(3, 6, 4, 3, 3)

    def together(x, w):
        with WithBatchingRules():
            return F.max_pool2d(F.conv2d(x, w), 2)

    out = torch.func.vmap(together, out_dims=1)(x, w)
    assert out.flatten(1, 2).is_contiguous(memory_format=torch.channels_last)
