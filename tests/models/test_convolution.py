"""Convolutions computed as matrix products give what torch's own give."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from protofed.models import reduce_convolutions
from protofed.models.layers import SmallMapConv2d


def both(conv: nn.Conv2d, x: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return output and gradients of torch's convolution, and of the reduced one."""
    results = []
    for layer in (conv, reduce_convolutions(copy.deepcopy(conv))):
        given_ = x.clone().requires_grad_()
        out = layer(given_)
        weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
        results.append([out, *torch.autograd.grad((out * weights).sum(), [given_, *layer.parameters()])])
    return results[0], results[1]


@given(
    size=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    depthwise=st.booleans(),
    bias=st.booleans(),
    channels_last=st.booleans(),
)
def test_any_convolution(size, kernel, stride, padding, dilation, depthwise, bias, channels_last):
    for n, k, p, step in zip(size, kernel, padding, dilation, strict=True):
        if n + 2 * p < step * (k - 1) + 1:
            return  # the kernel does not fit: torch refuses it
    torch.manual_seed(0)
    conv = nn.Conv2d(
        3, 3 if depthwise else 5, kernel, stride, padding, dilation, groups=3 if depthwise else 1, bias=bias
    ).double()
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    if channels_last:
        conv, x = conv.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    expected, found = both(conv, x)
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("options", [{"padding": "same"}, {"padding": 1, "padding_mode": "reflect"}])
def test_forms_of_padding_that_are_left_to_torch(options):
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 4, 3, groups=4, **options).double()
    expected, found = both(conv, torch.randn(2, 4, 2, 2, dtype=torch.float64))
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(a, b)


def test_only_plain_convolutions_change():
    class Own(nn.Conv2d):
        pass

    parametrised = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 3, 1))
    model = nn.Sequential(nn.Conv2d(3, 3, 1), Own(3, 3, 1), parametrised)
    kinds = [type(m) for m in reduce_convolutions(model)]
    assert kinds == [SmallMapConv2d, Own, type(parametrised)]
    assert torch.isfinite(model(torch.randn(1, 3, 2, 2))).all()


def test_an_image_without_a_batch():
    conv = nn.Conv2d(3, 4, 1)
    x = torch.randn(3, 2, 2)
    torch.testing.assert_close(reduce_convolutions(copy.deepcopy(conv))(x), conv(x))
