"""The shape every model takes: features, a map to ``d``, a linear head."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import torch
from torch import Tensor, nn

from protofed.errors import ConfigError, unknown_name
from protofed.models.noise import KeyedUniform, noise_keys

MAPS = ("pool", "linear")


class Output(NamedTuple):
    """What one forward pass gives.

    Attributes:
        features: ``(B, d)``, the vectors that prototypes average.
        logits: ``(B, K)``, one unnormalised score per class.
    """

    features: Tensor
    logits: Tensor


class SplitModel(nn.Module):
    """A classifier in two parts, ``g(f(x))`` (FedProto, Sec. 3.2).

    Weights are called ``extractor.backbone.…``, ``extractor.map.…`` and ``head.weight``, ``head.bias``.

    Args:
        extractor: ``x -> (B, d)``; see :func:`extractor`.
        head: ``d -> K``.
        head_dropout: Probability of zeroing a feature on its way into the head, in training mode. The
            features themselves stay free of that noise.

    Attributes:
        extras: Networks a method adds beside its model (projection, auxiliary model); empty at first.
        feature_dim: ``d``.
        num_classes: ``K``.
        in_bfloat16: Whether convolutions and linear layers are computed in bfloat16 (autocast). Weights, features
            and logits, and so all prototypes, keep their precision.
    """

    in_bfloat16 = False

    def __init__(self, extractor: nn.Module, head: nn.Linear, *, head_dropout: float = 0.0) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = head
        self.extras = nn.ModuleDict()
        self.dropout = nn.Dropout(head_dropout)
        self.feature_dim = head.in_features
        self.num_classes = head.out_features

    @property
    def needs_two_samples(self) -> bool:
        """True with BatchNorm anywhere: a training batch of a single sample must then be skipped."""
        return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.modules())

    def classify(self, features: Tensor) -> Tensor:
        """Return logits ``(B, K)`` of features ``(B, d)``, with the head's dropout in training mode."""
        result: Tensor = self.head(self.dropout(features))
        return result

    @property
    def head_dropout(self) -> float:
        """Probability of zeroing a feature on its way into the head."""
        return self.dropout.p

    def add_noise(self, name: str) -> None:
        """Add a source of noise to the extras, for losses that need some (see :class:`KeyedUniform`)."""
        self.extras[name] = KeyedUniform()

    def noise_keys(self) -> dict[str, Tensor]:
        """Return the keys of its dropout layers (see :mod:`protofed.models.noise`), by the names of buffers."""
        return noise_keys(self)

    def forward(self, x: Tensor) -> Output:
        """Return features ``(B, d)`` and logits ``(B, K)`` of a batch ``(B, *input_shape)``."""
        if not self.in_bfloat16:
            features = self.extractor(x)
            return Output(features, self.classify(features))
        dtype = self.head.weight.dtype
        with torch.autocast(x.device.type, torch.bfloat16):
            features = self.extractor(x).to(dtype)
            return Output(features, self.classify(features).to(dtype))


def extractor(backbone: nn.Module, map_: nn.Module) -> nn.Sequential:
    """Return ``x -> (B, d)``: a backbone with flat output ``(B, width)``, then its map to ``d``."""
    return nn.Sequential(OrderedDict(backbone=backbone, map=map_))


def make_map(kind: str, width: int, d: int) -> nn.Module:
    """Return the map ``(B, width) -> (B, d)``.

    Args:
        kind: ``pool`` averages neighbouring entries (``AdaptiveAvgPool1d``; it repeats entries where
            ``d > width`` and does nothing where ``d == width``): ProtoNorm's and TinyProto's choice.
            ``linear`` is a learned layer with bias.
        width: Length of the backbone's output.
        d: Length of the features.

    Raises:
        ConfigError: If ``kind`` is neither.
    """
    if kind not in MAPS:
        raise ConfigError(unknown_name("map", kind, MAPS))
    if kind == "linear":
        return nn.Linear(width, d)
    # A (B, width) tensor is one unbatched signal of B channels: each row is pooled on its own.
    return nn.Identity() if width == d else nn.AdaptiveAvgPool1d(d)


def parameter_count(model: nn.Module) -> int:
    """Return the number of parameters, shared ones once; buffers (BatchNorm statistics) do not count."""
    return sum(p.numel() for p in model.parameters())


def parameter_bytes(model: nn.Module) -> int:
    """Return the bytes of a model's ``state_dict``."""
    return sum(t.numel() * t.element_size() for t in model.state_dict().values())


def multiply_adds(model: nn.Module, input_shape: tuple[int, ...]) -> int:
    """Return the multiply-adds of convolutions and linear layers in one sample's forward pass."""
    total = 0

    def count(module: nn.Module, _inputs: object, output: Tensor) -> None:
        nonlocal total
        weight = module.weight
        assert isinstance(weight, Tensor)
        total += output[0].numel() * (weight.numel() // weight.shape[0])

    layers = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.modules.conv._ConvNd))]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    training = model.training
    try:
        parameter = next(model.parameters())
        with torch.no_grad():
            model.eval()(parameter.new_zeros(1, *input_shape))
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return total
