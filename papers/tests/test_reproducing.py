"""The command: what is missing is run and nothing twice, and what cannot be run does not stop the rest."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from protofed.errors import CheckpointError, ConfigError, DataError
from protofed.runs.loading import load_run
from protofed_papers import judging, running, showing
from protofed_papers.cells import figure_cells
from protofed_papers.judging import judged
from protofed_papers.layout import Scope, Sheet, committed_scopes
from protofed_papers.papers import papers
from protofed_papers.results import FOLDER, Result, committed, read_results, result_of, write_results
from protofed_papers.running import Reproduction, ResultLibrary, parts_of, reproduce
from support import few, one_line

SMOKE = Scope("smoke", (7,))
PAPERS = papers()


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """An output folder with ProtoNorm's Table 5, some of whose runs are those of Table 1."""
    out = tmp_path_factory.mktemp("reproduced")
    reproduce(Reproduction("protonorm/table5", SMOKE, out))
    return out


def test_a_table_is_made_and_nothing_is_run_twice(made, tmp_path):
    out = shutil.copytree(made, tmp_path / "copy")
    results = read_results(out / "results.csv")
    assert len(results) == 24
    assert all(result.done for result in results)
    assert all(re.fullmatch(r"protofed \S+, torch \S+, .+, \d+ cores, executor \w+", r.made) for r in results)
    assert not list(out.glob("runs/*/clients"))  # models, which no table needs
    before = {p: p.stat().st_mtime_ns for p in out.glob("runs/*/summary.json")}
    found = reproduce(Reproduction("protonorm/table5", SMOKE, out))
    assert {p: p.stat().st_mtime_ns for p in out.glob("runs/*/summary.json")} == before
    printed: list[str] = []
    showing.show(found, Reproduction("protonorm/table5", SMOKE, out), printed.append)
    (page,) = (out / "tables").iterdir()
    for text in (printed[0], page.read_text(encoding="utf-8")):
        assert "82.90" in text
        assert "smoke" in text
        assert re.search(r"Configurations: [0-9a-f]{12}; splits: [0-9a-f]{12}", text)
    assert "not testable here" in "\n".join(printed)  # claims at this scale


def test_without_running_only_what_is_there_is_shown(tmp_path):
    found = reproduce(Reproduction("protonorm/table5", SMOKE, tmp_path / "none", run=False))
    assert not (tmp_path / "none").exists()
    row = found.sheets[0].layout.rows[-1]
    assert found.sheets[0].filled(row, found.sheets[0].layout.columns[0]).verdict == "not run"


@pytest.mark.slow
@few("target", ["fedproto/table2", "protonorm/figure1a"], 1)
def test_a_folder_in_which_results_were_shown_can_be_run_in(tmp_path, target):
    only = {"dataset": ("mnist",), "method": ("local",)} if "table" in target else {}
    for run in (False, True):
        request = Reproduction(target, SMOKE, tmp_path, only=only, run=run)
        found = reproduce(request)
        showing.show(found, request, lambda text: None)
    assert not found.failed
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        showing.show(found, replace(request, out=tmp_path / "other", run=False), lambda text: None)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["letter.txt"]


@pytest.mark.slow
def test_only_the_cells_that_are_asked_for_are_run(tmp_path):
    only = {"dataset": ("cifar10",), "method": ("fedproto", "local")}
    found = reproduce(Reproduction("protonorm/table5", SMOKE, tmp_path, only=only))
    (sheet,) = found.sheets
    run = {(row.section, row.method) for (row, _), entry in sheet.layout.entries.items() if sheet.values(entry)}
    assert run == {(("cifar10",), "fedproto"), (("cifar10",), "local")}
    assert len(sheet.results()) == len(list(sheet.all(only))) < len(sheet.all_keys())


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("datset=cifar10", "--only: unknown setting 'datset'"),
        ("dataset=cifar", "--only: unknown dataset 'cifar'"),
        ("dataset=", "is not NAME=VALUE"),
    ],
)
def test_unknown_cells_are_refused_in_one_line(tmp_path, item, message):
    out = tmp_path / "out"
    with one_line(ConfigError, re.escape(message)):
        reproduce(Reproduction("protonorm/table5", SMOKE, out, only=showing.only([item])))
    assert not out.exists()


@pytest.mark.parametrize("run", [True, False])
def test_an_option_that_no_method_of_a_table_has_is_refused(tmp_path, run):
    out = tmp_path / "out"
    scope = replace(SMOKE, overrides={"method.lamda": 2.0})
    with pytest.raises(ConfigError, match="unknown option of method 'lamda': did you mean 'lambda'"):
        reproduce(Reproduction("protonorm/table5", scope, out, run=run))
    assert not out.exists()


def test_an_option_of_some_methods_of_a_table_is_theirs_alone(tmp_path):
    scope = replace(SMOKE, overrides={"method.lambda": 2.0})
    found = reproduce(Reproduction("protonorm/table5", scope, tmp_path / "out", run=False))
    values = {e.method: getattr(e.method_options, "lambda_", None) for _, e, _ in found.sheets[0].all()}
    assert values["fedproto"] == 2.0
    assert values["local"] is None


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_that_no_run_can_have_is_refused_even_where_nothing_is_run(seed):
    with pytest.raises(ConfigError, match=rf"seed must be an integer from 0 to 9223372036854775807, not {seed}"):
        showing.scope("full", (0, seed), {})


def test_an_unknown_rule_is_refused_in_one_line():
    assert showing.scope("full", (0,), {}, "head").rule == "head"
    with pytest.raises(ConfigError, match="--rule: unknown rule 'hed'"):
        showing.scope("full", (0,), {}, "hed")


def test_a_spent_budget_leaves_everything_for_later(tmp_path):
    found = reproduce(Reproduction("protonorm/table5", SMOKE, tmp_path, budget=-1))
    assert found.waiting == 24
    assert not (tmp_path / "results.csv").exists()


@pytest.mark.slow
def test_a_data_set_that_is_not_at_hand_does_not_stop_the_rest(tmp_path, monkeypatch):
    scope = Scope("tenth", (0,), {"rounds": 1})
    asked = []

    def load(experiment):
        asked.append(experiment.data.source)
        if experiment.data.source == "femnist":
            raise DataError("data set 'femnist': no local copy")

    ran = []
    monkeypatch.setattr(running, "load_data", load)
    monkeypatch.setattr(running, "run_tasks", lambda tasks, **_: ran.extend(tasks) or iter(()))
    found = reproduce(Reproduction("fedproto/table1", scope, tmp_path))
    assert sorted(asked) == ["cifar10", "femnist", "mnist"]  # each is looked for once
    assert found.missing == {"femnist": "data set 'femnist': no local copy"}
    assert len(ran) == 102
    assert not any("femnist" in task.label for task in ran)
    printed: list[str] = []
    showing.show(found, Reproduction("fedproto/table1", scope, tmp_path), printed.append)
    assert printed[0].startswith("not at hand: femnist (missing columns: femnist")
    assert "no data" in printed[1]


def test_a_run_that_fails_is_told_and_kept(tmp_path, monkeypatch):
    def fail(tasks, **_):
        for place, _task in enumerate(tasks):
            yield place, ConfigError("diverged")

    monkeypatch.setattr(running, "run_tasks", fail)
    found = reproduce(Reproduction("protonorm/table5", SMOKE, tmp_path))
    assert set(found.failed.values()) == {"diverged"}
    sheet = found.sheets[0]
    verdicts = {
        (row.method, column[0]): sheet.filled(row, column).verdict
        for row in sheet.layout.rows
        for column in sheet.layout.columns
        if row.section == ("cifar100",) and sheet.filled(row, column)
    }
    assert verdicts["fedproto", "1.0"] == "failed"
    assert verdicts["fedproto", "1.3"] == "agrees"  # the paper prints a dash, too


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("protonrm/table1", "did you mean 'protonorm'?"),
        ("protonorm/table9", "unknown table of protonorm '9'"),
        ("protonorm/figure9", "unknown figure of protonorm '9'"),
        ("protonorm/claim" + "1" * 5000, "is no number"),
        ("protonorm/page1", "unknown part 'page1'"),
    ],
)
def test_an_unknown_target_is_refused_in_one_line(target, message):
    with pytest.raises(ConfigError) as caught:
        parts_of(target)
    assert message in str(caught.value)


def test_a_folder_of_another_version_is_refused(tmp_path):
    (tmp_path / "runs.json").write_text(json.dumps({"format": 1, "protofed": "0.1.0"}))
    with pytest.raises(CheckpointError, match=r"holds runs of protofed 0\.1\.0, and this is"):
        reproduce(Reproduction("tinyproto/figure1", SMOKE, tmp_path))


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "\x00", "key,scale\nx"])
def test_damaged_results_are_refused_in_one_line(tmp_path, text):
    (tmp_path / "results.csv").write_text(text)
    with pytest.raises(CheckpointError, match=r"results\.csv: cannot be read"):
        ResultLibrary(tmp_path)


def test_results_are_read_as_they_were_written(tmp_path):
    others = {"local": {"final": 0.5, "best": 0.75}, "global": {"final": 0.25}}
    one = Result(
        "k", "tenth", "r", "m", 3, 10, 99, "s", "head", "done", "x", {"final": 0.8125, "up": 4000.0}, others
    )
    other = Result("l", "full", "r", "m", 0, state="failed: x, y")
    write_results(tmp_path / "r.csv", [other, one])
    assert sorted(read_results(tmp_path / "r.csv"), key=lambda r: r.key) == [one, other]
    write_results(tmp_path / "s.csv", [one, other])
    assert (tmp_path / "r.csv").read_bytes() == (tmp_path / "s.csv").read_bytes()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"scale": "../../owned"}, "unknown scale '../../owned'"),
        ({"values": {"final": 7.0}}, "final 7: accuracies are fractions"),
        ({"values": {"up": 1e306}}, "up 1e+306: accuracies are fractions, other numbers at most 1e+15"),
        ({"values": {"up": float("nan")}}, "up nan"),
    ],
)
def test_results_that_no_run_has_are_refused(change, expected, tmp_path):
    write_results(tmp_path / "r.csv", [replace(Result("k", "full", "r", "m", 0), **change)])
    with pytest.raises(CheckpointError, match=re.escape(f"r.csv: cannot be read ({expected}")):
        read_results(tmp_path / "r.csv")


def test_a_run_has_one_result(tmp_path):
    write_results(tmp_path / "r.csv", [Result("k", "full", "r", "m", 0), Result("k", "full", "r", "m", 1)])
    with pytest.raises(CheckpointError, match="has the run k more than once"):
        read_results(tmp_path / "r.csv")


def test_a_line_by_another_rule_belongs_to_a_run(tmp_path):
    write_results(tmp_path / "r.csv", [Result("k", "full", "r", "m", 0, others={"local": {"final": 0.5}})])
    first, main, other = (tmp_path / "r.csv").read_text().splitlines()
    (tmp_path / "r.csv").write_text("\n".join([first, main.replace("k,", "l,", 1), other]))
    with pytest.raises(CheckpointError, match=r"r\.csv: cannot be read \(not a table of results\)"):
        read_results(tmp_path / "r.csv")


def test_accuracies_by_another_rule_are_those_of_that_rule_alone():
    values = {"final": 0.5, "converged": 3.0, "up": 7.0}
    own = Result("k", "full", "r", "m", 0, rule="local", values=values, others={"head": {"final": 0.75}})
    assert own.by("") == own.by("local") == values
    assert own.by("head") == {"final": 0.75, "up": 7.0}
    assert own.by("global") == {"up": 7.0}


@pytest.mark.slow
def test_a_run_that_diverges_has_failed_and_a_claim_is_about_where_it_ended(tmp_path):
    scope = Scope("smoke", (7,), {"training.lr": 1e12})
    request = Reproduction(
        "protonorm/table5", scope, tmp_path, only={"method": ("fedproto",), "gamma": ("1.0", "1.4")}
    )
    found = reproduce(request)
    results = read_results(tmp_path / "results.csv")
    assert len(results) == 4  # CIFAR-10 and CIFAR-100
    assert all(re.fullmatch(r"failed: \d+ of 5 clients diverged", r.state) for r in results)
    assert not found.failed  # the runs themselves ended
    sheet = found.sheets[0]
    row = next(row for row in sheet.layout.rows if row.method == "fedproto" and row.section == ("cifar10",))
    plain, printed_dash = (sheet.filled(row, (gamma,)) for gamma in ("1.0", "1.4"))
    assert (plain.values, plain.state, plain.verdict) == ((), "failed", "failed")
    assert printed_dash.verdict == "agrees"
    assert sheet.values(plain.entry) == {}
    ended = sheet.values(plain.entry, "accuracy")
    assert ended == {7: pytest.approx(100 * next(r for r in results if r.key == key(sheet, plain)).values["final"])}


def key(sheet: Sheet, filled: Any) -> str:
    return sheet.experiments(filled.entry, 7)[0].key


def _all_better(claim, paper, sign: float):
    """Return results in which the claimed side is better than all others by a point, or worse."""
    sheet = Sheet(paper, paper.table(claim.table), Scope("tenth", (0, 1, 2)), lambda k: None)
    method = claim.a if isinstance(claim.a, str) else claim.a["method"]
    results = {}
    for entry, experiment, _ in sheet.all():
        own = entry.runs[0][1] == method
        value = 0.8 + 0.02 * sign * own + 0.001 * experiment.seed * (1 + own)
        values = {"best": value, "client_mean": value, "up": 1000.0 + 1e6 * (not own), "down": 1000.0}
        k = experiment.key
        results[k] = Result(k, "tenth", "", "", experiment.seed, values=values)
    return results.get


@pytest.mark.slow
def test_a_claim_as_coded_scores_prototypes_by_the_codes_rule_and_the_others_as_ever():
    paper, scope = PAPERS["protonorm"], Scope("tenth", (0, 1, 2))
    sheet = Sheet(paper, paper.table(1), scope, lambda k: None)
    results = {}
    for _, e, method in sheet.all():
        best = {"protonorm": 0.7, "fedproto": 0.6}.get(method, 0.8) + 0.001 * e.seed
        others = {"global": {"best": best + 0.2}} if method == "protonorm" else {}
        others |= {"head": {"best": best - 0.5}} if method == "fixed_etf" else {}
        results[e.key] = Result(
            e.key, "tenth", "", method, e.seed, rule="local", values={"best": best}, others=others
        )
    claim, coded = paper.claim(1), replace(scope, rule=paper.coded)
    assert judging.rules_of(paper, claim) == ["", "global"]
    assert judged(paper, claim, scope, results.get).verdict == "contradicted"
    by_code = judged(paper, claim, coded, results.get)
    assert by_code.verdict == "reproduced"  # FML has no rule global
    assert by_code.comparisons[0].differences == pytest.approx([10.0] * 3)
    assert judging.rules_of(paper, paper.claim(13)) == [""]  # of heads alone, which ProtoNorm lacks here
    assert judged(paper, paper.claim(13), coded, results.get).verdict == "not run"


def test_most_cases_are_their_mean_and_privacy_an_example():
    paper, scope = PAPERS["fedproto"], Scope("tenth", (0, 1, 2))
    (comparison,) = judged(paper, paper.claim(2), scope, lambda k: None).comparisons
    assert (comparison.what, len(comparison.cells)) == ("fedproto against all 4", 36)
    assert judged(paper, paper.claim(9), scope, lambda k: None).verdict == "contradicted"


def test_zeros_of_the_prototypes_that_clients_have_are_dead_features(made, tmp_path):
    run = load_run(shutil.copytree(next((made / "runs").glob("fedproto-*")), tmp_path / "run"))
    tensors, shares = load_file(path := run.directory / "prototypes.safetensors"), []
    for number, client in enumerate(run.clients):
        own, present = (tensors[f"local.{client.name}.{name}"] for name in ("prototypes", "present"))
        own[:, :number] = 0
        shares += [number / own.shape[1]] * int(present.sum())
    save_file(tensors, path, {"protofed.snapshot": "1"})
    dead = result_of(run, "key", "smoke", "fedproto").values["dead_percent"]
    assert dead == pytest.approx(100 * np.mean(shares)) != 0


def test_a_claim_runs_both_tables_that_it_compares():
    tables, _, _ = parts_of("protonorm/claim14")
    assert [table.number for _, table in tables] == [1, 5]


def test_one_run_contradicts_a_claim_about_every_run():
    paper, scope = PAPERS["protonorm"], Scope("tenth", (0, 1, 2))
    claim = next(c for c in paper.claims if c.every)
    sheet = Sheet(paper, paper.table(1), scope, lambda k: None)
    runs = {e.key: e for _, e, method in sheet.all() if method == "protonorm"}
    for most, verdict in ((499.0, "reproduced"), (500.0, "contradicted")):
        results = {
            k: Result(k, "tenth", "", "", e.seed, values={"alignment_most": most if e.seed == 1 else 60.0})
            for k, e in runs.items()
        }
        assert judged(paper, claim, scope, results.get).verdict == verdict


def test_a_claim_can_compare_two_tables():
    paper, scope = PAPERS["protonorm"], Scope("tenth", (0, 1, 2))
    claim = next(c for c in paper.claims if c.other is not None)
    results = {}
    for number, best in ((1, 0.8), (5, 0.7)):
        for _, experiment, method in Sheet(paper, paper.table(number), scope, lambda k: None).all():
            value = best + 0.001 * experiment.seed + (0.1 if method == "protonorm" else 0.0)
            results[experiment.key] = Result(
                experiment.key, "tenth", "", "", experiment.seed, values={"best": value}
            )
    own = judged(paper, claim, scope, results.get)
    assert own.verdict == "reproduced"
    assert len(own.comparisons) == 10  # two methods, five scales
    assert all(len(c.cells) == 2 for c in own.comparisons)  # CIFAR-10 and CIFAR-100, practical
    assert own.comparisons[0].what == "protonorm against fedproto, gamma=1.0"


@pytest.mark.slow
@few(("name", "number"), [("protonorm", 1), ("gfpl", 1), ("tinyproto", 4), ("fedproto", 10)], 1)
def test_a_claim_of_superiority_follows_the_numbers(name, number):
    paper = PAPERS[name]
    claim = paper.claim(number)
    scope = Scope("tenth", (0, 1, 2))
    assert judged(paper, claim, scope, _all_better(claim, paper, 1.0)).verdict == "reproduced"
    assert judged(paper, claim, scope, _all_better(claim, paper, -1.0)).verdict == "contradicted"
    none = judged(paper, claim, scope, lambda k: None)
    assert none.verdict == "not run"
    assert all(len(comparison.cells) >= 3 for comparison in none.comparisons)


def test_a_claim_about_a_figure_is_tested_at_a_scale_that_changes_its_option():
    """At a tenth, k = 100 and 10 shots are 10 and 1; the claim still finds them."""
    paper, scope = PAPERS["fedproto"], Scope("tenth", (0, 1, 2))
    results = {}
    for seed in scope.seeds:
        for given, experiment in figure_cells(paper, paper.figure("2"), seed, "tenth", {}):
            value = 0.5 + 0.002 * given["partition.k"] + 0.001 * seed
            results[experiment.key] = Result(experiment.key, "tenth", "", "", seed, values={"client_mean": value})
    judgement = judged(paper, paper.claim(7), scope, results.get)
    assert judgement.verdict == "reproduced"
    (comparison,) = judgement.comparisons
    assert len(comparison.cells) == 2  # FedProto and FedAvg
    assert comparison.differences == pytest.approx((18.0, 18.0, 18.0))


@pytest.mark.slow
def test_every_claim_has_comparisons_or_a_reason():
    for paper in PAPERS.values():
        for claim in paper.claims:
            judgement = judged(paper, claim, Scope("tenth", (0,)), lambda k: None)
            if claim.counterexample:
                assert judgement.verdict == "contradicted"
                assert judgement.why == claim.counterexample
            else:
                assert judgement.verdict == "not run", f"{paper.name} {claim.number}"
                assert judgement.comparisons, f"{paper.name} {claim.number}"


@pytest.mark.slow
def test_verdicts_on_committed_results_are_those_that_were_committed():
    """Whatever moves a verdict, be it a rule, a recipe or a result, has to be looked at and committed with it."""
    kept = json.loads((FOLDER / "verdicts.json").read_text())
    results = committed().values()
    assert {result.scale for result in results} <= set(kept)
    scopes = committed_scopes()
    assert set(scopes) == set(kept)
    for scale, verdicts in kept.items():
        assert judging.verdicts(scopes[scale], committed().get) == verdicts["claims"], scale


@pytest.mark.slow
def test_the_list_tells_the_state_of_every_part(made):
    lines = showing.listing(SMOKE, made)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 80
    for paper in PAPERS.values():
        for part in (*paper.tables, *paper.figures, *paper.claims):
            kind = type(part).__name__.lower().removeprefix("paper")
            assert f"{paper.name}/{kind}{part.number} " in text
    assert re.search(r"protonorm/table5 +24 of 24 runs", text)
    assert re.search(r"gfpl/table1 +not run", text)
    assert re.search(r"tinyproto/table2 +8 of 8 counted", text)
    assert re.search(r"gfpl/table3 +\d+ differ", text)


def test_error_bars_come_from_the_table(made, tmp_path):
    found = reproduce(Reproduction("gfpl/figure5", SMOKE, tmp_path))
    assert found.figures[0][3] == "no run of this figure's table is there"


@pytest.mark.slow
def test_everything_at_the_smallest_scale(tmp_path):
    found = reproduce(Reproduction("all", SMOKE, tmp_path, jobs=2))
    assert not found.failed
    assert all(paths for _, _, paths, _ in found.figures)
    for sheet in found.sheets:
        for row in sheet.layout.rows:
            for column in sheet.layout.columns:
                filled = sheet.filled(row, column)
                assert filled is None or filled.verdict in ("smoke", "unreached", ""), (sheet.table, row, column)
