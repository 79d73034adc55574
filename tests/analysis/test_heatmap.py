import numpy as np
import pytest
import tomli_w
import torch
from safetensors.torch import load_file, save_file

from protofed.analysis import load_run, load_runs
from protofed.analysis.figures import draw_figure
from protofed.analysis.restore import restore_global, restore_local
from protofed.errors import CheckpointError, ConfigError, DataError
from protofed.untrusted.reading import read_toml


def heatmap(path, **options):
    return draw_figure("prototype_heatmap", load_runs([path]), options)


def values(fig, panel=0):
    return np.ma.filled(fig.axes[panel].collections[0].get_array(), np.nan)


def labels(fig, panel=0):
    return [t.get_text() for t in fig.axes[panel].get_yticklabels()]


def set_options(path, **options):
    config = read_toml(path / "config.toml")
    config["method"] |= options
    (path / "config.toml").write_text(tomli_w.dumps(config))


def test_global_prototypes_are_scaled_as_clients_use_them(run_at):
    path = run_at(method="protonorm", classes=4)
    set_options(path, gamma=7.0)
    fig = heatmap(path)
    stored = load_file(path / "prototypes.safetensors")["global.prototypes"]
    np.testing.assert_allclose(values(fig)[:3], 7 * stored[:3], rtol=1e-6)
    assert np.isnan(values(fig)[3]).all()
    assert len(fig.axes[0].patches) == 1  # hatched: the class without a prototype
    assert labels(fig) == ["class 0", "class 1", "class 2", "class 3"]
    low, high = fig.axes[0].collections[0].get_clim()
    assert low == -high < 0


def test_one_class_over_the_clients(run_at):
    path = run_at(classes=4)
    fig = heatmap(path, **{"class": "class 1"})
    stored = load_file(path / "prototypes.safetensors")
    assert labels(fig) == ["client_00", "client_01", "client_02", "client_03", "global"]
    np.testing.assert_allclose(values(fig)[2], stored["local.client_02.prototypes"][1])
    assert np.isnan(values(fig)[4]).all()  # the gap
    np.testing.assert_allclose(values(fig)[5], stored["global.prototypes"][1])
    assert fig.axes[0].get_title() == "class 1"
    assert labels(heatmap(path, **{"class": 3}))[-1] == "client_03"  # no global prototype, no row for it


def test_one_client_over_the_classes(run_at):
    path = run_at(classes=4)
    stored = load_file(path / "prototypes.safetensors")
    for chosen in (3, "client_03"):
        fig = heatmap(path, client=chosen)
        np.testing.assert_allclose(values(fig), stored["local.client_03.prototypes"])
        assert fig.axes[0].get_title() == "client_03"
    assert heatmap(path, client=0).axes[0].get_title() == "client_00"


def test_which_entries_are_zero(run_at):
    path = run_at(classes=4)
    stored = load_file(path / "prototypes.safetensors")
    stored["global.prototypes"][1, :48] = 0
    save_file(stored, path / "prototypes.safetensors")
    fig = heatmap(path, binary=True)
    np.testing.assert_array_equal(values(fig)[1], stored["global.prototypes"][1] != 0)
    fig.draw_without_rendering()
    assert fig.axes[0].collections[0].get_clim() == (0, 1)  # even where no entry is zero
    shares = [t.get_text() for t in fig.axes[0].child_axes[0].get_yticklabels()]
    assert shares == ["100%", "25%", "100%", ""]


def test_values_that_are_not_negative_have_one_hue(run_at):
    path = run_at()
    stored = {
        n: t.abs() if t.is_floating_point() else t for n, t in load_file(path / "prototypes.safetensors").items()
    }
    save_file(stored, path / "prototypes.safetensors")
    mesh = heatmap(path).axes[0].collections[0]
    assert mesh.get_cmap().name == "Blues"
    assert mesh.get_clim()[0] == 0


@pytest.mark.parametrize("base", ["fedproto", "fedtgp", "protonorm"])
def test_tinyproto_shows_what_its_masks_keep(run_at, base):
    path = run_at(method="tinyproto", classes=4)
    set_options(path, base=base, s=5)
    everything = values(heatmap(path))
    assert ((everything[:3] != 0).sum(1) == 5).all()
    own = values(heatmap(path, client=1))
    np.testing.assert_array_equal(own[:3] != 0, everything[:3] != 0)
    set_options(path, cps=False)
    assert (values(heatmap(path, client=1)) != 0).all()


def test_fixed_etf_has_prototypes_without_a_server(run_at):
    path = run_at(method="fixed_etf", classes=4)
    set_options(path, gamma=3.0)
    np.testing.assert_allclose(np.linalg.norm(values(heatmap(path)), axis=1), 3, rtol=1e-5)


def test_clients_that_differ_in_d(run_at):
    path = run_at(method="local")
    stored = load_file(path / "prototypes.safetensors")
    stored["local.client_01.prototypes"] = torch.ones(3, 20)
    save_file(stored, path / "prototypes.safetensors")
    shown = values(heatmap(path, **{"class": 0}))
    assert np.isnan(shown[1, 20:]).all()
    assert not np.isnan(shown[1, :20]).any()


def test_methods_of_the_users_own_show_what_the_server_has(run_at):
    path = run_at(classes=4)
    set_options(path, name="elsewhere.py:Mine")
    stored = load_file(path / "prototypes.safetensors")
    np.testing.assert_allclose(values(heatmap(path))[:3], stored["global.prototypes"][:3])
    own = {"client_00": (stored["local.client_00.prototypes"], stored["local.client_00.present"])}
    assert restore_local(load_run(path), own) == own
    assert restore_global(load_run(path), None) is None


def test_several_methods_are_panels(comparison_at):
    path = comparison_at(["local", "fedproto", "protonorm"], (0, 1), rounds=2)
    fig = heatmap(path)
    titles = [ax.get_title() for ax in fig.axes if ax.get_title()]
    assert titles == ["fedproto, seed 0", "fedproto, seed 1", "protonorm, seed 0", "protonorm, seed 1"]


def test_mistakes(run_at):
    path = run_at()
    with pytest.raises(ConfigError, match="unknown class 'class 9': did you mean"):
        heatmap(path, **{"class": "class 9"})
    with pytest.raises(ConfigError, match="unknown client '4'"):
        heatmap(path, client=4)
    with pytest.raises(ConfigError, match="choose class or client, not both"):
        heatmap(path, client=1, **{"class": 1})
    set_options(path, lambda_=3)
    with pytest.raises(DataError, match=r"config\.toml: unknown option of method 'lambda_'"):
        heatmap(path)


def test_damaged_local_prototypes(run_at):
    path = run_at()
    stored = load_file(path / "prototypes.safetensors") | {"local.client_01.prototypes": torch.zeros(2, 64)}
    save_file(stored, path / "prototypes.safetensors")
    with pytest.raises(CheckpointError, match=r"expected 3 rows in local\.client_01"):
        heatmap(path, **{"class": 0})
