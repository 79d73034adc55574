"""FedRep: a shared representation, and heads that are fitted to it first.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from protofed.errors import ConfigError
from protofed.methods import register
from protofed.methods.contract import Phase, Round, Task, Traits, Update
from protofed.methods.fedper import FedPer, FedPerOptions
from protofed.options import remote


@dataclass(frozen=True)
class FedRepOptions(FedPerOptions):
    """Hyperparameters; the authors train 10 + 1 epochs on CIFAR-10 with two classes per client, else 10 + 5."""

    head_epochs: int = remote(5, "τ_h: epochs of the head, with the representation frozen", least=0)
    extractor_epochs: int = remote(1, "τ_r: epochs of the representation, with the head frozen", least=0)
    final_head_epochs: int = remote(
        0,
        "in the last round all clients train their heads alone for so many epochs (the authors' code: 10)",
        least=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.head_epochs and not self.extractor_epochs:
            raise ValueError("head_epochs and extractor_epochs are both 0: nothing would be trained")


@register
class FedRep(FedPer[FedRepOptions]):
    """Algorithm 1: τ_h epochs of ``φ_i``, then τ_r of ``θ``, each with an optimiser of its own; ``θ`` is averaged.

    BatchNorm's running statistics move in both phases, as in the authors' code.
    """

    name = "fedrep"
    summary = "heads are fitted to a shared extractor, then the extractor is trained and averaged"
    reference = "Collins et al., ICML 2021, arXiv 2102.07078"
    Options = FedRepOptions

    def __init__(self, options: FedRepOptions, task: Task) -> None:
        super().__init__(options, task)
        if not options.personal:
            raise ConfigError("fedrep: method.personal is empty, so no head is trained first: name it, e.g. head")

    @classmethod
    def traits(cls, options: FedRepOptions) -> Traits:
        """The extractor travels; heads are trained once more in the last round."""
        ends = "fedrep's last round trains heads only" if options.final_head_epochs else ""
        return replace(super().traits(options), ends=ends)

    def round(self, number: int) -> Round:
        """The head first, then the representation; in the end all clients fine-tune their heads."""
        o = self.options
        last = o.final_head_epochs > 0 and number == self.task.rounds
        parts = [(self.personal, o.head_epochs), (self.shares, o.extractor_epochs)]
        if last:
            parts = [(self.personal, o.final_head_epochs)]
        phases = tuple(
            Phase((Update(self.loss, trainable=chosen),), epochs=epochs) for chosen, epochs in parts if epochs
        )
        return Round(phases, everyone=last)

    def notes(self) -> tuple[str, ...]:
        """Add how many local epochs there are, because ``training.epochs`` has no effect."""
        o = self.options
        final = f"; in the last round {o.final_head_epochs} of the heads alone" if o.final_head_epochs else ""
        epochs = f"{o.head_epochs + o.extractor_epochs} local epochs per round, whatever training.epochs says"
        return (
            *super().notes(),
            f"{epochs}: {o.head_epochs} of the head, {o.extractor_epochs} of the rest{final}.",
        )
