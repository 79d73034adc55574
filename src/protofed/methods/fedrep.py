"""FedRep: a shared representation, and heads that are fitted to it first.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

from protofed.errors import ConfigError
from protofed.methods import register
from protofed.methods.contract import Phase, Round, Task, Update
from protofed.methods.fedper import FedPer, FedPerOptions
from protofed.options import remote


@dataclass(frozen=True)
class FedRepOptions(FedPerOptions):
    """Hyperparameters; the authors train 10 + 1 epochs on CIFAR-10 with two classes per client, else 10 + 5."""

    head_epochs: int = remote(5, "τ_h: epochs of the head, with the representation frozen", least=0)
    extractor_epochs: int = remote(1, "τ_r: epochs of the representation, with the head frozen", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.head_epochs and not self.extractor_epochs:
            raise ValueError("head_epochs and extractor_epochs are both 0: nothing would be trained")


@register
class FedRep(FedPer[FedRepOptions]):
    """Algorithm 1: τ_h epochs of ``φ_i``, then τ_r of ``θ``, each with an optimiser of its own; ``θ`` is averaged.

    BatchNorm's running statistics move in both phases, as in the authors' code, which in the end also trains all
    heads alone; that is left out.
    """

    name = "fedrep"
    summary = "heads are fitted to a shared extractor, then the extractor is trained and averaged"
    reference = "Collins et al., ICML 2021, arXiv 2102.07078"
    Options = FedRepOptions

    def __init__(self, options: FedRepOptions, task: Task) -> None:
        super().__init__(options, task)
        if not options.personal:
            raise ConfigError("fedrep: method.personal is empty, so no head is trained first: name it, e.g. head")

    def round(self, number: int) -> Round:
        """The head first, then the representation."""
        parts = [(self.personal, self.options.head_epochs), (self.shares, self.options.extractor_epochs)]
        return Round(tuple(Phase((Update(self.loss, trainable=chosen),), epochs=n) for chosen, n in parts if n))

    def notes(self) -> tuple[str, ...]:
        """Add how many local epochs there are, because ``training.epochs`` has no effect."""
        head, rest = self.options.head_epochs, self.options.extractor_epochs
        epochs = f"{head + rest} local epochs per round, whatever training.epochs says"
        return (*super().notes(), f"{epochs}: {head} of the head, {rest} of the rest.")
