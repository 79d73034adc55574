"""FINCH: clusters by first neighbours, without a number of clusters to choose.

Sarfraz, Sharma and Stiefelhagen, "Efficient Parameter-free Clustering Using First Neighbor Relations", CVPR 2019.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def finch(rows: Tensor) -> Tensor:
    """Return the cluster of each of ``(n, d)`` rows, ``(n,)`` int64: the coarsest partition with two clusters.

    Every row is joined to its neighbour of the largest cosine; so are then the means of the clusters. If the rows
    themselves make one cluster, it is that. A merge that leaves only one cluster fewer is the last.
    """
    found = _join_neighbours(rows)
    fewer = 2
    while fewer > 1:
        means = torch.stack([rows[found == c].mean(0) for c in range(int(found.max()) + 1)])
        merged = _join_neighbours(means)[found]
        fewer = len(means) - int(merged.max()) - 1
        if int(merged.max()) == 0 or fewer < 1:
            break
        found = merged
    return found


def _join_neighbours(rows: Tensor) -> Tensor:
    """Return the connected components of the graph from each row to its first neighbour, numbered as they begin."""
    unit = F.normalize(rows.double(), dim=-1)
    # Equal but for rounding, which differs between machines, is equal: the first of them is the neighbour.
    cosines = (unit @ unit.T).round(decimals=10)
    nearest = cosines.fill_diagonal_(-torch.inf).argmax(-1).tolist()
    roots = list(range(len(rows)))

    def root(i: int) -> int:
        while roots[i] != i:
            roots[i] = i = roots[roots[i]]
        return i

    for i, j in enumerate(nearest):
        roots[max(root(i), root(j))] = min(root(i), root(j))
    numbers: dict[int, int] = {}
    return torch.tensor([numbers.setdefault(root(i), len(numbers)) for i in range(len(rows))])
