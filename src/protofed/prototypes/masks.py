"""Class-wise prototype sparsification: masks of the dimensions that each class keeps, never sent.

Lee and Choi, *TinyProto: Communication-Efficient Federated Learning with Sparse Prototypes in Resource-Constrained
Environments*, Sec. 4.1 (Definitions 1 and 2). The paper asks for masks with exactly ``s`` ones whose pairwise
Hamming distances are as large as possible. Two bounds say how large that can be: the mean distance is largest when
all dimensions are used equally often, and no minimum can exceed that mean.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protofed.compute import seeding

MAX_ATTEMPTS = 8000
MAX_WORK = 4_000_000
"""The search for a larger minimum distance may try ``min(MAX_ATTEMPTS, MAX_WORK // K)`` exchanges: about a second
at most, but counted, not timed, so that every machine stops at the same one."""

TRIES = 8  #: Candidates per exchange

MAX_SEARCHED = 4096
"""Beyond this many classes the K×K overlaps are not searched; the masks stay balanced and random."""

Bits = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]


def class_masks(K: int, d: int, s: int, seed: int = 0) -> Tensor:
    """Return the CPS masks ``m_j`` of K classes, ``(K, d)`` bool on the CPU with exactly ``s`` ones per row.

    While ``K·s <= d`` supports are disjoint. Otherwise each dimension serves ``⌊Ks/d⌋`` or ``⌈Ks/d⌉`` classes,
    which maximises the mean pairwise Hamming distance, and exchanges between classes raise the minimum one.

    Only 64-bit integer arithmetic decides, so the masks depend on the four arguments and on nothing else: not on
    the machine, the process, or the versions of torch and numpy. They need never be sent.
    """
    return torch.from_numpy(_class_masks(K, d, s, seed).copy())


def compress(prototypes: Tensor, masks: Tensor) -> Tensor:
    """Return the ``(k, s)`` kept entries of each prototype, ``ĉ = (c_l : m_l = 1)`` (Definition 2)."""
    return prototypes[masks.to(prototypes.device)].view(len(masks), -1)


def rebuild(values: Tensor, masks: Tensor) -> Tensor:
    """Return the structured sparse prototypes: the kept entries in their places, zeros elsewhere (Definition 1)."""
    masks = masks.to(values.device)
    return values.new_zeros(masks.shape).masked_scatter(masks, values)


@functools.lru_cache(maxsize=8)
def _class_masks(K: int, d: int, s: int, seed: int) -> Bits:
    stream = _Stream(seeding.derive(seed, "class masks", K, d, s))
    masks = _deal(K, d, s, stream)
    if K * s > d and 2 < K <= MAX_SEARCHED and s < d:
        _spread_overlaps(masks, stream)
    masks.setflags(write=False)
    return masks


class _Stream:
    """Random 64-bit words by SplitMix64 (Steele, Lea and Flood, 2014): the n-th is a bijection of seed + n·γ."""

    def __init__(self, seed: int) -> None:
        self.position = seed

    def words(self, count: int) -> Words:
        gamma = 0x9E3779B97F4A7C15
        start = np.uint64(self.position % 2**64)
        self.position += count * gamma
        z = start + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(gamma)  # wraps modulo 2^64
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))

    def coin(self) -> bool:
        return bool(self.words(1)[0] & np.uint64(1))

    def permutation(self, count: int) -> npt.NDArray[np.int64]:
        # The sort is stable, so the (practically impossible) equal words cannot make machines disagree.
        return np.argsort(self.words(count), kind="stable")


def _deal(K: int, d: int, s: int, stream: _Stream) -> Bits:
    """Deal s dimensions to each class from shuffled packs of all d, opening a new pack when one runs out."""
    masks = np.zeros((K, d), dtype=np.bool_)
    pack = stream.permutation(d)
    for row in masks:
        hand, pack = pack[:s], pack[s:]
        row[hand] = True
        missing = s - len(hand)
        if missing:
            pack = stream.permutation(d)
            # The class cannot take again from the new pack a dimension that it holds from the old one.
            taken = np.flatnonzero(~row[pack])[:missing]
            row[pack[taken]] = True
            pack = np.delete(pack, taken)
    return masks


def _spread_overlaps(masks: Bits, stream: _Stream) -> None:
    """Even out the pairwise overlaps in place, largest first, leaving row and column sums as they are.

    The sum of all overlaps is fixed by the column sums, so lowering ``Σ max(0, overlap − mean)³`` by exchanges
    moves the largest overlap towards the mean.
    """
    K = len(masks)
    columns = np.ascontiguousarray(masks.T)
    bits = masks.astype(np.float32)
    overlaps = (bits @ bits.T).astype(np.int64)  # exact: at most d ones are added
    np.fill_diagonal(overlaps, 0)
    # No maximum is below the mean, rounded up.
    least = -(-int(overlaps.sum()) // (K * (K - 1)))
    cost = np.maximum(np.arange(masks.shape[1] + 2, dtype=np.int64) - least, 0) ** 3
    left = min(MAX_ATTEMPTS, MAX_WORK // K)
    while left and (worst := int(overlaps.max())) > least:
        first, second = np.nonzero(np.triu(overlaps >= max(worst - 1, least + 1)))
        order = np.argsort(-overlaps[first, second], kind="stable")[:left]
        left -= len(order)
        made = 0
        for a, b in zip(first[order].tolist(), second[order].tolist(), strict=True):
            if stream.coin():
                a, b = b, a
            made += _exchange(a, b, columns, overlaps, cost, stream)
        if not made:
            break
    masks[:] = columns.T


def _exchange(
    a: int, b: int, columns: Bits, overlaps: npt.NDArray[np.int64], cost: npt.NDArray[np.int64], stream: _Stream
) -> bool:
    """Let a give to some class c a dimension x it shares with b, for a dimension y of c that b lacks.

    Of a few random (x, y, c) the best is taken if it lowers the total cost; return whether one was.
    """
    shared = np.flatnonzero(columns[:, a] & columns[:, b])
    free = np.flatnonzero(~(columns[:, a] | columns[:, b]))
    if not len(shared) or not len(free):
        return False
    words = stream.words(3 * TRIES)
    x = shared[words[:TRIES] % np.uint64(len(shared))]
    y = free[words[TRIES : 2 * TRIES] % np.uint64(len(free))]
    # c holds y but not x; b, which holds x, is never among them.
    ranks = np.cumsum(columns[y] & ~columns[x], axis=1)
    possible = ranks[:, -1] > 0
    pick = words[2 * TRIES :] % np.maximum(ranks[:, -1], 1).astype(np.uint64)
    c = (ranks > pick.astype(np.int64)[:, None]).argmax(1)
    # a comes closer to the classes with y but not x, and c to those with x but not y.
    change = columns[y].astype(np.int64) - columns[x]
    rows = np.arange(TRIES)
    change[rows, a] = change[rows, c] = 0  # x and y change places between a and c: their own overlap stays
    ours, theirs = overlaps[a], overlaps[c]
    gain = (cost[ours] - cost[ours + change] + cost[theirs] - cost[theirs - change]).sum(1)
    best = int(np.where(possible, gain, 0).argmax())
    if not possible[best] or gain[best] <= 0:
        return False
    c, x, y, change = c[best], x[best], y[best], change[best]
    overlaps[a] += change
    overlaps[c] -= change
    overlaps[:, a], overlaps[:, c] = overlaps[a], overlaps[c]
    columns[x, a] = columns[y, c] = False
    columns[y, a] = columns[x, c] = True
    return True
