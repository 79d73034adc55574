"""Differential privacy over a network: the numbers of the local run where nothing is drawn, and secret noise."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from support import few

pytest.importorskip("dp_accounting", reason="pip install 'protofed[privacy]'")

from network import FakeGrid, apart, dying, elsewhere, forget, locally, nodes_of, numbers, over, wanted
from protofed.errors import FederationError
from protofed.experiments import stages
from protofed.experiments.builder import Builder
from protofed.stages.privacy.noise import from_seed
from protofed.visits.private import COUNTS
from protofed_flower import node


@few("method", ["fedproto", "beacon"], 1)
def test_noise_of_clients_is_added_once_and_is_secret(method, root, tmp_path, monkeypatch):
    chosen = wanted(method, root, rounds=2, privacy__mode="client", privacy__noise=0.4)
    local = locally(chosen, tmp_path / "local")
    first = over(FakeGrid(nodes_of(root, tmp_path / "a")), chosen, tmp_path / "first")
    assert [r.privacy.epsilon for r in first.rounds] == [r.privacy.epsilon for r in local.rounds]
    assert not same(local, first), "nobody can predict the noise"
    monkeypatch.setattr(stages, "from_system", from_seed(chosen.seed, "privacy"))
    second = over(FakeGrid(nodes_of(root, tmp_path / "b")), chosen, tmp_path / "second")
    assert numbers(second, "privacy") == numbers(local, "privacy")
    assert same(local, second)


def same(a, b) -> bool:
    found = [load_file(run.directory / "server.safetensors") for run in (a, b)]
    return all(bool((found[0][n] == found[1][n]).all()) for n in found[0])


@pytest.mark.slow
def test_dp_sgd_at_nodes_is_that_of_the_local_run_but_for_what_is_drawn(root, tmp_path):
    """Without noise and with batches of all samples there is nothing to draw."""
    more = {"privacy__clip": 0.5, "privacy__features": 0.5, "training__batch_size": 64}
    chosen = wanted("fedproto", root, rounds=2, privacy__mode="sample", privacy__noise=0, **more)
    local = locally(chosen, tmp_path / "local")
    remote = over(FakeGrid(nodes_of(root, tmp_path / "state")), chosen, tmp_path / "remote")
    assert numbers(remote, "privacy") == numbers(local, "privacy")
    noisy = wanted("fedproto", root, rounds=2, privacy__mode="sample", privacy__noise=0.1, **more)
    runs = [over(FakeGrid(nodes_of(root, tmp_path / n)), noisy, tmp_path / f"run {n}") for n in "ab"]
    assert not same(*runs)


@pytest.mark.slow
@few("method", ["fedproto", "beacon", "fedavg"], 1)
def test_nodes_clip_and_add_noise_exactly_once(method, root, tmp_path, monkeypatch):
    """With the noise of a simulation in place of their own, the numbers are those of a simulation."""
    chosen = wanted(method, root, rounds=2, privacy__mode="sample", privacy__noise=0.7, privacy__clip=0.5)
    local = locally(chosen, tmp_path / "local")
    monkeypatch.setattr(node, "Builder", lambda *given, secret, **named: Builder(*given, **named))
    remote = over(FakeGrid(nodes_of(root, tmp_path / "state")), chosen, tmp_path / "remote")
    forget()
    told = numbers(remote, "privacy")
    if method == "beacon":  # the expert is trained without noise, so its scores stay at the nodes
        assert all(n["accuracy"] is None for n in told)
        told = [{**n, "accuracy": own["accuracy"]} for n, own in zip(told, numbers(local, "privacy"), strict=True)]
    assert told == numbers(local, "privacy")
    assert same(local, remote)


PROTECTIONS = [
    {"privacy__mode": "sample", "privacy__noise": 0.7},
    {"privacy__mode": "client", "privacy__noise": 0.7},
    {"secure__aggregation": True},
    {"privacy__mode": "client", "privacy__noise": 0.7, "secure__aggregation": True},
]


@pytest.mark.slow
@few("protection", PROTECTIONS, 1)
@few("method", ["fedproto", "fedavg"], 1)
def test_simulated_nodes_give_the_numbers_of_the_local_engine(method, protection, root, tmp_path):
    """Clients travel there, and each visit may be in another process."""
    chosen = wanted(method, root, rounds=2, **protection)
    local = locally(chosen, tmp_path / "local")
    shares = {101 + i: {"partition-id": i, "num-partitions": 3} for i in range(3)}
    remote = over(FakeGrid(shares, elsewhere), chosen, tmp_path / "remote", simulated=True)
    assert same(local, remote)
    for here, there in zip(numbers(local, "privacy"), numbers(remote, "privacy"), strict=True):
        # Boxes of shares have no fixed length.
        here["bytes"], there["bytes"] = (
            {} if "secure__aggregation" in protection else n["bytes"] for n in (here, there)
        )
        assert here == there


@pytest.mark.slow
def test_rounds_that_a_restarted_server_repeats_are_paid_for_where_samples_are_protected(root, tmp_path):
    """It begins anew for want of a checkpoint, and so do the nodes, with new noise on their numbers of samples."""
    private = {"privacy__mode": "sample", "privacy__noise": 2.0, "training__batch_size": 64}
    chosen = apart("fedproto", root, rounds=3, checkpoint__every=2, **private)
    drawn = []

    def scored(node, message):
        if message.metadata.message_type == "train":
            drawn.append(counts(tmp_path / "state"))
        return message.metadata.message_type == "evaluate"

    grid = FakeGrid(nodes_of(root, tmp_path / "state"), dying(scored))
    with pytest.raises(KeyboardInterrupt):
        over(grid, chosen, tmp_path / "remote")
    forget()
    run = over(grid, chosen, tmp_path / "remote", resume=True)
    assert (tmp_path / "remote" / "releases").stat().st_size == 4
    assert drawn[2] != drawn[5], "the numbers of samples are told anew"
    alone = locally(chosen, tmp_path / "local")
    for number, (here, there) in enumerate(zip(alone.rounds, run.rounds, strict=True), start=1):
        once, twice = here.privacy, there.privacy
        assert (once.releases, twice.releases) == (number, number + 1)
        assert (once.means, twice.means) == (1 + number, 3 + number)
        assert twice.epsilon > once.epsilon


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["client", "sample"])
@pytest.mark.parametrize("completed", [0, 2])
def test_a_server_that_is_killed_again_and_again_stops_in_time(mode, completed, root, tmp_path):
    """Before the budget is exceeded; and what the lost rounds have cost stands in what the run leaves."""
    private = {"privacy__mode": mode, "privacy__noise": 4.0, "training__batch_size": 64}
    chosen = apart("fedproto", root, rounds=4, privacy__epsilon=2.5, checkpoint__every=2, **private)
    grid, files = FakeGrid(nodes_of(root, tmp_path / "state")), tmp_path / "remote"

    def kill():
        def die(node, message, reply):
            at = [dict(record).get("round") for record in message.content.values()]
            if message.metadata.message_type == "evaluate" and completed + 1 in at:
                raise KeyboardInterrupt
            return reply

        grid.tamper = die
        forget()

    def released() -> int:
        return (files / "releases").stat().st_size

    run, refused = None, ""
    for again in range(20):
        kill()
        try:
            run = over(grid, chosen, files, resume=again > 0)
            break
        except KeyboardInterrupt:
            assert released() == completed + again + 1
        except FederationError as error:
            refused = str(error)
            break
    assert released() > completed
    alone = locally(wanted("fedproto", root, **private, rounds=released() + 1), tmp_path / "local").rounds
    costs = [record.privacy.epsilon for record in alone]
    assert costs[-2] <= 2.5
    if completed:
        spent = run.summary.privacy
        assert len(run.rounds) == completed
        assert spent == run.rounds[-1].privacy
        assert spent.releases == released()
        assert costs[-2] <= spent.epsilon <= 2.5
    else:
        assert run is None
        assert refused.startswith(
            f"privacy.epsilon=2.5 is spent: {released()} rounds were lost with a killed server"
        )
        assert "\n" not in refused


def counts(state: Path) -> list[list[int]]:
    """Return the noisy numbers of samples per class that nodes have stored."""
    stored = [load_file(file) for file in sorted(state.rglob("generations/*/state.safetensors"))]
    return [tensor.tolist() for file in stored for name, tensor in file.items() if name.endswith(COUNTS)]
