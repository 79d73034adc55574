"""Attacks of a server on secure aggregation over Flower's messages, on nodes with a roster and on trusting ones.

``TRUSTING`` nodes believe the server, as all did until 0.2.0.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from attacks import invent, split, until
from flwr.app import Context

import support
from network import FakeGrid, enrolled, forget, nodes_of, over, reply_with, training, wanted, write_folders
from protofed.errors import FederationError, PayloadError
from protofed_flower import held
from protofed_flower.grid import GridExecutor
from protofed_flower.ledger import NAME, read_ledger
from protofed_flower.messages import Job
from protofed_flower.nodes import RECORD
from protofed_flower.peers import TRUSTING
from protofed_flower.protocol import STAGES, SecureServer, conduct
from support import few, one_line

SECURE = {"secure__aggregation": True, "rounds": 1, "participation__attempts": 1}
ask_nodes = GridExecutor.ask


class Read(BaseException):
    """The end of an attack, with the vector that the server has read, and those that the nodes hold."""


def attacked(monkeypatch, grid: FakeGrid, root: Path, out: Path, attack, *words: object, **options: object):
    """Run until the first round is to be summed up, and let the server attack instead; return what it has read."""

    def ask(executor, stage, requests):
        def strictly(stage, requests):
            for name, answer in ask_nodes(executor, stage, requests):
                if isinstance(answer, str):
                    raise PayloadError(f"{name}: {answer}")
                yield name, answer

        records = [record for state in grid.states.values() for record in state.values()]
        vectors = {r["name"]: np.frombuffer(r["vector"], dtype="<u8") for r in records}
        raise Read(attack(strictly, next(iter(requests.values()))["length"], *words), vectors)

    monkeypatch.setattr(GridExecutor, "ask", ask)
    over(grid, wanted("fedproto", root, **SECURE, **options), out)


def five(path: Path) -> Path:
    clients = (support.client(n, [0, 0, 1, 1, 2, 3] * 2) for n in ("ann", "bob", "cid", "dan", "eve"))
    return write_folders(path, support.federated(*clients))


@few(
    ("attack", "words", "counted", "reason"),
    [
        (
            invent,
            (["mia", "max"], 3),
            ["ann"],
            "its roster, least-peers or least-threshold ask for other or more clients",
        ),
        (
            split,
            (["ann", "bob", "cid", "dan", "eve"],),
            ["ann", "bob"],
            "a stage of secure aggregation does not go together with the earlier ones",
        ),
    ],
    2,
)
@few("trusting", [True, False], 1)
def test_a_server_reads_nothing_of_nodes_that_have_a_roster(
    trusting, attack, words, counted, reason, tmp_path, monkeypatch
):
    root = five(tmp_path / "data")
    grid = FakeGrid(enrolled(nodes_of(root, tmp_path / "state"), tmp_path / "keys"))
    if trusting:
        monkeypatch.setattr(held, "peers_of", lambda config, name: TRUSTING)
        with pytest.raises(Read) as read:
            attacked(monkeypatch, grid, root, tmp_path / "out", attack, *words)
        found, vectors = read.value.args
        assert np.array_equal(found, sum((vectors[name] for name in counted), np.zeros(len(found), np.uint64)))
        return
    with one_line((PayloadError, FederationError), says=reason):
        attacked(monkeypatch, grid, root, tmp_path / "out", attack, *words)


@few("trusting", [True, False], 1)
def test_a_server_that_gives_one_node_a_finer_fixed_point(trusting, root, tmp_path, monkeypatch):
    """The sum would show ann's numbers in its high digits, and those of all others only in the low ones."""
    make = GridExecutor._job

    def job(executor, name, *rest):
        made = make(executor, name, *rest)
        bits = 40 if name == "ann" else 8
        assert '"fraction_bits": 24' in made.config
        return replace(made, config=made.config.replace('"fraction_bits": 24', f'"fraction_bits": {bits}'))

    def honest(ask, length):
        return conduct(SecureServer(["ann", "bob", "cid"], 3, length), ask)

    monkeypatch.setattr(GridExecutor, "_job", job)
    grid = FakeGrid(enrolled(nodes_of(root, tmp_path / "state"), tmp_path / "keys"))
    if trusting:
        monkeypatch.setattr(held, "peers_of", lambda config, name: TRUSTING)
        with pytest.raises(Read) as read:
            attacked(monkeypatch, grid, root, tmp_path / "out", honest)
        found, vectors = read.value.args
        of_ann = vectors["ann"].view(np.int64)
        assert np.abs(found.view(np.int64) - of_ann).max() < 2**16 < 2**36 < np.abs(of_ann).max()
        return
    with pytest.raises(
        FederationError,
        match="ann: node: refused, another client was told another plan, network, broadcast or threshold",
    ):
        attacked(monkeypatch, grid, root, tmp_path / "out", honest)


def test_what_clients_must_have_been_told_alike():
    job = Job("run", "ann", 2, '{"rounds": 3}', '{"classes": ["a", "b"], "place": 1}', b"broadcast")
    same = replace(job, client="bob", order=7, after="0", summary=job.summary.replace("1", "2"))
    assert held._visit(job, "mlp") == held._visit(same, "mlp")
    assert held._visit(job, "mlp") != held._visit(job, "identity")
    others = [
        replace(job, run="other"),
        replace(job, round=3),
        replace(job, config='{"rounds": 4}'),
        replace(job, summary=job.summary.replace('"a", "b"', '"b", "a"')),
        replace(job, message=b"another"),
        replace(job, message=b""),
        replace(job, message=None),
    ]
    assert len({held._visit(one, "mlp") for one in [job, *others]}) == 8


@pytest.mark.parametrize(
    ("without", "secure", "reason"),
    [
        (
            ("roster", "authority", "key"),
            True,
            "secure aggregation: the node has no roster to know the other clients by: "
            'add roster="FILE" authority="FILE" key="FILE" to --node-config',
        ),
        (("key",), True, 'the node has no key to know the other clients by: add key="FILE" to --node-config'),
        ((), False, "secure.aggregation=false, but this node has a roster"),
    ],
)
def test_a_node_and_a_run_that_disagree_part_before_any_training(without, secure, reason, root, tmp_path, caplog):
    nodes = enrolled(nodes_of(root, tmp_path / "state"), tmp_path / "keys")
    nodes = {number: {k: v for k, v in node.items() if k not in without} for number, node in nodes.items()}
    with pytest.raises(FederationError) as error:
        over(
            FakeGrid(nodes), wanted("fedproto", root, **{**SECURE, "secure__aggregation": secure}), tmp_path / "out"
        )
    assert "0 clients connected" in str(error.value)
    assert "secure aggregation, the roster and the plan do not go together there" in str(error.value)
    assert reason in caplog.text
    assert "\n" not in str(error.value)
    assert {path.name for path in (tmp_path / "state").glob("*/*")} == {"ledger.jsonl"}  # of the refusals


def test_a_server_that_turns_secure_aggregation_off_after_the_nodes_were_asked(root, tmp_path, monkeypatch):
    make = GridExecutor._job

    def job(executor, *rest):
        made = make(executor, *rest)
        return replace(made, config=made.config.replace('"aggregation": true', '"aggregation": false'))

    monkeypatch.setattr(GridExecutor, "_job", job)
    sent = []

    def watch(node, message, reply):
        sent.extend(dict(record) for record in reply.content.values())
        return reply

    grid = FakeGrid(enrolled(nodes_of(root, tmp_path / "state"), tmp_path / "keys"), watch)
    with pytest.raises(FederationError, match=r"refused, secure\.aggregation: "):
        over(grid, wanted("fedproto", root, **SECURE), tmp_path / "out")
    assert not any("message" in values for values in sent)


# A server that asks again, or makes lists of its own.


def eight(path: Path) -> Path:
    names = ("ann", "bob", "cid", "dan", "eve", "fay", "gus", "hal")
    return write_folders(path, support.federated(*(support.client(n, [0, 0, 1, 1, 2, 3] * 2) for n in names)))


def finished(server: SecureServer, ask, silent: Collection[str] = ()):
    """Go on to the end of a round of whose vectors all have arrived, though some fall silent then."""
    for stage in STAGES[3:]:
        requests = {name: r for name, r in server.requests(stage).items() if name not in silent}
        for name, answer in ask(stage, requests):
            server.take(stage, name, answer)
        server.close(stage)
    return server.total()


@few("allowed", [1.2, None, 100.0], 2)
def test_an_upload_that_others_added_up_is_paid_for_again(allowed, tmp_path, monkeypatch, caplog):
    """Ann falls silent after her masked vector, which the others add up, and is asked again, among others.

    Both sums have her upload, with new noise each. A node that requires ε refuses more; its ledger counts both.
    """
    root, noise = eight(tmp_path / "data"), {"privacy__mode": "client", "privacy__noise": 2.0}
    nodes = enrolled(nodes_of(root, tmp_path / "state"), tmp_path / "keys")
    sent = {}

    def watch(node, message, reply):
        if training(message):
            sent[node] = message
        return reply

    grid = FakeGrid(nodes, watch)

    def spent(name: str) -> list[float]:
        found = [entry for _, _, entry in read_ledger(tmp_path / "state" / name / NAME)]
        return [entry.epsilon for entry in found if entry.epsilon is not None]

    if allowed is not None:  # as a multiple of what one round costs
        with pytest.raises(Read):
            attacked(monkeypatch, grid, root, tmp_path / "first", lambda ask, length: None, **noise)
        nodes[101] |= {"privacy": "client", "epsilon": allowed * spent("ann")[-1]}
        shutil.rmtree(tmp_path / "state")
        forget()
    replies = []

    def attack(ask, length):
        first = finished(
            until("survivors", ["ann", "bob", "cid", "dan", "eve"], 3, length, ask), ask, {"ann", "bob"}
        )
        context = Context(1, 101, nodes[101], grid.states[101], {})
        replies.append(dict(grid.app(sent[101], context).content[RECORD]))
        if "error" in replies[0]:
            raise PayloadError(replies[0]["error"])
        return first, conduct(SecureServer(["ann", "fay", "gus", "hal"], 3, length), ask)

    with pytest.raises((Read, FederationError)) as end:
        attacked(monkeypatch, grid, root, tmp_path / "out", attack, **noise)
    if allowed == 1.2:
        assert str(end.value).endswith("spent")
        assert "1 repeated, but this node allows" in caplog.text
        return
    first, second = spent("ann")[:2]
    assert second > 1.2 * first
    assert spent("bob") == [first]


# Clients that are hostile to the others.


def replaying(stage: str, *fields: str):
    """Return what lets eve answer a stage of the second round as she did in the first."""
    before = {}

    def tamper(values):
        if (found := before.setdefault(stage, values)) is values:
            return values
        return {**values, **{field: found[field] for field in fields}}

    return stage, tamper


def altering(stage: str, **fields):
    return stage, lambda values: {**values, **{n: change(values[n]) for n, change in fields.items()}}


UNSIGNED = r"another client was told another plan, network, broadcast or threshold \(eve\)"
UNSEALED = r"a stage of secure aggregation does not go together with the earlier ones: .* \(eve\)"
"""What leaves a node; the sentence stays in its log."""


@few(
    ("how", "outcome"),
    [
        (replaying("unmask", "seeds"), None),
        (replaying("masked", "masked"), "sums must be from 0 to"),
        (replaying("keys", "pairwise", "sealing", "signature"), UNSIGNED),
        (replaying("shares", "boxes"), UNSEALED),
        (altering("shares", boxes=lambda b: [bytes(len(one)) for one in b]), UNSEALED),
        (replaying("survivors", "signature"), None),
        (altering("unmask", seeds=lambda s: [b"" for _ in s]), None),
    ],
    2,
)
def test_a_hostile_client_is_named_and_no_wrong_sum_is_taken(how, outcome, tmp_path):
    """What prevents any sum ends the run in one line; otherwise its numbers are those of an honest one."""
    stage, tamper = how
    root = five(tmp_path / "data")

    def hostile(node, message, reply):
        asked = dict(message.content.get(RECORD, {})) if message.has_content() else {}
        if node != 105 or asked.get("stage") != stage or "error" in reply.content[RECORD]:
            return reply
        return reply_with(message, tamper(dict(reply.content[RECORD])))

    chosen = wanted("fedproto", root, **{**SECURE, "rounds": 2})
    nodes = enrolled(nodes_of(root, tmp_path / "state"), tmp_path / "keys")
    if outcome is not None:
        with one_line(FederationError, outcome):
            over(FakeGrid(nodes, hostile), chosen, tmp_path / "out")
        return
    run = over(FakeGrid(nodes, hostile), chosen, tmp_path / "out")
    shutil.rmtree(tmp_path / "state")
    forget()
    expected = over(FakeGrid(nodes), chosen, tmp_path / "honest")
    assert [r.accuracy for r in run.rounds] == [r.accuracy for r in expected.rounds]
    assert {m.client for r in run.rounds for m in r.missing} <= {"eve"}


def test_a_sybil_with_the_key_of_a_member_or_a_name_of_its_own(tmp_path):
    """Its own node believes that mia is in the roster; the others know better."""
    root = five(tmp_path / "data")
    nodes = enrolled(nodes_of(root, tmp_path / "state"), tmp_path / "keys")
    nodes[105] = {**nodes[105], "client": "mia"}
    run = over(FakeGrid(nodes), wanted("fedproto", root, **SECURE), tmp_path / "out", clients=4)
    (left,) = json.loads((run.directory / "federation.json").read_text())["left_out"]
    assert "a roster that lists every client" in left["reason"]
    assert run.rounds[0].participants == ["ann", "bob", "cid", "dan"]


def test_one_node_with_another_list_is_lost_alone(tmp_path):
    """Bob's operator asks for more clients than there are: the others add up theirs."""
    root = five(tmp_path / "data")
    nodes = enrolled(nodes_of(root, tmp_path / "state"), tmp_path / "keys")
    nodes[102]["least-peers"] = 5
    run = over(FakeGrid(nodes), wanted("fedproto", root, **SECURE), tmp_path / "out")
    (missing,) = run.rounds[0].missing
    assert missing.client == "bob"
    assert (
        "its roster, least-peers or least-threshold ask for other or more clients than the run has"
        in missing.reason
    )
