"""Clients that step together become what they become alone."""

from __future__ import annotations

import logging
import textwrap
from pathlib import Path

import pytest
import torch

from protofed.experiments.assemble import assemble
from protofed.methods import methods
from protofed.options import option_rows
from protofed.rounds.loop import Federation
from protofed.samples import ClientData, FederatedData
from protofed.visits.executor import Fused
from protofed.visits.stacked import StackedSteps, bytes_per_client
from protofed.visits.visit import LocalTrainer
from support import assert_alike, client, degenerate, experiment, federated, few, images, ordinary, outcome

METHODS = sorted(methods())
BATCH_NORM = {"model__name": "support:WithBatchNorm", "model__options": {}}


def build(method: str, executor: str, data=None, **overrides) -> Federation:
    known = [row[0] for row in option_rows(methods().get(method).Options)] if method in METHODS else []
    # Prototypes of length 100 in five dimensions make training chaotic: no two ways of adding stay together.
    gentle = {"method__gamma": 3.0} if "gamma" in known else {}
    chosen = {"rounds": 3, "execution__precision": "fp64", "wire__codec": "float64", **gentle, **overrides}
    return assemble(experiment(method, execution__executor=executor, **chosen), data or ordinary())[0]


def assert_stacked(method: str, data=None, **overrides) -> Fused:
    expected, found = (outcome(build(method, name, data, **overrides)) for name in ("sequential", "fused"))
    executor = found[0].executor
    assert isinstance(executor, Fused)
    assert_alike(expected, found, exact=False)
    return executor


@pytest.mark.parametrize("method", METHODS)
@few(
    "overrides",
    [
        pytest.param({}, marks=pytest.mark.slow),  # the others differ from it by what they add
        BATCH_NORM,
        {"training__momentum": 0.5, "training__epochs": 2, "participation__fraction": 0.7},
    ],
    2,
    ids=["plain", "batch-norm", "momentum"],
)
def test_every_method_is_the_same_stacked(method, overrides):
    executor = assert_stacked(method, **overrides)
    assert not executor.refused


@pytest.mark.parametrize("method", METHODS)
@few("overrides", [BATCH_NORM, {}], 1, ids=["batch-norm", "plain"])
def test_degenerate_clients(method, overrides):
    data = federated(*degenerate().clients, client("more", [0, 1, 2, 3, 3, 3, 0]))
    assert not assert_stacked(method, data, rounds=2, **overrides).refused


def test_prototypes_from_the_training_steps_and_validation():
    parts = ordinary()
    data = FederatedData(
        tuple(ClientData(c.name, c.train, c.test, c.test if i else None) for i, c in enumerate(parts.clients)),
        parts.num_classes,
        parts.class_names,
        parts.input_shape,
    )
    assert not assert_stacked("fedproto", data, method__prototypes="during", training__epochs=2).refused


@pytest.mark.slow
@few("name", ["Adam", "RMSprop", "AdamW"], 1)
def test_other_optimisers(name):
    data = federated(client("ann", [0, 1, 2] * 3), client("bob", [1, 2, 3] * 3), client("cid", [0, 3, 2] * 4))
    options = {"training__optimizer": name, "training__lr": 0.01}
    assert not assert_stacked("fedproto", data, **options).refused
    # Stacks that shrink twice go on with the counts of steps they had.
    uneven = federated(client("ann", [0, 1] * 2), client("bob", [1, 2] * 4), client("cid", [0, 3] * 6))
    assert not assert_stacked("fedproto", uneven, **options).refused
    # With a second epoch the clients' counts of steps differ: those with as many step together.
    again = federated(*data.clients[:2], client("cid", [0, 3] * 10))
    assert not assert_stacked("fedproto", again, training__epochs=2, **options).refused


@pytest.mark.slow
def test_clients_with_plans_of_their_own():
    data = federated(
        client("ann", [0, 1] * 4, lr=0.5),
        client("bob", [2, 1] * 4, batch_size=3),
        client("cid", [0, 3] * 5, epochs=2),
    )
    assert not assert_stacked("fedproto", data).refused


@few("alone", [True, False], 1)
def test_images_dropout_and_convolutions(alone, monkeypatch):
    if not alone:  # as on a GPU
        monkeypatch.setattr("protofed.visits.stacked.faster_alone", lambda model: False)
    options = {"model__name": "support:Images", "model__options": {}, "execution__convolutions": "auto"}
    assert not assert_stacked("fedproto", images(), **options).refused


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "resnet8",
        "efficientnet_b0",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("shufflenet_v2_x1_0", "mobilenet_v2")),
    ],
)
def test_the_papers_networks(name, monkeypatch):
    monkeypatch.setattr("protofed.visits.stacked.faster_alone", lambda model: False)
    # Small steps on no tiny batches: otherwise BatchNorm on single pixels blows any difference up.
    options = {"model__name": name, "model__options": {}, "model__d": 8, "rounds": 1}
    options |= {"training__lr": 1e-4, "training__batch_size": 16}
    assert not assert_stacked("fedproto", images(32, (18, 30)), **options).refused


@few("name", ["DrawsItself", "Branches"], 1)
def test_what_cannot_be_stacked_is_run_alone_and_said_once(name, caplog):
    with caplog.at_level(logging.WARNING, logger="protofed"):
        executor = assert_stacked("fedproto", model__name=f"support:{name}", model__options={})
    assert executor.refused
    said = [r for r in caplog.records if "are run one by one" in r.message]
    assert len(said) == 1
    assert "\n" not in said[0].message


def test_an_optimiser_that_looks_at_whole_tensors():
    assert assert_stacked("local", training__optimizer="Adafactor", training__lr=0.01).refused


def test_a_loss_that_counts_padding_is_found_out(tmp_path: Path):
    source = tmp_path / "plain.py"
    source.write_text(
        textwrap.dedent("""
        import torch.nn.functional as F
        from protofed.methods.fedproto import FedProto

        class Plain(FedProto):
            name = "plain"

            def loss(self, model, batch, received, state):
                output = model(batch.x)
                return {"cross_entropy": F.cross_entropy(output.logits, batch.y)}, output
        """)
    )
    assert assert_stacked(f"{source}:Plain").refused


@pytest.mark.slow
def test_the_budget_divides_groups(monkeypatch):
    federation = build("fedproto", "fused")
    executor = federation.executor
    member = next(iter(executor.clients.values()))
    each = bytes_per_client(executor.clients.models[member.kind], member.train.x.shape[1:], member.plan.batch_size)
    executor.close()
    groups = []
    original = Fused._attempt
    monkeypatch.setattr(
        Fused, "_attempt", lambda self, visit, group, *a: groups.append(group) or original(self, visit, group, *a)
    )
    for clients, expected in ((3, [3]), (2, [2, 1]), (1, [1, 1, 1]), (0.1, [1, 1, 1])):
        groups.clear()
        assert_stacked("fedproto", rounds=1, execution__memory_budget=1.01 * clients * each / 1e9)
        assert [len(g) for g in groups] == 2 * expected


@pytest.mark.parametrize(
    ("name", "groups"), [("SGD", [["ann", "bob", "cid"]]), ("Adam", [["ann", "cid"], ["bob"]])]
)
def test_clients_with_other_numbers_of_steps_share_a_stack_unless_the_optimiser_counts(name, groups, monkeypatch):
    data = federated(client("ann", [0] * 9), client("bob", [1] * 3), client("cid", [2] * 10))
    federation = build("local", "fused", data, training__optimizer=name, training__epochs=2)
    stacks = []
    train = LocalTrainer.train

    def noted(self, steps, clients, names, *rest):
        stacks.append(list(names))
        return train(self, steps, clients, names, *rest)

    monkeypatch.setattr(LocalTrainer, "train", noted)
    next(federation.run())
    assert stacks == groups


def test_a_stack_that_does_not_fit_in_memory_is_run_one_by_one_and_says_what_helps(monkeypatch, caplog):
    def full(self, rows):
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 20.00 MiB.\nGPU 0 has a total capacity ..."
        )

    monkeypatch.setattr(StackedSteps, "epoch", full)
    with caplog.at_level(logging.WARNING, logger="protofed"):
        assert assert_stacked("fedproto", rounds=1).refused
    (record,) = caplog.records
    assert record.message.endswith("do not fit in memory together: lower execution.memory_budget")


def test_resting_on_disk():
    assert not assert_stacked("protonorm", execution__clients_in="disk").refused
