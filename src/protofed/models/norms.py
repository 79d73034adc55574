"""Normalisation that does not look at other samples of a batch."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from protofed.errors import ModelError

GROUPS = 32
"""Most groups of channels (Wu and He, "Group Normalization", ECCV 2018)."""


def group_norm(model: nn.Module) -> nn.Module:
    """Replace every BatchNorm layer of ``model`` by GroupNorm in place, with its affine weights; return ``model``.

    There are as many groups as possible, up to :data:`GROUPS`, with at least two channels each where there are two.
    """
    for name, child in list(model.named_children()):
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            channels = child.num_features
            groups = max(g for g in range(1, min(GROUPS, max(1, channels // 2)) + 1) if channels % g == 0)
            new = nn.GroupNorm(groups, channels, child.eps, child.affine)
            if child.affine:
                new.load_state_dict({"weight": child.weight, "bias": child.bias})
            setattr(model, name, new)
        else:
            group_norm(child)
    return model


def check_single_samples(model: nn.Module, protected: Callable[[str], bool]) -> None:
    """Refuse a model with a layer that has no gradient of a single sample, but needs one.

    Args:
        protected: Selects weights that are trained by such gradients, by name.
    """
    for name, module in model.named_modules():
        keeps = isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats
        mixes = keeps or isinstance(module, nn.modules.batchnorm._BatchNorm)
        if mixes and protected(f"{name}.weight"):
            raise ModelError(
                f"privacy.mode=sample: {name} is a {type(module).__name__}, which mixes samples: set "
                "model.norm=group"
            )
