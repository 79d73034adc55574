import re

import numpy as np
import pytest
import torch

import protofed
from protofed.analysis import load_run, load_runs
from protofed.analysis.figures import draw_split, figures, inline_svg, save_figure
from protofed.errors import CheckpointError, ConfigError, DataError
from support import SMALL_RUN, few

NAMES = [
    "split",
    "client_accuracy",
    "accuracy_rounds",
    "accuracy_rules",
    "accuracy_bytes",
    "losses",
    "diagnostics",
    "prototype_distances",
    "margins",
    "prototype_heatmap",
    "prototype_panels",
]
# Models, metrics, or several runs: see below, test_features.py, test_sensitivity.py, test_sweeping.py.
NEED_MORE = ["confusion", "resemblance", "tsne", "plane", "sensitivity", "sites"]


def drawn(fig):
    """Return the figure's texts; drawing it is what raises errors and warnings."""
    fig.draw_without_rendering()
    texts = [t.get_text() for ax in fig.axes for t in (ax.xaxis.label, ax.yaxis.label, ax.title, *ax.texts)]
    return texts + [t.get_text() for legend in fig.legends for t in legend.get_texts()]


def test_every_figure_is_registered_and_documented():
    assert sorted(figures) == sorted(NAMES + NEED_MORE)
    for _, draw in figures.items():
        assert draw.__doc__
        assert draw.__doc__.strip().splitlines()[0].endswith((".", ","))
    with pytest.raises(ConfigError, match="did you mean 'accuracy_rounds'"):
        figures.get("accuracy_round")


@few("name", NAMES, 2)
def test_of_one_run(run_at, name):
    texts = drawn(figures.get(name)([load_run(run_at(method="protonorm"))]))
    assert any(texts)


def test_who_resembles_whom(run_at, tmp_path):
    run = protofed.run("quickstart", {**SMALL_RUN, "method.name": "fedlda"}, out=tmp_path / "closed")
    texts = drawn(figures.get("resemblance")([run]))
    assert "Standard deviations within classes" in texts
    for others in ([], [run, run], [load_run(run_at(method="protonorm"))]):
        with pytest.raises(DataError, match="needs one finished run of fedlda"):
            figures.get("resemblance")(others)


def test_confusion_matrices_are_of_all_clients_or_of_one(run_at):
    run = load_run(run_at(metrics=True))
    matrix = run.measured.overall.matrix(3)
    texts = drawn(figures.get("confusion")([run]))
    assert [t for t in texts if t.isdigit()] == [str(n) for n in matrix.flatten() if n]
    assert "client_01" in drawn(figures.get("confusion")([run], client="client_01"))
    assert any(drawn(figures.get("confusion")([run, load_run(run_at("b", "protonorm", metrics=True))])))
    with pytest.raises(DataError, match="protofed metrics RUN"):
        figures.get("confusion")([load_run(run_at("plain"))])


@few("name", NAMES, 1)
def test_of_several_methods_and_seeds(comparison_at, name):
    path = comparison_at(["local", "fedavg", "fedproto", "protonorm", "gfpl"], (0, 1), rounds=4)
    assert any(drawn(figures.get(name)(load_runs([path]))))


@few("name", sorted(set(NAMES) - {"diagnostics"}), 3)
def test_of_one_round(run_at, name):
    assert any(drawn(figures.get(name)([load_run(run_at(rounds=1, clients=1, classes=1))])))


def test_what_cannot_be_shown_is_told(run_at):
    silent = [load_run(run_at("silent", "local"))]
    fresh = [load_run(run_at("fresh", rounds=2, every=0, finished=False))]
    empty = [load_run(run_at("empty", rounds=0, finished=False))]
    for name, runs, message in [
        ("accuracy_bytes", silent, "none of these runs sends anything"),
        ("prototype_distances", silent, "no global prototypes"),
        ("prototype_heatmap", silent, "no global prototypes"),
        ("prototype_heatmap", fresh, "no global prototypes"),
        ("sensitivity", fresh, "no round has been evaluated"),
        ("tsne", fresh, "has not finished"),
        ("plane", silent, "d = 64, a plane needs model.d = 2"),
        ("margins", fresh, "no global prototypes"),
        ("diagnostics", silent, "records no numbers"),
        ("accuracy_rounds", fresh, "no round has been evaluated yet"),
        ("accuracy_rules", fresh, "no round has been evaluated yet"),
        ("client_accuracy", fresh, "no round has been evaluated yet"),
        ("losses", empty, "no client has trained"),
    ]:
        with pytest.raises(DataError, match=message):
            figures.get(name)(runs)
    assert drawn(figures.get("losses")(fresh))
    assert drawn(figures.get("split")(empty))


def test_a_rule_can_be_chosen(comparison_at):
    runs = load_runs([comparison_at(["local", "fedproto"], (0,), rounds=3)])
    assert {"local (head)", "fedproto (global)"} <= set(drawn(figures.get("accuracy_rounds")(runs)))
    assert {"local", "fedproto"} <= set(drawn(figures.get("accuracy_rounds")(runs, rule="head")))
    assert "local" not in drawn(figures.get("accuracy_rounds")(runs, rule="global_own"))
    with pytest.raises(DataError, match=r"no run was scored by the rule 'etf': choose one of head, local"):
        figures.get("accuracy_rounds")(runs, rule="etf")


def test_the_band_is_mean_and_sample_deviation_over_common_rounds(comparison_at):
    path = comparison_at(["fedproto"], (0, 1), rounds=5)
    runs = load_runs([path])
    ax = figures.get("accuracy_rounds")(runs).axes[0]
    values = 100 * np.array([[run.accuracy("global")[t] for t in range(1, 6)] for run in runs])
    np.testing.assert_allclose(ax.lines[0].get_ydata(), values.mean(0))
    edges = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert edges.max() == pytest.approx((values.mean(0) + values.std(0, ddof=1)).max())
    (path / "fedproto-seed1" / "summary.json").unlink()
    alone = figures.get("accuracy_rounds")(load_runs([path])).axes[0]
    np.testing.assert_allclose(alone.lines[0].get_ydata(), values[0])


def test_silent_methods_are_a_dashed_line_at_their_final_accuracy(comparison_at):
    runs = load_runs([comparison_at(["local", "fedproto"], (0,), rounds=4)])
    ax = figures.get("accuracy_bytes")(runs).axes[0]
    line = ax.lines[0]
    assert line.get_linestyle() == "--"
    assert set(line.get_ydata()) == {100 * runs[0].accuracy("head")[4]}
    assert ax.get_xscale() == "log"


def test_a_method_of_one_round_is_a_marked_point_against_bytes(comparison_at):
    ax = figures.get("accuracy_bytes")(load_runs([comparison_at(["fedproto"], (0,), rounds=1)])).axes[0]
    assert len(ax.lines[0].get_xdata()) == 1
    assert ax.lines[0].get_markevery() is None


def test_losses_that_are_not_finite_leave_a_gap(run_at):
    ax = figures.get("losses")([load_run(run_at(rounds=5))]).axes[0]
    prototype = next(line for line in ax.lines if line.get_label() == "prototype")
    assert np.isnan(prototype.get_ydata()).tolist() == [False, True, False, False, False]


def test_diagnostics_show_numbers_only(run_at):
    texts = drawn(figures.get("diagnostics")([load_run(run_at(method="protonorm"))]))
    assert {"iterations", "alignment: energy", "margin min"} <= set(texts)
    assert not {"converged", "alignment: steps"} & set(texts)


def test_margins_side_by_side_or_sorted(comparison_at):
    runs = load_runs([comparison_at(["fedproto", "protonorm"], (0, 1), rounds=2, classes=5)])
    bars = figures.get("margins")(runs).axes[0].containers
    first, second = (bar.lines[0].get_xdata(orig=False) for bar in bars)
    np.testing.assert_allclose(first, np.arange(5) - 0.3)
    np.testing.assert_allclose(second, np.arange(5) + 0.3)
    ranked = figures.get("margins")(runs, sort=True).axes[0].containers[0].lines[0]
    np.testing.assert_allclose(ranked.get_xdata(orig=False), range(1, 6))
    values = ranked.get_ydata(orig=False)
    assert np.isnan(values[-1])  # the class without a prototype
    assert (np.diff(values[:-1]) >= 0).all()


def test_cosines(run_at):
    fig = figures.get("prototype_distances")([load_run(run_at(classes=4))], metric="cosine")
    assert "Cosine" in drawn(fig)
    values = fig.axes[0].collections[0].get_array()
    assert np.ma.masked_invalid(values).count() == 6  # three classes have a prototype, without the diagonal


def test_prototypes_of_another_shape(run_at):
    from safetensors.torch import save_file

    path = run_at()
    save_file({"global.prototypes": torch.zeros(2, 4)}, path / "prototypes.safetensors")
    with pytest.raises(CheckpointError, match="expected 3 rows"):
        figures.get("margins")([load_run(path)])


def test_a_split_from_counts():
    counts = torch.tensor([[3, 0], [0, 12], [5, 5]])
    texts = drawn(draw_split(counts, ["a", "b", "c"], ["cat", "dog"]))
    assert {"3", "12", "5", "Class", "Client", "Samples"} <= set(texts)
    assert "0" not in texts
    with pytest.raises(DataError, match=r"shape \(3, 2\), but there are 2 clients and 2 classes"):
        draw_split(counts, ["a", "b"], ["cat", "dog"])


@few(("clients", "classes"), [(1, 1), (20, 10), (150, 100)], 1)
def test_splits_of_any_size(clients, classes):
    counts = np.random.default_rng(0).integers(0, 9, (clients, classes))
    names = [f"client with a very long name {i}" for i in range(clients)]
    drawn(draw_split(counts, names, [f"$class_{j}" for j in range(classes)], ["resnet18"] * clients))


def test_saving_is_whole_and_repeatable(run_at, tmp_path):
    run = load_run(run_at())
    first = save_figure(figures.get("losses")([run]), tmp_path / "new" / "my.losses")
    assert [p.name for p in first] == ["my.losses.png", "my.losses.svg"]
    second = save_figure(figures.get("losses")([run]), tmp_path / "again.png")
    assert [p.name for p in second] == ["again.png", "again.svg"]
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["my.losses.png", "my.losses.svg"]


def test_inline_figures_do_not_share_ids(run_at):
    fig = figures.get("accuracy_rules")([load_run(run_at())])
    one, two = inline_svg(fig, "f1", 'a "b" <c>'), inline_svg(fig, "f2", "")
    ids = [set(re.findall(r'\bid="([^"]+)"', text)) for text in (one, two)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for text, known in zip((one, two), ids, strict=True):
        assert set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text)) <= {(i, "") for i in known} | {
            ("", i) for i in known
        }
        assert "http" not in text
        assert "<style" not in text
    assert 'aria-label="a &quot;b&quot; &lt;c&gt;"' in one
