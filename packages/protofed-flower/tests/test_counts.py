"""Clients that say less of their data than the server would like to know."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from network import FakeGrid, forget, locally, nodes_of, over, wanted, write_folders
from protofed.analysis.report import write_report
from protofed.errors import PayloadError
from protofed.experiments.running import Run
from protofed.methods.contract import Upload
from protofed.stages.robust.vectors import cap_counts
from protofed.untrusted import claims
from protofed.visits.contract import Evaluated
from protofed.wire.schema import Field, Schema
from protofed_flower.messages import Description, Scored, evaluated_values, read_evaluated
from protofed_flower.nodes import RECORD
from protofed_flower.summary import describe_federation, scored
from support import client, federated, few, ordinary


@given(st.integers(0, 2**30), st.sampled_from(claims.COUNTS))
def test_what_is_withheld_is_said_again_in_the_same_way(count, kind):
    told = claims.withheld(count, kind)
    assert claims.withheld(told, kind) == told
    assert (told > 0) == (count > 0)
    if kind == "coarse" and count:
        assert count <= told < 2 * count
        assert told & (told - 1) == 0
    if kind == "none":
        assert told in (0, 1)


@pytest.fixture(scope="module")
def exact(tmp_path_factory) -> Run:
    """A local run of clients that withhold nothing."""
    base = tmp_path_factory.mktemp("exact")
    return locally(wanted("protonorm", write_folders(base / "data", ordinary())), base / "run")


@few("kind", ["coarse", "none"], 1)
@few("where", ["node", "file"], 1)
def test_a_client_that_withholds_its_counts_takes_part(kind, where, exact, root, tmp_path):
    nodes = nodes_of(root, tmp_path / "state")
    if where == "node":
        nodes[102]["counts"] = kind
    else:
        (root / "clients" / "bob" / "client.toml").write_text(f'counts = "{kind}"')
    heard = []

    def listen(node, message, reply):
        if node == 102:
            heard.append(dict(reply.content[RECORD]))
        return reply

    chosen = wanted("protonorm", root)
    run = over(FakeGrid(nodes, listen), chosen, tmp_path / "run")
    assert [r.participants for r in run.rounds] == [["ann", "bob", "cid"]] * 3
    assert [r.bytes for r in run.rounds] == [r.bytes for r in exact.rounds], "the same is learned"
    assert [r.diagnostics for r in run.rounds] == [r.diagnostics for r in exact.rounds]
    (described,) = json.loads(heard[0]["clients"])
    assert described["train"] == {"coarse": [0, 2, 4, 2], "none": [0, 1, 1, 1]}[kind]
    assert described["counts"] == kind
    for record, expected in zip(run.rounds, exact.rounds, strict=True):
        for rule, exact_ones in expected.accuracy.clients.items():
            found = record.accuracy.clients[rule]
            assert found[0::2] == exact_ones[0::2]
            assert found[1] == pytest.approx(exact_ones[1], abs=0.0051)
    (bob,) = [
        c for c in json.loads((run.directory / "federation.json").read_text())["clients"] if c["name"] == "bob"
    ]
    assert bob["counts"] == kind
    write_report([run.directory], tmp_path / "report.html")
    report = (tmp_path / "report.html").read_text()
    assert ("withheld" if kind == "none" else "≤ 8") in report
    assert "Numbers of samples shown of bob" in report


@few(
    ("method", "options", "reason"),
    [
        ("fedavg", {}, "fedavg needs numbers of samples"),
        ("fedproto", {"method__aggregation": "weighted"}, "fedproto needs numbers of samples"),
        ("tinyproto", {}, "tinyproto needs numbers of samples"),
        ("fedproto", {"participation__sampling": "samples"}, "sampling=samples draws clients by numbers"),
    ],
    1,
)
def test_a_method_that_needs_counts_refuses_in_one_line(method, options, reason, root, tmp_path, caplog):
    nodes = nodes_of(root, tmp_path / "state")
    nodes[102]["counts"] = "none"
    run = over(FakeGrid(nodes), wanted(method, root, rounds=2, **options), tmp_path / "run")
    assert run.rounds[0].participants == ["ann", "cid"]
    (left,) = json.loads((run.directory / "federation.json").read_text())["left_out"]
    assert reason in caplog.text
    assert "it withholds numbers of samples that the run needs" in left["reason"]


def test_a_node_does_not_train_what_would_tell_its_counts(root, tmp_path):
    """Whatever the server believes: the node itself refuses."""

    def lie(node, message, reply):
        if message.metadata.message_type == "query":
            nodes[102].pop("counts", None)  # described as exact, by mistake or by another's doing
        if message.metadata.message_type == "evaluate":
            nodes[102]["counts"] = "none"
        return reply

    nodes = nodes_of(root, tmp_path / "state")
    run = over(FakeGrid(nodes, lie), wanted("fedavg", root, rounds=2), tmp_path / "run")
    (missing,) = [m for m in run.rounds[1].missing if m.phase == "training"]
    assert missing.client == "bob"
    assert "it withholds numbers of samples that the run needs" in missing.reason


@pytest.mark.slow
@few("kind", ["coarse", "none"], 1)
def test_sums_of_a_client_that_withholds_its_counts_are_not_scaled(kind, tmp_path, caplog):
    """With its scale given TinyProto needs no counts, but sends sums: what the server does not know it lets be."""
    data = federated(*(client(name, [0] * 40 + [1] * 40) for name in ("ann", "bob", "cid", "dan")))
    root = write_folders(tmp_path / "data", data)
    nodes = nodes_of(root, tmp_path / "state")
    nodes[102]["counts"] = kind
    chosen = wanted("tinyproto", root, rounds=2, method__mu=0.02, robust__rule="none")
    run = over(FakeGrid(nodes), chosen, tmp_path / "run")
    local = locally(chosen, tmp_path / "local")
    assert [r.diagnostics for r in run.rounds] == [r.diagnostics for r in local.rounds], "the same is learned"
    assert not any(r.robust.to_dict() for r in run.rounds)
    forget()
    clipped = wanted("tinyproto", root, rounds=1, method__mu=0.02, robust__rule="clip")
    run = over(FakeGrid(nodes), clipped, tmp_path / "clipped")
    assert run.rounds[0].participants == ["ann", "cid", "dan"]
    (left,) = json.loads((run.directory / "federation.json").read_text())["left_out"]
    assert "it withholds numbers of samples that the run needs" in left["reason"]
    assert "robust.rule=clip has to divide the sums of tinyproto" in caplog.text


@given(st.lists(st.integers(0, 2**20), min_size=1, max_size=5), st.sampled_from(claims.COUNTS))
def test_no_cap_lies_below_what_a_client_has(held, kind):
    K = len(held)
    told = tuple(claims.withheld(n, kind) for n in held)
    d = Description("x", tuple(map(str, range(K))), False, told, told, 0, (6,), counts=kind)
    samples = describe_federation([d], d.classes).clients[0].train
    assert samples.exact == (kind == "exact")
    schema = Schema(
        {
            "counts": Field((K,), "count"),
            "samples": Field((), "count"),
            "classes": Field(("k",), "label"),
            "rows": Field(("k",), "count"),
        },
        K,
    )
    counts = torch.tensor(held)
    payload = {"counts": counts, "samples": counts.sum(), "classes": torch.arange(K), "rows": counts}
    most = {"x": samples.most(K)}
    assert cap_counts(Upload("x", payload), schema, most)[1] == [], "an honest client"
    empty = [k for k in range(K) if not held[k]]
    lie = counts.clone()
    lie[empty] = 1
    capped, fields = cap_counts(Upload("x", {**payload, "counts": lie}), schema, most)
    assert fields == (["counts"] if empty else []), "which classes it has is known"
    assert torch.equal(capped.payload["counts"], counts)


def test_scores_in_shares_stay_within_what_was_described():
    told = Evaluated("x", {"head": 5}, 7, 0.0, ({"head": 1}, 3))
    values = evaluated_values(told, "none")
    assert json.loads(values["correct"]) == {"head": 71}
    found = read_evaluated(values, "x", Scored(10, 20, 4, shares=True), ("head",))
    assert found.correct["head"] == pytest.approx(14.2)
    assert found.validation[0]["head"] == pytest.approx(4 * 0.33)
    for bad in (101, -1, 0.5, float("nan")):
        with pytest.raises(PayloadError, match="correct: head must be a count from 0 to 100"):
            read_evaluated(
                {**values, "correct": json.dumps({"head": bad})}, "x", Scored(10, 20, 0, True), ("head",)
            )
    with pytest.raises(PayloadError, match="must be a count from 0 to 0"):
        read_evaluated(values, "x", Scored(10, 0, 0, True), ("head",))


def test_who_tells_nothing_counts_as_the_others_do_on_average():
    def described(name: str, counts: str, *held: int) -> Description:
        return Description(name, ("0", "1"), False, held, held, held[0], (6,), counts=counts)

    found = scored([described("a", "exact", 4, 6), described("b", "coarse", 16, 4), described("c", "none", 1, 1)])
    assert found["a"] == Scored(10, 10, 4)
    assert found["b"] == Scored(20, 20, 16, shares=True)
    assert found["c"] == Scored(15, 15, 10, shares=True)
    assert scored([described("c", "none", 0, 0)])["c"] == Scored(0, 0, 0, shares=True)
    assert scored([described("c", "none", 1, 0)])["c"] == Scored(1, 1, 1, shares=True)


@pytest.mark.parametrize("wrong", range(4))
@pytest.mark.parametrize("bad", [21, -1, 0.5, float("nan"), float("inf")])
def test_every_rule_is_a_count_up_to_the_samples_described(wrong, bad):
    rules = ("head", "local", "global", "global_own")
    values = evaluated_values(Evaluated("x", dict.fromkeys(rules, 20), 20, 0.0, ({}, 0)))
    assert read_evaluated(values, "x", Scored(10, 20, 0), rules).correct == dict.fromkeys(rules, 20)
    correct = {rule: bad if i == wrong else 20 for i, rule in enumerate(rules)}
    with pytest.raises(PayloadError, match=f"correct: {rules[wrong]} must be a count from 0 to 20, not "):
        read_evaluated({**values, "correct": json.dumps(correct)}, "x", Scored(10, 20, 0), rules)
