import json
import statistics

import numpy as np
import pytest
import tomli_w

from protofed.analysis import load_runs
from protofed.analysis.figures import draw_figure
from protofed.analysis.style import method_styles
from protofed.errors import DataError
from protofed.untrusted.reading import read_toml
from support import few


@pytest.fixture
def sweep(run_at, tmp_path):
    """Make runs of some methods for each value of an option, with two seeds."""

    def make(option, values, methods=("protonorm",), seeds=(0, 1)):
        for method in methods:
            for value in values:
                for seed in seeds:
                    path = run_at(f"sweep/{method}-{value}-{seed}", method, seed=seed, rounds=3)
                    config = read_toml(path / "config.toml")
                    table = config
                    *steps, last = option.split(".")
                    for step in steps:
                        table = table.setdefault(step, {})
                    table[last] = value
                    (path / "config.toml").write_text(tomli_w.dumps(config))
        return tmp_path / "sweep"

    return make


def draw(path, **options):
    fig = draw_figure("sensitivity", load_runs([path]), options)
    fig.draw_without_rendering()
    return fig


def legend(fig):
    return [t.get_text() for t in fig.legends[0].get_texts()]


def test_mean_and_deviation_over_seeds(sweep):
    path = sweep("method.gamma", [1.0, 10, 100.0])
    fig = draw(path)
    accuracy, traffic = fig.axes
    mark = method_styles(["protonorm"])["protonorm"].marker
    best, final = (line for line in accuracy.lines if len(line.get_xdata()) == 3 and line.get_marker() == mark)
    runs = [r for r in load_runs([path]) if r.config["method"]["gamma"] == 10]
    values = {n: [100 * getattr(r.outcome.accuracy["global"], n) for r in runs] for n in ("best", "final")}
    assert list(final.get_xdata()) == [1, 10, 100]
    assert final.get_ydata()[1] == pytest.approx(statistics.fmean(values["final"]))
    assert best.get_ydata()[1] == pytest.approx(statistics.fmean(values["best"]))
    spread = [c.get_segments()[1] for c in accuracy.collections][-1]
    assert np.ptp(spread[:, 1]) == pytest.approx(2 * statistics.stdev(values["final"]))
    assert accuracy.get_xscale() == traffic.get_xscale() == "log"
    sent = runs[0].sent()[3] / 3
    assert traffic.lines[0].get_ydata()[1] == pytest.approx(sent)
    assert legend(fig) == ["protonorm", "best round on test data"]


@few("first", [0, 0.5], 1)
def test_many_values_on_a_logarithmic_scale_have_plain_ticks(sweep, first):
    fig = draw(sweep("method.s", [first, 1, 2, 5, 10, 20, 50, 100, 200, 500], seeds=(0,)))
    ticks = [tick.get_text() for tick in fig.axes[0].get_xticklabels()]
    assert {"1", "10", "100"} <= set(ticks)
    assert not any("$" in tick for tick in ticks)


@few(
    ("values", "scale", "label"),
    [
        ([1, 2, 20], "linear", "method.s"),
        ([0, 1, 40], "symlog", "method.s (log scale)"),
        ([-1, 40], "linear", "method.s"),
    ],
    1,
)
def test_scales(sweep, values, scale, label):
    axes = draw(sweep("method.s", values, ["tinyproto"], seeds=[0])).axes
    assert {ax.get_xscale() for ax in axes} == {scale}
    assert {ax.get_xlabel() for ax in axes} == {label}


@few("values", [["mean", "weighted"], [True, False], [[8], [8, 8]]], 2)
def test_categories(sweep, values):
    ax = draw(sweep("method.how", values), option="method.how").axes[0]
    assert sorted(t.get_text() for t in ax.get_xticklabels()) == sorted(map(str, values))


def test_no_limit_is_the_last_of_the_categories(sweep):
    """``privacy.epsilon``: infinity has no place on a scale."""
    axes = draw(sweep("method.budget", [8.0, float("inf"), 0.5], seeds=[0])).axes
    for ax in axes:
        assert [t.get_text() for t in ax.get_xticklabels()] == ["0.5", "8", "∞"]
    assert list(axes[0].lines[0].get_xdata()) == [0, 1, 2]


def test_nested_options_of_tinyproto(sweep):
    path = sweep("method.base_options.step", [0.1, 0.2], ["tinyproto"])
    assert (
        draw(path, option="method.base_options.step", rule="local").axes[0].get_xlabel()
        == "method.base_options.step"
    )
    assert draw(path).axes[0].get_xlabel() == "method.base_options.step"


def test_methods_without_the_option_are_dashed_lines(sweep, run_at):
    path = sweep("method.gamma", [1, 50], ["protonorm", "fedproto"])
    run_at("sweep/local", "local", rounds=3)
    fig = draw(path)
    assert legend(fig)[:3] == ["fedproto", "local (without the option)", "protonorm"]
    line = next(line for line in fig.axes[0].lines if line.get_label().startswith("local"))
    assert len(set(line.get_ydata())) == 1


def test_without_traffic_there_is_one_panel(sweep):
    assert len(draw(sweep("training.lr", [0.1, 0.2], ["local"])).axes) == 1


def test_what_else_differs_makes_lines_of_their_own(sweep, tmp_path):
    path = sweep("method.gamma", [1, 50], seeds=[0])
    for value in (1, 50):
        copy = path / f"other-{value}"
        original = path / f"protonorm-{value}-0"
        copy.mkdir()
        for name in ("federation.json", "rounds.jsonl", "summary.json"):
            (copy / name).write_text((original / name).read_text())
        config = read_toml(original / "config.toml")
        config["training"]["lr"] = 0.5
        (copy / "config.toml").write_text(tomli_w.dumps(config))
    with pytest.raises(DataError, match=r"name the option, .*: method\.gamma, training\.lr"):
        draw(path)
    names = legend(draw(path, option="method.gamma"))
    assert names[:2] == ["protonorm, training.lr=0.5", "protonorm, training.lr=0.01"]


def test_mistakes(sweep):
    path = sweep("method.gamma", [1, 50])
    with pytest.raises(DataError, match=r"'method\.gama': did you mean 'method\.gamma'"):
        draw(path, option="method.gama")
    with pytest.raises(DataError, match=r"nothing to compare: training\.lr is 0\.01 in all runs"):
        draw(path, option="training.lr")
    with pytest.raises(DataError, match="no round has been evaluated by the rule 'etf'"):
        draw(path, rule="etf")
    with pytest.raises(DataError, match=r"name the option, .*: none"):
        draw(path / "protonorm-1-0")


def test_unfinished_runs_do_not_mix_with_finished_ones(sweep):
    path = sweep("method.gamma", [1, 50])
    (path / "protonorm-50-1" / "summary.json").unlink()
    lines = (path / "protonorm-50-1" / "rounds.jsonl").read_text().splitlines()
    (path / "protonorm-50-1" / "rounds.jsonl").write_text(lines[0] + "\n")
    final = draw(path).axes[0].lines[1].get_ydata()[1]
    alone = json.loads((path / "protonorm-50-0" / "summary.json").read_text())["accuracy"]["global"]["final"]
    assert final == pytest.approx(100 * alone)
