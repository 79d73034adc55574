"""Groups of architectures for clients with different models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from protofed.errors import ConfigError, unknown_name
from protofed.models.catalogue import architectures
from protofed.registry import Registry


@dataclass(frozen=True)
class Group:
    """A list of architectures that are assigned to clients in turn."""

    summary: str
    members: tuple[tuple[str, dict[str, Any]], ...]


groups: Registry[Group] = Registry("model group")

# EfficientNet's dropout before the head is that of both papers' public code, and of torchvision.
_LIGHT: tuple[tuple[str, dict[str, Any]], ...] = (
    ("resnet8", {}),
    ("mobilenet_v2", {}),
    ("shufflenet_v2_x1_0", {}),
    ("efficientnet_b0", {"dropout": 0.2}),
)

groups.register("light4")(Group("ProtoNorm's and TinyProto's four lightweight models", _LIGHT))
groups.register("light4_as_coded")(
    Group(
        "light4 as in ProtoNorm's and TinyProto's code: MobileNet's features have dropout",
        tuple((name, {**own, "feature_dropout": 0.2} if name == "mobilenet_v2" else own) for name, own in _LIGHT),
    )
)
groups.register("light5")(Group("light4 and GoogLeNet", (*_LIGHT, ("googlenet", {}))))
for _name, _network, _data in (
    ("fedproto_mh", "fedproto_cnn", "MNIST"),
    ("fedproto_femnist_mh", "fedproto_femnist_cnn", "FEMNIST"),
):
    groups.register(_name)(
        Group(
            f"FedProto-mh on {_data}: its CNN with 18, 20 or 22 channels",
            tuple((_network, {"channels": c}) for c in (18, 20, 22)),
        )
    )
groups.register("resnet18_mh")(
    Group(
        "FedProto-mh on CIFAR-10: ResNet-18 with two kinds of stem",
        tuple(("resnet18", {"stem_stride": s}) for s in ((1, 4), (2, 2))),
    )
)
groups.register("small4")(
    Group(
        "four tiny models for 8×8 digits, each with fewer than 60 thousand parameters at d = 64",
        (
            ("mlp", {"hidden": (256,)}),
            ("cnn2", {"channels": (16, 32)}),
            ("mlp", {"hidden": (128, 128)}),
            ("cnn4", {"channels": (8, 16, 32, 64)}),
        ),
    )
)
groups.register("series4")(
    Group(
        "four small models for time series (C, T)",
        (
            ("cnn1d", {"channels": (8, 16)}),
            ("fcn1d", {"channels": (16, 32, 16)}),
            ("mlp", {"hidden": (64,)}),
            ("tiny", {}),
        ),
    )
)
groups.register("text4")(
    Group(
        "four small networks for texts as tokens (data.text_as=tokens)",
        (("text_bag", {}), ("text_cnn", {}), ("text_gru", {}), ("text_transformer", {})),
    )
)
groups.register("mlp4")(
    Group(
        "four perceptrons for tables and vectors, such as embeddings",
        tuple(("mlp", {"hidden": hidden}) for hidden in ((128,), (64, 64), (256,), (128, 128))),
    )
)


def members(name: str) -> list[tuple[str, dict[str, Any]]]:
    """Return ``(architecture, options)`` of a group's members, or of an architecture or import path alone."""
    if name in groups:
        return [(member, dict(options)) for member, options in groups.get(name).members]
    if name in architectures or ":" in name:
        return [(name, {})]
    raise ConfigError(unknown_name("model", name, [*groups, *architectures]))
