"""FedPer: the lower layers are averaged, the last ones stay private.

Arivazhagan et al., "Federated Learning with Personalization Layers", 2019. The weights n_i/N of the paper's mean
are not confirmed; they are what public code uses.
"""

from __future__ import annotations

from dataclasses import dataclass

from protofed.errors import ConfigError
from protofed.methods import register
from protofed.methods._weights import WeightMethod, WeightOptions, check_parts, within
from protofed.options import option


@dataclass(frozen=True)
class FedPerOptions(WeightOptions):
    """Hyperparameters."""

    personal: tuple[str, ...] = option(
        ("head",), "modules that stay private: the last linear layer, or names such as extractor.map,head"
    )


@register
class FedPer(WeightMethod):
    """Extractor and head are trained together; ``θ`` is averaged, ``φ_i`` never leaves and is never reset."""

    name = "fedper"
    summary = "the extractor is averaged, every client keeps a head of its own"
    reference = "Arivazhagan et al., 2019, arXiv 1912.00818"
    up = "|θ|"
    down = "|θ|"
    Options = FedPerOptions

    def check(self) -> None:
        """Something has to be shared, and what stays private has to exist."""
        check_parts("method.personal", self.options.personal, self.first_model())
        if all(self.personal(n) for n, _ in self.first_model().named_parameters()):
            raise ConfigError(f"{self.name}: method.personal is the whole model, so nothing is shared: use local")

    def personal(self, name: str) -> bool:
        """Whether the weight called ``name`` belongs to ``φ_i``."""
        return within(self.options.personal)(name)

    def shares(self, name: str) -> bool:
        """Whether it belongs to ``θ``."""
        return not self.personal(name)
