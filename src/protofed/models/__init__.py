"""Models that return both features and logits: named architectures, named groups and user-defined modules.

Example:
    >>> model = build("cnn2", input_shape=(1, 28, 28), num_classes=10, d=512)
    >>> parameter_count(model)
    582026
"""

from protofed.models import basic, series, text, tiny, vision  # noqa: F401  (each registers its architectures)
from protofed.models.building import build
from protofed.models.catalogue import (
    Backbone,
    Group,
    NamedArchitecture,
    TextOptions,
    architecture,
    architectures,
    groups,
    members,
)
from protofed.models.core import Classifier, Output, SplitModel, multiply_adds, parameter_bytes, parameter_count
from protofed.models.layers import check_single_samples, group_norm, key_noise, reduce_convolutions
from protofed.models.preparation import Normalisation, Preparation
from protofed.models.splitting import split

__all__ = [
    "Backbone",
    "Classifier",
    "Group",
    "NamedArchitecture",
    "Normalisation",
    "Output",
    "Preparation",
    "SplitModel",
    "TextOptions",
    "architecture",
    "architectures",
    "build",
    "check_single_samples",
    "group_norm",
    "groups",
    "key_noise",
    "members",
    "multiply_adds",
    "parameter_bytes",
    "parameter_count",
    "reduce_convolutions",
    "split",
]
