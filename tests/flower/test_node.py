"""What a node remembers, and what the server makes of descriptions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'protofed[flower]'")

from network import forget, wanted, write_folders
from protofed.errors import CheckpointError, ConfigError, PayloadError
from protofed.experiments.workshop import Census
from protofed.flower.admission import class_order
from protofed.flower.census import Shared, elsewhere, shared
from protofed.flower.messages import Description, Job, description_values, read_descriptions
from protofed.flower.node import Node, experiment_key
from protofed.flower.sources import Folder, Share, source_of
from protofed.flower.state import ClientFolder
from support import ordinary


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_folders(tmp_path / "data", ordinary())


def job_of(root: Path, method: str = "fedproto", **changes) -> Job:
    chosen = wanted(method, root)
    census = Census.of(chosen, ordinary())
    own = shared(census, tuple("abcd"))[0]
    return replace(Job("run", "ann", 1, experiment_key(chosen), own.to_json()), **changes)


def node_of(root: Path, state: Path) -> Node:
    forget()
    return Node(Folder(root / "clients" / "ann", "ann"), state)


def weights(node: Node, job: Job) -> dict[str, torch.Tensor]:
    return {n: t.clone() for n, t in node.client(job).model.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[n], b[n]) for n in a)


def test_a_repeated_request_is_answered_and_not_trained_again(root, tmp_path):
    node, job = node_of(root, tmp_path), job_of(root)
    first = node.train(job)
    trained = weights(node, job)
    again = node_of(root, tmp_path).train(job)
    assert (again.message, again.losses, again.samples) == (first.message, first.losses, first.samples)
    assert same(trained, weights(node, job))


def test_another_broadcast_for_the_same_round_starts_before_it(root, tmp_path):
    """A server that lost round 2 asks for it with another broadcast: as if the first had never come."""
    node, job = node_of(root, tmp_path / "a"), job_of(root)
    message = broadcast(node.train(job).message)
    one, two = replace(job, round=2, message=message), replace(job, round=2, message=None)
    node.train(one)
    node.train(two)
    other = node_of(root, tmp_path / "b")
    other.train(job)
    expected = other.train(two)
    assert same(weights(node, job), weights(other, job))
    assert node_of(root, tmp_path / "a").train(two).message == expected.message


def broadcast(upload: bytes) -> bytes:
    """An upload of FedProto has the form of a broadcast of the same classes."""
    return upload


def test_a_server_that_is_behind_is_told(root, tmp_path):
    node, job = node_of(root, tmp_path), job_of(root)
    for round in (1, 2, 3):
        node.train(replace(job, round=round))
    with pytest.raises(CheckpointError, match=r"ann has trained in round 3 and was asked for round 1"):
        node.train(job)


def test_another_run_begins_anew(root, tmp_path):
    node, job = node_of(root, tmp_path), job_of(root)
    first = node.train(job)
    node.train(replace(job, round=2))
    assert node.train(replace(job, run="another")).message == first.message


def test_a_write_that_fails_leaves_the_state_before(root, tmp_path, monkeypatch):
    node, job = node_of(root, tmp_path), job_of(root)
    node.train(job)
    before = weights(node, job)

    def full(*args):
        raise OSError("disk full")

    monkeypatch.setattr("protofed.flower.state.write_json", full)
    with pytest.raises(OSError, match="disk full"):
        node.train(replace(job, round=2))
    monkeypatch.undo()
    assert same(before, weights(node_of(root, tmp_path), job))
    node.train(replace(job, round=2))
    assert len(list((tmp_path / "ann").glob("*.model.safetensors"))) == 2, "files of the failed write are gone"


def test_a_damaged_state_is_named(root, tmp_path):
    node, job = node_of(root, tmp_path), job_of(root)
    node.train(job)
    folder = ClientFolder(tmp_path / "ann", "run")
    (tmp_path / "ann" / folder.latest.model).write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="cannot be read"):
        node_of(root, tmp_path).train(replace(job, round=2))
    (tmp_path / "ann" / "state.json").write_text(json.dumps({"run": "run", "latest": {"round": 1}}))
    with pytest.raises(CheckpointError, match="remove the folder to begin anew"):
        node_of(root, tmp_path).train(job)


def test_an_evaluation_without_delivery_changes_nothing(root, tmp_path):
    node, job = node_of(root, tmp_path), job_of(root)
    message = node.train(job).message
    index = (tmp_path / "ann" / "state.json").read_bytes()
    node.evaluate(replace(job, message=message, deliver=False))
    assert (tmp_path / "ann" / "state.json").read_bytes() == index
    node.evaluate(replace(job, message=message))
    assert (tmp_path / "ann" / "state.json").read_bytes() != index


def test_jobs_and_descriptions_survive_the_way(root):
    job = job_of(root, message=b"abc", deliver=False)
    assert Job.of(job.to_values()) == job
    assert Job.of(replace(job, message=None).to_values()).message is None
    with pytest.raises(PayloadError, match="round: must be int, not str"):
        Job.of({**job.to_values(), "round": "1"})
    found = Folder(root / "clients" / "ann", "ann").describe(wanted("fedproto", root))
    assert read_descriptions(description_values(found)) == found
    for bad in (
        "",
        "{}",
        "[{}]",
        "[1]",
        json.dumps([{**json.loads(description_values(found)["clients"])[0], "train": [-1]}]),
    ):
        with pytest.raises(PayloadError, match="clients"):
            read_descriptions({"clients": bad})


def described(name: str, classes: str, named: bool = True, shape=(6,)) -> Description:
    counts = tuple(range(1, len(classes) + 1))
    return Description(name, tuple(classes), named, counts, counts, 0, shape)


def test_the_order_of_classes():
    assert class_order([described("x", "ca"), described("y", "ba")]) == (tuple("abc"), {})
    assert class_order([described("x", "ca"), described("y", "ca")]) == (tuple("ca"), {})
    assert class_order([described("x", "01", False), described("y", "012", False)]) == (tuple("012"), {})
    assert class_order([described("x", "ca")], "bca") == (tuple("bca"), {})
    order, unfit = class_order([described("x", "01", False), described("y", "ab"), described("z", "0", False)])
    assert order == tuple("01")
    assert unfit == {"y": "names its classes, but the federation numbers them: use one kind"}
    order, unfit = class_order([described("x", "012", False), described("y", "10", False)])
    assert order == tuple("012"), "of two the first is right"
    assert unfit == {"y": "class 0 is '1', for most others '0'"}
    assert class_order([described("x", "ca")], "ab")[1] == {
        "x": "has class 'c', which is not among those of the federation"
    }
    assert class_order([described("x", "012", False)], "ab")[1] == {"x": "has 3 classes, the federation 2"}
    order, unfit = class_order([described("x", "ab"), described("y", "ab"), described("z", "xyz")], most=2)
    assert order == tuple("ab")
    assert unfit == {"z": "brings the classes to more than 2"}


def test_the_server_knows_numbers_only():
    data = elsewhere([described("x", "ca"), described("y", "b")], tuple("abc"))
    assert [c.train.counts(3).tolist() for c in data.clients] == [[2, 0, 1], [0, 1, 0]]
    assert len(data.clients[0].train) == 3
    assert data.clients[0].train.x.numel() == 0
    large = elsewhere([replace(described("x", "a"), train=(2**30,), test=(2**30,))], ("a",))
    assert len(large.clients[0].train) == 2**30, "nothing is allocated for what is not here"


def test_shared_knowledge_survives_the_way(root):
    own = shared(Census.of(wanted("fedproto", root), ordinary()), tuple("abcd"))[0]
    assert Shared.of(own.to_json()) == own


def test_what_a_node_is_started_with():
    assert source_of({"client-dir": "a/north"}) == Folder(Path("a/north"), "north")
    assert source_of({"client-dir": "a/north", "client": "n"}) == Folder(Path("a/north"), "n")
    assert source_of({"partition-id": 1, "num-partitions": 3}) == Share(1, 3)
    with pytest.raises(ConfigError, match="client-dir"):
        source_of({})
