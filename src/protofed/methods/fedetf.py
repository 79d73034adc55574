"""FedETF: FedAvg of a network whose head is a simplex ETF that nobody trains.

Li, Shang, He, Lin and Wu, "No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning with Synthetic
and Fixed Classifier", ICCV 2023.

The formulas are those of the authors' code, in which clients in the end also fine-tune a projection and an ETF of
their own; that is left out. The projection is that of their small CNN, d × d (LeNet and ResNet project to K). Its
relatives here: ``fixed_etf`` pulls the features of private networks, each with a head of its own, to the same
directions and sends nothing; ``fednh`` has no projection and moves its directions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from protofed.compute.seeding import generator
from protofed.methods import register
from protofed.methods.contract import Batch, SplitModel, Tensors, Terms, Traits
from protofed.methods.fedavg import FedAvg, FedAvgOptions
from protofed.methods.parts.training import linear_layer
from protofed.methods.parts.weights import under
from protofed.options import remote
from protofed.prototypes.etf import spread_directions


@dataclass(frozen=True)
class FedETFOptions(FedAvgOptions):
    """Hyperparameters."""

    scale: float = remote(10.0, "learned β at the start (the authors: 10 for a small CNN, 1 for LeNet)", above=0)


class _Head(nn.Module):
    """The projection ``P``, the learned scalar β and the fixed directions ``v``."""

    directions: Tensor

    def __init__(self, layer: Tensors, scale: float, directions: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(layer["weight"]), nn.Parameter(layer["bias"])
        self.beta = nn.Parameter(torch.tensor(scale, dtype=self.weight.dtype))
        self.register_buffer("directions", directions, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Return ``β·⟨P f/‖P f‖, v_c⟩``, ``(B, K)``."""
        found = F.normalize(F.linear(features, self.weight, self.bias), dim=-1, eps=1e-12)
        return self.beta * (found @ self.directions.T)


@register
class FedETF(FedAvg[FedETFOptions]):
    """Balanced softmax of ``β·⟨P f(x)/‖P f(x)‖, v_c⟩`` with directions ``v`` that all derive from the seed.

    Extractor, projection ``P`` and β are averaged; the model's own head takes no part. Where K > d, directions are
    spread instead. Client state: ``frequencies`` ``(K,)``, ``log n_ic``, for the loss.
    """

    name = "fedetf"
    summary = "FedAvg whose head is a fixed simplex ETF"
    reference = "Li et al., ICCV 2023, arXiv 2303.10058"
    Options = FedETFOptions

    @classmethod
    def traits(cls, options: FedETFOptions) -> Traits:
        """All but the head travels, and the projection."""
        size = "|θ| + d² + d + 1"
        return replace(super().traits(options), up=size, down=size)

    def shares(self, name: str) -> bool:
        """All but the head and the directions."""
        return not name.startswith("head.") and not name.endswith("etf.directions")

    @cached_property
    def directions(self) -> Tensor:
        """The ``v``, ``(K, d)`` unit rows."""
        task = self.task
        return spread_directions(task.num_classes, task.feature_dim, task.seed, dtype=task.dtype)

    def extend(self, model: SplitModel) -> None:
        """Add projection, β and directions, the same at all clients."""
        d = self.task.feature_dim
        layer = linear_layer(d, d, generator(self.task.seed, "projection", d), self.task.dtype)
        model.extras["etf"] = _Head(layer, self.options.scale, self.directions)

    def first_model(self) -> SplitModel:
        """Return the first model with projection and β."""
        model = super().first_model()
        self.extend(model)
        return model.to(self.task.dtype)

    def client_state(self, counts: Tensor) -> Tensors:
        """Remember the client's frequencies; a class that it lacks counts as one sample (the authors' code)."""
        return {"frequencies": counts.clamp(min=1).double().log().to(self.task.dtype)}

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Cross-entropy of the head's outputs plus ``log n_ic``."""
        output = model(batch.x)
        logits = model.extras["etf"](output.features) + state["frequencies"]
        return {"cross_entropy": batch.cross_entropy(logits)}, output

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Outputs of either model's head on its own features."""
        head, w = model.extras["etf"], self.global_weights(received)
        own = under("extras.etf.", w)
        return {
            "global_model": functional_call(head, own, functional_call(model, w, batch.x).features),
            "head": head(model(batch.x).features),
        }
