"""Participation: the draw of a round's participants, and clients that join after training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from protofed.compute.seeding import generator, uniform_from_system
from protofed.errors import ConfigError
from protofed.methods.contract import Method
from protofed.rounds.options import ParticipationOptions
from protofed.rounds.standing import Standing
from protofed.runs.records import RoundRecord
from protofed.visits.contract import Executor


class Participation:
    """Selection of the participants of every round.

    Args:
        sizes: ``(K,)`` samples per class that the server believes each client to have.
    """

    def __init__(
        self,
        options: ParticipationOptions,
        method: Method,
        executor: Executor,
        rounds: int,
        seed: int,
        sizes: Mapping[str, Tensor],
    ) -> None:
        self.options, self.method, self.executor = options, method, executor
        self.rounds, self.seed, self.sizes = rounds, seed, sizes
        self.names = list(executor.clients)
        if not self.names:
            raise ConfigError("the federation has no clients")
        self.trainable = [n for n in self.names if len(executor.clients[n].train)]
        if not self.trainable:
            raise ConfigError("no client has training samples")
        self.newcomers = self._find_newcomers()
        if options.min_clients > len(self.trainable):
            raise ConfigError(
                f"participation.min_clients={options.min_clients}, but only {len(self.trainable)} clients have "
                "training samples"
            )
        self.able = [n for n in self.trainable if n not in self.newcomers]

    def _find_newcomers(self) -> frozenset[str]:
        """Find the clients that join after training, of which only a simulation has any."""
        o = self.options
        if not o.newcomers:
            return frozenset()
        if self.executor.remote:
            raise ConfigError("participation.newcomers is for simulations: use --engine local")
        found = self.trainable[-o.newcomers :]
        if len(found) == len(self.trainable):
            raise ConfigError(
                f"participation.newcomers={o.newcomers} leaves nobody to train before they join: at most "
                f"{len(self.trainable) - 1} of {len(self.trainable)} clients can"
            )
        if o.newcomer_rounds >= self.rounds:
            raise ConfigError(
                f"participation.newcomer_rounds={o.newcomer_rounds} leaves no rounds for training: rounds is "
                f"{self.rounds}"
            )
        return frozenset(found)

    @property
    def secret(self) -> bool:
        """Return whether noise and participation must be unpredictable to the clients: in a deployment."""
        return self.executor.remote and not self.executor.clients.rests_here

    def have_joined(self, round_number: int) -> bool:
        """Return whether newcomers have joined in ``round``."""
        return self.options.have_joined(round_number, self.rounds)

    def here(self, round_number: int) -> list[str]:
        """Return the clients that are part of the federation in ``round``."""
        return [name for name in self.names if name not in self.newcomers or self.have_joined(round_number)]

    def sends(self, round_number: int) -> bool:
        """Return whether clients send something in ``round``."""
        return self.options.sends(self.method, round_number, self.rounds)

    def draw(self, round_number: int, standing: Standing) -> list[str]:
        """Return the clients that train in a round, in their fixed order."""
        joined, o = self.have_joined(round_number), self.options
        able = [name for name in self.trainable if (name in self.newcomers) == joined]
        able = standing.able(able, round_number, o.max_refusals)
        if o.sampling == "poisson":
            return [name for name in able if self._coin(round_number, name) < o.fraction]
        number = self.number_of(able)
        if number >= len(able):
            return able
        drawing = generator(self.seed, "participation", round_number)
        if o.sampling == "samples":
            sizes = torch.tensor([int(self.sizes[n].sum()) for n in able], dtype=torch.float64)
            order = torch.multinomial(sizes, number, generator=drawing)
        else:
            order = torch.randperm(len(able), generator=drawing)
        return [able[i] for i in sorted(order[:number].tolist())]

    def _coin(self, round_number: int, name: str) -> float:
        """Return the number in ``[0, 1)`` that decides whether a client takes part."""
        if self.secret:
            return float(uniform_from_system(1))
        return float(torch.rand((), generator=generator(self.seed, "participation", round_number, name)))

    def number_of(self, able: Sequence[str]) -> int:
        """Return the number of clients to ask among those able to train."""
        return max(1, int(self.options.fraction * len(able) + 0.5))

    def lacking(self, record: RoundRecord) -> str:
        """Return in one line why a round could not be completed."""
        if record.robust.kept:
            return f"round {record.round}, attempt {record.attempts}: {record.robust.kept}"
        reasons = [f"{m.client}: {m.reason}" for m in record.missing]
        reasons += [f"{r.client}: {r.field} {r.reason}" for r in record.refused]
        return (
            f"round {record.round}: fewer than participation.min_clients={self.options.min_clients} clients gave a "
            f"usable result in {record.attempts} attempts; last {'; '.join(reasons[-3:]) or 'nobody was asked'}"
        )
