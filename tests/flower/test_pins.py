"""A server cannot change what a node computes in the course of a run, nor lower what the node withholds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'protofed[flower]'")

from network import contents, forget, wanted
from protofed.errors import ConfigError, DataError, PayloadError
from protofed.experiments.architectures import FederationSummary
from protofed.experiments.config import resolve
from protofed.flower.messages import Job
from protofed.flower.node import Node, experiment_key
from protofed.flower.pins import check_weights
from protofed.flower.sources import Folder, source_of
from protofed.flower.summary import client_summaries
from protofed.models import SplitModel
from protofed.training import Trained
from protofed.training.rare import LEAST_SAMPLES
from protofed.wire import get_codec
from support import ordinary


def job_of(root: Path, method: str = "fedproto") -> Job:
    chosen = wanted(method, root)
    summary = client_summaries(FederationSummary.of(chosen, ordinary()))[0]
    return Job("run", "ann", 1, experiment_key(chosen), summary)


def node_of(root: Path, state: Path, least: int = 0) -> Node:
    forget()
    return Node(Folder(root / "clients" / "ann", "ann", least=least), state)


def train(node: Node, job: Job) -> Trained:
    return node.train(job)[0]


def changed(job, section: str, **options):
    """Return the request of the next round, with other options."""
    tree = json.loads(job.config)
    tree[section] = {**tree[section], **options}
    return replace(job, config=json.dumps(tree), round=job.round + 1, order=job.order + 1)


@pytest.mark.parametrize(
    ("section", "options"),
    [
        ("training", {"batch_size": 10_000}),
        ("training", {"epochs": 1000}),
        ("training", {"lr": 3.0}),
        ("wire", {"codec": "float64"}),
        ("privacy", {"clip": 1e6}),
        ("method", {"lambda": 0.0}),
    ],
)
def test_what_a_server_may_not_change(root, tmp_path, section, options):
    node, job = node_of(root, tmp_path / "state"), job_of(root)
    train(node, job)
    before = contents(tmp_path / "state")
    with pytest.raises(
        ConfigError, match=rf"ann: the server changed {section}\.{next(iter(options))} from"
    ) as found:
        train(node, changed(job, section, **options))
    assert "\n" not in str(found.value)
    assert contents(tmp_path / "state") == before
    train(node, changed(job, "participation", attempts=7))  # only the server reads that


def test_another_run_may_differ(root, tmp_path):
    node, job = node_of(root, tmp_path / "state"), job_of(root)
    train(node, job)
    train(node, replace(changed(job, "training", epochs=2), run="another", round=1, order=0))


def test_another_model_is_refused(root, tmp_path):
    node, job = node_of(root, tmp_path / "state"), job_of(root)
    train(node, job)
    summary = json.loads(job.summary)
    summary["architectures"][0]["options"] = {"hidden": [9]}
    with pytest.raises(ConfigError, match="the server changed architecture"):
        train(node, replace(job, summary=json.dumps(summary), round=2, order=job.order + 1))


def test_weights_whose_rows_have_one_direction_are_refused():
    model = SplitModel(
        torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8)), torch.nn.Linear(8, 4)
    )
    honest = {n: t.detach().clone() for n, t in model.named_parameters()}
    check_weights(model, honest)
    crafted = honest | {"extractor.0.weight": torch.arange(1.0, 13.0).expand(16, 12) * 0.1}
    with pytest.raises(PayloadError, match=r"extractor\.0\.weight: 16 of 16 rows have one direction"):
        check_weights(model, crafted)


def test_a_node_refuses_crafted_weights(root, tmp_path):
    node, job = node_of(root, tmp_path / "state"), job_of(root, "fedavg")
    trainer = built(node, job)
    schema = trainer.method.broadcast_schema
    payload = trainer.method.broadcast(trainer.method.server_state(), 1)
    name = next(n for n, t in payload.items() if t.dim() == 2)
    payload[name] = payload[name][:1].expand_as(payload[name]).contiguous()
    message = get_codec("float32", "none").encode(payload, schema)
    with pytest.raises(PayloadError, match=r"ann: broadcast: .* rows have one direction"):
        train(node, replace(job, message=message))


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
        with pytest.raises(ConfigError, match="least_samples"):
            source_of({"client-dir": "a/north", "least-samples": wrong})
    (root / "clients" / "ann" / "client.toml").write_text("least_samples = -3\n")
    with pytest.raises(DataError, match=r"client\.toml: least_samples: must be from 0"):
        train(node_of(root, tmp_path / "state"), job_of(root))
