"""A node's requirements of a run, whatever a server asks for: ``privacy``, ``epsilon``, ``delta``, ``[allow]``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Struct

from protofed.engine import Builder, Experiment, secure_stage
from protofed.errors import ConfigError, refusal
from protofed.stages.privacy import Release, Training, epsilon
from protofed.untrusted.decoding import decode, within
from protofed_flower.allow import Allowed

TRAINED = "trained"
"""Name of the note of the last round in which a client was trained, and of how often one was no later than that."""


@dataclass(frozen=True)
class Policy:
    """The least protection with which a node takes part in a run, and what the run may do (None: anything)."""

    mode: Literal["none", "client", "sample"] = "none"
    epsilon: float = math.inf
    delta: float = 1e-5
    allowed: Allowed | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Policy:
        """Return the policy in a node's configuration."""
        if "privacy" not in config:
            if lone := next((name for name in ("epsilon", "delta") if name in config), ""):
                raise ConfigError(f'{lone} in --node-config needs privacy="sample" or privacy="client"')
            return cls(allowed=Allowed.of(config))
        if "epsilon" not in config:
            raise ConfigError("privacy in --node-config needs epsilon, the largest ε of a run, e.g. epsilon=8")
        try:
            found = decode(dict(config), _Asked, error=ValueError)
        except ValueError as error:
            raise ConfigError(f"{error} (in --node-config)") from None
        return cls(found.privacy, found.epsilon, found.delta, Allowed.of(config))

    def check(self, experiment: Experiment) -> None:
        """Refuse a run that protects or does something else, before anything is told about the data."""
        if self.allowed is not None:
            self.allowed.check(experiment)
        if self.mode == "none":
            return
        if experiment.privacy.mode != self.mode:
            raise refusal(
                "privacy",
                "privacy.mode",
                f"privacy.mode={experiment.privacy.mode}, but this node takes part only in runs with "
                f"privacy.mode={self.mode} (privacy in its --node-config)",
            )
        if self.mode == "client" and not experiment.secure.aggregation:
            raise refusal(
                "privacy",
                "secure.aggregation",
                "secure.aggregation=false, but this node requires noise that clients add (privacy in its "
                "--node-config): set secure.aggregation=true",
            )

    def permits(self, kind: str, name: str) -> bool:
        """Return whether the node's own list of a kind holds a name; without lists, none does."""
        return self.allowed is not None and self.allowed.permits(kind, name)

    @property
    def code(self) -> list[str]:
        """Names of code that a server may name."""
        return [] if self.allowed is None else self.allowed.code

    def pins(self, experiment: Experiment) -> list[str]:
        """Return further constants of a run: the rounds over which ε is counted."""
        return [] if self.mode == "none" else [f"rounds={experiment.rounds}"]

    def check_cost(self, builder: Builder, notes: dict[str, Any], round_number: int) -> None:
        """Refuse to train if the planned rounds, and those that were repeated, cost too much; count the visit."""
        if builder.method.upload_schema is None:
            return
        last, repeated = last_and_repeated(notes)
        repeated += round_number <= last
        if self.mode != "none":
            self._check_epsilon(builder, round_number, repeated)
        notes[TRAINED] = [max(last, round_number), repeated]

    def _check_epsilon(self, builder: Builder, round_number: int, repeated: int) -> None:
        method, (member,) = builder.method, builder.members
        rounds = method.task.rounds
        if round_number > rounds:
            raise refusal(
                "spent",
                "rounds",
                f"{member.name}: round {round_number} of a run of {rounds}: ε is counted over these",
            )
        if member.plan.private is not None and member.plan.private.masked:
            raise refusal(
                "privacy",
                "secure.aggregation",
                f"{member.name}: with secure.aggregation=true a client adds only a share of the noise, but this "
                'node requires all of it from itself (privacy="sample" in its --node-config): set it to false',
            )
        releases = releases_of(builder, rounds, repeated)
        if (found := epsilon(releases, self.delta, "pld") if releases else math.inf) > self.epsilon:
            again = f", {repeated} repeated" if repeated else ""
            raise refusal(
                "spent",
                "privacy.epsilon",
                f"{member.name}: ε would be {found:.3g} at δ = {self.delta:g} after {rounds} rounds{again}, but "
                f"this node allows {self.epsilon:g} (epsilon in its --node-config)",
            )


def last_and_repeated(notes: Mapping[str, Any]) -> tuple[int, int]:
    """Return the last round in which a client was trained, and the number of visits that were for no later one."""
    note: list[int] = notes.get(TRAINED, [0, 0])
    return note[0], sum(note[1:])


def releases_of(builder: Builder, rounds: int, repeated: int = 0) -> list[Release]:
    """Return what a client's uploads of some rounds cost; nothing where it adds no noise itself."""
    method, (member,) = builder.method, builder.members
    if member.plan.private is not None:
        private = member.plan.private
        training = Training.of(method, member.plan, len(member.train))
        return list(training.releases(rounds, private.noise, private.means, repeated))
    stage = secure_stage(builder.experiment, builder.trainer)
    if stage is None or stage.noisy is None:
        return []
    noise = stage.noisy.noise.deviation / (builder.experiment.privacy.clip * stage.noisy.unit)
    chosen = builder.experiment.participation
    sending = sum(chosen.sends(method, number, rounds) for number in range(1, rounds + 1))
    return [Release(noise, 1.0, sending + repeated)]


class _Asked(Struct):
    privacy: Literal["client", "sample"]
    epsilon: Annotated[float, within(above=0, most=1e6)]
    delta: Annotated[float, within(above=0, most=0.5)] = Policy.delta


ANY = Policy()  #: The policy of a node that requires nothing
