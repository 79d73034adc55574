from __future__ import annotations

import statistics
from dataclasses import replace

from protofed.analysis import load_run, load_runs
from protofed_lab.viewer import lines
from rundirs import make_comparison, make_run


def test_seeds_are_averaged(tmp_path):
    runs = load_runs([make_comparison(tmp_path / "c", ["fedproto", "local"], [0, 1, 2], rounds=5)])
    found = lines.accuracy(runs)
    assert list(found) == ["mean fedproto", "mean local"]
    values = [100 * run.accuracy("global")[3] for run in runs if run.method == "fedproto"]
    expected = [3, round(statistics.fmean(values), 2), round(statistics.stdev(values), 2)]
    assert found["mean fedproto"].points[2] == expected
    alone = lines.accuracy(runs, each=True)
    assert len({(n.look.colour, n.look.mark, n.look.dashes) for n in alone.values()}) == len(alone) == 6
    picked = lines.accuracy(runs[1:2], each=True, among=runs)  # what is drawn looks as in the table of all runs
    assert [n.look.mark for n in picked.values()] == [lines.looks(runs)[runs[1].directory].mark]


def test_a_mean_does_not_mix_late_and_early_rounds(tmp_path):
    runs = load_runs([make_comparison(tmp_path / "c", ["fedproto"], [0, 1], rounds=5)])
    runs[1] = replace(runs[1], summary=None, rounds=runs[1].rounds[:2])
    found = lines.accuracy(runs)
    assert [(line.name, len(line.points), line.look.thin) for line in found.values()] == [
        ("fedproto", 5, False),
        ("fedproto, seed 1", 2, True),
    ]
    assert all(len(p) == 2 for line in found.values() for p in line.points)


def test_bytes_ascend_and_silence_is_a_level(tmp_path):
    runs = load_runs([make_comparison(tmp_path / "c", ["fedproto", "local"], [0, 1], rounds=4)])
    found = lines.accuracy(runs, over="bytes")
    assert [p[0] for p in found["mean fedproto"].points] == [
        sum(run.sent()[t] for run in runs if run.method == "fedproto") / 2 for t in (1, 2, 3, 4)
    ]
    assert found["mean local"].name == "local: no traffic"
    assert found["mean local"].points == []
    going = [replace(run, summary=None) for run in runs]
    assert lines.accuracy(going, over="bytes")["mean local"].name == "local: no traffic yet"
    assert found["mean local"].level == lines.accuracy(runs)["mean local"].points[-1][1]


def test_runs_alike_are_told_apart_by_their_folders(tmp_path):
    runs = [load_run(make_run(tmp_path / name, rounds=2)) for name in "ab"]
    found = lines.accuracy(runs, each=True)
    assert [line.name for line in found.values()] == ["fedproto, seed 0 (a)", "fedproto, seed 0 (b)"]


def test_a_rule_that_a_run_lacks_is_left_out(tmp_path):
    runs = load_runs([make_comparison(tmp_path / "c", ["fedproto", "local"], [0], rounds=4)])
    assert list(lines.accuracy(runs, rule="global")) == ["mean fedproto"]
    assert lines.accuracy(runs, rule="nothing") == {}


def test_a_run_without_evaluations_has_no_line(tmp_path):
    run = load_run(make_run(tmp_path / "run", rounds=3, every=0, finished=False))
    assert lines.accuracy([run]) == {}


def test_there_is_a_remark_where_colours_repeat():
    assert (lines.alike(8), bool(lines.alike(9))) == ("", True)
