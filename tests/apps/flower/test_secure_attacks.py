"""Attacks of a server on secure aggregation over Flower's messages, on nodes with a roster and on trusting ones.

``TRUSTING`` nodes believe the server, as all did until 0.2.0.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import support
from attacks import invent, split
from network import FakeGrid, enrolled, nodes_of, over, wanted, write_folders
from protofed.apps.flower import held
from protofed.apps.flower.grid import GridExecutor
from protofed.apps.flower.messages import Job
from protofed.errors import FederationError, PayloadError
from protofed.stages.secure.peers import TRUSTING
from protofed.stages.secure.protocol import SecureServer, conduct
from support import few

SECURE = {"secure__aggregation": True, "rounds": 1, "participation__attempts": 1}
ask_nodes = GridExecutor.ask


class Read(BaseException):
    """The end of an attack, with the vector that the server has read, and those that the nodes hold."""


def attacked(monkeypatch, grid: FakeGrid, root: Path, out: Path, attack, *words: object):
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
    over(grid, wanted("fedproto", root, **SECURE), out)


def five(path: Path) -> Path:
    clients = (support.client(n, [0, 0, 1, 1, 2, 3] * 2) for n in ("ann", "bob", "cid", "dan", "eve"))
    return write_folders(path, support.federated(*clients))


@few(
    ("attack", "words", "counted", "reason"),
    [
        (invent, ([], 1), ["ann"], "its roster, least-peers or least-threshold ask for other or"),
        (invent, (["mia"], 2), ["ann"], "its roster, least-peers or least-threshold ask for other or"),
        (
            invent,
            (["mia", "max"], 3),
            ["ann"],
            "its roster, least-peers or least-threshold ask for other or more clients",
        ),
        (
            invent,
            (["bob", "cid"], 3),
            ["ann"],
            "another client was told another plan, network, broadcast or threshold",
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
    with pytest.raises((PayloadError, FederationError)) as error:
        attacked(monkeypatch, grid, root, tmp_path / "out", attack, *words)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


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


@few("trusting", [True, False], 1)
def test_a_server_that_gives_one_node_a_network_of_its_own(trusting, root, tmp_path, monkeypatch):
    """Beside dead units of all others, the sum is one client's own class means and a constant."""
    make = GridExecutor._job

    def job(executor, name, *rest):
        made = make(executor, name, *rest)
        other = {"name": "identity", "options": {}} if name == "ann" else {"options": {"hidden": [1]}}
        plan = json.loads(made.config)
        return replace(made, config=json.dumps({**plan, "model": {**plan["model"], **other, "d": 6}}))

    def honest(ask, length):
        return conduct(SecureServer(["ann", "bob", "cid"], 3, length), ask)

    monkeypatch.setattr(GridExecutor, "_job", job)
    monkeypatch.setitem(SECURE, "model__d", 6)
    grid = FakeGrid(enrolled(nodes_of(root, tmp_path / "state"), tmp_path / "keys"))
    if trusting:
        monkeypatch.setattr(held, "peers_of", lambda config, name: TRUSTING)
        with pytest.raises(Read):
            attacked(monkeypatch, grid, root, tmp_path / "out", honest)
        return
    with pytest.raises(FederationError, match="another client was told another plan, network"):
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
