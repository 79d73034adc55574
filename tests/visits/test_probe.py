"""One method, one number: custom methods that use all of the contract, on every executor and engine."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path

import pytest
import torch

from protofed.errors import ConfigError
from protofed.experiments.assemble import assemble
from protofed.storage.snapshots import flatten
from protofed.visits.executor import Fused, Sequential
from support import assert_alike, client, experiment, federated, few, ordinary, outcome

pytestmark = pytest.mark.fast

METHODS = ["Probe", "FromFeatures", "ReadsItsModel", "CountsUp"]
EXACT = {"rounds": 3, "execution__precision": "fp64", "wire__codec": "float64"}
REFUSED = {"model__name": "support:Branches", "model__options": {}}
DRAWS = {"model__name": "support:DrawsItself", "model__options": {}}


def run(method: str, executor: str, data=None, **overrides):
    chosen = experiment(f"probes:{method}", execution__executor=executor, **{**EXACT, **overrides})
    return outcome(assemble(chosen, data or ordinary())[0])


@few("method", METHODS, 1)
@few("overrides", [{}, {"training__epochs": 2, "participation__fraction": 0.7}], 1, ids=["1", "2"])
def test_fused(method, overrides):
    expected = run(method, "sequential", **overrides)
    found = run(method, "fused", **overrides)
    assert isinstance(found[0].executor, Fused)
    assert not found[0].executor.refused
    assert_alike(expected, found, exact=False)


@few("method", METHODS, 1)
@few("model", [REFUSED, DRAWS], 1, ids=["branches", "draws"])
def test_fused_after_a_refusal(method, model):
    expected = run(method, "sequential", **model)
    found = run(method, "fused", **model)
    assert found[0].executor.refused
    assert_alike(expected, found, exact=True)


@few("method", METHODS, 1)
def test_workers(method):
    data = federated(*ordinary().clients, client("nobody", []))
    assert_alike(run(method, "sequential", data), run(method, "workers", data, execution__workers=2), exact=True)


def test_hooks_count_once_and_see_their_own_client():
    _, _, tensors = run("CountsUp", "fused", **REFUSED)
    assert [float(tensors[f"{name}.state.begun"]) for name in ("ann", "bob", "cid")] == [3, 3, 3]
    _, _, tensors = run("ReadsItsModel", "fused")
    assert len({float(tensors[f"{name}.state.seen"]) for name in ("ann", "bob", "cid")}) == 3


@few("simulated", [False, True], 1, ids=["deployment", "simulation"])
@few("method", METHODS, 1)
def test_nodes(method, simulated, tmp_path: Path):
    pytest.importorskip("protofed_flower", reason="needs protofed-flower")
    from network import assert_nodes_agree, wanted, write_folders

    root = write_folders(tmp_path / "data", ordinary())
    chosen = wanted(f"probes:{method}", root, execution__executor="sequential")
    assert_nodes_agree(chosen, root, tmp_path, simulated=simulated)


@few("executor", ["sequential", "fused"], 1)
def test_a_visit_that_fails_leaves_nothing_behind(executor, monkeypatch):
    chosen = experiment("probes:Probe", execution__executor=executor, **EXACT)
    federation = assemble(chosen, ordinary())[0]
    with closing(federation.executor):
        run = federation.run()
        next(run)
        clients = federation.executor.clients
        before = {name: {n: t.clone() for n, t in flatten(clients.snapshot(name)).items()} for name in clients}

        def fail(*_):
            raise ValueError("not today")

        monkeypatch.setattr(type(federation.method), "upload", fail)
        monkeypatch.setattr("protofed.visits.visit.sends", lambda method, round_number: True)
        with pytest.raises(ValueError, match="not today"):
            next(run)
        for name in clients:
            for n, tensor in flatten(clients.snapshot(name)).items():
                assert torch.equal(tensor, before[name][n]), f"{name}.{n}"


def test_first_steps_of_a_stack_are_compared(monkeypatch, caplog):
    """As on a device that nobody could test on, and that computes something else."""
    chosen = experiment("probes:Probe", execution__executor="sequential", **EXACT)

    def run(wrong: bool):
        federation = assemble(chosen, ordinary())[0]
        executor = Fused(federation.executor.trainer, federation.executor.clients, 1e9)
        federation.executor = executor
        with closing(executor), monkeypatch.context() as patch:
            if wrong:
                original = torch.autograd.grad

                def grad(outputs, inputs, **options):
                    found = original(outputs, inputs, **options)
                    stacked = inputs[0].dim() == 3 or inputs[0].shape[0] == 3
                    return tuple(g if g is None or not stacked else 1.1 * g for g in found)

                patch.setattr(torch.autograd, "grad", grad)
            records = [record.to_dict() for record in federation.run()]
        return executor, records

    with caplog.at_level(logging.WARNING, logger="protofed"):
        executor, right = run(False)
    assert not executor.refused
    assert {len(losses) for losses in executor.compared.values()} == {3}
    assert not caplog.records
    with caplog.at_level(logging.WARNING, logger="protofed"):
        executor, found = run(True)
    assert executor.refused
    assert len(caplog.records) == 1
    assert "another gradient than alone" in caplog.records[0].message
    assert [r["accuracy"] for r in found] == [r["accuracy"] for r in right]


@few(("method", "lr"), [("probes:Probe", 0.1), ("local", 1e30)], 1, ids=["ordinary", "diverged"])
def test_first_batches_of_different_sizes_and_diverged_models_are_no_difference(method, lr, caplog):
    data = federated(client("ann", [0, 1] * 5), client("bob", [0, 1, 2]), client("cid", [1, 1]))
    chosen = {**EXACT, "execution__executor": "sequential", "training__lr": lr}
    federation = assemble(experiment(method, **chosen), data)[0]
    federation.executor = Fused(federation.executor.trainer, federation.executor.clients, 1e9)
    with closing(federation.executor), caplog.at_level(logging.WARNING, logger="protofed"):
        *_, last = federation.run()
    assert not federation.executor.refused, caplog.text
    assert (last.losses["total"] is not None) is (lr < 1)


@pytest.mark.slow
def test_a_loss_that_first_appears_later_is_compared_then(monkeypatch, caplog):
    federation = assemble(experiment("probes:Late", execution__executor="sequential", **EXACT), ordinary())[0]
    executor = Fused(federation.executor.trainer, federation.executor.clients, 1e9)
    federation.executor = executor
    with closing(executor), caplog.at_level(logging.WARNING, logger="protofed"):
        rounds = federation.run()
        next(rounds)
        monkeypatch.setattr("probes.STACKED_FACTOR", 1.1)
        next(rounds)
        assert not executor.refused, "the loss is not used in this round"
        next(rounds)
    assert executor.refused
    assert "'late'" in caplog.text


def test_a_loss_of_the_former_contract_gets_one_sentence(tmp_path: Path):
    source = tmp_path / "former.py"
    source.write_text(
        "from protofed.methods.local import LocalTraining\n\n"
        "class Former(LocalTraining):\n"
        "    name = 'former'\n"
        "    def loss(self, model, batch, received, state):\n"
        "        return {'cross_entropy': batch.cross_entropy(model(batch.x).logits)}\n"
    )
    federation = assemble(experiment(f"{source}:Former"), ordinary())[0]
    assert isinstance(federation.executor, Sequential)
    with (
        closing(federation.executor),
        pytest.raises(
            ConfigError,
            match=r"^Former\.loss must return its terms and the model's output: return \{\.\.\.\}, output$",
        ),
    ):
        list(federation.run())
