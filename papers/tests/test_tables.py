"""The papers' tables: every printed number has a place and an experiment, and every output is readable."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from protofed.config.schema import Experiment
from protofed_papers.cells import CONTROLS, experiment_of, figure_cells, figure_runs
from protofed_papers.layout import Scope, Sheet, committed_scopes, formula_runs, hyperparameters, layout
from protofed_papers.output import as_markdown, as_text, facts_of, formula_lines, hyperparameter_lines
from protofed_papers.papers import ACCURACY
from protofed_papers.papers import papers as all_papers
from protofed_papers.results import Result, committed
from support import few

PAPERS = all_papers()
TABLES = [(paper, table) for paper in PAPERS.values() for table in paper.tables]
RUNS = [(paper, table) for paper, table in TABLES if table.kind == "runs"]
NAMES = [f"{paper.name}-{table.number}" for paper, table in RUNS]
ROOT = Path(__file__).resolve().parents[2]


@cache
def runs_of(paper: str, number: int, scale: str, seeds: int) -> list[tuple[Experiment, str]]:
    """Return the runs of a table with the printed names of their methods."""
    own = Sheet(PAPERS[paper], PAPERS[paper].table(number), Scope(scale, tuple(range(seeds))), lambda k: None)
    return [(experiment, method) for _, experiment, method in own.all()]


def sheet(
    paper: str,
    number: int,
    scale: str = "full",
    values: tuple[float, ...] = (),
    images: int = 110_000,
    **facts: object,
) -> Sheet:
    """Return a table in which every run gave the accuracies ``values``, one per seed, on so many images."""
    results = {}
    for experiment, method in runs_of(paper, number, scale, len(values)) if values else ():
        numbers = dict.fromkeys(("best", "client_mean"), values[experiment.seed]) | {"up": 4000.0, "down": 4000.0}
        k = experiment.key
        results[k] = Result(
            k, scale, experiment.recipe, method, experiment.seed, 10, images, "s", "head", values=numbers
        )
    scope = Scope(scale, tuple(range(max(1, len(values)))))
    return Sheet(PAPERS[paper], PAPERS[paper].table(number), scope, results.get, **facts)


def test_the_papers_print_575_accuracies_in_19_tables():
    assert sum(p.metric == ACCURACY and p.value != "" for _, table in TABLES for p in table.printed) == 575
    assert sum(len(table.printed) for _, table in TABLES) == 886
    assert len(TABLES) == 19


@pytest.mark.parametrize(("paper", "table"), RUNS, ids=NAMES)
def test_every_printed_number_has_a_place_and_every_section_two_controls(paper, table):
    own = layout(table)
    shown = [entry.printed for entry in own.entries.values() if entry.printed]
    assert {id(p) for p in shown} == {id(p) for p in table.printed}
    scores = [entry for entry in own.entries.values() if entry.metric == ACCURACY]
    assert sum(e.printed is not None for e in scores) == sum(p.metric == ACCURACY for p in table.printed)
    for section in {row.section for row in own.rows}:
        assert set(CONTROLS) <= {row.method for row in own.rows if row.section == section}
    assert all(entry.runs for entry in own.entries.values())


@pytest.mark.parametrize(
    ("paper", "number", "settings", "method", "expected"),
    [
        ("fedproto", 2, "n=4;stdev_n=3", "fedavg", {"partition.n": 4, "partition.n_std": 3}),
        ("fedproto", 1, "n=3", "fedproto-mh", {"model.name": "fedproto_mh", "method.name": "fedproto"}),
        ("protonorm", 1, "dataset=cifar100;split=pathological", "fml", {"partition.name": "pathological"}),
        (
            "protonorm",
            2,
            "dataset=cifar100;alpha=0.01;clients=50;d=64",
            "protonorm",
            {"partition.alpha": 0.01, "data.clients": 50, "model.d": 64, "method.gamma": 200.0},
        ),
        ("protonorm", 5, "dataset=cifar10;gamma=1.2", "fedtgp", {"method.gamma": 1.2, "evaluation.rule": "local"}),
        (
            "tinyproto",
            5,
            "dataset=cifar10;s=150;scaling=no",
            "tinyproto-ft",
            {"method.base": "fedtgp", "method.s": 150, "method.scaling": False, "method.cps": True},
        ),
        (
            "gfpl",
            2,
            "dataset=cifar10;variant=without-dcs;s_hat=20;w_bar=4",
            "gfpl",
            {"method.dcs": False, "method.pfg": True, "partition.k_std": 20, "partition.n": 4},
        ),
        ("gfpl", 1, "w_bar=5;w_hat=2", "fedproto", {"evaluation.rule": "global_own", "partition.n": 5}),
    ],
)
def test_a_printed_number_is_repeated_with_its_settings(paper, number, settings, method, expected):
    own = PAPERS[paper]
    given = {"dataset": "mnist", **dict(part.split("=") for part in settings.split(";"))}
    experiment = experiment_of(own, own.table(number), given, method, 7, "full", {})
    assert experiment.seed == 7
    for name, value in expected.items():
        node = experiment.to_tree()
        for part in name.split("."):
            node = node[part]
        assert node == value, name


def test_scales():
    paper = PAPERS["protonorm"]
    given = (paper, paper.table(1), {"dataset": "cifar10", "split": "practical"}, "fedproto", 0)
    full, tenth, smoke = (experiment_of(*given, scale, {}) for scale in ("full", "tenth", "smoke"))
    assert (full.data.samples, full.rounds) == (0, 300)
    assert (tenth.data.samples, tenth.rounds, tenth.model) == (6000, 300, full.model)
    assert (smoke.rounds, smoke.data.source) == (2, "spiral")
    assert experiment_of(*given, "tenth", {"rounds": 30}).rounds == 30
    paper = PAPERS["fedproto"]
    shots = experiment_of(paper, paper.table(1), {"dataset": "mnist", "k": "100"}, "fedproto", 0, "tenth", {})
    assert shots.partition_options.k == 10


@pytest.mark.parametrize(("method", "dataset"), [("tinyproto-fp", "cifar10"), ("tinyproto-ft", "tinyimagenet")])
def test_a_tenth_of_the_images_leaves_the_length_of_scaled_prototypes_as_it_is(method, dataset):
    paper = PAPERS["tinyproto"]
    given = (paper, paper.table(1), {"dataset": dataset}, method, 0)
    full, tenth = (experiment_of(*given, scale, {}).to_tree()["method"]["mu"] for scale in ("full", "tenth"))
    assert full > 0
    assert tenth == pytest.approx(10 * full)
    assert experiment_of(*given, "tenth", {"method.mu": 0.5}).to_tree()["method"]["mu"] == 0.5


def test_rows_that_no_paper_prints_surround_those_that_it_prints():
    rows = [row.method for row in layout(PAPERS["tinyproto"].table(1)).rows]
    assert rows[:2] == ["local", "fixed_etf"]
    assert [row for row in rows if not row.endswith("-coded")][-2:] == ["tinyproto-ft", "tinyproto-ft-scripts"]
    assert rows[-1].endswith("-coded")


@few(("paper", "table"), RUNS, 1, ids=NAMES)
def test_a_table_that_was_not_run_says_so_in_80_columns(paper, table):
    own = sheet(paper.name, table.number)
    text = as_text(own, facts_of(own, "protofed reproduce"))
    assert max(map(len, text.splitlines())) <= 80
    numbers = sum(entry.metric == ACCURACY for entry in own.layout.entries.values())
    assert text.count("not run") >= numbers
    for printed in table.printed:
        assert not printed.value or printed.value in text


def test_a_cell_has_paper_ours_interval_and_verdict():
    own = sheet("protonorm", 1, values=(0.80, 0.82, 0.87))
    row = next(row for row in own.layout.rows if row.method == "fedproto")
    filled = own.filled(row, ("practical", "cifar10"))
    assert filled.mean == pytest.approx(83.0)
    assert filled.half == pytest.approx(4.3026527 * 3.605551 / 3**0.5, rel=1e-6)
    assert filled.verdict == "open"  # 82.90 is printed
    assert own.filled(row, ("practical", "tinyimagenet")).verdict == "outside"
    near = sheet("protonorm", 1, values=(0.828, 0.829, 0.831))
    assert near.filled(row, ("practical", "cifar10")).verdict == "within"
    assert (
        sheet("protonorm", 1, "tenth", (0.8, 0.82, 0.87)).filled(row, ("practical", "cifar10")).verdict == "(open)"
    )
    assert sheet("protonorm", 1, values=(0.8,)).filled(row, ("practical", "cifar10")).verdict == "open"
    part = sheet("protonorm", 1, values=(0.8, 0.82, 0.87), images=11_000)
    assert part.filled(row, ("practical", "cifar10")).verdict == "(open)"  # all rounds, but not all images
    shots = sheet("gfpl", 1, values=(0.8, 0.82, 0.87), images=11_000)
    fedproto = next(row for row in shots.layout.rows if row.section == ("cifar10",) and row.method == "fedproto")
    assert shots.filled(fedproto, ("3",)).verdict == "outside"  # shots per class are all that the paper uses
    markdown = as_markdown(own, facts_of(own, "x"))
    assert "| 82.90 / 83.0 ± 9.0 open |" in markdown
    lines = markdown.splitlines()
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
    assert as_markdown(own, facts_of(own, "x"), known=True) == markdown
    none = sheet("protonorm", 1)
    assert "| fedproto |" not in as_markdown(none, facts_of(none, "x"), known=True)


def test_counts_agree_with_what_is_printed_in_its_own_unit():
    own = sheet("tinyproto", 1, values=(0.8, 0.81))
    row = next(row for row in own.layout.rows if row.method == "fedproto")
    filled = own.filled(row, ("cifar10", "params_millions"))
    assert (filled.mean, filled.verdict) == (pytest.approx(0.008), "lower")
    own = sheet("fedproto", 2, values=(0.8, 0.81))
    row = next(row for row in own.layout.rows if row.method == "fedproto")
    filled = own.filled(row, ("params_thousands",))
    assert (filled.mean, filled.verdict) == (pytest.approx(4.0), "agrees")  # what is sent up


def test_a_printed_bound_is_shown_as_one():
    own = sheet("tinyproto", 1, values=(0.8, 0.81))
    row = next(row for row in own.layout.rows if row.method == "feddistill")
    assert own.filled(row, ("cifar10", "params_millions")).verdict == "agrees"  # 0.008 million
    assert "| <0.01 / 0.01 agrees |" in as_markdown(own, facts_of(own, "x"))


def test_who_sends_nothing_needs_no_rounds_and_who_does_not_converge_reaches_none():
    found = {}
    for _, experiment, method in sheet("gfpl", 1).all():
        values = {"up": 4000.0 * (method != "local")} | ({"converged": 68.0} if method != "fedper" else {})
        found[experiment.key] = Result(experiment.key, "full", "", method, experiment.seed, 100, values=values)
    own = Sheet(PAPERS["gfpl"], PAPERS["gfpl"].table(1), Scope("full", (0, 1)), found.get)
    needed = {row.method: own.filled(row, ("rounds",)) for row in own.layout.rows if row.section == ("mnist",)}
    shown = [needed[method].values or needed[method].verdict for method in ("local", "gfpl", "fedper")]
    assert shown == [(0.0,), (68.0,), "unreached"]  # seed 0 alone was run, of two


@pytest.mark.slow
def test_another_rule_than_the_papers_is_shown_in_brackets():
    plain = sheet("protonorm", 1, values=(0.6, 0.61))
    found = {}
    for _, experiment, method in plain.all():
        others = {"head": {"best": 0.8 + 0.01 * experiment.seed}}
        facts = (experiment.key, "full", "", method, experiment.seed, 300, 110_000, "s")
        found[experiment.key] = Result(*facts, "local", "done", "", {"best": 0.6}, others)
    own = Sheet(plain.paper, plain.table, Scope("full", (0, 1)), found.get)
    by_head = Sheet(plain.paper, plain.table, Scope("full", (0, 1), {}, "head"), found.get)
    rows = {row.method: row for row in own.layout.rows}
    place = ("practical", "cifar10")
    assert own.filled(rows["fedproto"], place).mean == pytest.approx(60.0)
    assert own.filled(rows["fixed_etf"], place).mean == pytest.approx(80.5)  # it has no rule local
    assert by_head.filled(rows["fedproto"], place).mean == pytest.approx(80.5)
    assert by_head.filled(rows["fedproto"], place).verdict == "(open)"
    assert "By rule head, which is not the paper's." in as_text(by_head, facts_of(by_head, "x"))
    none = Sheet(plain.paper, plain.table, Scope("full", (0, 1), {}, "etf"), found.get)
    assert none.filled(rows["fedproto"], place).verdict == "not run"


@pytest.mark.parametrize(
    ("overrides", "as_printed"),
    [
        ({}, True),
        ({"execution.executor": "fused", "data.data_dir": "elsewhere"}, True),
        ({"execution.executor": "fused", "rounds": 30}, False),
        ({"training.lr": 0.02}, False),
    ],
)
def test_only_what_changes_results_puts_verdicts_in_brackets(overrides, as_printed):
    own = Scope("full", (0, 1), overrides)
    assert own.as_printed is as_printed
    assert own.shown("agrees") == ("agrees" if as_printed else "(agrees)")


def test_a_missing_data_set_is_told_beside_the_others():
    own = sheet("fedproto", 1, "tenth", missing={"femnist": "no local copy"})
    rows = {row.section[0]: row for row in own.layout.rows if row.method == "fedproto"}
    assert own.filled(rows["femnist"], ("3",)).verdict == "no data"
    assert own.filled(rows["mnist"], ("3",)).verdict == "not run"
    assert {c[0] for c in own.columns_of("femnist")} == {"femnist"}
    text = as_text(own, facts_of(own, "x"))
    assert "no data" in text
    assert "Not at hand: no local copy" in text


def test_hyperparameters_are_those_of_the_recipes():
    found = {(row.method, row.name): row for row in hyperparameters("protonorm", 6)}
    assert {row.verdict for row in found.values()} == {"agrees"}
    dims = {row.column: row for row in hyperparameters("gfpl", 3) if row.name == "projection_dim"}
    assert dims["mnist"].verdict == "agrees"
    assert (dims["cifar10"].printed, dims["cifar10"].ours, dims["cifar10"].verdict) == ("80", "128", "differs")
    for paper, table in TABLES:
        if table.kind == "hyperparameters":
            assert max(map(len, hyperparameter_lines(paper, table))) <= 80
        if table.kind == "formulas":
            assert len(formula_runs(paper, table, Scope("smoke"))) == len(table.printed)
            assert formula_lines(paper, table, [])


@pytest.mark.parametrize("paper", PAPERS.values(), ids=PAPERS)
def test_figures_adjust_methods_as_tables_do(paper):
    for figure in paper.figures:
        for given, experiment in figure_cells(paper, figure, 0, "full", {}):
            wanted = paper.adjust.get(given["method"], {}).get("evaluation.rule", "")
            assert not wanted or experiment.evaluation.rule == wanted, figure.number


@pytest.mark.parametrize("paper", PAPERS.values(), ids=PAPERS)
def test_figures_have_runs_or_need_none(paper):
    for figure in paper.figures:
        runs = figure_runs(paper, figure, 0, "full", {})
        combinations = len(figure.methods)
        for values in figure.vary.values():
            combinations *= len(values)
        assert len(runs) <= combinations + 5
        assert bool(runs) == bool(figure.methods), figure.number


@pytest.mark.parametrize(("name", "number", "scale"), [("fedproto", 1, "full"), ("tinyproto", 1, "tenth")])
def test_committed_results_are_of_todays_configurations(name, number, scale):
    """A key leaves defaults out, so that another default of an option loses results: write them with new keys."""
    scope = committed_scopes()[scale]
    own = Sheet(PAPERS[name], PAPERS[name].table(number), scope, committed().get)
    assert len(committed().keys() & set(own.all_keys())) >= 20


@pytest.mark.slow
def test_the_pages_hold_the_committed_results():
    script = ROOT / "papers/tools/reproduction_pages.py"
    run = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_rows_as_coded_have_the_authors_split_and_stand_where_there_is_a_recipe():
    table = PAPERS["protonorm"].table(1)
    found = {
        (row.method, column)
        for row, column in layout(table).entries
        if row.method.endswith("-coded") and "protonorm" in row.method
    }
    assert ("protonorm-coded", ("practical", "cifar10")) in found
    assert {column[1] for _, column in found} == {"cifar10"}

    def cell(method, scale, split="practical"):
        settings = {"split": split, "dataset": "cifar10"}
        return experiment_of(PAPERS["protonorm"], table, settings, method, 0, scale, {})

    full = cell("protonorm-coded", "full")
    assert (full.partition, full.method_options.gamma, full.partition_options.share) == ("authors", 80.0, 1.0)
    tenth = cell("norm-g10-coded", "tenth", "pathological")
    assert (tenth.method_options.gamma, tenth.method_options.lambda_) == (10.0, 10.0)
    assert (tenth.partition_options.skew, tenth.partition_options.share, tenth.data.samples) == (
        "pathological",
        0.1,
        0,
    )
    assert cell("protonorm", "full").partition == "dirichlet"


def test_fedprotos_devices_as_coded_have_the_cells_classes_and_shots():
    paper = PAPERS["fedproto"]
    settings = {"dataset": "mnist", "n": "5", "stdev_n": "1", "k": "100", "clients": "20"}
    for scale, k in (("full", 100), ("tenth", 10)):
        own = experiment_of(paper, paper.table(2), settings, "fesem-coded", 0, scale, {})
        options = own.partition_options
        assert (own.partition, options.n, options.n_std, options.k) == ("authors", 5, 1, k)
        assert (own.method_options.grouping, own.method_options.clusters) == ("classes", 2)
