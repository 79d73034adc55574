"""Checkpoints and files: whole or absent."""

from __future__ import annotations

import json

import pytest
import torch

from protofed.errors import CheckpointError, DivergedError, OutputError, PayloadError
from protofed.experiments.assemble import assemble
from protofed.rounds.checkpoint import Saving, load_checkpoint
from protofed.rounds.state import ServerState
from protofed.runs.findings import Findings
from protofed.runs.records import RoundRecord
from protofed.storage.files import read_tensors
from protofed.storage.snapshots import write_tensors
from protofed.visits.roster import Roster, StoreSnapshot
from support import experiment, one_line, ordinary

pytestmark = pytest.mark.fast


@pytest.fixture
def federation():
    federation, _ = assemble(experiment(rounds=3), ordinary())
    next(federation.run())
    return federation


def save(federation, folder, round_number):
    federation.state.round = round_number
    Saving(folder).save(federation.state, federation.executor.clients)


def load(folder, federation):
    """Return the restored server state, or None."""
    state = ServerState()
    return state if load_checkpoint(folder, state, federation.executor.clients) else None


def test_only_the_newest_is_kept(federation, tmp_path):
    for round_number in (1, 2, 3):
        save(federation, tmp_path, round_number)
    assert [p.name for p in tmp_path.iterdir()] == ["round-000003"]
    assert load(tmp_path, federation).round == 3


@pytest.mark.parametrize("file", ["server.safetensors", "state.json", "clients.records"])
def test_a_truncated_file_is_named(federation, tmp_path, file):
    save(federation, tmp_path, 1)
    path = tmp_path / "round-000001" / file
    path.write_bytes(path.read_bytes()[:-7])
    with one_line(CheckpointError, rf"{file}: (cid )?cannot be read"):
        load(tmp_path, federation)


def test_another_model_or_other_clients_are_named(federation, tmp_path):
    save(federation, tmp_path, 1)
    other, _ = assemble(experiment(model__d=9), ordinary())
    with pytest.raises(CheckpointError, match="does not fit the model of ann"):
        load(tmp_path, other)
    clients = federation.executor.clients
    fewer = Roster(list(clients.values())[:2], clients.models, clients.store)
    with pytest.raises(CheckpointError, match="written for other clients"):
        load_checkpoint(tmp_path, ServerState(), fewer)


def test_a_state_that_an_older_version_wrote(tmp_path):
    """Without an entry that the method now keeps, one line names the client and what is missing."""
    old, _ = assemble(experiment("beacon"), ordinary())
    for name in old.names:
        found = old.executor.clients.snapshot(name)
        less = {n: t for n, t in found.state.items() if n != "beacon_prior"}
        old.executor.clients.store.write(name, found._replace(state=less))
    Saving(tmp_path).save(old.state, old.executor.clients)
    new, _ = assemble(experiment("beacon"), ordinary())
    with pytest.raises(CheckpointError, match=r"model of ann \(its state lacks beacon_prior\)$"):
        load_checkpoint(tmp_path, new.state, new.executor.clients)


@pytest.mark.parametrize("change", [{}, {"prototypes": torch.zeros(4, 3)}, {"prototypes": torch.zeros(4)}])
def test_a_server_of_another_method_or_shape_is_named(federation, tmp_path, change):
    save(federation, tmp_path, 1)
    path = tmp_path / "round-000001" / "server.safetensors"
    kept = {n: t for n, t in read_tensors(path).items() if n != "prototypes"}
    write_tensors(path, {**kept, **change})
    fresh, _ = assemble(experiment(rounds=3), ordinary())
    with pytest.raises(CheckpointError, match=r"server\.safetensors: does not fit the method \(prototypes"):
        load_checkpoint(tmp_path, fresh.state, fresh.executor.clients)


def amend(folder, **values):
    """Replace values in the index of the checkpoint of round 1."""
    index = folder / "round-000001" / "state.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), **values}))


@pytest.mark.parametrize("version", [1, 2, "later"])
def test_another_format_is_named(federation, tmp_path, version):
    save(federation, tmp_path, 1)
    amend(tmp_path, version=version)
    with one_line(CheckpointError, rf"round-000001/state\.json: written in format {version} by another version"):
        load(tmp_path, federation)


@pytest.mark.parametrize("round_number", [7, True, "1", None])
def test_a_round_that_is_not_its_folders_is_named(federation, tmp_path, round_number):
    save(federation, tmp_path, 1)
    amend(tmp_path, round=round_number)
    with pytest.raises(CheckpointError, match=r"state\.json: (its round is 7|damaged: round: expected a whole)"):
        load(tmp_path, federation)


def test_the_states_of_nodes_are_part_of_the_state(federation, tmp_path, monkeypatch):
    federation.state.generations = {"ann": "1-a", "cid": "1-c"}
    save(federation, tmp_path, 1)
    federation.state.generations["ann"] = "2-b"  # confirmed since: the saved ones stay those of the checkpoint
    assert federation.state.saved == {"ann": "1-a", "cid": "1-c"}
    with pytest.raises(CheckpointError, match="at the nodes of a network: continue it with flwr run"):
        load(tmp_path, federation)
    monkeypatch.setattr(type(federation.executor.clients), "rests_here", False)
    state = load(tmp_path, federation)
    assert state.generations == state.saved == {"ann": "1-a", "cid": "1-c"}
    assert state.generations is not state.saved


@pytest.mark.parametrize("generations", [None, [], "ann", {"eve": "1-a"}, {"ann": 1}])
def test_damaged_states_of_nodes_are_named(federation, tmp_path, generations):
    save(federation, tmp_path, 1)
    amend(tmp_path, generations=generations)
    with one_line(CheckpointError, r"state.json: damaged: (generations|does not say which states its clients had)"):
        load(tmp_path, federation)


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(federation, tmp_path, monkeypatch):
    save(federation, tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(StoreSnapshot, "write", lambda frozen, file: file.prototypes)
        with pytest.raises(AttributeError):
            save(federation, tmp_path, 2)
    assert [p.name for p in tmp_path.iterdir()] == ["round-000001"]
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="file/round-000002: cannot be written"):
        save(federation, tmp_path / "file", 2)


def test_what_a_killed_process_left_is_written_over(federation, tmp_path):
    (tmp_path / ".round-000001.partial" / "clients").mkdir(parents=True)
    (tmp_path / ".round-000001.partial" / "other").touch()
    save(federation, tmp_path, 1)
    assert [p.name for p in tmp_path.iterdir()] == ["round-000001"]
    assert not (tmp_path / "round-000001" / "other").exists()


def test_a_link_is_no_checkpoint(federation, tmp_path):
    save(federation, tmp_path / "elsewhere", 2)
    save(federation, tmp_path, 1)
    (tmp_path / "round-000002").symlink_to(tmp_path / "elsewhere" / "round-000002")
    (tmp_path / "round-000003").touch()
    assert load(tmp_path, federation).round == 1


def test_refusals_are_part_of_the_state(federation, tmp_path):
    record = RoundRecord(1, ["ann", "bob", "cid"])
    record.refuse("ann", PayloadError("classes: negative"))
    record.refuse("bob", DivergedError("prototypes: not finite"))
    federation.state.standing.note(record, federation.names)
    federation.state.standing.note(RoundRecord(2, [], robust=Findings(out_of_proportion=["cid"])), ["ann"])
    save(federation, tmp_path, 1)
    names, before, after = federation.names, federation.state.standing, load(tmp_path, federation).standing
    assert after.to_dict() == before.to_dict()
    assert after.to_dict()["misled"] == ["ann"]
    assert after.able(names, 2, 1) == before.able(names, 2, 1) == ["cid"]


@pytest.mark.parametrize(
    "refusals",
    [
        None,
        [],
        {"damaged": {}},
        {"damaged": {"eve": 1}, "diverged": {}, "last": {}, "misled": []},
        {"damaged": {"ann": -1}, "diverged": {}, "last": {}, "misled": []},
        {"damaged": {"ann": True}, "diverged": {}, "last": {}, "misled": []},
        {"damaged": {}, "diverged": {}, "last": {}, "misled": ["eve"]},
        {"damaged": {}, "diverged": {}, "last": {}, "misled": [["ann"]]},
        {"damaged": {}, "diverged": {"ann": 1}, "last": {}, "misled": []},
    ],
)
def test_damaged_refusals_are_named(federation, tmp_path, refusals):
    save(federation, tmp_path, 1)
    amend(tmp_path, refusals=refusals)
    with one_line(CheckpointError, r"state\.json: damaged: refusals"):
        load(tmp_path, federation)
