"""The tables of the command line."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from protofed.analysis.tables import results_table, summaries_of, traffic_table
from protofed.runs.loading import load_run


@pytest.fixture
def printed(run_at):
    """Print the tables of runs, and return their lines as lists of words."""

    def call(*methods: str, seeds=(0,), width=80, **options):
        runs = {}
        for method in methods:
            for seed in seeds:
                path = run_at(f"{method}{seed}", method, seed=seed, **options)
                runs.setdefault(method, []).append(load_run(path))
        groups = summaries_of(runs)
        console = Console(file=io.StringIO(), width=width)
        console.print(results_table(groups))
        console.print(traffic_table(groups))
        text = console.file.getvalue()
        return runs, [line.split() for line in text.splitlines()], " ".join(text.split())

    return call


def line(lines, *start: str) -> list[str]:
    """Return the rest of the line that begins with these words."""
    return next(words[len(start) :] for words in lines if words[: len(start)] == list(start))


def test_every_rule_with_both_means(printed):
    runs, lines, text = printed("fedproto", validation=True, on="union", rule="local")
    outcomes = runs["fedproto"][0].outcome.accuracy
    head = outcomes["head"]
    titles = [words[0] for words in lines if len(words) == 5 and words[1][0].isdigit()]
    assert titles == ["final", "clients", "best_validated", "best", "clients", "converged", "union", "unseen"][1:]
    assert line(lines, "fedproto", "final")[0] == f"{100 * head.final:.1f}"
    assert line(lines, "clients")[0] == f"{100 * head.client_mean:.1f}±{100 * head.client_std:.1f}"
    best = lines.index(next(words for words in lines if words[:1] == ["best"]))
    assert lines[best][1] == f"{100 * head.best:.1f}"
    assert lines[best + 1][1] == f"{100 * head.best_client_mean:.1f}±{100 * head.best_client_std:.1f}"
    assert line(lines, "unseen") == [f"{100 * o.unseen.final:.1f}" for o in outcomes.values()]
    assert line(lines, "converged")[0] == str(head.rounds_to_convergence)
    assert "Main rule: local." in text
    assert "best_validated: on test data, in the round that is best on validation data" in text


def test_what_is_not_known_takes_no_line(printed):
    _, lines, text = printed("fedproto")
    assert not {"best_validated", "union", "unseen"} & {words[0] for words in lines if words}
    assert "validation" not in text


def test_methods_that_lack_the_main_rule_are_named(printed):
    _, _, text = printed("fedproto", "local", "fedavg", rule="local")
    assert "Main rules: local (fedproto); head (local); global_model (fedavg)." in text


def test_parameters_of_sending_and_of_all_rounds(printed):
    """The first round sends nothing down."""
    _, lines, _ = printed("fedproto", "local", rounds=4, clients=2, width=100)
    sent = next(words for words in lines if words[0:1] == ["fedproto"] and "/" in words)
    assert sent == [
        "fedproto",
        "328",
        "kB",
        "20,500",
        "/",
        "20,500",
        "320",
        "kB",
        "26,650",
        "/",
        "19,988",
        "10",
        "s",
    ]
    assert ["local", "0", "B", "0", "/", "0", "0", "B", "0", "/", "0", "10", "s"] in lines


def test_seeds_are_averaged(printed):
    runs, lines, _ = printed("local", seeds=(0, 1))
    finals = [run.outcome.accuracy["head"] for run in runs["local"]]
    mean = sum(100 * f.client_mean for f in finals) / 2
    spread = sum(100 * f.client_std for f in finals) / 2
    assert line(lines, "clients") == [f"{mean:.1f}±{spread:.1f}"]
    assert "±" in line(lines, "local", "final")[0]


@pytest.mark.parametrize("width", [80, 200])
def test_numbers_of_every_rule_fit_a_narrow_screen(printed, width):
    _, lines, _ = printed("fedproto", "fedavg", "gfpl", on="balanced", width=width)
    cells = [word for words in lines for word in words if "±" in word]
    assert all(word.count("±") == 1 and "…" not in word for word in cells)
    assert len(cells) >= 2 * (4 + 2 + 2)
