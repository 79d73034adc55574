"""Comparisons along axes: figures by hand, the table of the command line, the page, the CSV."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from rich.console import Console

import protofed
import support
from protofed.analysis.grid import SERIOUS, Figures, frame, rows_of, table
from protofed.config.schema import CompareOptions
from protofed.errors import CheckpointError, ConfigError
from protofed.experiments.comparing import Cell
from protofed.runs.description import ClientDescription, FederationDescription
from protofed.runs.loading import axes_of, load_runs
from protofed.runs.records import Accuracy, Attack, RoundRecord
from protofed.runs.run import Run

AXES = {"attack": ["none", "one"], "rule": ["mean", "median"]}


def run(values: tuple[str, ...], accuracies: list[float], *, seed: int = 0, attackers: tuple[str, ...] = ()) -> Run:
    clients = [ClientDescription(f"c{i}", "", 0, 0, [0], [10 * (i + 1)]) for i in range(len(accuracies))]
    rules = ("head", "global")
    scored = Accuracy(dict.fromkeys(rules, 0.0), dict.fromkeys(rules, accuracies), dict.fromkeys(rules, (0.0, 0.0)))
    record = RoundRecord(1, [c.name for c in clients], scored, attack=Attack(list(attackers)))
    config = {"method": {"name": "fedproto"}, "seed": seed}
    return Run(Path("x"), config, FederationDescription(["0"], clients), [record], None, "fedproto", values)


def test_only_honest_clients_count_on_both_sides_of_a_loss():
    runs = [
        run(("none", "mean"), [0.8, 0.6, 0.1]),
        run(("one", "mean"), [0.2, 0.3, 0.9], attackers=("c2",)),
        run(("one", "median"), [0.8, 0.6, 0.0], attackers=("c2",)),
    ]
    mean, middle = rows_of(runs, AXES)
    assert (mean.values, middle.values) == (("mean",), ("median",))
    clean = (0.8 * 10 + 0.6 * 20) / 30
    attacked = (0.2 * 10 + 0.3 * 20) / 30
    assert mean.cells["one"].main == pytest.approx([attacked])
    assert mean.cells["one"].main_loss == pytest.approx([clean - attacked])
    assert middle.cells["one"].main_loss == pytest.approx([0.0])
    assert mean.cells["one"].worst > SERIOUS > middle.cells["one"].worst
    assert "none" not in middle.cells


def test_a_method_whose_main_rule_is_its_head_is_counted_once():
    only = run(("none", "mean"), [0.5])
    del only.rounds[0].accuracy.weighted["global"]
    (row,) = rows_of([only], AXES)
    assert row.cells["none"].text == "50.0"


def test_nothing_evaluated_is_a_dash():
    assert Figures().text == "–"
    assert rows_of([], AXES) == []


def test_csv_has_a_line_per_cell_with_mean_and_deviation():
    runs = [run(("none", "mean"), [a], seed=s) for s, a in enumerate((0.6, 0.8))]
    (line,) = frame(rows_of(runs, AXES), AXES).to_dict("records")
    assert (line["method"], line["rule"], line["attack"], line["seeds"]) == ("fedproto", "mean", "none", 2)
    assert (line["main_mean"], line["main_std"]) == pytest.approx((70.0, 14.142136))
    assert rows_of(runs, AXES)[0].cells["none"].text == "70.0 ±127.1 / 70.0"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    tree: dict[str, Any] = {
        **support.BASE,
        "data": {"source": "digits", "samples": 120, "clients": 3},
        "partition": {"alpha": 1.0},
        "compare": {
            "methods": ["local", "fedproto"],
            "axes": {
                "attack": {"none": {}, "1 × huge": {"attack.kind": "huge", "attack.clients": 1}},
                "rule": {"none": {"robust.rule": "none"}, "clip <b>": {"robust.rule": "clip"}},
            },
        },
    }
    path = tmp_path_factory.mktemp("grid") / "tiny.toml"
    path.write_text(tomli_w.dumps(tree))
    return path


@pytest.mark.slow
def test_a_comparison_along_axes_from_recipe_to_page(recipe, tmp_path):
    plain = {"execution.executor": "sequential"}
    found = protofed.compare(
        recipe, seeds=[0, 1], overrides={"execution.executor": "sequential"}, out=tmp_path / "g"
    )
    assert found.axes == {"attack": ["none", "1 × huge"], "rule": ["none", "clip <b>"]}
    assert len(found.runs) == 8
    assert all(len(group) == 2 for group in found.runs.values())
    page = found.report.read_text()
    assert "clip &lt;b&gt;" in page
    assert "clip <b>" not in page
    lines = list(csv.DictReader(io.StringIO((tmp_path / "g" / "grid.csv").read_text())))
    assert len(lines) == 8
    console = Console(width=80, record=True, file=io.StringIO())
    runs = load_runs([found.directory])
    console.print(table(rows_of(runs, axes_of(found.directory)), found.axes))
    text = console.export_text()
    assert "1 × huge" in text
    assert "fedproto" in text
    again = protofed.compare(recipe, seeds=[0, 1], overrides=plain, out=tmp_path / "g", resume=True)
    assert again.summary == found.summary


def test_folders_of_runs_are_named_after_what_they_are():
    assert Cell("fedproto", (), 3).folder == "fedproto-seed3"
    assert Cell("my:Own", ("1 × huge", "a/../b"), 0).folder == "Own_1---huge_a----b-seed0"


@pytest.mark.parametrize("axes", [{"rule": 3}, {"rule": {}}, {"rule": {"clip": 3}}])
def test_axes_that_are_no_tables_of_overrides(axes):
    with pytest.raises(ConfigError, match=r"compare\.axes\.rule must be a table of named overrides"):
        CompareOptions(axes=axes).combinations()


def test_a_damaged_list_of_axes_is_one_line(tmp_path):
    (tmp_path / "comparison.json").write_text('{"runs": [], "axes": [1]}')
    with pytest.raises(CheckpointError, match="axes: expected a table, not a list of 1"):
        axes_of(tmp_path)
