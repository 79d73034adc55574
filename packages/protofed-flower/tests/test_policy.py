"""A node takes part only in runs that protect what its operator requires, whatever a server asks for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dp_accounting", reason="pip install 'protofed[privacy]'")

from network import FakeGrid, contents, enrolled, job_of, nodes_of, over, wanted
from protofed.errors import ConfigError, FederationError
from protofed.wire.codec import get_codec
from protofed_flower.node import Node
from protofed_flower.policy import Policy
from protofed_flower.sources import Folder
from support import few, one_line

SAMPLE = {"privacy": "sample", "epsilon": 8, "delta": 1e-5}


def private(**more: Any) -> dict[str, Any]:
    return {"rounds": 2, "privacy__mode": "sample", "privacy__epsilon": 8.0, "training__batch_size": 64, **more}


def strict(root: Path, state: Path, **settings: Any) -> dict[int, dict[str, Any]]:
    """Return nodes of which the first requires something."""
    nodes = nodes_of(root, state)
    nodes[101] |= settings
    return nodes


def test_a_run_that_protects_as_required_is_joined(root, tmp_path):
    grid = FakeGrid(strict(root, tmp_path / "state", **SAMPLE))
    run = over(grid, wanted("fedavg", root, **private()), tmp_path / "run")
    assert len(run.rounds) == 2
    assert all(not record.missing for record in run.rounds)
    assert run.rounds[-1].privacy.epsilon <= 8


@few(
    ("settings", "options", "reason"),
    [
        (SAMPLE, {}, "privacy.mode=none, but this node takes part only in runs with privacy.mode=sample"),
        (SAMPLE, {"privacy__mode": "client", "privacy__noise": 9.0}, "privacy.mode=client, but this node"),
        (
            {"privacy": "client", "epsilon": 8},
            {"privacy__mode": "client", "privacy__noise": 9.0},
            "secure.aggregation=false, but this node requires noise that clients add",
        ),
    ],
    1,
)
def test_a_node_that_requires_more_tells_nothing(settings, options, reason, root, tmp_path, caplog):
    chosen = wanted("fedavg", root, rounds=2, **options)
    run = over(FakeGrid(strict(root, tmp_path / "state", **settings)), chosen, tmp_path / "run", clients=2)
    (left_out,) = json.loads((run.directory / "federation.json").read_text())["left_out"]
    assert reason in caplog.text
    assert "the node requires more protection than the run has" in left_out["reason"]
    assert "\n" not in left_out["reason"]
    assert len(run.rounds) == 2
    assert [path.name for path in (tmp_path / "state" / "ann").iterdir()] == ["ledger.jsonl"]  # of the refusal


@few(
    "weaker",
    [{"privacy__epsilon": 9.0}, {"privacy__epsilon": None, "privacy__noise": 0.0}, {"privacy__delta": 1e-3}],
    1,
)
def test_a_node_computes_epsilon_itself_before_it_trains(weaker, root, tmp_path, caplog):
    options = {n: v for n, v in private(**weaker).items() if v is not None}
    grid = FakeGrid(strict(root, tmp_path / "state", **SAMPLE))
    run = over(grid, wanted("fedavg", root, **options), tmp_path / "run")
    for record in run.rounds:
        (missing,) = record.missing
        assert missing.client == "ann"
        assert "refused, privacy.epsilon: the run would cost more ε than the node allows" in missing.reason
        assert "\n" not in missing.reason
    assert "ann: ε would be" in caplog.text
    assert "after 2 rounds, but this node allows 8 (epsilon in its --node-config)" in caplog.text


def strict_node(root: Path, state: Path, mode: str) -> Node:
    """A node that allows what a run of ours is planned to cost, and no more."""
    return Node(Folder(root / "clients" / "ann", "ann", least=0), state, policy=Policy(mode, 8.0))


@pytest.mark.parametrize("first", [1, 2])
def test_a_server_cannot_repeat_rounds_or_add_some(root, tmp_path, first):
    node = strict_node(root, tmp_path / "state", "sample")
    job = replace(job_of(root, "fedavg", **private()), round=first)
    node.train(job)
    with node._open(job) as (builder, _, _):
        method = builder.method
    message = get_codec("float32", "none").encode(
        method.broadcast(method.server_state(), 1), method.broadcast_schema
    )
    before = contents(tmp_path / "state")
    with pytest.raises(ConfigError, match=r"ann: ε would be .* after 2 rounds, 1 repeated, but this node allows 8"):
        node.train(replace(job, order=1, message=message))  # another request for the same round has new noise
    with pytest.raises(ConfigError, match="the server changed rounds from 2 to 50"):
        node.train(replace(job_of(root, "fedavg", **private(rounds=50)), round=2, order=2))
    with pytest.raises(ConfigError, match="ann: round 3 of a run of 2"):
        node.train(replace(job, round=3, order=3))
    assert contents(tmp_path / "state") == before


def test_an_upload_that_is_masked_once_more_is_paid_for(root, tmp_path):
    """The same upload has new noise in every sum."""
    node = strict_node(root, tmp_path / "state", "client")
    secure = {"secure__aggregation": True, "robust__rule": "none", "privacy__mode": "client"}
    job = job_of(root, "fedavg", rounds=1, privacy__epsilon=7.0, data__classes=4, **secure)
    node.train(job)
    with pytest.raises(ConfigError, match=r"ε would be .* after 1 rounds, 1 repeated, but this node allows 8"):
        node.train(replace(job, order=1))
    twice = replace(node, policy=Policy("client", 12.0))
    twice.train(replace(job, order=2))
    assert 8 < twice.entered["epsilon"] <= 12
    with pytest.raises(ConfigError, match="1 rounds, 2 repeated, but this node allows 12"):
        twice.train(replace(job, order=3))


def test_a_share_of_the_noise_is_not_all_of_it(root, tmp_path):
    node = strict_node(root, tmp_path / "state", "sample")
    features = {"encoder__name": "identity", "encoder__unit": True, "model__name": "identity", "model__options": {}}
    secure = {"secure__aggregation": True, "robust__rule": "none"}
    job = job_of(root, "fedlda", **private(rounds=1, data__classes=4, **features, **secure))
    with pytest.raises(ConfigError, match="adds only a share of the noise"):
        node.train(job)


@pytest.mark.slow
def test_noise_of_clients_under_secure_aggregation_is_checked_too(root, tmp_path):
    nodes = enrolled(strict(root, tmp_path / "state", privacy="client", epsilon=8), tmp_path / "keys")
    common = {"rounds": 1, "secure__aggregation": True, "secure__threshold": 1.0, "privacy__mode": "client"}
    chosen = wanted("fedavg", root, **common, privacy__epsilon=8.0)
    assert not over(FakeGrid(nodes), chosen, tmp_path / "run").rounds[0].missing
    weak = wanted("fedavg", root, **common, privacy__epsilon=20.0, participation__attempts=1)
    with pytest.raises(FederationError):
        over(FakeGrid(nodes), weak, tmp_path / "weak")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"privacy": "all", "epsilon": 8}, "privacy: "),
        ({"privacy": "sample"}, "needs epsilon"),
        ({"epsilon": 8}, 'epsilon in --node-config needs privacy="sample"'),
        ({"privacy": "sample", "epsilon": -1}, "epsilon: "),
        ({"privacy": "sample", "epsilon": "much"}, "epsilon: "),
        ({"privacy": "sample", "epsilon": 8, "delta": 2}, "delta: "),
    ],
)
def test_what_a_node_may_require(settings, message):
    with one_line(ConfigError, message):
        Policy.of(settings)
