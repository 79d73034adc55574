"""Methods that give everything away, or nothing, by which the audit's attacks are tested."""

from __future__ import annotations

import torch

from protofed.methods.contract import Aggregate, Local, Method, Traits, Upload
from protofed.prototypes.means import average_by_label
from protofed.wire.schema import Field, Schema


class Gossip(Method):
    """Sends the features of every training sample."""

    name = "gossip"
    summary = "for tests"

    @classmethod
    def traits(cls, options) -> Traits:
        return Traits(exchanges="prototypes", alike="features", aggregation="sums")

    @property
    def upload_schema(self) -> Schema:
        fields = {"classes": Field(("n",), "label", unique=False), "prototypes": Field(("n", "d"))}
        return Schema(fields, self.task.num_classes, {"d": self.task.feature_dim}, {"n": 1000})

    @property
    def broadcast_schema(self) -> Schema:
        return Schema({"mean": Field(("K", "d"))}, 4, {"K": self.task.num_classes, "d": self.task.feature_dim})

    def rows(self, local: Local) -> tuple[torch.Tensor, torch.Tensor]:
        return local.features()

    def upload(self, local: Local, statistics) -> dict[str, torch.Tensor]:
        rows, classes = self.rows(local)
        return {"classes": classes, "prototypes": rows}

    def server_state(self):
        return {"mean": torch.zeros(self.task.num_classes, self.task.feature_dim)}

    def broadcast(self, server, round_number, client=None):
        return server

    def aggregate(self, server, uploads: list[Upload], round_number: int) -> Aggregate:
        found = [u.payload for u in uploads]
        rows, classes = (torch.cat([p[n] for p in found]) for n in ("prototypes", "classes"))
        return Aggregate({"mean": average_by_label(rows, classes, self.task.num_classes)[0]}, {})


class Noise(Gossip):
    """Sends noise instead, four rows whatever the client has."""

    name = "noise"

    def rows(self, local: Local) -> tuple[torch.Tensor, torch.Tensor]:
        random = local.generator("noise")
        return torch.randn(4, self.task.feature_dim, generator=random), torch.arange(4)
