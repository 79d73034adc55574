"""FedPer: the lower layers are averaged, the last ones stay private.

Arivazhagan et al., "Federated Learning with Personalization Layers", 2019. The weights n_i/N of the paper's mean
are not confirmed; they are what public code uses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from protofed.errors import ConfigError
from protofed.methods import register
from protofed.methods.contract import Task, Traits
from protofed.methods.parts.averaged import FedAvgOptions, SharedPart
from protofed.methods.parts.prior import PrivateHead, SoftmaxOptions
from protofed.methods.parts.weights import check_parts, within
from protofed.options import named


@dataclass(frozen=True)
class FedPerOptions(SoftmaxOptions, FedAvgOptions):
    """Hyperparameters."""

    personal: tuple[str, ...] = named(
        ("head",), "modules that stay private: the last linear layer, or names such as extractor.map,head", of=""
    )


P = TypeVar("P", bound=FedPerOptions)


@register
class FedPer(PrivateHead[P], SharedPart[P]):
    """Extractor and head are trained together; ``θ`` is averaged, ``φ_i`` never leaves and is never reset."""

    name = "fedper"
    summary = "the extractor is averaged, every client keeps a head of its own"
    reference = "Arivazhagan et al., 2019, arXiv 1912.00818"
    Options = FedPerOptions

    def __init__(self, options: P, task: Task) -> None:
        super().__init__(options, task)
        model = self.first_model()
        check_parts("method.personal", options.personal, model)
        if all(self.personal(n) for n, _ in model.named_parameters()):
            raise ConfigError(f"{self.name}: method.personal is the whole model, so nothing is shared: use local")

    @classmethod
    def traits(cls, options: P) -> Traits:
        """The extractor travels."""
        up = "|θ|" if options.personal == ("head",) else "part of |w|"
        rules = options.head_rules()
        return replace(super().traits(options), up=up, down=up, rules=rules, alike="architecture")

    def personal(self, name: str) -> bool:
        """Return whether the weight called ``name`` belongs to ``φ_i``."""
        return within(self.options.personal)(name)

    def shares(self, name: str) -> bool:
        """Return whether the weight called ``name`` belongs to ``θ``."""
        return not self.personal(name)
