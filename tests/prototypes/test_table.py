"""Tables of prototypes: what is sent comes back, and what is merged keeps what nobody reported."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protofed.prototypes.table import Prototypes

pytestmark = pytest.mark.fast


@st.composite
def tables(draw, K: int = 5, d: int = 3) -> Prototypes:
    present = torch.tensor(draw(st.lists(st.booleans(), min_size=K, max_size=K)))
    numbers = draw(st.lists(st.integers(-9, 9), min_size=K * d, max_size=K * d))
    rows = torch.tensor(numbers, dtype=torch.float64).reshape(K, d)
    return Prototypes(rows * present.unsqueeze(-1), present)


def same(a: Prototypes, b: Prototypes) -> bool:
    return torch.equal(a.rows, b.rows) and torch.equal(a.present, b.present)


@given(tables())
def test_what_is_sent_comes_back(table):
    rows, classes = table.to_send()
    assert classes.tolist() == sorted(classes.tolist())
    assert same(Prototypes.received(rows, classes, 5), table)
    assert same(Prototypes.of(table.tensors()), table)


@given(tables(), tables())
def test_merging_takes_what_is_new_and_keeps_the_rest(old, new):
    merged = old.merged(new)
    for j in range(5):
        expected = new if new.present[j] else old
        assert torch.equal(merged.rows[j], expected.rows[j])
        assert merged.present[j] == (old.present[j] or new.present[j])
    assert same(merged.merged(new), merged)
    assert same(old.merged(Prototypes.none(5, 3, torch.float64)), old)


@given(tables(), st.integers(-3, 3))
def test_scaling(table, factor):
    assert same(table.scaled(factor), Prototypes(factor * table.rows, table.present))
