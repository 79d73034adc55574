"""Splitting of any classifier that ends in a linear layer into extractor and head."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from protofed.errors import ConfigError, ModelError, require, unknown_name
from protofed.models.core import MAPS, SplitModel, extractor, make_map
from protofed.models.preparation import check_shape, probe, show


def split(
    module: nn.Module,
    *,
    input_shape: tuple[int, ...],
    d: int | None = None,
    mapping: str = "pool",
    num_classes: int | None = None,
) -> SplitModel:
    """Return a copy of ``module`` split into extractor and head; ``module`` itself is not modified.

    The head is the last ``nn.Linear`` that a forward pass executes, and its input becomes the features. An
    ``nn.Dropout`` directly before it becomes ``head_dropout``, so that features are free of its noise.
    Weights are kept, unless ``d`` differs from the head's input width: a map to ``d`` then follows the
    extractor, and the head is new (drawn, like the map, from torch's default generator).

    Args:
        module: ``(B, *input_shape) -> (B, K)`` logits.
        d: None for the head's input width.
        mapping: ``pool`` or ``linear``, see :func:`protofed.models.core.make_map`.
        num_classes: Expected ``K``; None to accept any.

    Raises:
        ModelError: If the module has lazy weights, does not accept such samples, executes no linear layer,
            modifies the output of the last one or uses it twice, or has a different number of classes.
    """
    if mapping not in MAPS:
        raise ConfigError(unknown_name("map", mapping, MAPS))
    require(d is None or d > 0, f"d must be positive, not {d}")
    shape, what = check_shape(input_shape), type(module).__name__
    module = _copy(module, what)
    if isinstance(module, SplitModel):
        if d not in (None, module.feature_dim) or num_classes not in (None, module.num_classes):
            have = f"d = {module.feature_dim} and K = {module.num_classes}"
            raise ModelError(f"{what} is already split, with {have}: build it with d = {d} and K = {num_classes}")
        probe(module, shape, what)
        return module
    trace = _trace(module, shape, what)
    layer, name = trace.layer, _path(module, trace.layer)
    _check_final(module, trace, shape, what, name, num_classes)
    backbone: nn.Module = nn.Identity() if layer is module else module
    _replace(module, layer)
    head_dropout = 0.0
    if trace.dropout is not None:
        head_dropout = trace.dropout.p
        _replace(module, trace.dropout)
    features = probe(backbone, shape, f"{what} without its final layer {name!r}")
    same = isinstance(features, Tensor) and features.shape == trace.features.shape
    if not same or not torch.allclose(features, trace.features, equal_nan=True):  # zero samples may give NaN
        raise ModelError(f"{what}: the input of its final layer {name!r} changes once the layer is removed")
    d = d or layer.in_features
    if d == layer.in_features:
        return SplitModel(extractor(backbone, nn.Identity()), layer, head_dropout=head_dropout)
    head = nn.Linear(d, layer.out_features, bias=layer.bias is not None).to(layer.weight)
    map_ = make_map(mapping, layer.in_features, d).to(layer.weight)
    return SplitModel(extractor(backbone, map_), head, head_dropout=head_dropout)


@dataclass
class _Trace:
    """The layers found by one forward pass."""

    layer: nn.Linear  # the last linear layer executed
    features: Tensor  # its input
    dropout: nn.Dropout | None  # the layer that produced that input, if it is a dropout layer


@dataclass
class _Recorder:
    """Recorder of every execution of a linear or dropout layer."""

    linear: list[tuple[nn.Linear, Tensor]] = field(default_factory=list)
    dropout: list[tuple[nn.Dropout, Tensor]] = field(default_factory=list)

    def on_linear(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(layer, nn.Linear)
        self.linear.append((layer, inputs[0]))

    def on_dropout(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        assert isinstance(layer, nn.Dropout)
        # In eval mode dropout returns its input; a new tensor reveals which layer consumes it.
        self.dropout.append((layer, output.clone()))
        return self.dropout[-1][1]


def _trace(module: nn.Module, shape: tuple[int, ...], what: str) -> _Trace:
    recorder = _Recorder()
    hooks = []
    for m in module.modules():
        if isinstance(m, nn.Linear):
            hooks.append(m.register_forward_hook(recorder.on_linear))
        elif type(m) is nn.Dropout:
            hooks.append(m.register_forward_hook(recorder.on_dropout))
    try:
        probe(module, shape, what)
    finally:
        for hook in hooks:
            hook.remove()
    if not recorder.linear:
        raise ModelError(f"{what} executes no nn.Linear layer: it must end in one that returns the logits")
    layer, features = recorder.linear[-1]
    if sum(used is layer for used, _ in recorder.linear) > 1:
        raise ModelError(
            f"{what} uses its final layer {_path(module, layer)!r} twice: give the head a separate layer"
        )
    sources = [m for m, output in recorder.dropout if output is features]
    once = len(sources) == 1 and sum(m is sources[0] for m, _ in recorder.dropout) == 1
    return _Trace(layer, features, sources[0] if once else None)


def _check_final(
    module: nn.Module, trace: _Trace, shape: tuple[int, ...], what: str, name: str, K: int | None
) -> None:
    """Raise ModelError unless the traced layer is ``(B, width) -> (B, K)`` and produces the module's output."""
    layer = trace.layer
    if trace.features.dim() != 2:
        given = show(trace.features.shape)
        raise ModelError(f"{what}: final layer {name!r} receives {given} for two samples, not (2, width): flatten")
    owners = [n for n, p in module.named_parameters(remove_duplicate=False) if p is layer.weight]
    own = {f"{prefix}.weight".lstrip(".") for prefix in _paths(module, layer)}
    others = sorted(set(owners) - own)
    if others:
        raise ModelError(f"{what}: final layer {name!r} shares its weight with {others[0]!r}: untie them")
    # The layer's output must be returned unchanged: extreme values reveal softmax, ReLU, scaling and clamping.
    marker = torch.linspace(-1e4, 1e4, 2 * layer.out_features).view(2, -1).to(layer.weight)
    hook = layer.register_forward_hook(lambda *_: marker.clone())
    try:
        output = probe(module, shape, what)
    finally:
        hook.remove()
    if not isinstance(output, Tensor):
        raise ModelError(f"{what} must return logits (B, K), not a {type(output).__name__}")
    if output.shape != marker.shape or not torch.equal(output, marker):
        advice = "return its logits, without softmax, activation or reshaping"
        raise ModelError(f"{what}: final layer {name!r} is not the output: {advice}")
    if K is not None and layer.out_features != K:
        raise ModelError(f"{what}: final layer {name!r} has {layer.out_features} outputs for {K} classes")


def _copy(module: nn.Module, what: str) -> nn.Module:
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            raise ModelError(f"{what}: {name!r} is lazy and has no size yet: run one batch through the model")
    try:
        return copy.deepcopy(module)
    except Exception as error:
        raise ModelError(f"{what} cannot be copied: {next(iter(str(error).splitlines()), '')}") from error


def _paths(module: nn.Module, target: nn.Module) -> list[str]:
    return [name for name, m in module.named_modules(remove_duplicate=False) if m is target]


def _path(module: nn.Module, target: nn.Module) -> str:
    return _paths(module, target)[0]


def _replace(module: nn.Module, target: nn.Module) -> None:
    """Replace ``target`` by an identity wherever it is registered below ``module``."""
    for path in _paths(module, target):
        parent, _, name = path.rpartition(".")
        if name:
            setattr(module.get_submodule(parent), name, nn.Identity())
