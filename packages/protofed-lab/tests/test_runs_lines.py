from __future__ import annotations

import statistics
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofed.analysis import load_run, load_runs
from protofed.analysis.style import PALETTE
from protofed.runs.rules import find_rule
from protofed_lab.viewer import lines
from protofed_lab.viewer.lines import Feed, Line, Look
from rundirs import make_comparison, make_run

LOOKS = st.builds(Look, st.integers(0, 7), st.sampled_from("o^s"))
POINTS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)).map(list), max_size=6)
LINES = st.dictionaries(
    st.sampled_from("abcd"),
    st.builds(Line, st.sampled_from(["x", "y"]), LOOKS, POINTS, st.none() | st.just(1.0)),
    max_size=4,
)


def receive(browser: dict, message: dict | None) -> dict:
    """Do what the page's script does with a message."""
    if message is None:
        return browser
    for key, news in message["lines"].items():
        line = browser.setdefault(key, {"points": []})
        line["points"] = line["points"][: news["from"]] + news["points"]
        line |= {k: v for k, v in news.items() if k in ("name", "look", "level")}
    return {key: browser[key] for key in message["order"]} if "order" in message else browser


@pytest.mark.slow
@given(st.lists(LINES, max_size=6))
def test_a_browser_that_gets_all_messages_has_it_all(states):
    feed, browser = Feed(), {}
    for state in states:
        browser = receive(browser, feed.changes(state))
        assert list(browser) == list(state)
        for key, line in state.items():
            assert browser[key] == {
                "points": line.points,
                "name": line.name,
                "look": vars(line.look),
                "level": line.level,
            }
        assert feed.changes(state) is None


def test_a_round_more_is_a_point_more():
    feed, look = Feed(), Look(0, "o")
    points = [[t, t / 2] for t in range(300)]
    feed.changes({"a": Line("a", look, points[:299]), "b": Line("b", look, points)})
    message = feed.changes({"a": Line("a", look, points), "b": Line("b", look, points)})
    assert message == {"lines": {"a": {"from": 299, "points": [[299, 149.5]]}}}


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
    assert lines.accuracy([run]) == lines.by_rule(run) == {}


def test_rules_losses_and_measurements(tmp_path):
    run = load_run(make_run(tmp_path / "run", "protonorm", rounds=4))
    assert list(lines.by_rule(run)) == ["head", "local", "global", "global_own"]
    found = lines.losses(run)
    assert list(found) == ["cross_entropy", "prototype", "total"]
    assert [p[0] for p in found["prototype"].points] == [1, 3, 4]  # round 2 recorded none
    names = {"alignment.energy": "energy", "margin_min": "smallest margin", "absent": "nothing"}
    assert list(lines.measured(run, names)) == ["alignment.energy", "margin_min"]


def test_looks_differ_by_colour_and_by_shape():
    names = ("head", "local", "global", "global_own", "etf", "own", "other")
    looks = list(lines.rule_looks(SimpleNamespace(rules=names, rule=find_rule)).values())
    assert len({look.mark for look in looks}) == len({look.colour for look in looks}) == len(looks)
    assert all(0 <= look.colour < len(PALETTE) for look in looks)
    assert len({(n.colour, n.mark) for n in (Look.number(i) for i in range(40))}) == 40
    assert len({(n.colour, n.dashes) for n in (Look.number(i) for i in range(32))}) == 32
    assert (lines.alike(8), bool(lines.alike(9))) == ("", True)
