"""FINCH, against a naive reference by matrices."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from protofed.prototypes.finch import finch


def components(adjacent):
    """Return the number of the component of each node, by search."""
    n, found = len(adjacent), {}
    for start in range(n):
        if start in found:
            continue
        number, seen = len(set(found.values())), [start]
        while seen:
            i = seen.pop()
            if i not in found:
                found[i] = number
                seen += [j for j in range(n) if adjacent[i][j]]
    return [found[i] for i in range(n)]


def partition(rows):
    """Adjacent are first neighbours, either way, and rows that share one."""
    n = len(rows)
    if n == 1:
        return [0]

    def cosine(a, b):
        return float(a @ b / (a.norm() * b.norm()))

    first = [max((j for j in range(n) if j != i), key=lambda j, i=i: cosine(rows[i], rows[j])) for i in range(n)]
    adjacent = [
        [i != j and (first[i] == j or first[j] == i or first[i] == first[j]) for j in range(n)] for i in range(n)
    ]
    return components(adjacent)


def naive(rows):
    found = partition(rows)
    while True:
        number = len(set(found))
        means = [sum(r for r, c in zip(rows, found, strict=True) if c == k) / found.count(k) for k in range(number)]
        above = partition(means)
        if len(set(above)) == 1 or number - len(set(above)) < 1:
            return found
        found = [above[c] for c in found]
        if number - len(set(above)) == 1:
            return found


@given(st.integers(1, 24), st.integers(2, 4), st.integers(0, 10_000))
def test_it_is_the_reference(n, d, seed):
    rows = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert finch(rows).tolist() == naive(list(rows))


def test_domains_apart_are_clusters_of_their_own():
    centres = torch.eye(4, dtype=torch.float64)[[0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]]
    noise = 0.05 * torch.randn(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = finch(centres + noise)
    assert len(set(found.tolist())) >= 2
    for c in range(int(found.max()) + 1):  # no cluster mixes what a coarser one would have to
        assert len({i % 3 for i in range(12) if int(found[i]) == c}) == 1


def test_rows_without_direction_or_company():
    assert finch(torch.zeros(1, 3)).tolist() == [0]
    assert finch(torch.zeros(3, 2)).tolist() == [0, 0, 0]
    assert finch(torch.ones(2, 2)).tolist() == [0, 0]


def test_rounding_decides_no_tie():
    """Parallel rows have a cosine of one, but for the last bits of their lengths."""
    scales = torch.tensor([1.0, 3.0, 0.7, 1.1, 0.3, 7.0, 2.3])
    rows = torch.cat([scales.unsqueeze(1) * torch.tensor([[0.3, 0.7, 0.1]]), torch.tensor([[-1.0, 0.2, 0.9]])])
    exact = torch.cat([torch.tensor([[1.0, 0.0, 0.0]]).expand(7, 3), torch.tensor([[0.0, 1.0, 0.0]])])
    assert finch(rows).tolist() == finch(exact).tolist()
