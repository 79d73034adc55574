"""The networked run gives the numbers of the local one, and survives what networks do."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from safetensors.torch import load_file

from network import (
    FakeGrid,
    apart,
    dying,
    forget,
    locally,
    nodes_of,
    numbers,
    over,
    own_run,
    reply_with,
    round_of,
    same_prototypes,
    training,
    wanted,
    write_folders,
)
from protofed import load_run
from protofed.errors import FederationError, ProtofedError
from protofed.methods import methods
from protofed_flower.ledger import NAME, read_ledger
from protofed_flower.node import Node
from protofed_flower.nodes import RECORD
from support import client, federated, few, one_line

USUAL = {"beacon", "fedavg", "fedgen", "fedgh", "fedlda", "fedproto", "fedtgp", "gfpl", "local"}
"""One method of each kind of message."""
METHODS = [name if name in USUAL else pytest.param(name, marks=pytest.mark.slow) for name in sorted(methods())]


@few("method", METHODS, 1)
def test_every_method_gives_the_same_numbers(method, root, tmp_path):
    options = {"method__start": 2, "method__interval": 1} if method == "gfpl" else {}
    options |= {"data__labels": dict(zip("0123", "abcd", strict=True))} if method == "fedtsp" else {}
    chosen = wanted(method, root, **options)
    local = locally(chosen, tmp_path / "local")
    grid = FakeGrid(nodes_of(root, tmp_path / "state"))
    remote = over(grid, chosen, tmp_path / "remote")
    assert numbers(remote) == numbers(local)
    same_prototypes(local.directory, remote.directory)
    for name in ("ann", "bob", "cid"):
        mine, theirs = load_run(own_run(tmp_path / "state", name)), load_run(tmp_path / "local")
        weights, expected = (run.client(name).classifier.model.state_dict() for run in (mine, theirs))
        assert all(torch.equal(weights[n], expected[n]) for n in expected)
    assert mine.metrics().clients[name] == theirs.metrics().clients[name]
    test = np.load(root / "clients" / name / "test.npz")["x"]
    for rule in mine.client(name).rules:
        found, known = (run.predict(name, test, rule) for run in (mine, theirs))
        np.testing.assert_array_equal(found.probabilities, known.probabilities)
    assert not (tmp_path / "remote" / "clients").exists(), "personal models stay where they are"


@pytest.mark.slow
@few("codec", ["int8", "float16"], 1)
def test_lossy_codecs_act_in_the_same_way(codec, root, tmp_path):
    chosen = wanted("fedproto", root, wire__codec=codec, wire__compression="zstd")
    remote = over(FakeGrid(nodes_of(root, tmp_path / "state")), chosen, tmp_path / "remote")
    assert numbers(remote) == numbers(locally(chosen, tmp_path / "local"))


def test_a_client_whose_numbers_are_too_large_is_refused_with_the_same_reason(tmp_path):
    data = federated(client("ann", [0, 0, 1, 1]), client("bob", [1, 2, 2, 3], lr=10.0, epochs=20))
    root = write_folders(tmp_path / "data", data)
    chosen = wanted("fedproto", root, wire__codec="float16", rounds=1)
    remote = over(FakeGrid(nodes_of(root, tmp_path / "state")), chosen, tmp_path / "remote")
    assert numbers(remote) == numbers(locally(chosen, tmp_path / "local"))
    (refusal,) = remote.rounds[0].refused
    assert (refusal.client, refusal.field, refusal.diverged) == ("bob", "prototypes", True)
    contents = [entry.content for _, _, entry in read_ledger(tmp_path / "state" / "bob" / NAME)]
    assert any(refusal.reason in content for content in contents)


def test_clients_with_models_and_epochs_of_their_own(tmp_path):
    data = federated(
        client("ann", [0, 0, 1, 1, 1], epochs=2),
        client("bob", [1, 2, 2, 3, 3], model="support:WithBatchNorm", lr=0.05),
    )
    root = write_folders(tmp_path / "data", data)
    remote = over(FakeGrid(nodes_of(root, tmp_path / "state")), wanted("protonorm", root), tmp_path / "remote")
    local = locally(wanted("protonorm", root, data__trust_code=True), tmp_path / "local")
    assert numbers(remote) == numbers(local)


@few("lost", [True, False], 1)
def test_a_server_that_dies_is_resumed_with_the_numbers_of_the_undisturbed_run(lost, root, tmp_path):
    """It dies while the answers to round 3 come in; half of the clients have trained, and must not train twice."""
    chosen = apart("protonorm", root, rounds=5)
    die = dying(lambda node, message: training(message) and round_of(message) == 3 and node == 102)
    grid = FakeGrid(nodes_of(root, tmp_path / "state"), die)
    with pytest.raises(KeyboardInterrupt):
        over(grid, chosen, tmp_path / "remote")
    with pytest.raises(ProtofedError, match="pass --resume"):
        over(grid, chosen, tmp_path / "remote")
    forget()
    if lost:  # nodes come back under other numbers
        grid.nodes = {node + 100: config for node, config in grid.nodes.items()}
    remote = over(grid, chosen, tmp_path / "remote", resume=True)
    assert numbers(remote) == numbers(locally(chosen, tmp_path / "local"))


def test_a_second_server_is_refused_before_it_asks_a_node(root, tmp_path):
    chosen = wanted("protonorm", root)
    asked, refused = [], []

    def second(node, message, reply):
        if training(message) and not refused:
            before = (tmp_path / "remote" / "nodes.json").read_bytes()
            grid = FakeGrid(nodes_of(root, tmp_path / "others"), lambda *_: asked.append(node))
            with pytest.raises(ProtofedError, match="another process runs in it") as caught:
                over(grid, chosen, tmp_path / "remote", resume=True)
            refused.append(caught.value)
            assert (tmp_path / "remote" / "nodes.json").read_bytes() == before
        return reply

    remote = over(FakeGrid(nodes_of(root, tmp_path / "state"), second), chosen, tmp_path / "remote")
    assert refused
    assert not asked
    assert numbers(remote) == numbers(locally(chosen, tmp_path / "local"))


def test_one_message_asks_for_scores_and_for_the_next_training(root, tmp_path, monkeypatch):
    """Of three rounds, each would take two messages to a client: training and scores; none follows the last."""
    kinds, trained, train = [], [], Node.train
    monkeypatch.setattr(Node, "train", lambda node, job: trained.append(job.round) or train(node, job))

    def count(node, message, reply):
        kinds.append(message.metadata.message_type)
        return reply

    chosen = wanted("protonorm", root, participation__fraction=0.7)
    remote = over(FakeGrid(nodes_of(root, tmp_path / "state"), count), chosen, tmp_path / "remote")
    assert [kinds.count(kind) for kind in ("train", "evaluate")] == [2, 9]
    assert sorted(trained) == [1, 1, 2, 2, 3, 3]
    assert numbers(remote) == numbers(locally(chosen, tmp_path / "local"))


@pytest.mark.slow
def test_the_server_dies_while_clients_train_for_the_next_round(root, tmp_path):
    """They have done so when it comes back, and answer with what they have; nodes number themselves anew."""
    chosen = wanted("protonorm", root, rounds=5)

    def scored(node, message):
        return message.metadata.message_type == "evaluate" and round_of(message) == 2 and node == 102

    grid = FakeGrid(nodes_of(root, tmp_path / "state"), dying(scored))
    with pytest.raises(KeyboardInterrupt):
        over(grid, chosen, tmp_path / "remote")
    forget()
    remote = over(grid, chosen, tmp_path / "remote", resume=True)
    assert numbers(remote) == numbers(locally(chosen, tmp_path / "local"))


@few("bad", ["left out", "another record", "an error", "no generation", "a bad one", "no message"], 1)
def test_what_is_wrong_with_an_early_answer_is_asked_again(bad, root, tmp_path):
    """The scores of the same message count; the client, asked again, answers as it would have."""
    asked = []

    def spoil(node, message, reply):
        asked.append((node, message.metadata.message_type))
        if message.metadata.message_type != "evaluate" or node != 102 or f"{RECORD}.1" not in reply.content:
            return reply
        values = dict(reply.content[f"{RECORD}.1"])
        values |= {"an error": {"error": "cannot"}, "no generation": {"generation": ""}}.get(bad, {})
        values |= {"a bad one": {"generation": "../../x"}, "no message": {"message": 5}}.get(bad, {})
        content = RecordDict({RECORD: reply.content[RECORD]})
        if bad != "left out":
            content[f"{RECORD}.1"] = ArrayRecord() if bad == "another record" else ConfigRecord(values)
        return Message(content, reply_to=message)

    chosen = wanted("fedproto", root)
    remote = over(FakeGrid(nodes_of(root, tmp_path / "state"), spoil), chosen, tmp_path / "remote")
    assert numbers(remote) == numbers(locally(chosen, tmp_path / "local"))
    assert asked.count((102, "train")) == 3
    assert asked.count((101, "train")) == 1


@pytest.mark.slow
def test_a_round_with_too_few_answers_is_repeated_and_nobody_trains_twice(root, tmp_path):
    lost = []

    def lose_once(node, message, reply):
        if training(message) and round_of(message) == 2 and node in (101, 102) and len(lost) < 2:
            lost.append(node)
            return None
        return reply

    chosen = apart("fedproto", root, participation__min_clients=2, participation__deadline_s=0.01)
    run = over(FakeGrid(nodes_of(root, tmp_path / "state"), lose_once), chosen, tmp_path / "remote")
    local = locally(chosen, tmp_path / "local")
    assert [r.attempts for r in run.rounds] == [1, 2, 1]
    assert [m.client for m in run.rounds[1].missing] == ["ann", "bob"]
    assert [r.accuracy for r in run.rounds] == [r.accuracy for r in local.rounds]
    same_prototypes(local.directory, run.directory)


def test_clients_drawn_by_secret_coins_are_drawn_once(root, tmp_path):
    """Asked for the next round beside their scores, others would train than those that take part."""
    asked = set()

    def note(node, message, reply):
        if training(message):
            asked.add((round_of(message), {101: "ann", 102: "bob", 103: "cid"}[node]))
        return reply

    chosen = wanted("fedproto", root, rounds=6, participation__sampling="poisson", participation__fraction=0.5)
    run = over(FakeGrid(nodes_of(root, tmp_path / "state"), note), chosen, tmp_path / "run")
    assert asked == {(record.round, name) for record in run.rounds for name in record.participants}


def test_a_round_that_cannot_be_completed_ends_the_run_in_one_line(root, tmp_path):
    chosen = wanted("fedproto", root, participation__min_clients=3, participation__deadline_s=0.01)
    grid = FakeGrid(nodes_of(root, tmp_path / "state"), lambda n, m, r: None if n == 103 and training(m) else r)
    with one_line(FederationError, r"round 1: fewer than .*=3 .* 3 attempts; last .*cid: no answer"):
        over(grid, chosen, tmp_path / "remote")


def test_too_few_clients_come(root, tmp_path):
    with pytest.raises(FederationError, match=r"3 clients connected within 0 s, 5 are needed: ann, bob, cid"):
        over(FakeGrid(nodes_of(root, tmp_path / "state")), wanted("fedproto", root), tmp_path / "remote", clients=5)


HEADER = b"PF\x01\x01"
BAD = {
    "truncated": lambda m: m[:-3],
    "a pickle": lambda m: pickle.dumps({"prototypes": [1.0]}),
    "large": lambda m: bytes(200_000_000),
    "nan": lambda m: m[:-4] + b"\x00\x00\xc0\x7f",
    "infinite": lambda m: m[:-4] + b"\x00\x00\x80\x7f",
    "unknown class": lambda m: m[:8] + b"\xff\x00" + m[10:],
    "scaled": lambda m: m[:-4] + b"\x28\x6b\x6e\x5f",
    "empty": lambda m: b"",
}


@few("attack", BAD, 1)
def test_a_malicious_client_is_refused_and_the_others_go_on(attack, root, tmp_path):
    def tampered(node, message, reply):
        if training(message) and node == 102:
            values = dict(reply.content[RECORD])
            return reply_with(message, {**values, "message": BAD[attack](values["message"])})
        return reply

    chosen = apart("fedproto", root, participation__max_refusals=2)
    run = over(FakeGrid(nodes_of(root, tmp_path / "state"), tampered), chosen, tmp_path / "remote")
    refused = [r.refused for r in run.rounds]
    assert [[r.client for r in round_] for round_ in refused] == [["bob"], ["bob"], []]
    assert all(r.field and r.reason for round_ in refused for r in round_)
    assert [r.participants for r in run.rounds][-1] == ["ann", "cid"], "left out after two refusals"
    assert load_file(run.directory / "prototypes.safetensors")["global.prototypes"].isfinite().all()


def test_scores_that_cannot_be_are_not_counted(root, tmp_path):
    def boast(node, message, reply):
        values = dict(reply.content.get(RECORD, {}))
        if "correct" in values and node == 102:
            return reply_with(message, {**values, "correct": json.dumps({"head": 10**9})})
        return reply

    run = over(FakeGrid(nodes_of(root, tmp_path / "state"), boast), wanted("fedproto", root), tmp_path / "remote")
    assert all(r.accuracy.clients["head"][1] is None for r in run.rounds)
    assert all("must be a count from 0 to 7" in r.missing[0].reason for r in run.rounds)


def test_a_node_whose_data_are_gone_says_so(root, tmp_path, caplog):
    grid = FakeGrid(nodes_of(root, tmp_path / "state"))

    def lose(node, message, reply):
        if round_of(message) == 1 if message.metadata.message_type == "evaluate" else False:
            (root / "clients" / "bob" / "train.npz").rename(root / "gone.npz") if node == 102 else None
            forget()
        return reply

    grid.tamper = lose
    run = over(grid, wanted("fedproto", root, rounds=2), tmp_path / "remote")
    assert "its data cannot be used as its own file says" in run.rounds[1].missing[0].reason
    assert "train.npz" in caplog.text
