"""Where clients rest: what is kept, what is shared, and which files go."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from protofed.errors import CheckpointError
from protofed.storage.snapshots import Snapshot, join_snapshot
from protofed.visits.roster import PAGE, Files, Memory, Store
from support import one_line


def snapshot(value: float) -> Snapshot:
    return Snapshot(*({name: torch.full((2, 3), value + i)} for i, name in enumerate(("w", "own", "got"))))


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


def places(store: Files) -> int:
    """Return the number of records that the files have room for."""
    return sum(path.stat().st_size for path in store.folder.iterdir()) // PAGE + 1


def test_places_are_used_again_once_no_client_needs_them(tmp_path):
    store = Files(tmp_path)
    store.write("ann", snapshot(1.0))
    store.share("bob", "ann", {})
    assert places(store) == 5
    for _ in range(3):
        store.write("ann", snapshot(2.0))
        assert places(store) <= 6 + 3, "bob still has the first model"
    store.write("bob", snapshot(3.0))
    for number in range(9):
        store.write("ann", snapshot(number))
        store.write("bob", snapshot(-number), model=number % 2 == 0)
    assert places(store) <= 6 + 3
    assert len(list(tmp_path.iterdir())) == 1
    store.close()
    assert not tmp_path.exists()


def test_what_all_clients_receive_is_kept_once(store, tmp_path_factory):
    path = tmp_path_factory.mktemp("frozen") / "clients"
    for round_number in range(3):
        broadcast = {"w": torch.full((70_000,), float(round_number))}
        for name in ("ann", "bob", "cid"):
            store.write(name, snapshot(1.0)._replace(received=broadcast))
        frozen = store.freeze()
        with path.open("wb") as file:
            index = frozen.write(file)
        assert len({tuple(places[2]) for places in index.values()}) == 1
    store.write("ann", snapshot(2.0))
    for name in ("bob", "cid"):
        assert same(store.read(name), snapshot(1.0)._replace(received=broadcast))
    assert same(store.read("ann"), snapshot(2.0))
    if isinstance(store, Files):
        assert places(store) <= 3 * 2 + 3 * 70 + 4, "three broadcasts of 280 kB at most"


def test_a_record_of_another_size_takes_another_place(tmp_path):
    store = Files(tmp_path)
    for size in (1, 5000, 3, 70_000, 5001, 2):
        big = snapshot(1.0)._replace(state={"own": torch.arange(size)})
        store.write("ann", big)
        store.write("bob", snapshot(2.0))
        assert same(store.read("ann"), big)
        assert same(store.read("bob"), snapshot(2.0))


def test_another_process_writes_only_where_the_owner_lets_it(tmp_path):
    store, other = Files(tmp_path), Files(tmp_path, owner=False)
    store.write("ann", snapshot(1.0))
    store.write("bob", snapshot(5.0))
    for value in (2.0, 3.0, 4.0):
        other.addresses, other.free = {"ann": store.addresses["ann"]}, store.lend(["ann"])
        other.write("ann", snapshot(value))
        assert same(store.read("ann"), snapshot(value - 1)), "as long as the owner has not adopted it"
        store.adopt("ann", other.addresses["ann"])
        store.take_back(other.free)
        assert same(store.read("ann"), snapshot(value))
    assert places(store) <= 6 + 6 + 3
    other.close()
    assert tmp_path.exists()
    assert same(store.read("bob"), snapshot(5.0))
    store.close()


def test_frozen_clients_stay_as_they_were(store, tmp_path_factory):
    path = tmp_path_factory.mktemp("frozen") / "clients"
    for number in range(5):
        store.write(str(number), snapshot(number))
    store.share("alike", "0", {})
    frozen = store.freeze()
    for value in (7.0, 8.0, 9.0):
        for number in range(5):
            store.write(str(number), snapshot(value))
    with path.open("wb") as file:
        index = frozen.write(file)
    assert index["alike"][0] == index["0"][0], "a model that clients share is written once"
    data = path.read_bytes()
    for number in range(5):
        records = (load(data[start : start + length]) for start, length in index[str(number)])
        assert same(join_snapshot(*records), snapshot(number))
        assert same(store.read(str(number)), snapshot(9.0))
    if isinstance(store, Files):
        before = places(store)
        for number in range(5):
            store.write(str(number), snapshot(1.0))
        assert places(store) == before, "places are free once they have been copied"


def test_a_damaged_record_is_one_line(tmp_path):
    store = Files(tmp_path)
    store.write("ann", snapshot(1.0))
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for damaged in (whole[:9], b"\xff" * len(whole), whole[:20] + b"?" + whole[21:]):
        path.write_bytes(damaged)
        with one_line(CheckpointError, r"a client cannot be read \(.*go on with --resume"):
            store.read("ann")
