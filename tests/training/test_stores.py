"""Where clients rest: what is kept, what is shared, and which files go."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from protofed.snapshots import Snapshot
from protofed.training import Files, Memory, Store


def snapshot(value: float) -> Snapshot:
    return Snapshot(*({name: torch.full((2, 3), value + i)} for i, name in enumerate(("w", "own", "got", "0/0/s"))))


@pytest.fixture(params=["memory", "files"])
def store(request, tmp_path: Path) -> Store:
    return Memory() if request.param == "memory" else Files(tmp_path)


def same(found: Snapshot, expected: Snapshot) -> bool:
    pairs = list(zip(found, expected, strict=True))
    return all(a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in b) for a, b in pairs)


def test_a_store_keeps_copies(store):
    mine = snapshot(1.0)
    store.write("ann", mine)
    for part in mine:
        for tensor in part.values():
            tensor.zero_()
    assert same(store.read("ann"), snapshot(1.0))


def test_a_model_that_has_not_changed_is_not_written_again(store):
    store.write("ann", snapshot(1.0))
    store.write("ann", snapshot(2.0)._replace(model={}), model=False)
    assert same(store.read("ann"), snapshot(2.0)._replace(model=snapshot(1.0).model))


def test_clients_that_start_alike_part_with_their_first_write(store):
    store.write("ann", snapshot(1.0))
    store.share("bob", "ann", {"own": torch.ones(1)})
    assert same(store.read("bob"), Snapshot(snapshot(1.0).model, {"own": torch.ones(1)}, {}))
    store.write("ann", snapshot(2.0))
    assert same(store.read("bob"), Snapshot(snapshot(1.0).model, {"own": torch.ones(1)}, {}))
    assert same(store.read("ann"), snapshot(2.0))


def test_files_go_once_no_client_needs_them(tmp_path):
    store = Files(tmp_path)

    def left(suffix: str) -> int:
        return len(list(tmp_path.glob(f"*.{suffix}")))

    store.write("ann", snapshot(1.0))
    store.share("bob", "ann", {})
    assert (left("model"), left("rest")) == (1, 2)
    for _ in range(3):
        store.write("ann", snapshot(2.0))
        assert (left("model"), left("rest")) == (2, 2), "bob still has the first model"
    store.write("bob", snapshot(3.0))
    assert (left("model"), left("rest")) == (2, 2)


def test_only_the_owner_removes_files(tmp_path):
    for owner in (False, True):
        store = Files(tmp_path, owner=owner)
        store.write("ann", snapshot(1.0))
        store.write("ann", snapshot(2.0))
        assert len(list(tmp_path.iterdir())) == (4 if not owner else 4 + 2)
        store.close()
        assert tmp_path.exists() is not owner
