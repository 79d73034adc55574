"""Answers that come twice, late or again, and nodes whose data change between rounds and between runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from safetensors.torch import load_file

from network import FakeGrid, apart, forget, locally, nodes_of, over, round_of, training, wanted
from protofed_flower.nodes import RECORD


def numbers(run) -> list[tuple]:
    return [(r.participants, r.accuracy, r.bytes) for r in run.rounds]


class Repeating(FakeGrid):
    """Delivers every answer twice, and with each pull all answers that were ever given."""

    def __init__(self, nodes: dict[int, dict]) -> None:
        super().__init__(nodes)
        self.given: list[Message] = []

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        new = super().pull_messages(message_ids)
        self.given += new
        return [*self.given, *new, *new]


def test_answers_that_are_delivered_again_count_once(root, tmp_path):
    chosen = wanted("protonorm", root, rounds=4)
    remote = over(Repeating(nodes_of(root, tmp_path / "state")), chosen, tmp_path / "remote")
    local = locally(chosen, tmp_path / "local")
    assert numbers(remote) == numbers(local)
    assert not any(record.missing or record.refused for record in remote.rounds)


@pytest.mark.slow
def test_an_upload_of_an_earlier_round_is_one_more_upload_of_its_sender(root, tmp_path):
    """A node may send what it likes within the schema, so also what it sent before: never in another's name."""
    first: dict[int, dict] = {}

    def replay(node: int, message: Message, reply: Message) -> Message:
        if not training(message):
            return reply
        values = first.setdefault(node, dict(reply.content[RECORD]))
        if node == 101:
            return reply
        answer = values if node == 102 else {**dict(reply.content[RECORD]), "client": "ann"}
        return Message(RecordDict({RECORD: ConfigRecord(answer)}), reply_to=message)

    chosen = wanted("fedproto", root, rounds=3)
    remote = over(FakeGrid(nodes_of(root, tmp_path / "state"), replay), chosen, tmp_path / "remote")
    local = locally(chosen, tmp_path / "local")
    assert [r.participants for r in remote.rounds] == [["ann", "bob", "cid"]] * 3
    assert remote.rounds[0].accuracy == local.rounds[0].accuracy
    assert remote.rounds[2].accuracy is not None
    assert load_file(remote.directory / "prototypes.safetensors")["global.prototypes"].isfinite().all()


def rewrite(root: Path, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Change the labels of a client's samples."""
    for part in ("train", "test"):
        path = root / "clients" / name / f"{part}.npz"
        with np.load(path) as arrays:
            x, y = arrays["x"], arrays["y"]
        np.savez(path, x=x, y=change(y))
    forget()


def changing(root: Path, at: dict[int, Callable[[np.ndarray], np.ndarray]]) -> Callable:
    """Return what changes bob's labels once the training of the given rounds has been answered by all."""
    done = set()

    def tamper(node: int, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "evaluate" and node == 103 and round_of(message) in at:
            round_number = round_of(message)
            if round_number not in done:
                done.add(round_number)
                rewrite(root, "bob", at[round_number])
        return reply

    return tamper


@pytest.mark.slow
def test_a_class_that_the_federation_lacks_is_named_until_it_is_gone(root, tmp_path, caplog):
    """bob relabels class 3 as 9 after round 1, and takes it back after round 2."""
    tamper = changing(root, {1: lambda y: np.where(y == 3, 9, y), 2: lambda y: np.where(y == 9, 3, y)})
    chosen = apart("fedproto", root, rounds=3)
    run = over(FakeGrid(nodes_of(root, tmp_path / "state"), tamper), chosen, tmp_path / "remote")
    assert [r.participants for r in run.rounds] == [["ann", "bob", "cid"]] * 3
    (missing,) = [m for m in run.rounds[1].missing if m.phase == "training"]
    assert missing.client == "bob"
    assert "the node's log has the reason" in missing.reason
    assert "label 9" in caplog.text
    assert "\n" not in missing.reason
    assert not [m for r in (run.rounds[0], run.rounds[2]) for m in r.missing if m.phase == "training"]


@pytest.mark.slow
def test_other_labels_of_known_classes_are_the_nodes_own_affair(root, tmp_path):
    """bob had classes 1 to 3; after round 1 all of its samples are of class 0, which it never described."""
    tamper = changing(root, {1: np.zeros_like})
    chosen = wanted("fedproto", root, rounds=3)
    run = over(FakeGrid(nodes_of(root, tmp_path / "state"), tamper), chosen, tmp_path / "remote")
    assert [r.participants for r in run.rounds] == [["ann", "bob", "cid"]] * 3
    assert not any(record.missing for record in run.rounds)
    assert load_file(run.directory / "prototypes.safetensors")["global.prototypes"].isfinite().all()
