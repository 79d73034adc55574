"""Figures that rebuild models, on a real run of a few seconds."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from protofed.analysis import load_run, load_runs
from protofed.analysis.figures import draw_figure, save_figure
from protofed.analysis.figures.geometry import final_prototypes
from protofed.analysis.figures.plane import _window
from protofed.analysis.restore import restore_features, restore_global
from protofed.config.schema import apply_overrides, load_recipe, resolve
from protofed.errors import CheckpointError, ConfigError, DataError
from protofed.experiments.running import run_experiment
from protofed.prototypes.inference import closeness
from support import few, one_line

SPIRAL = {
    "data.options": {"points": 40},
    "data.clients": 3,
    "partition.alpha": 0.5,
    "model.options": {"hidden": [16, 16]},
    "rounds": 3,
    "execution.threads": 1,
    "checkpoint.every": 0,
}


@pytest.fixture(scope="module")
def spirals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spirals")
    for name, options in {
        "protonorm": {},
        "tinyproto": {"method.base": "protonorm", "method.s": 1},
        "fixed_etf": {},
        "fedavg": {},
    }.items():
        tree = apply_overrides(load_recipe("spiral"), {**SPIRAL, "method.name": name, **options})
        run_experiment(resolve(tree), folder / name)
    return folder


@pytest.fixture
def copied(spirals, tmp_path):
    shutil.copytree(spirals / "protonorm", tmp_path / "copy")
    return tmp_path / "copy"


@few("method", ["protonorm", "tinyproto", "fixed_etf"], 1)
def test_restored_features_and_prototypes_reproduce_the_recorded_accuracy(spirals, method):
    run = load_run(spirals / method)
    shared = restore_global(run, final_prototypes(run, "global"))
    assert bool(shared.present.all())
    found = restore_features(run)
    assert [c.name for c in found] == [c.name for c in run.clients]
    hits = [int((closeness(c.features, shared).argmax(1) == c.labels).sum()) for c in found]
    recorded = run.client_accuracies("global")
    assert [h / len(c.labels) for h, c in zip(hits, found, strict=True)] == pytest.approx(recorded)


def test_some_samples_of_some_clients(spirals):
    run = load_run(spirals / "protonorm")
    name = max(run.clients, key=lambda c: sum(c.test)).name
    every = restore_features(run, [name])[0]
    few = restore_features(run, [name], most=5)[0]
    assert few.features.shape == (5, 2)
    assert all(torch.isclose(every.features, row).all(1).any() for row in few.features)
    assert torch.equal(few.features, restore_features(run, [name], most=5)[0].features)
    assert not torch.equal(few.features, restore_features(run, [name], most=5, seed=1)[0].features)


@pytest.mark.slow
def test_restoring_leaves_no_trace(spirals):
    before = {p: p.stat().st_mtime_ns for p in (spirals / "protonorm").rglob("*")}
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    run = load_run(spirals / "protonorm")
    restore_features(run)
    restore_global(run, final_prototypes(run, "global"))
    assert torch.equal(torch.rand(1), expected)
    assert {p: p.stat().st_mtime_ns for p in (spirals / "protonorm").rglob("*")} == before


@few("name", ["plane", "tsne"], 1)
def test_of_several_runs(spirals, name):
    fig = draw_figure(name, load_runs([spirals]), {})
    fig.draw_without_rendering()
    assert [ax.get_title() for ax in fig.axes] == ["fedavg", "fixed_etf", "protonorm", "tinyproto"]
    texts = [t.get_text() for t in fig.legends[0].get_texts()]
    assert texts == ["test sample", "local prototype", "global prototype", " ", *(f"arm {k}" for k in range(6))]


@pytest.mark.slow
def test_tsne_is_repeatable(spirals, tmp_path):
    runs = load_runs([spirals / "protonorm"])
    options = {"clients": 2, "samples": 40}
    pairs = zip(*(save_figure(draw_figure("tsne", runs, options), tmp_path / n) for n in "ab"), strict=True)
    assert all(a.read_bytes() == b.read_bytes() for a, b in pairs)


@pytest.mark.slow
def test_one_client_in_the_plane(spirals):
    runs = load_runs([spirals / "protonorm"])
    by_name, by_number = (draw_figure("plane", runs, {"client": c}) for c in (runs[0].clients[1].name, 1))
    assert by_name.axes[0].get_title() == by_number.axes[0].get_title() == runs[0].clients[1].name
    without = draw_figure("plane", runs, {"client": 1, "local": False})
    assert len(without.axes[0].collections) < len(by_name.axes[0].collections)
    with pytest.raises(ConfigError, match="unknown client 'arm'"):
        draw_figure("plane", runs, {"client": "arm"})


@pytest.mark.parametrize(("gamma", "arrows"), [(0.001, 0), (1.0, 0), (1e6, 6)])
def test_prototypes_of_any_length(copied, gamma, arrows):
    config = copied / "config.toml"
    config.write_text(config.read_text().replace("gamma = 10.0", f"gamma = {gamma}"))
    ax = draw_figure("plane", load_runs([copied]), {}).axes[0]
    assert sum(1 for t in ax.texts if t.arrow_patch is not None) == arrows
    notes = [t.get_text() for t in ax.texts if t.get_text()]
    assert notes == (["prototypes at length 1e+06"] if arrows else [])
    assert ax.get_xlim()[1] < 1e4


def test_the_window_is_a_square_around_features_and_origin():
    features = np.random.default_rng(0).normal([3, 0], [0.1, 0.5], (2000, 2))
    low, high = _window(features, np.array([[0.0, 4.0], [500.0, 0.0]]))
    assert np.ptp(high - low) == pytest.approx(0)
    assert (low < 0).all()
    assert (high > [3.2, 4.0]).all()
    assert (high < 6).all()
    low, high = _window(np.zeros((5, 2)), np.zeros((0, 2)))
    assert (high > low).all()


def test_what_cannot_be_restored_is_told(copied):
    model = copied / "clients" / "client-01" / "model.safetensors"
    tensors = load_file(model)
    save_file({n: t[:1] for n, t in tensors.items()}, model)
    with one_line(CheckpointError, r"does not fit the model of client-01 \(size mismatch"):
        restore_features(load_run(copied))
    model.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        restore_features(load_run(copied))
    run = load_run(copied)
    run.clients[0].test[0] += 1
    with pytest.raises(DataError, match="client-00 has other test samples now"):
        restore_features(run)
    shutil.rmtree(copied / "clients")
    for name in ("tsne", "plane"):
        with pytest.raises(DataError, match="no models to take features from"):
            draw_figure(name, load_runs([copied]), {})


def test_diverged_models_are_left_out(copied):
    for model in copied.glob("clients/*/model.safetensors"):
        run = load_run(copied)
        assert draw_figure("plane", [run], {})
        save_file({n: torch.full_like(t, torch.nan) for n, t in load_file(model).items()}, model)
    for name in ("tsne", "plane"):
        with pytest.raises(DataError, match="no test sample has finite features"):
            draw_figure(name, [run], {})


def test_too_few_points_and_other_mistakes(copied):
    runs = load_runs([copied])
    with pytest.raises(ConfigError, match="clients must be at least 1, not 0"):
        draw_figure("tsne", runs, {"clients": 0})
    with pytest.raises(ConfigError, match="samples must be at least 1, not 0"):
        draw_figure("plane", runs, {"samples": 0})
    prototypes = copied / "prototypes.safetensors"
    save_file({n: torch.zeros_like(t) for n, t in load_file(prototypes).items()}, prototypes)
    with pytest.raises(DataError, match="fewer than 4 different points"):
        draw_figure("tsne", load_runs([copied]), {"clients": 1, "samples": 2})
