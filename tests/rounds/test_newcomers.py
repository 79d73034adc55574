"""Clients that join after training: they receive and train, and send nothing."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import torch

from protofed.errors import ConfigError
from protofed.experiments.assemble import assemble
from protofed.methods import methods
from protofed.rounds.checkpoint import Saving, load_checkpoint
from protofed.rounds.participation import Participation
from protofed.storage.snapshots import flatten
from support import client, experiment, federated, few, one_line, ordinary, same, told

pytestmark = pytest.mark.fast

ROUNDS, JOINED = 4, 2


def build(method: str = "fedproto", data=None, **overrides):
    """Return a federation in which the last client joins after two of four rounds."""
    options = {"rounds": ROUNDS, "participation__newcomers": 1, "participation__newcomer_rounds": JOINED}
    return assemble(experiment(method, **{**options, **overrides}), data or ordinary())[0]


def snapshot(federation, name: str) -> dict[str, torch.Tensor]:
    return {n: t.clone() for n, t in flatten(federation.executor.clients.snapshot(name)).items()}


@pytest.mark.parametrize("method", sorted(methods()))
def test_the_others_do_not_notice_them(method):
    """Before they join, only the others train; from then on, server and other clients stay as they are."""
    federation = build(method)
    names, initial = federation.names, snapshot(federation, "cid")
    server, others = {}, {}
    for record in federation.run():
        joined = record.round > ROUNDS - JOINED
        assert record.participants == (["cid"] if joined else ["ann", "bob"])
        assert not record.refused
        for scores in record.accuracy.clients.values():
            assert [s is None for s in scores] == [False, False, not joined]
        if not joined:
            assert same(snapshot(federation, "cid"), initial)
            assert record.newcomers is None
            server = {n: t.clone() for n, t in federation.server.items()}
            others = {n: snapshot(federation, n) for n in names[:2]}
            continue
        assert record.bytes["up"] == record.parameters["up"] == 0
        assert same(dict(federation.server), server)
        for name in names[:2]:
            now, before = (
                {n: t for n, t in kept.items() if n.startswith("model.")}
                for kept in (snapshot(federation, name), others[name])
            )
            assert now
            assert same(now, before)
        assert record.newcomers.clients == {
            rule: [None, None, scores[2]] for rule, scores in record.accuracy.clients.items()
        }
        assert not same(snapshot(federation, "cid"), initial)


@few("executor", ["fused", "workers"], 1)
def test_it_is_the_same_on_every_executor(executor):
    expected = [r.to_dict() for r in build("beacon", execution__precision="fp64", wire__codec="float64").run()]
    federation = build(
        "beacon",
        execution__executor=executor,
        execution__workers=1,
        execution__precision="fp64",
        wire__codec="float64",
    )
    with closing(federation.executor):
        found = [r.to_dict() for r in federation.run()]
    for a, b in zip(expected, found, strict=True):
        assert all(b.get(part) == a.get(part) for part in ("accuracy", "newcomers", "bytes", "participants"))
        assert b["losses"] == pytest.approx(a["losses"])


@few("stop", [2, 3], 1)
def test_going_on_among_the_rounds_that_they_joined(stop, tmp_path: Path):
    """Stopped before the first or in the middle, a run goes on as if it had not been."""

    whole = build("beacon")
    expected = told(whole.run())
    stopped = build("beacon")
    first = told(record for _, record in zip(range(stop), stopped.run(), strict=False))
    Saving(tmp_path).save(stopped.state, stopped.executor.clients)
    resumed = build("beacon")
    assert load_checkpoint(tmp_path, resumed.state, resumed.executor.clients)
    assert first + told(resumed.run()) == expected
    assert all(same(snapshot(resumed, n), snapshot(whole, n)) for n in whole.names)


def test_those_without_training_samples_are_no_newcomers():
    """The last clients that train join; who never trains is scored from the start."""
    data = federated(*ordinary().clients, client("nobody", [], [0, 1]))
    federation = build("fedproto", data)
    assert federation.participation.newcomers == {"cid"}
    first = next(federation.run())
    assert [s is None for s in first.accuracy.clients["head"]] == [False, False, True, False]


def test_a_robust_rule_must_suit_those_who_train_together():
    """Of five clients, four train together: too few for trimming with two attackers, although five are not."""
    data = federated(*ordinary().clients, client("dan", [0, 1, 2, 3]), client("eve", [0, 1]))
    chosen = {"robust__rule": "trimmed", "robust__attackers": 0.4}
    assemble(experiment("fedavg", rounds=2, **chosen), data)
    with pytest.raises(ConfigError, match="needs 5 clients in a round, not 4"):
        build("fedavg", data, **chosen)


def test_hostile_newcomers_send_nothing():
    """They are attackers without a message, and nothing is made up for them."""
    federation = build("fedproto", attack__kind="random", attack__clients=["cid"])
    for record in federation.run():
        assert record.bytes["up"] == 0 or record.round <= ROUNDS - JOINED
        assert record.attack is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"newcomers": 3}, "newcomers=3 leaves nobody to train before they join: at most 2 of 3 clients can"),
        ({"newcomers": 9}, "newcomers=9 leaves nobody to train before they join"),
        ({"newcomers": -1}, "participation.newcomers must be at least 0"),
        ({"newcomer_rounds": 0}, "participation.newcomer_rounds must be at least 1"),
        ({"newcomer_rounds": 4}, "newcomer_rounds=4 leaves no rounds for training: rounds is 4"),
    ],
)
def test_bad_numbers_are_told_in_one_line(options, message):
    with one_line(ConfigError, message):
        build(**{f"participation__{n}": v for n, v in options.items()})


def test_nodes_of_a_network_join_when_they_like():
    federation = assemble(experiment(), ordinary())[0]
    federation.executor.remote = True
    options = experiment(participation__newcomers=1).participation
    with pytest.raises(ConfigError, match=r"participation.newcomers is for simulations: use --engine local"):
        Participation(options, federation.method, federation.executor, ROUNDS, 0, {})
