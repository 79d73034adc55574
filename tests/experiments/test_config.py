"""Recipes, overrides and what is wrong with them."""

from __future__ import annotations

import math
import tomllib

import pytest
import tomli_w

from protofed.config import schema
from protofed.config.schema import (
    apply_overrides,
    comparison,
    load_recipe,
    parse_overrides,
    recipes,
    resolve,
    variants,
)
from protofed.errors import ConfigError
from protofed.experiments.sweeping import sweep_plan
from protofed.methods import methods
from support import assert_mistake, command, few, one_line

pytestmark = pytest.mark.fast


def test_overrides_are_toml_or_text():
    items = ["method.lambda=10", "method.name=fedproto", "evaluation.every=2", "a.b=[1, 2]", "c=true", "d=x y"]
    assert parse_overrides(items) == {
        "method.lambda": 10,
        "method.name": "fedproto",
        "evaluation.every": 2,
        "a.b": [1, 2],
        "c": True,
        "d": "x y",
    }


@few("name", recipes(), 30)
def test_every_recipe_resolves_and_round_trips(name):
    tree = load_recipe(name)
    assert tree["summary"]
    chosen = comparison(tree).methods
    experiment = resolve(tree, method=chosen[0] if chosen else None)
    again = resolve(tomllib.loads(tomli_w.dumps(experiment.to_tree())))
    assert again == experiment


def test_options_of_a_method_come_from_its_table_then_from_method():
    tree = {"methods": {"fedproto": {"lambda": 3, "gamma": 2}}, "method": {"name": "fedproto", "gamma": 5}}
    options = resolve(tree).method_options
    assert (options.lambda_, options.gamma) == (3.0, 5.0)
    assert resolve(tree, method="local").method == "local"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"rouns": 3}, "unknown option 'rouns': did you mean 'rounds'?"),
        ({"rounds": 0}, "rounds must be an integer from 1 to 1000000, not 0"),
        ({"method.name": "fedprot"}, "unknown method or variant 'fedprot': did you mean 'fedproto'?"),
        ({"partition.name": "file"}, "partition 'file' is gone: write clients/NAME/train.npz"),
        ({"robust.rule": "krum"}, "robust.rule=krum is gone: use multi_krum, which compares uploads alike and"),
        ({"method.lamda": 1}, "'lamda': did you mean 'lambda'?"),
        ({"method.lambda": "big"}, "method.lambda must be a number, not 'big'"),
        ({"method.gamma": float("nan")}, "method.gamma must be at least 0, not nan"),
        (
            {"method.aggregation": "median"},
            "method.aggregation must be 'mean' or 'weighted' or 'paper', not 'median'",
        ),
        ({"model.d": 0}, "model.d must be from 1 to 65536, not 0"),
        ({"training.optimizer": "SDG"}, "unknown optimizer 'SDG': did you mean 'SGD'?"),
        ({"training.lr": math.inf}, "optimizer SGD: lr must be a finite number, not inf"),
        (
            {"method.name": "fedlda", "evaluation.at": "trained"},
            "evaluation.at=trained scores the one round of fedlda before its answer has reached the clients",
        ),
        ({"execution.device": "tpu"}, "execution.device must be auto, cpu, cuda, cuda:NUMBER or mps, not 'tpu'"),
        ({"method": "fedproto"}, "method must be a table of options"),
        ({"seed.x": 1}, "'seed' is not a table"),
        ({"methods.fedprot.lambda": 1}, "unknown method 'fedprot'"),
        ({"methods.fedproto.lamda": 1}, "did you mean 'lambda'?"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(overrides, message):
    base = {"seed": 0, "method": {"name": "fedproto"}}
    with one_line(ConfigError, says=message):
        resolve(apply_overrides(base, overrides))


@few(
    ("text", "message"),
    [
        ("method = 3", "method must be a table of options, e.g. method.name=…, not 3"),
        ("method = {name = ':'}", "method ':' cannot be imported: '' names no module"),
        ("model = {d = 9223372036854775807}", "model.d must be from 1 to 65536"),
        (f"model = {{name = 'mlp', options = {{hidden = [{2**63 - 1}]}}}}", "mlp cannot be built with {'hidden'"),
        ('recipe = "../../elsewhere"', "recipe must be a name that folders can have, not '../../elsewhere'"),
        (f"training = {{epochs = 1{'0' * 30}}}", "mine.toml: 10000000000000000000 is too large a number"),
        ("training = {batch_size = 1e300}", "training.batch_size: an integer must have at most 64 bits"),
    ],
    2,
)
def test_a_malformed_recipe_on_the_command_line_is_one_line(text, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    typed = ("run", "mine.toml", "rounds=1", "partition.self_balancing=true")
    status, _, told = command(monkeypatch, capsys, *typed)
    assert_mistake(status, told, message)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


def test_a_sweep_reads_methods_and_seeds_as_a_comparison_does():
    """A single seed or method may be given without a list."""
    tree = {"compare": {"methods": "local", "seeds": 3}, "data": {"source": "digits"}, "partition": {"name": "iid"}}
    plan = sweep_plan(tree, {"rounds": {"1": {"rounds": 1}, "2": {"rounds": 2}}})
    assert [(cell.method, cell.seed) for cell in plan.experiments] == [("local", 3)] * 2


def test_another_partition_or_model_leaves_the_recipes_options_behind():
    tree = apply_overrides(load_recipe("spiral"), {"partition.name": "iid", "model.name": "cnn2"})
    assert tree["partition"] == {"name": "iid"}
    assert tree["model"] == {"name": "cnn2", "d": 2}
    same = {"partition.name": "dirichlet", "model.name": "mlp", "model.options.hidden": [5]}
    tree = apply_overrides(load_recipe("spiral"), same)
    assert tree["partition"] == load_recipe("spiral")["partition"]
    assert tree["model"]["options"] == {"hidden": [5]}
    tree = apply_overrides(load_recipe("spiral"), {"partition.name": "pathological", "partition.classes": 2})
    assert tree["partition"] == {"name": "pathological", "classes": 2}
    assert apply_overrides(load_recipe("fed-mnist7k"), {"data.source": "digits"})["data"] == {"source": "digits"}
    assert apply_overrides({}, {"partition.name": "iid"}) == {"partition": {"name": "iid"}}
    assert apply_overrides({"partition": {"alpha": 1}}, {"partition.name": "iid"}) == {"partition": {"name": "iid"}}


def test_unknown_recipes_and_files(tmp_path):
    with pytest.raises(ConfigError, match="unknown recipe 'quikstart': did you mean 'quickstart'"):
        load_recipe("quikstart")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_recipe(tmp_path / "absent.toml")
    (tmp_path / "broken.toml").write_text("a = [")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_recipe(tmp_path / "broken.toml")
    with pytest.raises(ConfigError, match="must read NAME=VALUE"):
        parse_overrides(["method.lambda"])


def test_a_variant_is_a_partial_recipe_with_a_method():
    tree = {
        "training": {"lr": 0.1, "momentum": 0.5},
        "methods": {"fedproto": {"lambda": 3, "gamma": 2}},
        "method": {"aggregation": "weighted"},
        "variants": {"tuned": {"method": {"name": "fedproto", "gamma": 5}, "training": {"lr": 0.01}}},
    }
    for experiment in (resolve(tree, method="tuned"), resolve(apply_overrides(tree, {"method.name": "tuned"}))):
        options = experiment.method_options
        assert experiment.method == "fedproto"
        assert (options.lambda_, options.gamma, options.aggregation) == (3, 5, "weighted")
        assert (experiment.training.lr, experiment.training.momentum) == (0.01, 0.5)
        assert "variants" not in experiment.to_tree()
    assert resolve(tree, method="fedproto").training.lr == 0.1
    chosen = comparison(tree | {"compare": {"methods": ["local", "tuned"]}})
    assert chosen.methods == ("local", "tuned")
    with pytest.raises(ConfigError, match=r"the variant 'tuned' fixes training\.lr, which an axis"):
        comparison(tree | {"compare": {"methods": ["tuned"], "axes": {"lr": {"low": {"training.lr": 0.1}}}}})
    axes = {"compare": {"methods": ["fedproto", "tuned"], "axes": {"rounds": {"few": {"rounds": 2}}}}}
    assert comparison(tree | axes).methods == ("fedproto", "tuned")


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        ({"a": {}}, "variants.a must name its method, as variants.a.method.name=…"),
        ({"a": {"method": {"name": "locl"}}}, "unknown method 'locl': did you mean 'local'?"),
        ({"local": {"method": {"name": "local"}}}, "and have a name of its own"),
        ({"a": {"method": {"name": "b"}}, "b": {"method": {"name": "local"}}}, "variants.a must name its method"),
        ({"a": {"method": {"name": "local"}, "training": {"lrr": 1}}}, "did you mean 'lr'?"),
    ],
)
def test_a_wrong_variant_is_told_in_one_line(variants, message):
    with one_line(ConfigError, says=message):
        resolve({"variants": variants}, method="a")


def test_built_in_variants_are_known_in_every_recipe():
    """Those with images, at least; with vectors, tiny has another width than 256."""
    trees = {name: load_recipe(name) for name in recipes()}
    for variant, own in variants().items():
        assert {resolve(tree, method=variant).method for tree in trees.values()} == {own["method"]["name"]}
        tried = resolve(trees["quickstart"], method=variant)
        assert resolve(tomllib.loads(tomli_w.dumps(tried.to_tree()))) == tried
    assert not set(variants()) & set(methods())
    tree = {"training": {"optimizer": "SGD", "lr": 0.5}}
    chosen = resolve(tree, method="local-balanced")
    assert (chosen.training.optimizer, chosen.training.lr) == ("Adam", 0.001)
    assert chosen.method_options.softmax == "balanced"
    assert comparison({"compare": {"methods": ["local", "unshared"]}}).methods == ("local", "unshared")
    with pytest.raises(ConfigError, match=r"the variant 'unshared' fixes training\.lr, which an axis"):
        comparison({"compare": {"methods": ["unshared"], "axes": {"lr": {"low": {"training.lr": 0.1}}}}})


def test_a_recipes_own_variant_replaces_the_built_in_one():
    own = {"method": {"name": "fedproto"}, "training": {"lr": 0.2}}
    tree = {"variants": {"local-balanced": own}, "training": {"optimizer": "SGD"}}
    chosen = resolve(tree, method="local-balanced")
    assert (chosen.method, chosen.training.lr, chosen.training.optimizer) == ("fedproto", 0.2, "SGD")
    assert variants()["local-balanced"]["method"]["name"] == "local"


def test_a_misspelt_built_in_variant_gets_a_suggestion():
    for place in ({}, {"variants": {"local-tuned": {"method": {"name": "local"}}}}):
        with one_line(ConfigError, "'local-balance': did you mean 'local-balanced'"):
            resolve(place, method="local-balance")
    with pytest.raises(ConfigError, match="must name its method"):
        resolve({"variants": {"a": {"method": {"name": "unshared"}}}}, method="local")


def test_an_option_that_no_compared_method_has_is_refused():
    tree = {"compare": {"methods": ["local", "fedproto"]}, "method": {"lambda": 2}}
    comparison(tree)
    assert resolve(tree, method="local").method == "local"
    with pytest.raises(ConfigError, match="did you mean 'lambda'"):
        comparison({**tree, "method": {"lamda": 2}})


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        ({"encoder": {"name": "auto", "beside": True}}, "encoder.beside was removed: own networks gained nothing"),
        (
            {"encoder": {"members": [{"name": "auto"}]}},
            "encoder.members was removed: sums per encoder gained nothing",
        ),
        ({"methods": {"fedlda": {"expert": "plain"}}}, "methods.fedlda.expert was removed: .* method.name=beacon"),
        ({"methods": {"fedlda": {"message": "factor"}}}, "methods.fedlda.message was removed"),
    ],
)
def test_options_of_the_last_version_say_what_to_use_instead(options, instead):
    with one_line(ConfigError, instead):
        resolve(options, method="fedlda")


def test_a_recipe_of_the_last_version_with_its_defaults_is_read():
    old = {"encoder": {"beside": False, "members": []}, "method": {"name": "fedlda", "expert": "none"}}
    assert resolve(old).key == resolve({"method": {"name": "fedlda"}}).key


def test_recipes_that_ship_need_nothing_else(monkeypatch):
    """Those of other distributions are found beside them, and an unknown name says where they are."""
    every = recipes()
    monkeypatch.setattr(schema, "entry_points", lambda group: ())
    for found in (schema._collections, schema.variants):
        monkeypatch.setattr(schema, found.__name__, found.__wrapped__)
    own = recipes()
    assert len(own) <= 16
    assert own.items() <= every.items()
    for name in own:
        schema.comparison(load_recipe(name))
    with pytest.raises(ConfigError, match="those of papers and studies come with a checkout: uv run protofed"):
        load_recipe("protonorm-cifar100")
