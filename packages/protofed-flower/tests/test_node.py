"""What a node remembers, and what the server makes of descriptions."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file

from network import forget, job_of, train, wanted
from protofed.config.architectures import FederationSummary
from protofed.data.federation import load_client
from protofed.errors import CheckpointError, ConfigError, ModelError, PayloadError
from protofed.storage.snapshots import Snapshot, pack
from protofed_flower.admission import class_order
from protofed_flower.messages import Description, Job, VisitOutcome, description_values, read_descriptions
from protofed_flower.node import Node
from protofed_flower.sources import Folder, SimulatedShare, plan_text, source_of
from protofed_flower.state import ClientFolder, locked
from protofed_flower.summary import client_summaries, describe_federation, read_summary
from support import experiment, one_line, ordinary, same


def node_of(root: Path, state: Path | None) -> Node:
    forget()
    return Node(Folder(root / "clients" / "ann", "ann", least=0), state)


def weights(state: Path) -> dict[str, torch.Tensor]:
    """Ann's newest model, as her node keeps it."""
    folder = ClientFolder(state / "ann", "run")
    return folder.read(folder.chain[-1]).model


def until(found: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_repeated_request_is_answered_and_not_trained_again(root, tmp_path):
    node, job = node_of(root, tmp_path), job_of(root)
    first, left = node.train(job)
    trained = weights(tmp_path)
    again, found = node_of(root, tmp_path).train(job)
    assert (again.message, again.losses, again.samples) == (first.message, first.losses, first.samples)
    assert found == left
    assert same(trained, weights(tmp_path))


def test_another_broadcast_for_the_same_round_starts_before_it(root, tmp_path):
    """A server that lost round 2 asks for it with another broadcast: as if the first had never come."""
    node, job = node_of(root, tmp_path / "a"), job_of(root)
    result, left = node.train(job)
    one = replace(job, round=2, message=broadcast(result.message), after=left.generation)
    two = replace(one, message=None)
    node.train(one)
    train(node, two)
    other = node_of(root, tmp_path / "b")
    after = other.train(job)[1].generation
    expected = train(other, replace(two, after=after))
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert train(node_of(root, tmp_path / "a"), two).message == expected.message


def broadcast(upload: bytes) -> bytes:
    """An upload of FedProto has the form of a broadcast of the same classes."""
    return upload


def test_a_node_without_the_state_refuses_and_starts_nothing(root, tmp_path):
    """Its folder was removed, or the visit came to another machine."""
    job = job_of(root)
    result, left = node_of(root, tmp_path / "a").train(job)
    later = replace(job, round=2, message=broadcast(result.message), after=left.generation)
    other = node_of(root, tmp_path / "b")
    for visit in (other.train, other.evaluate):
        with pytest.raises(CheckpointError, match=rf"ann: .* {left.generation}.*it has none of this run.*fresh"):
            visit(later)
    assert not (tmp_path / "b").exists()
    other.train(job)  # now it has a state, but not that one
    with pytest.raises(CheckpointError, match="its newest is 000001-"):
        other.train(later)


def test_a_node_may_let_its_client_begin_anew(root, tmp_path):
    job = job_of(root)
    first, _ = node_of(root, tmp_path / "a").train(job)
    lost = replace(job, after="000005-0123456789abcdef")
    again, left = replace(node_of(root, tmp_path / "b"), fresh=True).train(lost)
    assert left.anew
    assert again.message == first.message, "from the weights before the run"
    kept = replace(node_of(root, tmp_path / "b"), fresh=True).train(replace(job, round=2, after=left.generation))[1]
    assert not kept.anew, "a client whose state is there goes on"


def test_noise_that_is_lost_is_not_drawn_anew(root, tmp_path):
    pytest.importorskip("dp_accounting", reason="pip install 'protofed[privacy]'")
    job = replace(job_of(root, privacy__mode="sample", privacy__noise=9.0), after="000005-0123456789abcdef")
    with pytest.raises(CheckpointError, match=r"restore its state-dir, whose noise must not be drawn anew"):
        replace(node_of(root, tmp_path), fresh=True).train(job)
    assert not list(tmp_path.glob("*/run"))


def test_what_a_node_keeps_it_does_not_give_away(root, tmp_path):
    job = replace(job_of(root), state=pack(Snapshot({}, {}, {})))
    with pytest.raises(ConfigError, match="this node stores its clients itself"):
        node_of(root, tmp_path).train(job)
    with pytest.raises(ConfigError, match="no folder for its model"):
        node_of(root, None).train(job_of(root))


@pytest.mark.parametrize("state", [b"", b"nothing", pack(Snapshot({}, {}, {})), save({"else.x": torch.zeros(1)})])
def test_a_travelling_client_that_is_none_is_refused(state, root):
    with pytest.raises(PayloadError, match=r"^state: "):
        node_of(root, None).train(replace(job_of(root), state=state))


def test_a_server_that_lost_its_checkpoints_begins_again_and_old_requests_are_refused(root, tmp_path):
    node, job = node_of(root, tmp_path), replace(job_of(root), order=1)
    first = train(node, job)
    for round_number in (2, 3):
        train(node, replace(job, round=round_number, order=round_number))
    again = train(node, replace(job, order=4))  # round 1 once more
    assert again.message == first.message
    with pytest.raises(CheckpointError, match="a later request of the server has been carried out already"):
        node.train(replace(job, round=3, order=3))
    left = node.train(replace(job, round=2, order=5))[1]
    with pytest.raises(CheckpointError, match="is newer than round 1"):
        node.train(replace(job, order=6, after=left.generation))


def test_what_the_server_may_go_back_to_is_kept(root, tmp_path):
    """It writes a checkpoint every third round: rounds without one are trained again if it is stopped."""
    node, job = node_of(root, tmp_path), job_of(root)
    saved = after = node.train(job)[1].generation
    messages = []
    for order, round_number in enumerate((2, 3, 4), 1):
        result, left = node.train(replace(job, round=round_number, order=order, after=after, saved=saved))
        messages.append(result.message)
        after = left.generation
    assert len(list((tmp_path / "ann" / "run" / "generations").iterdir())) == 3, (
        "saved, the last and the one before"
    )
    assert train(node, replace(job, round=2, order=9, after=saved, saved=saved)).message == messages[0]


def test_another_run_begins_anew(root, tmp_path):
    node, job = node_of(root, tmp_path), job_of(root)
    first = train(node, job)
    train(node, replace(job, round=2))
    assert train(node, replace(job, run="another")).message == first.message


def test_a_write_that_fails_leaves_the_state_before(root, tmp_path, monkeypatch):
    node, job = node_of(root, tmp_path), job_of(root)
    after = node.train(job)[1].generation
    before, index = weights(tmp_path), (tmp_path / "ann" / "run" / "state.json").read_bytes()

    def full(*args):
        raise OSError("disk full")

    monkeypatch.setattr("protofed_flower.state.write_json", full)
    with pytest.raises(OSError, match="disk full"):
        node.train(replace(job, round=2, after=after))
    monkeypatch.undo()
    assert same(before, weights(tmp_path))
    assert (tmp_path / "ann" / "run" / "state.json").read_bytes() == index
    train(node_of(root, tmp_path), replace(job, round=2, after=after))
    assert len(list((tmp_path / "ann" / "run" / "generations").iterdir())) == 2, (
        "files of the failed write are gone"
    )


def test_a_damaged_state_is_named(root, tmp_path):
    node, job = node_of(root, tmp_path), job_of(root)
    train(node, job)
    folder = ClientFolder(tmp_path / "ann", "run")
    (folder.path / "generations" / folder.chain[-1].name / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="cannot be read"):
        train(node_of(root, tmp_path), replace(job, round=2))


@pytest.mark.parametrize(
    "damage",
    [
        lambda index: {"version": 3, "run": "run", "chain": [{"round": 1}]},
        lambda index: index | {"notes": {"bfloat16": 3}},
        lambda index: index | {"chain": [index["chain"][0] | {"name": "../../../secret"}]},
        lambda index: index | {"chain": [index["chain"][0] | {"losses": "[]"}]},
        lambda index: index | {"more": 1},
    ],
)
def test_a_damaged_index_is_named(root, tmp_path, damage):
    node, job = node_of(root, tmp_path), job_of(root)
    train(node, job)
    path = tmp_path / "ann" / "run" / "state.json"
    path.write_text(json.dumps(damage(json.loads(path.read_text()))))
    with one_line(CheckpointError, r"damaged .* remove the folder and add fresh=true to --node-config"):
        train(node_of(root, tmp_path), job)


def test_an_index_of_another_version_is_named(root, tmp_path):
    node, job = node_of(root, tmp_path), job_of(root)
    train(node, job)
    path = tmp_path / "ann" / "run" / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 2}))
    with pytest.raises(CheckpointError, match=r"state\.json: written in format 2 by another version of protofed"):
        train(node_of(root, tmp_path), job)


def test_two_visits_of_a_client_at_a_time_wait_for_each_other(root, tmp_path):
    node, job = node_of(root, tmp_path), job_of(root)
    with ThreadPoolExecutor() as pool:
        with locked(tmp_path / "ann" / "run", 0):
            running = pool.submit(node.train, job)
            with pytest.raises(TimeoutError):
                running.result(1.0)
            assert not (tmp_path / "ann" / "run" / "state.json").exists()
        assert running.result(60)[1].generation


def test_only_the_newest_request_waits_for_the_visit_under_way(root, tmp_path):
    node, job, turn = node_of(root, tmp_path), job_of(root), tmp_path / "ann" / "run" / ".turn"
    with ThreadPoolExecutor() as pool:
        with locked(tmp_path / "ann" / "run", 5):
            first = pool.submit(node.train, replace(job, order=6))
            until(turn.is_file, 20)
            second = pool.submit(node.train, replace(job, order=8))
            with pytest.raises(CheckpointError, match="a later request of the server replaced this one"):
                first.result(20)
            with pytest.raises(CheckpointError, match="a later request of the server waits"):
                node.train(replace(job, order=7))
            assert turn.read_text() == "8"
        assert second.result(60)[1].generation
        with locked(tmp_path / "ann" / "run", 9):
            assert node.train(replace(job, run="third", order=2))[1].generation, "another run goes on"


def test_an_evaluation_without_delivery_changes_nothing(root, tmp_path):
    node, job = node_of(root, tmp_path), job_of(root)
    message = train(node, job).message
    index = (tmp_path / "ann" / "run" / "state.json").read_bytes()
    node.evaluate(replace(job, message=message, deliver=False))
    assert (tmp_path / "ann" / "run" / "state.json").read_bytes() == index
    node.evaluate(replace(job, message=message))
    assert (tmp_path / "ann" / "run" / "state.json").read_bytes() != index


def test_jobs_and_descriptions_survive_the_way(root):
    names = {"after": "000012-0123456789abcdef", "saved": "000011-0123456789abcdef"}
    job = replace(job_of(root), message=b"abc", deliver=False, order=2**60, **names, state=b"c")
    assert Job.of(job.to_values()) == job
    assert Job.of(replace(job, message=None).to_values()).message is None
    with pytest.raises(PayloadError, match="round: expected a whole number"):
        Job.of({**job.to_values(), "round": "1"})
    for left in (VisitOutcome(), VisitOutcome("000012-0123456789abcdef", True), VisitOutcome(state=b"c")):
        assert VisitOutcome.of(left.to_values()) == left
    bad = {"after": "../x", "saved": "000012", "order": -1, "round": True, "state": "text", "run": "a/b"}
    for name, value in bad.items():
        with pytest.raises(PayloadError, match=f"^{name}"):
            Job.of({**job.to_values(), name: value})
    for name, value in {"generation": "../../state", "anew": 1, "state": "text"}.items():
        with pytest.raises(PayloadError, match=f"^{name}: "):
            VisitOutcome.of({**VisitOutcome().to_values(), name: value})
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
    data = describe_federation([described("x", "ca"), described("y", "b")], tuple("abc"))
    assert [c.train.counts(3).tolist() for c in data.clients] == [[2, 0, 1], [0, 1, 0]]
    assert len(data.clients[0].train) == 3
    assert data.clients[0].train.x.numel() == 0
    large = describe_federation([replace(described("x", "a"), train=(2**30,), test=(2**30,))], ("a",))
    assert len(large.clients[0].train) == 2**30, "nothing is allocated for what is not here"


def test_the_summary_survives_the_way(root):
    chosen = wanted("fedproto", root)
    summary = FederationSummary.of(chosen, ordinary())
    assert [read_summary(text) for text in client_summaries(chosen, summary)] == [summary.of_client(0)] * 3


def test_what_a_node_is_started_with():
    assert source_of({"client-dir": "a/north"}) == Folder(Path("a/north"), "north")
    assert source_of({"client-dir": "a/north", "client": "n"}) == Folder(Path("a/north"), "n")
    assert source_of({"partition-id": 1, "num-partitions": 3}) == SimulatedShare(1, 3)
    with pytest.raises(ConfigError, match="client-dir"):
        source_of({})


def test_a_node_takes_weights_from_its_own_folder_alone(tmp_path):
    """The recipe's path is one of the server's machine: only the name of the file counts at a node."""
    from protofed.models import build

    folder = tmp_path / "ann"
    folder.mkdir()
    for split in ("train", "test"):
        np.savez(folder / f"{split}.npz", x=torch.rand(6, 1, 8, 8).numpy(), y=np.arange(6) % 3)
    source = build("cnn2", input_shape=(1, 8, 8), num_classes=3, d=5, options={"channels": [2, 3]}, seed=4)
    named = tmp_path / "server" / "start.safetensors"
    named.parent.mkdir()
    save_file(source.extractor.backbone.state_dict(), named)
    options = {"channels": [2, 3], "weights": str(named)}
    chosen = experiment("fedproto", model__name="cnn2", model__options=options, training__lr=0.0)
    federated, _ = load_client(folder, chosen.data, 0)
    summary = client_summaries(chosen, FederationSummary.of(chosen, federated))[0]
    job = Job("run", "ann", 1, plan_text(chosen), summary)
    forget()
    node = Node(Folder(folder, "ann"), tmp_path / "state", weights=str(folder))
    with pytest.raises(ModelError, match=rf"^ann: cnn2: weights '{folder}/start\.safetensors' not found"):
        train(node, job)
    named.rename(folder / named.name)
    train(node, job)
    kept = weights(tmp_path / "state")
    assert torch.equal(kept["extractor.backbone.conv2.weight"], source.extractor.backbone.conv2.weight)
