"""The stages of a federation, in order: the only place that knows them all."""

from __future__ import annotations

import math

from protofed.compute.imports import user_class
from protofed.config.schema import Experiment
from protofed.rounds.participation import Participation
from protofed.rounds.stage import Receiving, Stage
from protofed.stages.attack import Attackers
from protofed.stages.privacy import ClientPrivacy, SamplePrivacy
from protofed.stages.privacy.clients import NoisySums
from protofed.stages.privacy.noise import NO_NOISE, OwnNoise, from_seed, from_system
from protofed.stages.privacy.samples import multiplier
from protofed.stages.robust import Guard
from protofed.stages.secure.stage import Conduct, SecureSum
from protofed.visits.contract import Executor
from protofed.visits.visit import LocalTrainer


def attackers(experiment: Experiment, trainer: LocalTrainer, executor: Executor) -> Attackers | None:
    """Return the hostile clients of a simulation; None if there are none."""
    if experiment.attack.kind == "none":
        return None
    return Attackers(experiment.attack, trainer, executor.clients)


def guard(experiment: Experiment, trainer: LocalTrainer, executor: Executor, hostile: Attackers | None) -> Guard:
    """Return the stage of robust rules."""
    training = {name: member.train for name, member in executor.clients.items()}
    K = trainer.method.task.num_classes
    counts = {name: samples.most(K).cpu() for name, samples in training.items()}
    counts = counts if hostile is None else hostile.describe_counts(counts)
    withheld = {name for name, samples in training.items() if not samples.exact}
    return Guard(experiment.robust, trainer.method, counts, withheld)


def stages(
    experiment: Experiment,
    trainer: LocalTrainer,
    participation: Participation,
    hostile: Attackers | None,
    robust: Guard,
    conduct: Conduct | None = None,
) -> list[Stage]:
    """Return the stages of a federation.

    Args:
        conduct: Runs secure aggregation with clients that hold their own uploads; None for those of this process.

    Raises:
        ConfigError: If stages do not suit the method or the clients.
    """
    method = trainer.method
    robust.check(participation.number_of(participation.able))
    hiding = _hiding(experiment, trainer, participation)
    merging = hiding if isinstance(hiding, ClientPrivacy) else None  # makes one upload of all
    secure = secure_stage(experiment, trainer, conduct, merging)
    found: list[Stage] = [hostile] if hostile else []
    found.append(secure or Receiving(method, trainer.codec))
    found += [user_class("stage", name, Stage, "protofed.rounds.Stage")() for name in experiment.stages]
    if secure is None and merging is None:
        found.append(robust)
    return [*found, *([hiding] if hiding else [])]


def _hiding(
    experiment: Experiment, trainer: LocalTrainer, participation: Participation
) -> ClientPrivacy | SamplePrivacy | None:
    """Return the stage of differential privacy; None without privacy or without uploads."""
    method, options = trainer.method, experiment.privacy
    if options.mode == "none" or method.upload_schema is None:
        return None
    if options.mode == "sample":
        members = {name: participation.executor.clients[name] for name in participation.trainable}
        return SamplePrivacy(options, method, members)
    o = participation.options
    able, shared, drawn = participation.able, experiment.secure.aggregation, o.sampling == "poisson"
    # With secure aggregation, the clients of a round are told who else takes part.
    coin = o.fraction if drawn and not shared else 1.0
    rates = [coin if participation.sends(n) else 0.0 for n in range(1, participation.rounds + 1)]
    expected = len(able) * o.fraction if drawn else participation.number_of(able)
    source = from_system if participation.secret else from_seed(participation.seed, "privacy")
    return ClientPrivacy(options, method, rates, expected, source, shared)


def secure_stage(
    experiment: Experiment,
    trainer: LocalTrainer,
    conduct: Conduct | None = None,
    hiding: ClientPrivacy | None = None,
) -> SecureSum | None:
    """Return the stage of secure aggregation; None if the experiment has none."""
    if not experiment.secure.aggregation:
        return None
    method, noisy = trainer.method, None
    if experiment.privacy.mode == "client" and method.upload_schema is not None:
        # Clients of a round know each other's names, so no round is cheaper because some were drawn.
        o, rounds = experiment.participation, experiment.rounds
        rates = [float(o.sends(method, round_number, rounds)) for round_number in range(1, rounds + 1)]
        noisy = NoisySums(experiment.privacy, method, rates, experiment.secure.fraction_bits)
    seed = None if trainer.secret else trainer.seed
    noise = NO_NOISE
    if method.task.noise:
        unit = math.hypot(*method.protection.dp_statistics.values()) * 2.0**experiment.secure.fraction_bits
        noise = OwnNoise(multiplier(experiment.privacy) * unit, experiment.privacy.colluders)
    return SecureSum(experiment.secure, method, trainer.codec, conduct, noisy, seed, noise, hiding)
