"""A visit starts from the client's own state, on whichever machine it happens, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from safetensors.torch import load_file

from network import FakeGrid, apart, dying, elsewhere, locally, nodes_of, over, wanted, write_folders
from protofed.errors import ConfigError
from protofed_flower.nodes import RECORD
from support import command, few

CLIENTS = ("ann", "bob", "cid")
SHARES = {101 + i: {"partition-id": i, "num-partitions": 3} for i in range(3)}
"""Nodes of a simulation: any machine may be any of them, and none keeps anything."""


def kind(message: Message) -> str:
    return str(message.metadata.message_type)


def job(message: Message) -> ConfigRecord:
    return message.content[RECORD]


def same_files(a: Path, b: Path) -> None:
    """All that two runs leave is the same, but for times."""
    times = ("seconds",)
    rounds = [[json.loads(x) for x in (p / "rounds.jsonl").read_text().splitlines()] for p in (a, b)]
    assert [{k: v for k, v in r.items() if k not in times} for r in rounds[0]] == [
        {k: v for k, v in r.items() if k not in times} for r in rounds[1]
    ]
    files = sorted(p.relative_to(a) for p in a.rglob("*.safetensors"))
    assert files == sorted(p.relative_to(b) for p in b.rglob("*.safetensors"))
    assert len(files) > len(CLIENTS)
    assert [file for file in files if (a / file).read_bytes() != (b / file).read_bytes()] == []


@pytest.mark.slow
@few("method", ["fedavg", "gfpl", "fedproto", "protonorm", "fedtgp", "fedkd"], 1)
def test_clients_that_travel_give_the_numbers_of_the_local_engine(method, root, tmp_path):
    chosen = wanted(method, root)
    locally(chosen, tmp_path / "local")
    over(FakeGrid(SHARES, elsewhere), chosen, tmp_path / "remote", simulated=True)
    same_files(tmp_path / "local", tmp_path / "remote")


@few("method", ["fedproto", "fedavg", "local"], 1)
def test_a_simulation_of_nodes_is_measured_as_the_local_engine(method, root, tmp_path, monkeypatch, capsys):
    """Files of metrics are the same, and hold what the last round scored; the command computes them, too."""
    pytest.importorskip("sklearn")
    chosen = wanted(method, root, rounds=2, evaluation__metrics=True)
    locally(chosen, tmp_path / "local")
    remote = over(FakeGrid(SHARES, elsewhere), chosen, tmp_path / "remote", simulated=True)
    files = [tmp_path / engine / "metrics.json" for engine in ("local", "remote")]
    assert files[0].read_bytes() == files[1].read_bytes()
    stored = remote.measured
    assert stored.overall.accuracy == pytest.approx(remote.rounds[-1].accuracy.weighted[stored.rule])
    files[1].unlink()
    status, printed, _ = command(monkeypatch, capsys, "metrics", tmp_path / "remote")
    assert status == 0
    assert "Balanced accuracy" in printed
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.slow
@few("phase", ["train", "evaluate"], 1)
def test_a_simulation_that_is_stopped_goes_on_from_its_checkpoint(phase, root, tmp_path):
    chosen = wanted("protonorm", root, rounds=4)
    locally(chosen, tmp_path / "local")

    def third(node, message):
        return kind(message) == phase and job(message)["round"] == 3 and node == 102

    with pytest.raises(KeyboardInterrupt):
        over(FakeGrid(SHARES, dying(third)), chosen, tmp_path / "remote", simulated=True)
    over(FakeGrid(SHARES, elsewhere), chosen, tmp_path / "remote", simulated=True, resume=True)
    same_files(tmp_path / "local", tmp_path / "remote")


def test_a_lost_visit_changes_nothing_of_its_client(root, tmp_path):
    """Whoever is missing in every training ends with the weights that were delivered at most."""
    chosen = wanted("protonorm", root, participation__deadline_s=0.01)

    def lose(node, message, reply):
        return None if node == 102 else reply

    run = over(
        FakeGrid(SHARES, lambda n, m, r: r if kind(m) == "query" else lose(n, m, r)),
        chosen,
        tmp_path / "a",
        simulated=True,
    )
    assert [[(m.client, m.phase) for m in r.missing] for r in run.rounds] == [
        [("bob", "training"), ("bob", "evaluation")]
    ] * 3
    before = locally(wanted("local", root, rounds=1, training__epochs=1, training__lr=0.0), tmp_path / "start")
    kept, began = (load_file(p / "clients/bob/model.safetensors") for p in (run.directory, before.directory))
    assert all(torch.equal(kept[n], began[n]) for n in began)


def test_a_refused_simulation_leaves_no_folder(root, tmp_path):
    chosen, refused = (wanted("fedtgp", root, rounds=1, participation__newcomers=k) for k in (0, 1))
    with pytest.raises(ConfigError, match=r"participation\.newcomers is for simulations"):
        over(FakeGrid(SHARES), refused, tmp_path / "run", simulated=True)
    assert not (tmp_path / "run").exists()
    over(FakeGrid(SHARES), chosen, tmp_path / "run", simulated=True)
    with pytest.raises(ConfigError, match="holds a run with another configuration"):
        over(FakeGrid(SHARES), refused, tmp_path / "run", simulated=True)
    assert (tmp_path / "run" / "summary.json").is_file()


LIES = {"nothing": None, "no safetensors": b"x" * 64, "another model": "ann"}


@few("lie", LIES, 1)
def test_a_client_that_does_not_come_back_as_one_is_missing(lie, tmp_path):
    from support import client, federated

    data = federated(client("ann", [0, 0, 1, 1, 1]), client("bob", [1, 2, 2], model="support:WithBatchNorm"))
    root = write_folders(tmp_path / "data", data)
    states: dict[str, bytes] = {}

    def tamper(node, message, reply):
        if kind(message) != "train":
            return reply
        values = dict(reply.content[RECORD])
        states[str(values["client"])] = values["state"]
        if node == 102:
            del values["state"]
            given = states.get("ann") if LIES[lie] == "ann" else LIES[lie]
            values |= {"state": given} if given else {}
        return Message(RecordDict({RECORD: ConfigRecord(values)}), reply_to=message)

    nodes = {101 + i: {"partition-id": i, "num-partitions": 2} for i in range(2)}
    run = over(
        FakeGrid(nodes, tamper),
        wanted("fedproto", root, data__trust_code=True),
        tmp_path / "remote",
        simulated=True,
    )
    for record in run.rounds:
        (missing,) = record.missing
        assert (missing.client, missing.phase) == ("bob", "training")
        assert missing.reason.startswith("state: ")


def moved(root: Path, state: Path, after: int, **config) -> FakeGrid:
    """Nodes of a deployment, one of which loses its folder after some rounds."""

    def tamper(node, message, reply):
        if kind(message) == "evaluate" and job(message)["round"] == after and node == 102:
            grid.nodes[102] = {**grid.nodes[102], "state-dir": str(state / "another"), **config}
        return reply

    grid = FakeGrid(nodes_of(root, state), tamper)
    return grid


@pytest.mark.slow
def test_a_node_that_lost_its_state_is_refused_by_name(root, tmp_path):
    run = over(moved(root, tmp_path / "state", 1), apart("protonorm", root), tmp_path / "remote")
    assert [[(m.client, m.phase) for m in r.missing] for r in run.rounds] == [
        [],
        *[[("bob", "training"), ("bob", "evaluation")]] * 2,
    ]
    for record in run.rounds[1:]:
        assert all("it lacks the client's state of this run" in m.reason for m in record.missing)
        assert str(tmp_path) not in str(record.missing)
    assert not (tmp_path / "state" / "another" / "bob").exists()


@pytest.mark.slow
def test_a_node_that_begins_anew_is_recorded(root, tmp_path):
    run = over(moved(root, tmp_path / "state", 1, fresh=True), wanted("protonorm", root), tmp_path / "remote")
    assert not any(r.missing for r in run.rounds)
    kept = json.loads((run.directory / "nodes.json").read_text())
    assert kept["anew"] == [{"client": "bob", "round": 2}]


def test_nodes_are_not_told_where_the_server_has_its_files(root, tmp_path):
    told = []

    def look(node, message, reply):
        told.append(str(dict(job(message))))
        return reply

    chosen = wanted("fedproto", root, rounds=1, data__data_dir=str(tmp_path / "sets"))
    over(FakeGrid(nodes_of(root, tmp_path / "state"), look), chosen, tmp_path / "remote")
    assert len(told) == 9
    assert not [text for text in told if str(tmp_path) in text]
