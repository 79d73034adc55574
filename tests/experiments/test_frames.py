"""Results as data frames, and as text for files and papers."""

from __future__ import annotations

import io
import re

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import protofed
from protofed.analysis.table import FORMATS, format_table, tex
from protofed.cli.main import app
from protofed.errors import CheckpointError, ConfigError

QUICK = ["rounds=1", "data.samples=200", "data.clients=4", "execution.executor=sequential", "evaluation.on=union"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory, without_pictures):
    home = tmp_path_factory.mktemp("frames") / "runs"
    command = ["compare", "quickstart", *QUICK, "--methods", "local,fedproto", "--seeds", "0,1", "--format", "csv"]
    shown = CliRunner().invoke(app, [*command, "--out", str(home)])
    assert shown.exit_code == 0, shown.output
    (home / "shown.csv").write_text(shown.stdout)
    return home


def test_a_comparison_is_a_frame_with_a_row_per_run_and_rule(directory):
    found = protofed.load_comparison(directory)
    frame = found.to_frame()
    assert sorted(set(zip(frame.method, frame.seed, strict=True))) == [
        *(("fedproto", 0), ("fedproto", 1), ("local", 0), ("local", 1))
    ]
    assert len(frame) == sum(len(run.outcome.accuracy) for runs in found.runs.values() for run in runs)
    for _, row in frame.iterrows():
        run = found.runs[row.method][row.seed]
        outcome = run.outcome.accuracy[row.rule]
        assert row.final == 100 * outcome.final
        assert row.union == 100 * outcome.union.final
        assert row.up == sum(record.bytes["up"] for record in run.rounds)
        assert row.main == (row.rule == run.main_rule)


def test_the_command_prints_the_same_rows(directory):
    printed = pd.read_csv(io.StringIO((directory / "shown.csv").read_text()))
    frame = protofed.load_comparison(directory).to_frame()
    first, second = (table.drop(columns="directory") for table in (printed, frame))
    pd.testing.assert_frame_equal(first, second, check_dtype=False)


def test_tables_for_papers():
    frame = pd.DataFrame({"method": ["a_b", "c"], "final": [12.34567, None], "main": [True, False]})
    assert format_table(frame, "markdown").splitlines() == [
        "| method | final | main |",
        "|---|---|---|",
        "| a_b | 12.35 | True |",
        "| c |  | False |",
    ]
    assert format_table(frame, "csv").startswith("method,final,main\n")
    with pytest.raises(ConfigError, match="did you mean 'latex'"):
        format_table(frame, "latecs")


def test_a_table_for_a_paper_has_means_over_seeds_and_the_best_in_bold():
    rows = [
        {
            "method": m,
            "alpha": a,
            "seed": s,
            "rule": r,
            "main": r == "head",
            "final": f + s,
            "union": None,
            "directory": "/x",
        }
        for m, a, f in (("a_b", "0.1", 80.0), ("c", "0.1", 82.0), ("a_b", "1.0", 91.26), ("c", "1.0", 90.0))
        for s in (0, 2)
        for r in ("head", "global")
    ]
    frame = pd.DataFrame(rows).assign(client_mean=50.0, unseen=float("nan"))
    assert format_table(frame, "latex").splitlines() == [
        r"\begin{tabular}{llrr}",
        r"\toprule",
        r"Method & Alpha & Accuracy & Mean of clients \\",
        r"\midrule",
        r"a\_b & 0.1 & 81.0 $\pm$ 1.4 & \textbf{50.0 $\pm$ 0.0} \\",
        r"c & 0.1 & \textbf{83.0 $\pm$ 1.4} & \textbf{50.0 $\pm$ 0.0} \\",
        r"a\_b & 1.0 & \textbf{92.3 $\pm$ 1.4} & \textbf{50.0 $\pm$ 0.0} \\",
        r"c & 1.0 & 91.0 $\pm$ 1.4 & \textbf{50.0 $\pm$ 0.0} \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    single = frame[(frame.seed == 0) & (frame.method == "c") & (frame.alpha == "1.0")].drop(columns="alpha")
    assert r"c & 90.0 & 50.0 \\" in format_table(single, "latex")


@given(st.text("ab\\~^&%$#_{}±–−…“”αελφ×", max_size=20))
def test_what_latex_would_read_as_commands_is_escaped(text):
    left = re.sub(r"\\(text\w+|ldots)\{\}|\$\\?[a-z-]+\$|\\[&%$#_{}]", "", tex(text))
    assert set(left) <= set("ab-`'")


def test_the_command_s_table_for_a_paper_has_no_paths(directory):
    latex = format_table(protofed.load_comparison(directory).to_frame(), "latex")
    assert str(directory) not in latex
    assert [line.split(" & ")[0] for line in latex.splitlines()[4:6]] == ["local", "fedproto"]


def test_a_format_that_is_none_is_refused_before_anything_runs(tmp_path):
    result = CliRunner().invoke(app, ["compare", "quickstart", "--format", "xls", "--out", str(tmp_path / "x")])
    assert str(result.exception).startswith("unknown format 'xls'")
    assert all(form in str(result.exception) for form in FORMATS)
    assert not (tmp_path / "x").exists()


def test_what_is_no_comparison_is_one_line(tmp_path, directory):
    with pytest.raises(CheckpointError, match=r"holds no comparison: expected comparison\.json"):
        protofed.load_comparison(tmp_path)
    (tmp_path / "comparison.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"comparison\.json"):
        protofed.load_comparison(tmp_path)
