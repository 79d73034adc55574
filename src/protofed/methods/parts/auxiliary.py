"""Base of methods whose clients keep models of their own and share a second one."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeVar

from torch import nn

from protofed.errors import ConfigError, ModelError
from protofed.methods.contract import Batch, SplitModel, Task, Tensors, Traits
from protofed.methods.parts.averaged import FedAvgOptions, SharedPart
from protofed.methods.parts.prior import PrivateHead, SoftmaxOptions
from protofed.methods.traits import GLOBAL_MODEL
from protofed.options import named, remote


@dataclass(frozen=True)
class AuxiliaryOptions(SoftmaxOptions, FedAvgOptions):
    """The shared model, and how its mean is taken."""

    auxiliary: str = named(
        "",
        "architecture of the shared model ('' = model.shared, or else model.name or the first of that group)",
        of="models",
    )
    auxiliary_options: dict[str, Any] = named({}, "options of that architecture", of="models")
    auxiliary_d: int = remote(0, "length of its features (0 = model.d)", least=0)
    weighting: Literal["samples", "uniform"] = remote("uniform", "weight of a client in the mean: n_i, or 1")


A = TypeVar("A", bound=AuxiliaryOptions)


class AuxiliaryMethod(PrivateHead[A], SharedPart[A]):
    """Client i's own model ``w_i`` stays; the shared ``w_aux`` is trained beside it, sent and averaged.

    The shared model is in every client's ``extras`` under the name :attr:`role`. Rules: ``head`` is the client's
    own model, ``global_model`` the shared one. Server state: the shared model, by the names of its weights.
    """

    role: ClassVar[str]

    @classmethod
    def traits(cls, options: A) -> Traits:
        """The client's own model answers, and the shared one."""
        rules = options.head_rules(GLOBAL_MODEL)
        return replace(super().traits(options), up="|w_aux|", down="|w_aux|", rules=rules, aggregation="sums")

    def __init__(self, options: A, task: Task) -> None:
        super().__init__(options, task)
        if task.auxiliary is not None:  # refuses a shared model that cannot take the clients' samples
            _ = self.network

    @cached_property
    def network(self) -> SplitModel:
        """The shared model with its initial weights."""
        assert self.task.auxiliary is not None
        o = self.options
        try:
            return self.task.auxiliary(o.auxiliary, o.auxiliary_options, o.auxiliary_d or None)
        except (ConfigError, ModelError) as error:
            raise type(error)(f"method.auxiliary, the {self.role} of {self.name}: {error}") from None

    def first_model(self) -> SplitModel:
        """Return the shared model."""
        return self.network

    def notes(self) -> tuple[str, ...]:
        """Describe the size of the shared model."""
        size = sum(p.numel() for p in self.network.parameters())
        name = self.options.auxiliary or "the experiment's first architecture"
        return (f"The {self.role} that all clients share, {name}, has {size:,} parameters.",)

    def extend(self, model: SplitModel) -> None:
        """Put the shared model beside the client's own."""
        model.extras[self.role] = copy.deepcopy(self.network)

    def copy_of(self, model: SplitModel) -> nn.Module:
        """Return the shared model beside the client's own."""
        return model.extras[self.role]

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Logits of either classifier."""
        shared = model.extras[self.role](batch.x).logits
        return {**super().scores(model, batch, received, state), "global_model": shared}
