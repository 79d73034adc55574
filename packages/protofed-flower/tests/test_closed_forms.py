"""Closed forms of encoded samples at nodes and in simulations: the numbers of one machine, noise apart."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import load_file

from network import FakeGrid, elsewhere, enrolled, forget, locally, nodes_of, numbers, over, wanted
from protofed.experiments.builder import Builder
from protofed.stages.privacy.samples import multiplier
from protofed_flower import node
from support import few

ENCODED = {"encoder__name": "random", "encoder__dim": 6, "model__name": "identity", "model__options": {}}
CASES = {
    "fedncm": ("fedncm", {**ENCODED, "rounds": 1}),
    "fed3r": ("fed3r", {**ENCODED, "rounds": 1}),
    "fedcof": ("fedcof", {**ENCODED, "rounds": 1}),
    "fedlda": ("fedlda", {**ENCODED, "rounds": 2}),
    "local_lda": ("local_lda", {**ENCODED, "rounds": 1}),
    "secure": ("fedlda", {**ENCODED, "rounds": 1, "secure__aggregation": True}),
}
PRIVATE = {**ENCODED, "encoder__unit": True, "rounds": 1, "privacy__mode": "sample", "robust__rule": "none"}


def tensors(run) -> dict[str, torch.Tensor]:
    path = run.directory / "server.safetensors"
    return load_file(path) if path.is_file() else {}


def same(expected, found) -> bool:
    one, other = tensors(expected), tensors(found)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def told(run, *without: str) -> list[dict]:
    return [{n: v for n, v in record.items() if n not in without} for record in numbers(run)]


@few(("case", "place"), [(case, place) for case in CASES for place in ("nodes", "simulation")], 1)
def test_the_numbers_are_those_of_one_machine(case, place, root, tmp_path):
    """In a simulation each visit may be in another process, which encodes the samples again."""
    method, options = CASES[case]
    chosen = wanted(method, root, **options)
    expected = locally(chosen, tmp_path / "local")
    if place == "nodes":
        nodes = nodes_of(root, tmp_path / "state")
        secure = "secure__aggregation" in options
        grid = FakeGrid(enrolled(nodes, tmp_path / "keys") if secure else nodes, elsewhere)
    else:
        grid = FakeGrid({101 + i: {"partition-id": i, "num-partitions": 3} for i in range(3)}, elsewhere)
    found = over(grid, chosen, tmp_path / "found", simulated=place == "simulation")
    assert same(expected, found)
    boxes = ("bytes",) if "secure__aggregation" in options else ()  # sealed boxes have no fixed length
    assert told(found, *boxes) == told(expected, *boxes)


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
def test_a_private_release(secure, root, tmp_path, monkeypatch):
    """The sums of one machine but for noise of the stated size, which the ε in the records pays for."""
    pytest.importorskip("dp_accounting", reason="pip install 'protofed[privacy]'")
    more = {**PRIVATE, "secure__aggregation": secure, "secure__fraction_bits": 30 if secure else 20}
    chosen = wanted("fedlda", root, **more, privacy__epsilon=4.0)
    exact = locally(wanted("fedlda", root, **more, privacy__epsilon=math.inf), tmp_path / "exact")

    def remote(name: str):
        nodes = nodes_of(root, tmp_path / name / "state")
        run = over(
            FakeGrid(enrolled(nodes, tmp_path / name / "keys") if secure else nodes),
            chosen,
            tmp_path / name / "run",
        )
        forget()
        return run

    one, other, local = remote("one"), remote("other"), locally(chosen, tmp_path / "local")
    assert [run.rounds[0].privacy for run in (one, other)] == [local.rounds[0].privacy] * 2
    assert 0 < one.summary.privacy.epsilon <= 4
    assert not same(one, other), "noise is drawn from the system"
    # 1.5·m·z per number of an upload; of the sum of three, all of whom are needed, one of whom may add none.
    deviation = 1.5 * multiplier(chosen.privacy)
    noise = torch.cat([summed(run) - summed(exact) for run in (one, other)])
    expected = deviation * math.sqrt(3 / (3 - chosen.privacy.colluders) if secure else 3)
    assert float(noise.std()) == pytest.approx(expected, rel=0.25)
    monkeypatch.setattr(node, "Builder", lambda *given, secret, **named: Builder(*given, **named))
    again = remote("same key")
    if secure:
        assert torch.allclose(summed(again), summed(local), atol=1e-6)
    else:
        assert same(local, again)


def summed(run) -> torch.Tensor:
    """Return the sum of what all clients sent, as one vector."""
    sent = tensors(run)
    fields = sorted({name.partition(".")[0] for name in sent if "." in name})
    return torch.cat(
        [sum(t.double().flatten() for n, t in sent.items() if n.startswith(f"{f}.")) for f in fields]  # type: ignore[misc]
    )
