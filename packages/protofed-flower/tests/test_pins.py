"""A server cannot change what a node computes in the course of a run, nor lower what the node withholds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from network import contents, forget, job_of, killed, train
from protofed.config.schema import resolve
from protofed.errors import CheckpointError, ConfigError, DataError, PayloadError
from protofed.models import SplitModel
from protofed.wire.codec import get_codec
from protofed_flower.messages import Job
from protofed_flower.node import Node
from protofed_flower.pins import check_weights
from protofed_flower.sources import LEAST_SAMPLES, Folder, source_of
from support import few, one_line


def node_of(root: Path, state: Path, least: int = 0) -> Node:
    forget()
    return Node(Folder(root / "clients" / "ann", "ann", least=least), state)


def changed(job, section: str, **options):
    """Return the request of the next round, with other options."""
    tree = json.loads(job.config)
    tree[section] = {**tree[section], **options}
    return replace(job, config=json.dumps(tree), round=job.round + 1, order=job.order + 1)


@few(
    ("section", "options"),
    [
        ("training", {"batch_size": 10_000}),
        ("training", {"epochs": 1000}),
        ("training", {"lr": 3.0}),
        ("wire", {"codec": "float64"}),
        ("privacy", {"clip": 1e6}),
        ("method", {"lambda": 0.0}),
    ],
    4,
)
def test_what_a_server_may_not_change(root, tmp_path, section, options):
    node, job = node_of(root, tmp_path / "state"), job_of(root)
    train(node, job)
    before = contents(tmp_path / "state")
    with one_line(ConfigError, rf"ann: the server changed {section}\.{next(iter(options))} from"):
        train(node, changed(job, section, **options))
    assert contents(tmp_path / "state") == before
    train(node, changed(job, "participation", attempts=7))  # only the server reads that


def test_another_run_may_differ_and_the_operator_reads_how(root, tmp_path, caplog):
    node, job = node_of(root, tmp_path / "state"), job_of(root)
    train(node, job)
    caplog.clear()
    train(node, replace(job, round=2, order=1))
    assert not caplog.messages
    train(node, replace(changed(job, "training", epochs=2), run="another", round=1, order=0))
    (line,) = caplog.messages
    assert line.startswith("ann: a run begins, in which this node keeps to method.name=")
    assert "training.epochs=2" in line


def test_a_node_s_own_batch_size_holds_in_every_run(root, tmp_path):
    (root / "clients" / "ann" / "client.toml").write_text("batch_size = 7\nepochs = 1\n")
    node = node_of(root, tmp_path / "state")
    job = changed(job_of(root), "training", batch_size=1, epochs=50)
    with node._open(job) as (_, roster, _):
        assert (roster["ann"].plan.batch_size, roster["ann"].plan.epochs) == (7, 1)


@pytest.mark.slow
def test_a_node_killed_in_its_first_visit_has_answered_nothing_or_keeps_to_what_it_pinned(root, tmp_path):
    job = job_of(root)
    other = changed(job, "training", batch_size=10_000)
    step, more, seen = 0, True, []
    while more:
        step += 1
        state = tmp_path / f"state-{step}"
        more = killed(step, state, lambda state=state: train(node_of(root, state), job))
        node = node_of(root, state)
        seen.append(any(state.rglob("state.json")))
        if seen[-1]:
            before = contents(state)
            with pytest.raises(ConfigError, match=r"the server changed training\.batch_size from"):
                train(node, other)
            assert contents(state) == before
        else:
            train(node, replace(other, round=1))  # nothing of the first visit was sent: it has not been
            with pytest.raises(ConfigError, match=r"the server changed training\.batch_size from"):
                train(node, replace(job, round=2, order=2))
    assert seen == sorted(seen)
    assert {*seen} == {False, True}


def test_a_run_of_another_name_does_not_go_on_with_the_client(root, tmp_path):
    node, job = node_of(root, tmp_path / "state"), job_of(root)
    _, left = node.train(job)
    other = replace(changed(job, "training", batch_size=10_000), run="another", after=left.generation)
    before = contents(tmp_path / "state")
    with pytest.raises(CheckpointError, match=r"ann: the node does not have state .*it has none of this run"):
        train(node, other)
    assert contents(tmp_path / "state") == before


@few(("name", "value"), [("rounds", 1), ("participation", {"newcomers": 1})], 1)
def test_a_server_cannot_lower_the_noise_that_a_budget_needs(name, value, root, tmp_path):
    """Noise for 8 is spread over the planned rounds: less of it suffices for a single one."""
    budget = {"privacy__mode": "sample", "privacy__epsilon": 8.0, "privacy__accountant": "rdp"}
    job = job_of(root, method__prototypes="after", **budget)
    node = node_of(root, tmp_path / "state")
    train(node, job)
    tree = json.loads(job.config)
    tree[name] = {**tree[name], **value} if isinstance(value, dict) else value
    with pytest.raises(ConfigError, match=rf"the server changed {name}.* from"):
        train(node, replace(job, config=json.dumps(tree), round=2, order=1))


def test_another_model_is_refused(root, tmp_path):
    node, job = node_of(root, tmp_path / "state"), job_of(root)
    train(node, job)
    with pytest.raises(ConfigError, match="the server changed architecture"):
        train(node, changed(job, "model", options={"hidden": [9]}))
    summary = {**json.loads(job.summary), "architectures": [{"name": "mlp", "options": {}, "d": 5}]}
    with pytest.raises(PayloadError, match="architectures: these follow from the plan"):
        train(node, replace(job, summary=json.dumps(summary), round=2, order=job.order + 1))


def test_weights_whose_rows_have_one_direction_are_refused():
    model = SplitModel(
        torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8)), torch.nn.Linear(8, 4)
    )
    honest = {n: t.detach().clone() for n, t in model.named_parameters()}
    check_weights(model, honest, honest)
    crafted = honest | {"extractor.0.weight": torch.arange(1.0, 13.0).expand(16, 12) * 0.1}
    with pytest.raises(PayloadError, match=r"extractor\.0\.weight: (\d+) of \1 rows have one direction"):
        check_weights(model, crafted, honest)


def broadcast(node: Node, job: Job, *, crafted: bool = False) -> bytes:
    """Return the encoded broadcast of a first round."""
    trainer = built(node, job)
    payload = trainer.method.broadcast(trainer.method.server_state(), 1)
    if crafted:
        name = next(n for n, t in payload.items() if t.dim() == 2)
        payload[name] = payload[name][:1].expand_as(payload[name]).contiguous()
    return get_codec("float32", "none").encode(payload, trainer.method.broadcast_schema)


@pytest.mark.parametrize("method", ["fedavg", "beacon"])
@pytest.mark.parametrize("visit", [Node.train, Node.evaluate])
def test_a_node_refuses_crafted_weights(method, visit, root, tmp_path):
    """Also with a request for scores, which beacon's clients would go on to train."""
    node, job = node_of(root, tmp_path / "state"), job_of(root, method)
    with pytest.raises(PayloadError, match=r"ann: broadcast: .* rows have one direction"):
        visit(node, replace(job, message=broadcast(node, job, crafted=True)))


def test_a_client_of_a_sum_starts_from_what_all_are_sent(root, tmp_path):
    """A broadcast to one client with a request for scores, and then none to all: nobody would notice."""
    node = node_of(root, tmp_path / "state")
    job = job_of(root, "beacon", secure__aggregation=True, robust__rule="none")
    node.evaluate(replace(job, message=broadcast(node, job)))
    with one_line(PayloadError, r"ann: the request has no broadcast, but an earlier one had"):
        train(node, replace(job, order=1))
    train(node, replace(job, order=2, message=broadcast(node, job)))


def built(node, job):
    """Return the trainer of a node's visit."""
    with node._open(job) as (builder, _, _):
        return builder.trainer


# The least number of samples of a class that is reported.


def sent(folder: Folder, state, job) -> list[int]:
    """Return the classes that a node reports."""
    node = Node(folder, state)
    result = train(node, job)
    schema = built(node, job).method.upload_schema
    return get_codec("float32", "none").decode(result.message, schema)["classes"].tolist()


def test_a_server_cannot_lower_what_a_node_withholds(root, tmp_path):
    path, job = root / "clients" / "ann", job_of(root)
    everything = sent(Folder(path, "ann", least=0), tmp_path / "a", job)
    assert everything
    assert sent(Folder(path, "ann", least=10**6), tmp_path / "b", job) == []
    raised = changed(job, "privacy", least_samples=10**6)
    assert sent(Folder(path, "ann", least=0), tmp_path / "c", replace(raised, round=1, order=0)) == []
    lowered = changed(job, "privacy", least_samples=0)
    assert sent(Folder(path, "ann", least=10**6), tmp_path / "d", replace(lowered, round=1, order=0)) == []


def test_a_node_withholds_rare_classes_by_default(root):
    experiment = resolve(json.loads(job_of(root).config))
    (description,) = Folder(root / "clients" / "ann", "ann").describe(experiment)
    assert description.settings["least_samples"] == LEAST_SAMPLES


def test_what_a_node_may_choose(root, tmp_path):
    assert source_of({"client-dir": "a/north", "least-samples": 3}).least == 3
    for wrong in (-1, "many", True, 1.5):
        with pytest.raises(ConfigError, match="least-samples"):
            source_of({"client-dir": "a/north", "least-samples": wrong})
    (root / "clients" / "ann" / "client.toml").write_text("least_samples = -3\n")
    with pytest.raises(DataError, match=r"client\.toml: least_samples: must be from 0"):
        train(node_of(root, tmp_path / "state"), job_of(root))
