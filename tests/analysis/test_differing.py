"""What a comparison says of methods that were not run under the same conditions."""

from __future__ import annotations

import json

import pytest
import tomli_w
from typer.testing import CliRunner

from protofed.analysis import load_runs
from protofed.analysis.differing import hyperparameters, models
from protofed.analysis.report import comparison
from protofed.cli import main as cli
from protofed.config.schema import apply_overrides, load_recipe, resolve
from protofed.storage.files import read_json
from protofed.untrusted.reading import read_toml
from rundirs import make_run
from support import write_vectors

TINY = ["rounds=1", "execution.device=cpu", "execution.executor=sequential"]


@pytest.fixture
def run_of(tmp_path):
    def make(method, /, name="", kinds=(("cnn2", 10),), **sections):
        directory = make_run(tmp_path / (name or method), method=method, rounds=1)
        config = read_toml(directory / "config.toml")
        for section, options in sections.items():
            config[section] = {**config.get(section, {}), **options} if isinstance(options, dict) else options
        (directory / "config.toml").write_text(tomli_w.dumps(config))
        federation = read_json(directory / "federation.json")
        for number, client in enumerate(federation["clients"]):
            client["architecture"], client["parameters"] = kinds[number % len(kinds)]
        (directory / "federation.json").write_text(json.dumps(federation))
        return load_runs([directory])[0]

    return make


def test_equal_conditions_need_no_words(run_of):
    same = {"training": {"lr": 0.01, "epochs": 1}}
    runs = [run_of("fedproto", method={"lambda": 1.0}, **same), run_of("protonorm", method={"lambda": 1.0}, **same)]
    assert hyperparameters(runs) == models(runs) == ""


def test_differing_hyperparameters_are_named_with_their_values(run_of):
    runs = [
        run_of("fedproto", method={"lambda": 1.0, "gamma": 1.0}, training={"lr": 0.01, "epochs": 1}),
        run_of("fedtgp", method={"lambda": 10.0, "gamma": 1.0}, training={"lr": 0.01, "epochs": 1}),
        run_of("gfpl", method={"lambda": 1.0}, training={"lr": 0.05, "epochs": 2}),
    ]
    line = hyperparameters(runs)
    assert line.startswith(
        "Methods differ in λ (1 for fedproto and gfpl; 10 for fedtgp), learning rate (0.01 for fed"
    )
    assert "learning rate (0.01 for fedproto and fedtgp; 0.05 for gfpl)" in line
    assert line.endswith("epochs (1 for fedproto and fedtgp; 2 for gfpl).")
    assert "γ" not in line


def test_other_options_count_wherever_the_difference_comes_from(run_of):
    runs = [run_of("fedproto", rounds=9), run_of("local", rounds=9, training={"optimizer": "Adam"})]
    assert hyperparameters(runs) == "Methods differ in training.optimizer (none for fedproto; Adam for local)."


def test_a_method_on_a_base_has_its_bases_values_where_it_has_none(run_of):
    runs = [run_of("fedproto", method={"lambda": 1.0}), run_of("tinyproto", method={"base": "fedtgp"})]
    runs[1].config["method"].pop("lambda")
    assert "λ (1 for fedproto; 10 for tinyproto)" in hyperparameters(runs)
    runs[1].config["method"]["base"] = ["no", "method"]
    assert hyperparameters(runs) == ""


def test_one_method_at_several_values_is_no_unequal_comparison(run_of):
    runs = [run_of("fedproto", f"run{v}", method={"lambda": v}) for v in (1.0, 2.0)]
    assert hyperparameters(runs) == ""


def test_models_are_told_with_their_sizes_unless_all_are_the_same(run_of):
    mixed = (("mlp(hidden=[8])", 1234567), ("cnn2", 99))
    runs = [run_of("fedproto", kinds=mixed), run_of("fedavg"), run_of("local", kinds=mixed)]
    assert models(runs[::2]) == ""
    assert models(runs) == (
        "Models differ: fedproto and local: mlp(hidden=[8]) with 1,234,567 parameters and cnn2 with 99 parameters; "
        "fedavg: cnn2 with 10 parameters."
    )
    notes = {row[0].text: row[0].note for row in comparison.methods(runs).rows}
    assert notes["fedavg"].endswith("; all cnn2, 10 parameters")
    assert notes["local"].endswith("; 2 architectures, 99–1,234,567 parameters")


def test_table_and_report_of_a_comparison_say_both(tmp_path):
    data = ["data.source=path", f"data.path={write_vectors(tmp_path / 'data')}"]
    arguments = ["compare", "quickstart", *TINY, *data, "--out", str(tmp_path / "out"), "--quiet", "--full"]
    small = '[{name="mlp", hidden=[256]}, {name="mlp"}]'
    chosen = [
        "--methods",
        "fedproto,fedtgp,fedavg",
        f"model.members={small}",
        "model.shared=mlp",
        "model.d=8",
        "methods.fedtgp.lambda=10",
    ]
    result = CliRunner().invoke(cli.app, [*arguments, *chosen])
    assert result.exit_code == 0, result.output
    for text in (result.output, (tmp_path / "out" / "report.html").read_text()):
        shown = " ".join(text.split())
        assert "Methods differ in λ (1 for fedproto; 10 for fedtgp)." in shown
        assert "Models differ: fedproto and fedtgp: mlp(hidden=[256]) with 18,750 parameters and mlp with" in shown
        assert "; fedavg: mlp with " in shown


def test_another_model_leaves_the_recipes_shared_one_behind():
    tree = load_recipe("cifar10-dirichlet")
    assert resolve(tree).model.shared == "resnet8"
    assert resolve(apply_overrides(tree, {"model.name": "cnn2"})).model.shared == ""
    assert resolve(apply_overrides(tree, {"model.name": "cnn2", "model.shared": "mlp"})).model.shared == "mlp"
    assert resolve(apply_overrides(tree, {"model.name": "light4"})).model.shared == "resnet8"
    own = {"model": {"members": [{"name": "mlp"}, {"name": "cnn2"}], "shared": "mlp"}}
    assert resolve(apply_overrides(own, {"model.name": "cnn2"})).model.members == ()
    group = resolve(apply_overrides(load_recipe("spiral"), {"model.members": [{"name": "cnn2"}, {"name": "cnn4"}]}))
    assert group.model.options == {}
