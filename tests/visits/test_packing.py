"""Samples in shared memory are those that were packed."""

from __future__ import annotations

from dataclasses import replace

import torch

from protofed.samples import Samples
from protofed.visits.packing import PackedData
from support import client, federated, samples


def test_packed_samples_are_the_same():
    images = Samples(torch.arange(2 * 6, dtype=torch.uint8).view(2, 6), torch.tensor([3, 1]))
    data = federated(
        client("ann", [0, 1, 2], [1]),
        replace(client("bob", [], [2, 2]), validation=samples([3, 3])),
        replace(client("cid", [1, 2]), train=images, validation=samples([])),
    )
    packed = PackedData.of(data)
    found = packed.unpack()
    assert len(packed.tensors) == 4, "one pair of x and y per type"
    assert all(tensor.is_shared() for tensor in packed.tensors)
    assert sum(len(c.train) + len(c.test) for c in packed.federated.clients) == 0
    assert (found.class_names, found.num_classes) == (data.class_names, data.num_classes)
    for mine, theirs in zip(found.clients, data.clients, strict=True):
        assert (mine.name, mine.settings) == (theirs.name, theirs.settings)
        for part in ("train", "test", "validation"):
            a, b = getattr(mine, part), getattr(theirs, part)
            assert (a is None) is (b is None)
            assert b is None or (a.x.dtype == b.x.dtype and torch.equal(a.x, b.x) and torch.equal(a.y, b.y))
