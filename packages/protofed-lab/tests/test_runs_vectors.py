from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from protofed.analysis import load_run
from protofed.errors import CheckpointError
from protofed.prototypes.geometry import margins
from protofed.storage.snapshots import Snapshot
from protofed.visits.roster import Memory
from protofed_lab.viewer import vectors
from protofed_lab.viewer.following import Border
from rundirs import make_run


@pytest.fixture
def run(tmp_path):
    return load_run(make_run(tmp_path / "run", "fedproto", rounds=3, classes=4))


@pytest.fixture
def going(tmp_path):
    """A run with a checkpoint, as it stands between two rounds."""
    directory = make_run(tmp_path / "run", "fedproto", rounds=3, classes=4, planned=9, finished=False)
    for number in (2, 3):
        folder = directory / "checkpoint" / f"round-{number:06d}"
        folder.mkdir(parents=True)
        table = torch.full((4, 3), float(number))
        save_file({"prototypes": table, "present": torch.ones(4, dtype=torch.int64)}, folder / "server.safetensors")
        own = {"prototypes": -table, "present": torch.ones(4, dtype=torch.bool)}
        store = Memory()
        store.write("client_01", Snapshot({"w": table + 1}, own, {}))
        with (folder / "clients.records").open("wb") as file:
            places = store.freeze().write(file)
        (folder / "state.json").write_text(json.dumps({"records": places}))
    return load_run(directory)


def tables(run, client=""):
    found = vectors.source(run, Border(run.directory.parent), client)
    return found and vectors.read(found, len(run.class_names))


def test_of_a_finished_run(run):
    table, present = tables(run)
    assert table.shape == (4, 64)
    assert present.tolist() == [True, True, True, False]
    assert tables(run, "client_02")[1].all()
    assert tables(run, "nobody") is None


def test_of_a_run_that_goes_on_the_last_checkpoint_counts(going):
    assert vectors.source(going, Border(going.directory)).round == 3
    assert tables(going)[0].eq(3).all()
    assert tables(going, "client_01")[0].eq(-3).all()
    assert tables(going, "client_02") is None


def test_a_checkpoint_that_gives_way_is_nothing_to_show(going):
    found = vectors.source(going, Border(going.directory))
    found.path.unlink()
    assert vectors.read(found, 4) is None


def test_names_of_clients_reach_nothing_outside(going, tmp_path):
    save_file({"state.prototypes": torch.ones(4, 2), "state.present": torch.ones(4)}, tmp_path / "x.safetensors")
    assert tables(going, "../../../../x") is None
    (going.directory / "checkpoint" / "round-000003" / "clients.records").unlink()
    (going.directory / "checkpoint" / "round-000003" / "clients.records").symlink_to(tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="leads out of"):
        vectors.source(going, Border(going.directory), "client_01")


@pytest.mark.parametrize(
    "tensors",
    [
        {"global.prototypes": torch.ones(3, 2), "global.present": torch.ones(3)},
        {"global.prototypes": torch.ones(4), "global.present": torch.ones(4)},
        {"global.prototypes": torch.ones(4, 2, dtype=torch.int64), "global.present": torch.ones(4)},
    ],
)
def test_tables_must_fit(run, tensors):
    save_file(tensors, run.directory / "prototypes.safetensors")
    with pytest.raises(CheckpointError, match="expected 4 rows"):
        tables(run)


def test_a_damaged_file(run):
    (run.directory / "prototypes.safetensors").write_bytes(b"no tensors")
    with pytest.raises(CheckpointError, match="cannot be read"):
        tables(run)


def test_distances_margins_and_entries():
    table = torch.tensor([[0.0, 0.0], [3.0, 4.0], [float("nan"), 1.0], [0.0, 1.0]])
    present = torch.tensor([True, True, False, True])
    found = vectors.geometry(table, present, ["a", "b", "c", "d"])
    assert found["distances"][0] == [None, 5.0, None, 1.0]
    assert found["distances"][2] == [None] * 4
    rest = table[present]
    expected = margins(rest) / margins(rest).max()
    assert [m for m in found["margins"] if m is not None] == pytest.approx(expected.tolist(), rel=1e-3)
    assert found["margins"][2] is None
    assert found["entries"] == [[0.0, 0.0], [3.0, 4.0], [None, None], [0.0, 1.0]]
    assert (found["row_step"], found["column_step"]) == (1, 1)


def test_what_is_too_much_to_draw_is_thinned():
    found = vectors.geometry(torch.randn(500, 512), torch.ones(500, dtype=torch.bool), [str(j) for j in range(500)])
    assert found["row_step"] == 5
    assert found["names"] == [str(j) for j in range(0, 500, 5)]
    assert len(found["distances"]) == len(found["entries"]) == 100
    assert len(found["margins"]) == 500
    assert len(found["entries"][0]) * 100 <= vectors.MOST_CELLS


@pytest.mark.parametrize("present", [[False, False], [True, False]])
def test_fewer_than_two_prototypes(present):
    found = vectors.geometry(torch.randn(2, 3), torch.tensor(present), ["a", "b"])
    assert found["distances"] == [[None, None], [None, None]]
    assert [m is not None for m in found["margins"]] == present
