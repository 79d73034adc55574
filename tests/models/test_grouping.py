"""Groups of architectures, and the check of options that every architecture shares."""

from dataclasses import fields

import pytest
import torch

from protofed.errors import ConfigError
from protofed.models import architectures, build, groups, members, parameter_count
from protofed.options import build_options


@pytest.mark.parametrize("name", groups)
def test_members_exist_and_differ(name):
    group = groups.get(name)
    assert group.summary
    assert len({repr(m) for m in group.members}) == len(group.members)
    for member, options in group.members:
        build_options(architectures.get(member).Options, options, member)


def test_members_of_groups_and_single_architectures():
    assert members("cnn2") == [("cnn2", {})]
    members("fedproto_mh")[0][1]["channels"] = 1
    assert members("fedproto_mh")[0] == ("fedproto_cnn", {"channels": 18})
    assert members("package.module:Net") == [("package.module:Net", {})]


def test_light4_in_the_papers_order():
    names = [n for n, _ in members("light4")]
    assert names == ["resnet8", "mobilenet_v2", "shufflenet_v2_x1_0", "efficientnet_b0"]


def test_small4_is_small():
    models = [build(n, input_shape=(1, 8, 8), num_classes=10, d=64, options=o) for n, o in members("small4")]
    assert all(parameter_count(m) < 60_000 for m in models)
    assert {m(torch.rand(2, 1, 8, 8)).features.shape for m in models} == {(2, 64)}


def test_bad_assignments():
    with pytest.raises(ConfigError, match="unknown model 'light': did you mean 'light"):
        members("light")


@pytest.mark.parametrize("name", architectures)
def test_every_option_is_documented(name):
    entry = architectures.get(name)
    assert entry.name == name
    assert entry.summary
    assert all(f.metadata["doc"] for f in fields(entry.Options))
    assert entry.Options() == build_options(entry.Options, {}, name)
