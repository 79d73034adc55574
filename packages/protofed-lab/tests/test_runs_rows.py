"""Rows of the tables of pages."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from protofed.runs.loading import load_run
from protofed_lab.viewer import rows
from protofed_lab.viewer.library import State
from rundirs import make_run


@pytest.fixture
def listed(tmp_path):
    """Return the rows of runs, by name and the options that made them."""

    def call(rule: str = "", **runs):
        seen = {
            name: SimpleNamespace(key=name, run=load_run(make_run(tmp_path / name, **options)), **FINISHED)
            for name, options in runs.items()
        }
        return seen, rows.runs(seen, rule)

    return call


FINISHED = {"state": State.FINISHED, "reason": ""}


def test_figures_that_most_runs_lack_have_no_column(listed):
    always = ["run", "state", "seed", "final", "best", "mean", "best mean", "converged", "sent", "time"]
    _, plain = listed(plain={})
    assert [column["name"] for column in rows.run_columns(plain)] == always
    _, mixed = listed(other={}, full={"validation": True, "on": "balanced"})
    names = [column["name"] for column in rows.run_columns(mixed)]
    assert [name for name in names if name not in always] == ["validated", "union", "unseen"]
    assert names.index("validated") == names.index("best") - 1
    other, full = (row["cells"] for row in mixed)
    assert other["unseen"] == [None, "–"]
    assert full["unseen"][0] is not None


def test_means_over_clients_with_their_spread_by_the_main_rule(listed):
    seen, (row,) = listed(one={"rule": "local"})
    outcome = seen["one"].run.outcome.accuracy["local"]
    mean, spread = outcome.best_client_mean, outcome.best_client_std
    assert row["cells"]["final"][0] == outcome.final
    assert row["cells"]["best mean"] == [mean, f"{100 * mean:.1f}% ± {100 * spread:.1f}"]
    assert row["cells"]["converged"] == [outcome.rounds_to_convergence, str(outcome.rounds_to_convergence)]


def test_a_rule_that_a_run_lacks(listed):
    _, (row,) = listed("etf", one={})
    assert {name for name, (value, _) in row["cells"].items() if value is None} == {
        *("final", "validated", "best", "mean", "best mean", "converged", "union", "unseen", "newcomers")
    }
