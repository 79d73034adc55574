"""Sample-level differential privacy: clients train by DP-SGD, and what they send is made from that alone.

The computation is in :mod:`protofed.visits.private`; here is what it costs. Neighbours differ in the presence of
one training sample (:mod:`protofed.stages.privacy.accounting`): it adds to each sum, or adds zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from protofed.errors import ConfigError
from protofed.methods.contract import Method, sends
from protofed.runs.records import RoundRecord
from protofed.runs.spent import Spent
from protofed.stages.privacy.accounting import Release, epsilon, find_noise
from protofed.stages.privacy.ledger import Budgeted, Ledger
from protofed.stages.privacy.options import PrivacyOptions
from protofed.visits.client import LocalPlan, Member
from protofed.visits.private import Private, rate, steps


class Training(NamedTuple):
    """The noisy quantities that a client publishes of its samples."""

    rate: float  # probability with which a sample is in a batch
    steps: tuple[int, ...]
    means: tuple[bool, ...]  # whether noisy class means are sent, in each round
    counts: int  # releases of the numbers of samples per class before the first round

    @classmethod
    def of(cls, method: Method, plan: LocalPlan, samples: int) -> Training:
        """Return the releases of a client with so many training samples in all planned rounds."""
        rounds = range(1, method.task.rounds + 1)
        size, once = plan.batch_size, bool(method.protection.dp_statistics)
        told = method.statistics is not None and method.statistics.when != "during"
        means = [told and sends(method, round_number) for round_number in rounds]
        return cls(
            rate(samples, size),
            tuple(steps(method.round(round_number).phases, plan.epochs, samples, size) for round_number in rounds),
            tuple(sent and not (once and any(means[:n])) for n, sent in enumerate(means)),
            0 if once else 1,
        )

    def numbers(self, rounds: int, repeated: int = 0) -> tuple[int, int]:
        """Return the number of noisy steps, and of statistics, with the numbers of samples per class as the first.

        Args:
            repeated: How often a round was repeated. Which one is not known, so each counts as the dearest of all
                that are planned, and with new numbers of samples per class, which a client draws that begins anew.
        """
        steps = repeated * max(self.steps, default=0)
        statistics = repeated * (self.counts + max(self.means, default=0))
        return steps + sum(self.steps[:rounds]), statistics + self.counts + sum(self.means[:rounds])

    def releases(self, rounds: int, noise: float, means: float, repeated: int = 0) -> list[Release]:
        """Return the releases of the first ``rounds`` rounds.

        Args:
            means: Noise multiplier of class means, and of the numbers of samples per class, once.
        """
        steps, statistics = self.numbers(rounds, repeated)
        return [Release(noise, self.rate, steps), Release(means, 1.0, statistics)]


def multiplier(options: PrivacyOptions) -> float:
    """Return the noise multiplier of one release of statistics, which is all that a method publishes."""
    return options.means * (
        _find_noise(options, Training(1.0, (0,), (True,), 0)) if options.noise is None else options.noise
    )


def protect_plan(
    options: PrivacyOptions, method: Method, plan: LocalPlan, samples: int, *, secure: bool = False
) -> LocalPlan:
    """Return a client's plan with DP-SGD; the budget gives the noise if the options do not."""
    check(method)
    noise = options.noise
    if noise is None:
        noise = _find_noise(options, Training.of(method, plan, samples))
    masked = secure and bool(method.protection.dp_statistics)
    private = Private(options.clip, noise, options.features, noise * options.means, masked=masked)
    return replace(plan, private=private)


@lru_cache(maxsize=1024)
def _find_noise(options: PrivacyOptions, training: Training) -> float:
    """Return the noise multiplier that a client's budget needs; clients with as many samples need the same."""
    rounds = len(training.steps)

    def releases(noise: float) -> list[Release]:
        return training.releases(rounds, noise, noise * options.means)

    return find_noise(releases, options.budget, options.delta, options.accountant)


def dp_obstacle(method: Method) -> str:
    """Return why clipping would not bound what a client changes at the server; "" if it would."""
    declared = method.protection.dp_obstacle
    return "its server may need every single one" if declared is None else declared


def check(method: Method) -> None:
    """Refuse methods whose uploads are not made from trained weights and class means alone."""
    if method.upload_schema is None:
        return
    reason = "" if method.protection.dp_statistics else dp_obstacle(method)
    if not reason and method.statistics is not None and method.statistics.when == "during":
        reason = "they hold statistics collected during training, to which no noise is added"
    trained = [p for r in range(1, method.task.rounds + 1) for p in method.round(r).phases if not p.local_only]
    if not reason and any(len(phase.updates) > 1 or phase.source for phase in trained):
        reason = (
            "a phase of its training has several updates on a batch, or samples of its own, which ε does not count"
        )
    if reason:
        raise ConfigError(f"privacy.mode=sample cannot protect the uploads of {method.name}: {reason}")


class SamplePrivacy(Budgeted):
    """The stage of ``privacy.mode=sample``."""

    def __init__(self, options: PrivacyOptions, method: Method, members: Mapping[str, Member]) -> None:
        self.options = options
        self.rounds = method.task.rounds
        self.ledger = Ledger()
        self.clients: dict[tuple[Training, Private], str] = {}
        for name, member in members.items():
            assert member.plan.private is not None
            training = Training.of(method, member.plan, len(member.train))
            self.clients.setdefault((training, member.plan.private), name)
        name, least = self._worst(1)
        if options.noise is not None and least > options.budget:
            raise ConfigError(
                f"privacy.epsilon={options.budget:g} is less than one round costs {name} with "
                f"privacy.noise={options.noise:g}: {least:.3g} at privacy.delta={options.delta:g}"
            )

    def _costs(self, rounds: int) -> dict[tuple[Training, Private], float]:
        """Return the ε of each kind of client; none exceeds a budget for which it has found its own noise."""
        o, repeated = self.options, self.ledger.repeated
        most = o.budget if self.planned else math.inf
        return {
            (t, p): min(most, epsilon(t.releases(rounds, p.noise, p.means, repeated), o.delta, o.accountant))
            for t, p in self.clients
        }

    def _worst(self, rounds: int) -> tuple[str, float]:
        costs = self._costs(rounds)
        worst = max(costs, key=costs.__getitem__)
        return self.clients[worst], costs[worst]

    def epsilon(self, rounds: int) -> float:
        """Return the largest ε of any client after the first ``rounds`` rounds."""
        return self._worst(rounds)[1]

    def begin(self, round_number: int) -> None:
        """Count a round before any client trains for it."""
        self.ledger.publish(round_number)

    def number(self, rounds: int) -> int:
        """Count rounds."""
        return rounds

    def account(self, record: RoundRecord) -> None:
        """Record the cost of all rounds so far for the client that pays most."""
        costs = self._costs(record.round)
        training, private = max(costs, key=costs.__getitem__)
        steps, statistics = training.numbers(record.round, self.ledger.repeated)
        record.privacy = Spent(
            "sample",
            costs[training, private],
            self.options.delta,
            private.noise,
            private.clip,
            training.rate,
            steps,
            means=statistics,
            means_noise=private.means,
            accountant=self.options.accountant,
        )

    def note(self) -> Sequence[str]:
        """Describe the protection."""
        if not any(any(training.steps) for training, _ in self.clients):
            means = next(private.means for _, private in self.clients)
            return (
                f"Differential privacy of samples: one release, with noise of {means:.4g} times what a sample "
                f"changes, ε = {self.epsilon(self.rounds):.3g} at δ = {self.options.delta:g} after all rounds for "
                "runs with and without one sample.",
            )
        noises = sorted(private.noise for _, private in self.clients)
        between = f"{noises[0]:.4g}" if noises[0] == noises[-1] else f"{noises[0]:.4g} to {noises[-1]:.4g}"
        return (
            f"Differential privacy of samples: gradients of norm at most {self.options.clip:g}, noise of {between} "
            f"times that on their sums, ε = {self.epsilon(self.rounds):.3g} at δ = {self.options.delta:g} after "
            "all rounds for runs with and without one sample of the client that pays most; batches are drawn by "
            "Poisson sampling.",
        )
