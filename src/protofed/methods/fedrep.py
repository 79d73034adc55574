"""FedRep: a shared representation, and heads that are fitted to it first.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

from protofed.errors import ConfigError
from protofed.methods import register
from protofed.methods.contract import Phase, Update
from protofed.methods.fedper import FedPer, FedPerOptions
from protofed.options import option


@dataclass(frozen=True)
class FedRepOptions(FedPerOptions):
    """Hyperparameters; the authors train 10 + 1 epochs on CIFAR-10 with two classes per client, else 10 + 5."""

    head_epochs: int = option(5, "τ_h: epochs of the head, with the representation frozen")
    extractor_epochs: int = option(1, "τ_r: epochs of the representation, with the head frozen")
    final_head_epochs: int = option(
        0, "in the last round all clients train their heads alone for so many epochs (the authors' code: 10)"
    )

    def __post_init__(self) -> None:
        for name in ("head_epochs", "extractor_epochs", "final_head_epochs"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name)}")
        if not self.head_epochs and not self.extractor_epochs:
            raise ValueError("head_epochs and extractor_epochs are both 0: nothing would be trained")


@register
class FedRep(FedPer):
    """Algorithm 1: τ_h epochs of ``φ_i``, then τ_r of ``θ``, each with an optimiser of its own; ``θ`` is averaged.

    BatchNorm's running statistics move in both phases, as in the authors' code.
    """

    name = "fedrep"
    summary = "heads are fitted to a shared extractor, then the extractor is trained and averaged"
    reference = "Collins et al., ICML 2021, arXiv 2102.07078"
    Options = FedRepOptions

    def check(self) -> None:
        """There has to be a head."""
        if not self.options.personal:
            raise ConfigError("fedrep: method.personal is empty, so no head is trained first: name it, e.g. head")
        super().check()

    def last(self, round: int) -> bool:
        """Whether only heads are trained in ``round``."""
        return bool(self.options.final_head_epochs) and round == self.task.rounds

    def everyone(self, round: int) -> bool:
        """All clients fine-tune their heads in the end."""
        return self.last(round)

    def phases(self, round: int) -> tuple[Phase, ...]:
        """The head first, then the representation."""
        if self.last(round):
            parts = [(self.personal, self.options.final_head_epochs)]
        else:
            parts = [(self.personal, self.options.head_epochs), (self.shares, self.options.extractor_epochs)]
        return tuple(Phase((Update(self.loss, chosen),), epochs) for chosen, epochs in parts if epochs)

    def notes(self) -> tuple[str, ...]:
        """Say how much longer clients train than ``training.epochs`` has it."""
        o = self.options
        final = f"; in the last round {o.final_head_epochs} of the heads alone" if o.final_head_epochs else ""
        epochs = f"{o.head_epochs + o.extractor_epochs} local epochs per round, whatever training.epochs says"
        return (
            *super().notes(),
            f"{epochs}: {o.head_epochs} of the head, {o.extractor_epochs} of the rest{final}.",
        )
