"""Options of the round loop: who takes part, and when and on what clients are scored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from protofed.methods.contract import Method, sends
from protofed.options import Options, named, remote
from protofed.visits.contract import On


@dataclass(frozen=True)
class ParticipationOptions(Options):
    """Selection of the participants of a round."""

    fraction: float = remote(1.0, "share of the clients that train in each round, drawn anew", above=0, most=1)
    sampling: Literal["uniform", "samples", "poisson"] = remote(
        "uniform",
        "a fixed number of clients is drawn, alike or with probability proportional to n_i (FedProx, Algorithm 2); "
        "poisson: each takes part with probability fraction, whatever the others do",
    )
    min_clients: int = remote(1, "in a network, a round with fewer usable results is repeated", least=1)
    attempts: int = remote(3, "in a network, attempts at a round before the run ends with an error", least=1)
    deadline_s: float = remote(
        0.0, "in a network, seconds to wait for training, and for scores (0 = no limit)", least=0
    )
    max_refusals: int = remote(
        0,
        "a client whose uploads were refused so often is left out (0 = never); one whose model had diverged is "
        "asked again after as many rounds",
        least=0,
    )
    combine: bool = remote(
        True,
        "in a network, one message asks for scores and for the next round's training, if both take the same "
        "broadcast; a round is then recorded when the next one has been trained",
    )
    newcomers: int = remote(
        0,
        "in a simulation: clients, the last ones, that join after training: they receive and train, and send "
        "nothing",
        least=0,
    )
    newcomer_rounds: int = remote(1, "rounds, the last ones, in which only newcomers train", least=1)

    def sends(self, method: Method, round_number: int, rounds: int) -> bool:
        """Return whether clients send something in ``round``."""
        return sends(method, round_number) and not self.have_joined(round_number, rounds)

    def have_joined(self, round_number: int, rounds: int) -> bool:
        """Return whether newcomers have joined: from then on only they train, and nobody sends."""
        return bool(self.newcomers) and round_number > rounds - self.newcomer_rounds


@dataclass(frozen=True)
class EvaluationOptions(Options):
    """Evaluation: when, on what, and by which rule it is summed up."""

    every: int = remote(1, "rounds between evaluations; the last round is always evaluated", least=1)
    at: Literal["broadcast", "trained"] = remote(
        "broadcast", "score clients after they received the new broadcast, or as they were trained"
    )
    on: On = remote(
        "own",
        "test samples: a client's own; in a simulation, also those of all clients together (union; balanced: every "
        "class counts alike; shifted: classes are as frequent as at the next client, which the client is told), "
        "with the accuracy on classes that the client has no training samples of",
    )
    on_every: int = remote(
        1, "with on: rounds between scores on others' samples; the last planned round always has them", least=1
    )
    patience: int = remote(
        0,
        "the run ends after so many evaluations without a better accuracy on validation samples by the main rule "
        "(0 = after all rounds)",
        least=0,
    )
    rule: str = named(
        "",
        "main rule of tables and figures, e.g. local, by which TinyProto (Eq. 12) and ProtoNorm (Eq. 6) score; a "
        "method without it, and '', keep the method's own",
        of="",
    )
    metrics: bool = remote(
        False,
        "after the last round: balanced accuracy, macro F1, AUROC, recall per class and the confusion matrix, by "
        "scikit-learn; `protofed metrics RUN` computes them later",
    )
