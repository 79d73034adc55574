"""Embeddings of categories."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import embedding

from protofed.errors import ConfigError
from protofed.models import build
from protofed.models.categories import CategoryEmbeddings, embedding_size


def test_rows_are_those_of_a_lookup():
    """Inputs: number, category of three, number, category of two; a row without any 1 is the last of its table."""
    torch.manual_seed(0)
    layer = CategoryEmbeddings([(1, 3), (5, 2)])
    for table in layer.tables:
        torch.nn.init.normal_(table.weight)
    codes = torch.tensor([[0, 1], [2, 0], [3, 2], [1, 2]])  # 3 and 2 are unknown
    numbers = torch.randn(4, 2)
    hot = [torch.eye(n + 1)[codes[:, i]][:, :n] for i, n in enumerate((3, 2))]
    found = layer(torch.cat([numbers[:, :1], hot[0], numbers[:, 1:], hot[1]], 1))
    rows = [embedding(codes[:, i], table.weight.T) for i, table in enumerate(layer.tables)]
    expected = torch.cat([numbers[:, :1], rows[0], numbers[:, 1:], rows[1]], 1)
    torch.testing.assert_close(found, expected)
    assert found.shape[1] == layer.width(7)


def test_sizes_are_fastais_and_the_unknown_begins_at_zero():
    assert [embedding_size(n) for n in (1, 2, 10, 100, 256, 10**6)] == [2, 2, 6, 21, 36, 600]
    (table,) = CategoryEmbeddings([(0, 4)]).tables
    assert not table.weight[:, -1].any()
    assert table.weight[:, :-1].all()


@pytest.mark.parametrize("categories", [(1,), (0, 3, 2, 2), (0, 0), (-1, 2), (6, 3)])
def test_places_that_do_not_fit_are_refused(categories):
    with pytest.raises(ConfigError) as caught:
        build("mlp", input_shape=(8,), num_classes=2, d=4, options={"categories": categories})
    assert "categories" in str(caught.value)
    assert "\n" not in str(caught.value)
