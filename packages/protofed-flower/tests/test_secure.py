"""Secure aggregation over Flower's messages: the same sums, and no upload in any of them."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from network import FakeGrid, dying, enrolled, forget, locally, nodes_of, over, wanted
from protofed.errors import CheckpointError, FederationError, OutputError, PayloadError
from protofed.stages.privacy.noise import NO_NOISE
from protofed.stages.secure import sums as secure_sums
from protofed.stages.secure.stage import Offer
from protofed.storage.files import read_tensors
from protofed_flower import held
from protofed_flower.messages import Job
from protofed_flower.peers import TRUSTING, Peers
from protofed_flower.protocol import STAGES, SecureClient, SecureServer, conduct
from support import few, one_line

SECURE = {"secure__aggregation": True, "rounds": 2}
OFFER = Offer(np.zeros(2, dtype=np.uint64), NO_NOISE).to_bytes()


def members(root: Path, state: Path) -> dict[int, dict]:
    """Return nodes that know each other."""
    return enrolled(nodes_of(root, state), state.with_name(f"keys {state.name}"))


def trusting(client: str) -> Peers:
    return TRUSTING


def records(message: Message):
    return [dict(record) for record in message.content.values()] if message.has_content() else []


@few("method", ["fedproto", "fedavg"], 1)
def test_nodes_give_the_numbers_of_a_simulation(method, root, tmp_path):
    chosen = wanted(method, root, **SECURE)
    grid = FakeGrid(members(root, tmp_path / "state"))
    found = over(grid, chosen, tmp_path / "net")
    expected = locally(chosen, tmp_path / "local")
    one, other = (read_tensors(run.directory / "server.safetensors") for run in (expected, found))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[n], other[n]) for n in one)
    for here, there in zip(expected.rounds, found.rounds, strict=True):
        assert here.accuracy == there.accuracy
        assert there.missing == there.refused == []
        for way in ("up", "down"):  # sealed boxes differ in nothing but their content
            assert here.bytes[way] == pytest.approx(there.bytes[way], rel=0.3)


@pytest.mark.slow
def test_clients_clip_themselves_and_their_noise_is_secret(root, tmp_path):
    """Without noise, the numbers of a simulation; with noise, its cost, and other numbers each time."""
    found = {}
    for noise in (0, 0.4):
        chosen = wanted("fedproto", root, privacy__mode="client", privacy__noise=noise, privacy__clip=2.0, **SECURE)
        local = locally(chosen, tmp_path / f"local {noise}")
        run = over(FakeGrid(members(root, tmp_path / f"state {noise}")), chosen, tmp_path / f"net {noise}")
        assert [r.privacy for r in run.rounds] == [r.privacy for r in local.rounds]
        assert all(r.missing == r.refused == [] for r in run.rounds)
        found[noise] = [read_tensors(one.directory / "server.safetensors") for one in (local, run)]
    assert all(torch.equal(found[0][0][n], found[0][1][n]) for n in found[0][0])
    assert not all(torch.equal(found[0.4][0][n], found[0.4][1][n]) for n in found[0.4][0])
    assert (tmp_path / "net 0.4" / "releases").stat().st_size == 2


def test_no_reply_holds_an_upload(root, tmp_path):
    """The vectors at the nodes, and their parts, occur in no message of any node."""
    replies: list[bytes] = []
    vectors: dict[str, bytes] = {}

    def watch(node, message, reply):
        for record in grid.states[node].values():
            if isinstance(record, ConfigRecord) and record.get("vector"):
                vectors[record["name"]] = record["vector"]
        for values in records(reply):
            if "losses" in values:
                assert values.get("message") == b""
            replies.extend(v if isinstance(v, bytes) else str(v).encode() for v in values.values())
        return reply

    grid = FakeGrid(members(root, tmp_path / "state"), watch)
    over(grid, wanted("fedproto", root, **{**SECURE, "rounds": 1}), tmp_path / "net")
    assert set(vectors) == {"ann", "bob", "cid"}
    sent = b"".join(replies)
    for vector in vectors.values():
        numbers = np.frombuffer(vector, dtype="<u8")
        assert vector not in sent
        for number in numbers[numbers > 2**16]:
            assert number.tobytes() not in sent


@few("stage", STAGES, 1)
def test_a_node_that_falls_silent_in_a_stage(stage, tmp_path):
    """Four are left of five: the round goes on without it, or with its vector if that had arrived."""
    import support
    from network import write_folders

    data = support.federated(*(support.client(n, [0, 0, 1, 1, 2, 3] * 2) for n in ("a", "b", "c", "d", "e")))
    root = write_folders(tmp_path / "data", data)

    def silent(node, message, reply):
        asked = records(message)
        return None if node == 105 and asked and asked[0].get("stage") == stage else reply

    grid = FakeGrid(members(root, tmp_path / "state"), silent)
    chosen = wanted("fedproto", root, participation__deadline_s=0.3, **{**SECURE, "rounds": 1})
    run = over(grid, chosen, tmp_path / "net")
    (record,) = run.rounds
    assert {m.client for m in record.missing} == {"e"}
    assert "secure aggregation: no answer in time" in {m.reason for m in record.missing}
    assert record.robust.kept == ""
    assert read_tensors(run.directory / "server.safetensors")["present"].all()


@pytest.mark.slow
@few("times", [1, 2], 1)
def test_too_few_nodes_end_the_run_in_one_line_unless_another_attempt_succeeds(times, root, tmp_path):
    silences = itertools.count(1)

    def silent(node, message, reply):
        asked = records(message)
        away = node == 103 and asked and asked[0].get("stage") == "masked"
        return None if away and next(silences) <= times else reply

    grid = FakeGrid(members(root, tmp_path / "state"), silent)
    chosen = wanted("fedproto", root, participation__deadline_s=0.2, participation__attempts=2, **SECURE)
    if times == 1:
        first, _ = over(grid, chosen, tmp_path / "net").rounds
        assert (first.attempts, first.robust.kept) == (2, "")
        return
    with pytest.raises(FederationError) as error:
        over(grid, chosen, tmp_path / "net")
    assert str(error.value) == (
        "round 1, attempt 2: secure aggregation: 2 of the 3 clients needed sent vectors (secure.threshold); "
        "cid: no answer in time"
    )


def test_a_sum_that_would_overflow_says_what_to_change(root, tmp_path, monkeypatch):
    monkeypatch.setattr(secure_sums, "BITS", 20)
    with pytest.raises(FederationError, match="round 1, attempt 3: secure aggregation: 0 of the 3") as error:
        over(FakeGrid(members(root, tmp_path / "state")), wanted("fedproto", root, **SECURE), tmp_path / "net")
    assert "a number would overflow the sum: lower secure.fraction_bits" in str(error.value)


@few("restarted", [False, True], 1)
def test_a_killed_server_cannot_have_a_sum_made_twice(restarted, root, tmp_path):
    """The second sum, of other clients perhaps, would tell what the difference is.

    New keys do not help, since the upload is the same; so nodes that are restarted, which lose Flower's context,
    must not forget it either.
    """
    chosen = wanted("fedproto", root, participation__attempts=1, **SECURE)
    scored = dying(lambda node, message: message.metadata.message_type == "evaluate")
    grid = FakeGrid(members(root, tmp_path / "state"), scored)
    with pytest.raises(KeyboardInterrupt):
        over(grid, chosen, tmp_path / "net")
    if restarted:
        grid.states.clear()
        forget()
    with pytest.raises(
        FederationError, match="the upload of this round has been added up, and is not offered twice"
    ):
        over(grid, chosen, tmp_path / "net", resume=True)


def test_a_node_offers_its_upload_once(tmp_path):
    """After its shares of a round are out, another sum of the same round would tell two groups apart."""
    state, job, other = RecordDict(), Job("run", "ann", 2, "{}", "{}"), Job("another", "ann", 3, "{}", "{}")
    held.check(tmp_path, job)
    for one in (job, other, replace(job, round=1)):
        assert held.keep(state, one, OFFER, "mlp") == b""
        add_up(state, tmp_path)
    for one, round_number in ((job, 2), (job, 1), (other, 3), (other, 2)):
        with pytest.raises(PayloadError, match=f"the upload of round {round_number} has been added up, and is not"):
            held.check(tmp_path, replace(one, round=round_number))
    held.check(tmp_path, replace(job, round=3))
    held.check(tmp_path, replace(other, round=4))
    held.check(tmp_path, replace(job, client="bob"))


def add_up(state: RecordDict, folder: Path) -> None:
    """Add up what ann keeps and two vectors more."""
    others = {name: SecureClient(name, np.zeros(2, dtype=np.uint64)) for name in ("bob", "cid")}

    def ask(stage, requests):
        for name, request in requests.items():
            if name == "ann":
                yield name, held.answer(state, {**request, "client": name, "stage": stage}, folder, trusting)
            else:
                yield name, others[name].answer(stage, request)

    conduct(SecureServer(["ann", *others], 2, 2), ask)


def test_a_restarted_node_cannot_be_asked_for_the_other_half_of_a_secret(tmp_path):
    """Within a session new keys do suffice: the shares that it held are gone with the context."""
    state, job = RecordDict(), Job("run", "ann", 1, "{}", "{}")
    held.keep(state, job, OFFER, "mlp")
    add_up(state, tmp_path)
    for lost in (RecordDict(), state):
        for stage in STAGES:
            with pytest.raises(PayloadError, match=r"no upload of|has been answered in this round"):
                held.answer(
                    lost, {"client": "ann", "stage": stage, "arrived": [], "lost": ["bob"]}, tmp_path, trusting
                )


def test_a_node_reveals_nothing_that_it_cannot_remember(tmp_path):
    state, job = RecordDict(), Job("run", "ann", 1, "{}", "{}")
    held.keep(state, job, OFFER, "mlp")
    (tmp_path / "ann").write_text("no folder")
    with one_line(OutputError):
        add_up(state, tmp_path)


def test_what_a_node_has_revealed_outlasts_the_visits_that_follow(root, tmp_path):
    chosen = wanted("fedproto", root, **SECURE)
    over(FakeGrid(members(root, tmp_path / "state")), chosen, tmp_path / "net")
    found = [json.loads(file.read_text()) for file in (tmp_path / "state").rglob("revealed.json")]
    assert [list(table.values()) for table in found] == [[2]] * 3


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"run": "3"}', '{"run": -1}', '{"run": true}', '{"run": 1e9}', '{"run": NaN}']
)
def test_a_damaged_record_of_what_was_revealed_is_refused_in_one_line(content, tmp_path):
    (tmp_path / "ann").mkdir()
    (tmp_path / "ann" / "revealed.json").write_text(content)
    with one_line(CheckpointError, r"revealed\.json: "):
        held.check(tmp_path, Job("run", "ann", 1, "{}", "{}"))


def test_odd_requests_are_refused_in_one_line():
    state, job = RecordDict(), Job("run", "ann", 1, "{}", "{}")
    for request in ({}, {"client": "bob"}, {"client": 3, "stage": "keys"}):
        with pytest.raises(PayloadError, match="no upload of"):
            held.answer(state, request, None, trusting)
    held.keep(state, job, OFFER, "mlp")
    with pytest.raises(PayloadError, match="stage: must be keys"):
        held.answer(state, {"client": "ann", "stage": "all"}, None, trusting)
    with pytest.raises(PayloadError, match="out of order"):
        held.answer(state, {"client": "ann", "stage": "unmask"}, None, trusting)
    with pytest.raises(PayloadError, match="expects another vector"):
        held.answer(
            state,
            {"client": "ann", "stage": "keys", "session": bytes(16), "threshold": 2, "length": 3},
            None,
            trusting,
        )
