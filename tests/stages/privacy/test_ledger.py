"""Releases that are repeated: how they are counted in a file, and what the budget affords after them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofed.stages.privacy.ledger import Budgeted, Ledger
from support import build, few, stage

MODES = {
    "client": {"privacy__mode": "client", "privacy__delta": 1e-3},
    "sample": {"privacy__mode": "sample", "privacy__delta": 1e-3},
}


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_a_ledger_counts_every_round_of_every_server(lengths, random):
    """Servers are killed after some rounds, and begin again at a checkpoint that lies before."""
    with tempfile.TemporaryDirectory() as folder:
        path, begun, made = Path(folder) / "releases", 0, 0
        for length in lengths:
            ledger = Ledger()
            ledger.keep(path, begun, begun)
            assert ledger.repeated == made - begun
            for round_number in range(begun + 1, begun + length + 1):
                for _ in range(random.randint(1, 3)):  # however often it is told
                    ledger.publish(round_number)
                made += 1
                assert path.stat().st_size == made
            begun = random.randint(0, begun + length)


def test_a_ledger_without_a_file_counts_nothing():
    """In a simulation, noise follows from the seed, so that a repeated round publishes the same."""
    ledger = Ledger()
    ledger.publish(1)
    assert (ledger.repeated, ledger.path) == (0, None)


@few("mode", MODES, 1)
@few("method", ["fedproto", "beacon"], 1)
def test_a_budget_affords_as_many_rounds_as_it_pays_for(mode, method):
    """With noise that is given: a repeated round costs what a further one does, of samples perhaps more."""
    chosen = {"rounds": 6, "privacy__noise": 3.0, "privacy__accountant": "rdp", **MODES[mode]}
    plain = stage(build(method, **chosen), Budgeted)
    costs = [plain.epsilon(round_number) for round_number in range(1, 7)]
    assert costs == sorted(set(costs))
    for budget in costs:
        hiding = stage(build(method, **chosen, privacy__epsilon=budget), Budgeted)
        for repeated in range(4):
            hiding.ledger.repeated = repeated
            for round_number in range(1, 7 - repeated):
                further = costs[round_number + repeated - 1] <= budget
                assert hiding.affords(round_number) <= further
                assert hiding.affords(round_number) == further or (mode == "sample" and repeated)
                assert hiding.affords(round_number) == (hiding.epsilon(round_number) <= budget)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_noise_found_for_a_budget_affords_the_plan_and_no_repetition_of_its_end(mode):
    """The noise is the least that keeps the budget in the rounds that are planned, so one more is too much."""
    federation = build("fedproto", rounds=5, privacy__epsilon=4.0, **MODES[mode])
    hiding = stage(federation, Budgeted)
    assert all(hiding.affords(round_number) for round_number in range(1, 6))
    for repeated in range(1, 5):
        hiding.ledger.repeated = repeated
        affordable = [hiding.affords(round_number) for round_number in range(1, 6)]
        assert affordable == sorted(affordable, reverse=True), "what one round affords, those before do"
        assert not affordable[5 - repeated]
        assert affordable == [hiding.epsilon(round_number) <= 4.0 for round_number in range(1, 6)]
