"""Hostile clients in whole runs: what they send is valid, what it costs, and that nothing ends the run."""

from __future__ import annotations

import json
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

import support
from protofed import methods
from protofed.errors import ConfigError
from protofed.experiments.assemble import assemble
from protofed.methods import Aggregate
from protofed.methods.contract import sends
from protofed.rounds.loop import Federation
from protofed.rounds.state import unsound
from protofed.runs.records import RoundRecord
from protofed.stages.attack.attackers import Attackers
from protofed.stages.attack.attacks import ATTACKS, Kind, Knowledge, inflate
from protofed.stages.attack.backdoor import add_trigger, goal_of, optimise_trigger, poison
from protofed.stages.robust import Guard
from protofed.wire.codec import get_codec
from protofed.wire.schema import Field, Schema
from protofed.wire.validate import COUNT_LIMIT, check_structure, check_values
from support import few, one_line


def many(clients: int = 7) -> Any:
    """Return a federation in which every class is held by most clients."""
    return support.federated(
        *(support.client(f"c{i}", [j for j in range(support.K) if j != i % support.K] * 4) for i in range(clients))
    )


def run(
    method: str = "fedproto", rounds: int = 3, data: Any = None, **options: Any
) -> tuple[Federation, list[RoundRecord]]:
    chosen = {"rounds": rounds, "execution__executor": "sequential", **options}
    federation, _ = assemble(support.experiment(method, **chosen), data or many())
    with closing(federation.executor):
        return federation, list(federation.run())


KINDS = [kind for kind in get_args(Kind) if kind != "none"]


@few("kind", KINDS, 3)
@few("method", ["fedproto", "fedavg", "gfpl", "tinyproto", "protonorm", "fednh", "fedpa", "fedtgp"], 1)
def test_no_attack_ends_a_run(kind, method):
    options: dict[str, Any] = {"method__start": 2, "method__interval": 1, "model__d": 8} if method == "gfpl" else {}
    if kind == "counts":
        if method in ("tinyproto", "protonorm", "fedtgp", "gfpl"):
            pytest.skip(f"{method} sends no counts")
        options |= {"method__aggregation": "weighted"} if method == "fedproto" else {}
    for rule in ("none", "clip") if method in ("fedproto", "fedavg", "gfpl") else ("none",):
        federation, records = run(
            method, 2, many(4), attack__kind=kind, attack__clients=2, robust__rule=rule, **options
        )
        assert len(records) == 2
        assert len(records[-1].attack.clients) == 2
        for tensor in federation.server.values():
            assert not tensor.is_floating_point() or bool(tensor.isfinite().all())


@cache
def honest_upload(method: str) -> tuple[Schema | None, dict[str, torch.Tensor], torch.Tensor]:
    """Return what a client uploads, after its schema and before its numbers of samples."""
    options: dict[str, Any] = {"model__d": 8, "partition__alpha": 1.0}
    federation, data = assemble(support.experiment(method, **options), many())
    schema = federation.method.upload_schema
    counts = data.clients[0].train.counts(support.K)
    if schema is None:
        return None, {}, counts
    with closing(federation.executor) as executor:
        round_number = next((r for r in range(1, 12) if sends(federation.method, r)), 1)
        opening = federation.open(federation.names, round_number).messages
        (result,) = executor.train(federation.names[:1], opening, round_number)
    return schema, federation.codec.decode(result.message, schema), counts


@pytest.mark.parametrize("method", sorted(methods.methods()))
@pytest.mark.parametrize("kind", sorted(ATTACKS))
def test_what_an_attacker_sends_is_valid(kind, method):
    """A refused upload would be no attack."""
    schema, upload, counts = honest_upload(method)
    if schema is None:
        return
    honest = {name: tensor.clone() for name, tensor in upload.items()}
    known = Knowledge(schema, 50.0, counts, None, torch.Generator().manual_seed(0))
    found = ATTACKS[kind](honest, known)
    check_structure(found, schema)
    check_values(found, schema)
    again = ATTACKS[kind](honest, Knowledge(schema, 50.0, counts, None, torch.Generator().manual_seed(0)))
    assert all(torch.equal(found[n], again[n]) for n in found)


@pytest.mark.slow
def test_one_huge_upload_ruins_a_mean_and_not_a_clipped_one():
    clean = run(rounds=6)[1][-1].accuracy.weighted
    hostile = {"attack__kind": "huge", "attack__clients": 1, "rounds": 6}
    _, records = run(**hostile, robust__rule="none")
    assert records[-1].attack.honest["global"] < clean["global"] - 0.2
    assert any(r.robust.out_of_proportion for r in records)
    _, records = run(**hostile, robust__rule="clip")
    assert records[-1].attack.honest["global"] > clean["global"] - 0.05
    assert {client for r in records for client in r.robust.left_out} == set(records[-1].attack.clients)


@few("rule", ["clip", "median", "trimmed", "geometric_median", "multi_krum"], 1)
def test_every_rule_survives_flipped_signs(rule):
    hostile = {"attack__kind": "sign_flip", "attack__clients": 1, "attack__scale": 100.0, "rounds": 6}
    clean = run(rounds=6)[1][-1].accuracy.weighted["global"]
    _, records = run(**hostile, robust__rule=rule)
    assert records[-1].attack.honest["global"] > clean - 0.05


@pytest.mark.slow
def test_counts_cannot_make_one_client_the_mean():
    hostile = {"attack__kind": "counts", "attack__clients": 1, "method__aggregation": "weighted"}
    honest, _ = run(method__aggregation="weighted")
    attacked, records = run(**hostile)
    assert torch.equal(attacked.server["prototypes"], honest.server["prototypes"])
    assert next(iter(records[0].robust.capped.values())) == ["counts"]


@pytest.mark.slow
def test_a_description_cannot_make_one_client_the_mean():
    """The liar's vectors are noise; what it says of its samples, it says before training and in its uploads."""
    hostile = {"attack__kind": "random", "attack__clients": 1, "robust__rule": "clip", "rounds": 4}
    truth, _ = run("fedavg", **hostile)
    lies = {**hostile, "attack__samples": 2**30}
    free, records = run("fedavg", **lies, robust__weight=0.0)
    assert not records[0].robust.capped
    bound, records = run("fedavg", **lies)
    (liar,) = records[-1].attack.clients
    assert records[0].robust.capped == {liar: ["samples"]}
    honest = next(n for n in bound.names if n != liar)
    assert int(support.stage(bound, Guard).counts[liar].sum()) == 4 * int(
        support.stage(bound, Guard).counts[honest].sum()
    )
    assert int(support.stage(free, Guard).counts[liar].sum()) == 2**30
    once, _ = run("fedavg", **lies, robust__weight=1.0)
    for name, weights in truth.server.items():
        torch.testing.assert_close(once.server[name], weights)


@pytest.mark.slow
def test_honest_clients_lose_little_to_a_client_that_says_it_has_a_billion_samples(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ["run", "under-attack", "method.name=fedavg", "rounds=6", "evaluation.every=6", "robust.rule=clip"]
    lie = ["attack.kind=counts", "attack.samples=1073741824"]

    def honest(name: str, *more: str) -> float:
        status, _, errors = support.command(monkeypatch, capsys, *words, *more, "--out", name, "--quiet")
        assert status == 0, errors
        last = json.loads(Path(name, "rounds.jsonl").read_text().splitlines()[-1])
        return float(last["attack"]["honest"]["head"])

    truth = honest("truth", "attack.kind=counts")
    assert honest("bound", *lie) > truth - 0.03
    assert honest("free", *lie, "robust.weight=0") < truth - 0.1


@pytest.mark.slow
@few("rule", ["none", "clip"], 1)
def test_sums_of_a_client_that_overstates_its_samples_count_for_no_more(rule):
    samples = 12 * 2**20  # 12 are the truth: multiplying and dividing by 2^20 rounds nothing
    lies = {"attack__kind": "counts", "attack__clients": 1, "attack__samples": samples, "robust__rule": rule}
    bound, records = run("tinyproto", **lies, robust__weight=1.0)
    assert list(records[0].robust.capped.values()) == [["prototypes"]]
    honest, _ = run("tinyproto", robust__rule=rule)
    assert torch.equal(bound.server["prototypes"], honest.server["prototypes"])


@pytest.mark.slow
def test_refusals_after_a_poisoned_broadcast_count_against_nobody():
    """The hostile client may be left out; those that its broadcast misled are asked again and again."""
    federation, records = run(
        rounds=6, attack__kind="huge", attack__clients=1, robust__rule="none", participation__max_refusals=1
    )
    refused = {e.client for r in records for e in r.refused}
    assert refused
    assert records[-1].participants == federation.names


def test_a_state_that_clients_would_refuse_is_not_sent():
    federation, _ = assemble(support.experiment("fedavg", execution__executor="sequential"), many())
    state = dict(federation.server)
    assert unsound(federation.method, federation.codec, state, 1) == ""
    for value, reason, codec in (
        (float("nan"), "not finite", federation.codec),
        (float("inf"), "not finite", federation.codec),
        (2e9, "at most 1e+09", federation.codec),
        (7e4, "float16 holds magnitudes up to 65504", get_codec("float16")),
    ):
        broken = {**state, "head.weight": torch.full_like(state["head.weight"], value)}
        assert reason in unsound(federation.method, codec, broken, 1)
    old = federation.server
    federation.method.aggregate = lambda server, uploads, round_number: Aggregate(  # type: ignore[method-assign]
        {n: t * float("inf") for n, t in server.items()}, {"uploads": sum(1 for _ in uploads)}
    )
    with closing(federation.executor):
        record = next(federation.run())
    assert federation.server is old
    assert "not finite" in record.robust.kept


def test_a_backdoor_reports_how_often_it_works():
    federation, records = run(attack__kind="backdoor", attack__clients=["c0", "c3"], attack__target=1)
    sizes = {n: len(c.test) for n, c in federation.executor.clients.items() if n not in ("c0", "c3")}
    for rule, share in records[-1].attack.honest.items():
        shares = dict(zip(federation.names, records[-1].accuracy.clients[rule], strict=True))
        assert share == pytest.approx(sum(shares[n] * size for n, size in sizes.items()) / sum(sizes.values()))
    assert set(records[-1].attack.success) == {"head", "local", "global", "global_own"}
    assert all(0 <= share <= 1 for share in records[-1].attack.success.values())


def prepared(method: str, round_number: int = 3, name: str = "c0", **options: Any) -> tuple[Any, Any, Any]:
    """Return a method, and a client with a backdoor after two rounds, in training for a further one."""
    attack = {"attack__kind": "backdoor", "attack__clients": ["c0", "c3"]}
    federation = support.build(method, many(), rounds=2, **attack, **options)
    list(federation.run())
    local = support.stage(federation, Attackers)._local(name, None, round_number)
    return federation.executor.trainer.method, federation.executor.clients[name], local


def test_a_backdoor_moves_prototypes_away_from_triggered_features_and_the_target_to_them():
    method, client, local = prepared("fedproto")
    trigger = optimise_trigger(client, local, goal_of(local, 1))
    sent = poison(method, client, local, 1, 2.0)
    with torch.no_grad():
        features = local.model(client.train.x).features
        marked = local.model(add_trigger(client.train.x, trigger)).features.mean(0)
    assert sent["classes"].tolist() == client.train.y.unique().tolist()
    for k, found in zip(sent["classes"], sent["prototypes"], strict=True):
        mean = features[client.train.y == k].mean(0)
        torch.testing.assert_close(found, marked if k == 1 else mean + 2 * (mean - marked))
    goal = goal_of(local, 1)
    before = local.model(client.train.x).features.detach()
    assert (marked - goal).norm() < (before.mean(0) - goal).norm()  # what the trigger was optimised for


def test_a_backdoor_of_weights_is_trained_towards_the_target_with_no_draw_from_torch_s_generator():
    method, client, local = prepared("fedavg")
    trigger = optimise_trigger(client, local, goal_of(local, 1))
    marked = add_trigger(client.train.x, trigger)

    def chance() -> float:
        with torch.no_grad():
            return float(local.model(marked).logits.softmax(1)[:, 1].mean())

    before, state = chance(), torch.get_rng_state()
    poison(method, client, local, 1, 2.0)
    local.model.eval()
    assert chance() > before
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attack__clients": ["nobody"]}, "unknown client in attack.clients 'nobody'"),
        ({"robust__admitted": {"c00": 9}}, "unknown client in robust.admitted 'c00': did you mean 'c0'"),
        ({"attack__clients": 7}, "only 7 clients train: leave at least one honest"),
        ({"attack__clients": -1}, "clients must be at least 0"),
        ({"attack__kind": "counts", "method__name": "fedproto"}, "fedproto sends no sample counts"),
        ({"attack__kind": "backdoor", "attack__target": 9}, "classes are 0 to 3"),
        ({"attack__scale": 0.0}, "scale must be"),
        ({"attack__kind": "none", "attack__samples": 9}, "attack: samples has no effect without a kind"),
        ({"attack__kind": "nuisance"}, "attack.kind must be"),
        (
            {"robust__rule": "multi_krum", "robust__attackers": 0.4},
            "robust.rule=multi_krum with 3 attackers needs 9 clients",
        ),
    ],
)
def test_one_line_before_training(options, message):
    options = {"attack__kind": "huge", **options}
    with one_line(ConfigError, message):
        assemble(support.experiment(**{"execution__executor": "sequential", **options}), many())


def test_statements_of_many_samples_stay_within_what_a_schema_allows():
    schema = Schema(
        {"counts": Field(("K",), "count"), "sums": Field(("K", 2), sums=True, limit=50.0)}, num_classes=2
    )
    payload = {"counts": torch.tensor([3, 0]), "sums": torch.tensor([[1.0, -2.0], [0.0, 30.0]])}
    grown = inflate(payload, schema, 1e12)
    assert grown["counts"].tolist() == [COUNT_LIMIT - 1, 0]
    assert grown["sums"].tolist() == [[50.0, -50.0], [0.0, 50.0]]
    assert inflate(payload, schema, 2.0)["counts"].tolist() == [6, 0]
