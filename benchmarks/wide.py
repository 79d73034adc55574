"""The network that FedMRL shares in HtFLlib: all of ``cnn2``'s features, of which neighbours are averaged."""

from __future__ import annotations

from torch import nn

from protofed.models import build

WIDTH = 512


def cnn2(num_classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Return ``cnn2`` with features of length :data:`WIDTH`, whatever length the method then makes of them."""
    model = build("cnn2", input_shape=input_shape, num_classes=num_classes, d=WIDTH)
    return nn.Sequential(model.extractor, model.head)
