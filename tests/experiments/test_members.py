"""Groups of architectures in recipes, and options for single members."""

from __future__ import annotations

import pytest

from protofed.config.architectures import FederationSummary, common_architecture, recipe_names, turns
from protofed.config.schema import apply_overrides
from protofed.errors import ConfigError, ProtofedError
from protofed.experiments import resolve
from protofed.experiments.assemble import assemble
from protofed.samples import FederatedData
from support import client, experiment, federated, one_line, ordinary


def chosen(method="fedproto", **overrides):
    return experiment(method, **{"model__options": {}, **overrides})


def names(wanted, data: FederatedData | None = None) -> list[str]:
    return [str(a) for a in FederationSummary.of(wanted, data or ordinary()).architectures]


def test_noise_of_clients_hides_what_a_mean_over_classes_tells():
    """A mean over the classes that are present says which are."""
    plain = FederationSummary.of(experiment("fedproto"), ordinary())
    private = {"privacy__mode": "client", "privacy__epsilon": 8.0, "robust__rule": "none"}
    assert plain.class_size > FederationSummary.of(experiment("fedproto", **private), ordinary()).class_size == 0


def test_a_recipe_lists_its_own_group():
    members = [{"name": "mlp", "hidden": [8]}, {"name": "mlp", "hidden": [9], "relu_features": True}]
    wanted = chosen(model__members=members)
    assert names(wanted) == ["mlp(hidden=[8])", "mlp(hidden=[9], relu_features=True)", "mlp(hidden=[8])"]
    again = resolve(wanted.to_tree())
    assert names(again) == names(wanted)
    federation, _ = assemble(wanted, ordinary())
    federation.executor.close()
    assert [m.architecture for m in federation.executor.clients.values()] == names(wanted)


def test_options_reach_all_members_or_those_of_one_name():
    group = {"model__name": "light4", "model__options": {"dropout": 0.5}}
    with pytest.raises(ConfigError, match="unknown option of resnet8 'dropout'"):
        turns(chosen(**group))
    group["model__options"] = {"efficientnet_b0": {"dropout": 0.0}, "resnet8": {"stem": "cifar"}, "size": 40}
    assert [str(a) for a in turns(chosen(**group))] == [
        "resnet8(size=40, stem=cifar)",
        "mobilenet_v2(size=40)",
        "shufflenet_v2_x1_0(size=40)",
        "efficientnet_b0(dropout=0.0, size=40)",
    ]


def test_the_papers_groups_have_their_dropout():
    """Both public codes put nn.Dropout(0.2) before EfficientNet's head, and none before the others'."""
    dropouts = {a.name: a.options.get("dropout", 0.0) for a in turns(chosen(model__name="light4"))}
    assert dropouts.pop("efficientnet_b0") == 0.2
    assert set(dropouts.values()) == {0.0}


def test_the_shared_architecture_has_options_by_name_only():
    options = {"hidden": [4], "cnn2": {"channels": [2, 3]}}
    model = {"model__name": "mlp", "model__shared": "cnn2", "model__options": options}
    assert [str(a) for a in turns(chosen("fedavg", **model))] == ["cnn2(channels=[2, 3])"]
    assert [str(a) for a in turns(chosen("fedproto", **model))] == ["mlp(hidden=[4])"]
    assert str(common_architecture(chosen("fedproto", **model))) == "cnn2(channels=[2, 3])"
    assert str(common_architecture(chosen("fedproto", model__name="small4"))) == "mlp(hidden=(256,))"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"members": [{"name": "mlp"}, {"name": "mlp", "channels": [1, 2]}]}, "unknown option of mlp 'channels'"),
        ({"members": [{"name": "mpl"}]}, "unknown architecture 'mpl': did you mean 'mlp'"),
        ({"members": [{"name": "light4"}]}, "unknown architecture 'light4'"),
        ({"members": [{"hidden": [1]}]}, "members: each needs the name of an architecture"),
        ({"members": [{"name": 3}]}, "members: each needs the name of an architecture"),
        ({"members": ["mlp"]}, "model.members must be a list of a table"),
        (
            {"name": "small4", "options": {"resnet8": {"stem": "cifar"}}},
            "unknown architecture in model.options 'resnet8'",
        ),
        ({"name": "small4", "options": {"cnn4": {"hidden": [1]}}}, "unknown option of cnn4 'hidden'"),
        ({"name": "mlp", "options": {"hidden": [0]}}, "mlp.hidden must be at least 1, not 0"),
    ],
)
def test_what_an_architecture_lacks_is_one_line_before_training(model, message):
    with one_line(ProtofedError, says=message):
        assemble(resolve(apply_overrides(chosen().to_tree(), {"model": {"d": 4, **model}})), ordinary())


def test_methods_that_share_weights_refuse_a_group_of_ones_own():
    with pytest.raises(ConfigError, match="fedavg shares weights and needs one architecture"):
        FederationSummary.of(chosen("fedavg", model__members=[{"name": "mlp"}, {"name": "cnn2"}]), ordinary())


def test_code_among_members_is_the_recipes():
    wanted = chosen(model__members=[{"name": "support:WithBatchNorm"}, {"name": "mlp"}])
    assert recipe_names(wanted, "support:WithBatchNorm")
    assert not recipe_names(wanted, "support:NoBias")
    data = federated(client("ann", [0, 1, 2, 3]), client("bob", [0, 1, 2, 3]))
    federation, _ = assemble(wanted, data)
    federation.executor.close()
    assert names(wanted, data) == ["support:WithBatchNorm", "mlp"]


def test_options_that_code_takes_as_tables_stay_with_it():
    wanted = chosen(model__name="support:WithBatchNorm", model__options={"mlp": {"hidden": [1]}})
    assert turns(wanted)[0].options == {"mlp": {"hidden": [1]}}
