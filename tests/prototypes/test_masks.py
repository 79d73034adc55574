from __future__ import annotations

import hashlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protofed.prototypes.masks import _Stream, class_masks, compress, rebuild
from support import few

pytestmark = pytest.mark.fast

SHAPES = [(10, 500, 50), (10, 500, 51), (10, 500, 450), (3, 2, 1), (7, 5, 5), (1, 4, 2), (60, 64, 20)]


def hamming(masks):
    """Return the Hamming distances of all pairs of rows."""
    first, second = torch.triu_indices(len(masks), len(masks), offset=1)
    return torch.cdist(masks.float(), masks.float(), p=1)[first, second]


@few(("K", "d", "s"), SHAPES, 6)
def test_rows_and_columns_are_balanced(K, d, s):
    masks = class_masks(K, d, s, seed=1)
    assert masks.shape == (K, d)
    assert masks.dtype == torch.bool
    assert masks.sum(1).eq(s).all()
    assert set(masks.sum(0).tolist()) <= {K * s // d, -(-K * s // d)}


@given(K=st.integers(1, 12), d=st.integers(1, 24), share=st.floats(0, 1), seed=st.integers(0, 99))
def test_balance_holds_everywhere(K, d, share, seed):
    s = max(1, round(share * d))
    masks = class_masks(K, d, s, seed)
    assert masks.sum(1).eq(s).all()
    assert set(masks.sum(0).tolist()) <= {K * s // d, -(-K * s // d)}


@few(("K", "d", "s", "share"), [(10, 500, 150, 0.97), (62, 512, 256, 0.94), (100, 500, 50, 0.9)], 1)
def test_smallest_distance_is_near_the_mean_it_cannot_exceed(K, d, s, share):
    distances = hamming(class_masks(K, d, s))
    assert share * distances.mean() <= distances.min() <= distances.mean()


def digest(arguments):
    return hashlib.sha256(class_masks(*arguments).numpy().tobytes()).hexdigest()


CASES = [(10, 500, 50, 0), (20, 64, 30, 5), (100, 128, 20, 2**62)]


def test_the_same_in_every_version():
    """Server and clients may run different versions: changing these digits breaks running federations."""
    kept = [row.nonzero().flatten().tolist() for row in class_masks(4, 9, 3, seed=7)]
    assert kept == [[2, 4, 5], [0, 3, 6], [1, 7, 8], [0, 1, 4]]
    assert digest((60, 64, 20, 0)).startswith("efed4ad005be3c71")


def test_stream_is_splitmix64():
    """The values published with the generator for this seed."""
    stream = _Stream(1234567)
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [*stream.words(2).tolist(), *stream.words(1).tolist()] == expected


def test_the_result_is_the_callers_own():
    class_masks(4, 9, 3).zero_()
    assert class_masks(4, 9, 3).sum() == 12


@given(K=st.integers(1, 6), d=st.integers(1, 12), share=st.floats(0, 1))
def test_compress_and_rebuild_are_inverse(K, d, share):
    s = max(1, round(share * d))
    masks = class_masks(K, d, s)
    values = torch.randn(K, s, generator=torch.Generator().manual_seed(d))
    prototypes = torch.randn(K, d, generator=torch.Generator().manual_seed(K))
    assert torch.equal(compress(rebuild(values, masks), masks), values)
    assert torch.equal(rebuild(compress(prototypes, masks), masks), prototypes * masks)


def test_gradients_flow_through_rebuild():
    masks = class_masks(2, 6, 2)
    values = torch.ones(2, 2, requires_grad=True)
    rebuild(values, masks).square().sum().backward()
    assert torch.equal(values.grad, 2 * torch.ones(2, 2))
