"""What joining is worth to each site."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from network import write_folders
from protofed import load_run
from protofed.api import worth
from protofed.samples import Samples
from protofed.trained.curves import SHARES, Curves
from protofed.trained.worth import _needed, advice, interval
from support import command, ordinary

SMALL = ("data.clients=4", "encoder.name=identity", "--seeds", "0,1")


def test_as_typed(tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    status, told, errors = command(monkeypatch, capsys, "worth", "quickstart", *SMALL, "--out", out, "--json")
    assert status == 0, errors
    found = json.loads(told)
    assert found == json.loads((out / "worth.json").read_text())
    alone, together = ([load_run(out / f"{name}-seed{s}") for s in (0, 1)] for name in ("local_lda", "fedlda"))
    for place, site in enumerate(found["sites"]):
        for name, runs in (("alone", alone), ("together", together)):
            scores = [run.rounds[-1].accuracy.clients["head"][place] for run in runs]
            assert site[name] == pytest.approx(np.mean(scores))
            assert site["curves"][name][-1] == pytest.approx(np.mean(scores))
        assert site["gain"][0] == pytest.approx(site["together"] - site["alone"])
        assert site["gain"][1] <= site["gain"][0] <= site["gain"][2]
    assert "What joining is worth" in (out / "worth.html").read_text()
    assert found["sent"] * 4 == np.mean([run.rounds[-1].bytes["up"] for run in together])


@pytest.mark.slow
def test_a_folder(tmp_path, monkeypatch, capsys):
    write_folders(tmp_path / "data", ordinary())
    status, told, errors = command(
        monkeypatch, capsys, "worth", tmp_path / "data", "encoder.name=identity", "--out", tmp_path / "out"
    )
    assert status == 0, errors
    assert "All sites: " in told
    assert "Report: " in told


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nothing-here"], "nothing-here"),
        (["./nothing-here"], "no such folder"),
        (["quickstart", "encoder.name=foo"], "foo"),
        (["quickstart", "--seeds", "x"], "--seeds"),
    ],
)
def test_wrong_input(arguments, reason, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    status, told, errors = command(monkeypatch, capsys, "worth", *arguments, "--out", out)
    assert status != 0
    assert reason in told + errors
    assert "Traceback" not in errors
    assert not out.exists()


def test_the_interval_holds_the_truth_as_often_as_it_says():
    drawing = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        samples = [drawing.choice([-1.0, 0.0, 1.0], p=[0.1, 0.6, 0.3], size=80) for _ in range(3)]
        _, low, high = interval(samples)
        held += low <= 0.2 <= high
    assert 0.9 <= held / 200 <= 1


def test_intervals_of_little():
    assert interval([np.zeros(5)]) == pytest.approx((0, -0.28, 0.28), abs=1e-3)
    assert np.isnan(interval([])).all()
    assert np.isnan(interval([np.zeros(0)])).all()
    mean, low, high = interval([np.zeros(0), np.ones(1)])
    assert mean == 1
    assert low < 0 < high, "one sample decides nothing"
    assert interval([np.zeros(0), np.ones(1)] * 3, same=True)[1] == pytest.approx(low)


def test_more_seeds_tell_no_more_of_test_samples_that_are_set_aside(tmp_path):
    """Nothing depends on the seed here, neither features nor test samples."""
    drawing = np.random.default_rng(0)
    for site in ("north", "south", "west"):
        for part, n in (("train", 40), ("test", 30)):
            y = drawing.integers(0, 3, n)
            x = drawing.normal(0, 1, (n, 4)) + np.eye(3, 4)[y]
            rows = [",".join([*(f"{value:.4f}" for value in row), "abc"[k]]) for row, k in zip(x, y, strict=True)]
            path = tmp_path / "folder" / "clients" / site / f"{part}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(["a,b,c,d,label", *rows]) + "\n")
    options = {"encoder.name": "identity", "data.label_column": "label"}
    one, three = (
        worth(tmp_path / "folder", seeds, options, out=tmp_path / f"out{len(seeds)}") for seeds in ([0], [0, 1, 2])
    )
    assert one.gain[2] > one.gain[1]
    assert three.gain == pytest.approx(one.gain)
    assert [site.gain for site in three.sites] == [pytest.approx(site.gain) for site in one.sites]


@pytest.mark.parametrize(
    ("gain", "tested", "lacks", "begins"),
    [
        ((0.1, 0.05, 0.15), 100, ["b"], "Join: +10.0 points"),
        ((-0.1, -0.15, -0.05), 100, [], "Stay alone"),
        ((0.0, -0.1, 0.1), 100, ["b", "c"], "Join if you expect b, c: +20 points"),
        ((0.0, -0.1, 0.1), 10, [], "Not decided: 10 test samples"),
        ((0.0, -0.1, 0.1), 100, [], "No gain is seen"),
        ((float("nan"),) * 3, 0, [], "Set test samples aside"),
    ],
)
def test_advice(gain, tested, lacks, begins):
    assert advice(gain, tested, lacks, (0.5, 0.7)).startswith(begins)


def test_a_gain_is_told_as_a_multiple_of_samples_only_where_the_curve_tells():
    law = tuple(1 - 0.12 * share**-0.5 for share in SHARES)
    steep, level = (Curves(line, (0.9,) * 4) for line in ((0.3, 0.4, 0.6, 0.8), law))
    proven, unproven = (0.1, 0.05, 0.15), (0.1, -0.05, 0.15)
    assert np.isnan(_needed(steep, proven)), "through half of the samples it misses the rest by far"
    assert np.isnan(_needed(level, unproven))
    assert np.isnan(_needed(None, proven))
    times = _needed(level, proven)
    assert times == pytest.approx(1.44)
    assert f"you would need perhaps {times:.2g} times as many samples" in advice(proven, 100, [], (0.5, 0.7), times)
    assert "more than 10 times" in advice(proven, 100, [], (0.5, 0.7), float("inf"))


@pytest.mark.slow
def test_a_site_without_test_samples_is_told_so(tmp_path, monkeypatch, capsys):
    held = ordinary()
    first, *others = held.clients
    bare = replace(first, test=Samples(first.test.x[:0], first.test.y[:0]))
    write_folders(tmp_path / "data", replace(held, clients=(bare, *others)))
    typed = ("worth", tmp_path / "data", "encoder.name=identity", "--json", "--out", tmp_path / "out")
    status, told, errors = command(monkeypatch, capsys, *typed)
    assert status == 0, errors
    site = json.loads(told, parse_constant=pytest.fail)["sites"][0]
    assert (site["alone"], site["gain"], site["tested"]) == (None, [None, None, None], 0)
    assert site["advice"].startswith("Set test samples aside")
