"""Execution of clients' visits at a node.

This module is independent of Flower: a visit is the same as on the local engine, once the client has been fetched.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from protofed.compute.imports import importing_only
from protofed.config.architectures import architecture_of, check_alike
from protofed.config.coverage import withholds_scores
from protofed.engine import (
    Builder,
    Evaluated,
    Experiment,
    Hardware,
    LocalTrainer,
    Memory,
    Roster,
    Sequential,
    Snapshot,
    Trained,
    bfloat16_kinds,
    check_memory,
    load_data,
    resolve,
    secure_stage,
)
from protofed.errors import ConfigError, PayloadError
from protofed.experiments.description import sizes_of
from protofed.stages.privacy import epsilon
from protofed_flower import own
from protofed_flower.allow import check_model
from protofed_flower.messages import Description, Expected, Job, VisitOutcome
from protofed_flower.pins import check_pins, check_weights, pins
from protofed_flower.policy import ANY, Policy, last_and_repeated, releases_of
from protofed_flower.sources import NOTHING_EXPECTED, Source, check_counts, plan_tree
from protofed_flower.state import RUNS, ClientFolder, locked
from protofed_flower.summary import read_summary
from protofed_flower.visits import Carried, ClientStorage, Kept

log = logging.getLogger(__name__)
BFLOAT16 = "bfloat16"
TOLD = "told"  #: Name of the note that a client has been sent a broadcast in this run


@dataclass(frozen=True)
class Node:
    """One node of the federation."""

    source: Source
    #: One subfolder per client and in it one per run; None in a simulation, whose clients travel with their visits
    state: Path | None
    device: str = "auto"
    fresh: bool = False  #: A client whose state is lost starts afresh instead of being refused
    #: Folder of initial weights, taken by name whatever their path in the recipe; "" in a simulation, which takes
    #: that path
    weights: str = ""
    runs: int = RUNS  #: Runs of which it keeps a client
    policy: Policy = ANY  #: Required of a run
    settings: Mapping[str, Any] = field(default_factory=dict)  #: All settings of the node, by name
    #: What the ledger says of the answer besides its values: ``shapes`` of arrays, ``epsilon``
    entered: dict[str, Any] = field(default_factory=dict)
    #: Experiments of plans that were checked, by their text
    known: dict[str, Experiment] = field(default_factory=dict)

    def describe(self, config: str, expected: Expected = NOTHING_EXPECTED) -> list[Description]:
        """Return descriptions of the node's clients, given what the server sends of the experiment as JSON."""
        experiment = self._experiment(config)
        self.policy.check(experiment)
        found = self.source.describe(experiment, expected)
        if self.state is not None:
            for client in found:
                check_alike(experiment, "model" in client.settings)
        return found

    def reads(self, config: str) -> str:
        """Return the hash of what the server sends of an experiment as this node reads it."""
        return sha256(self.source.reads(config, self.policy.permits).encode()).hexdigest()

    @contextmanager
    def importing(self) -> Iterator[None]:
        """Import no code that a server may name but what the node's own files name."""
        own = self.source.code
        with nullcontext() if own is None else importing_only([*own, *self.policy.code]):
            yield

    def architecture(self, job: Job) -> str:
        """Return the kind of a client's model as the server assigned it; "own" if the client's file names it."""
        if self.state is None:
            return ""  # of a simulation, which hides nothing
        member = self._build(job)[1][job.client]
        return "own" if "model" in member.data.settings else member.kind

    def fit(self, job: Job) -> dict[str, Any]:
        """Return the sizes of a client's model, as :func:`~protofed.experiments.description.sizes_of` does."""
        self._check(self._experiment(job.config), job)
        _, roster, _ = self._build(job)
        return sizes_of(roster.models[roster[job.client].kind])

    def check_held(self, job: Job) -> None:
        """Check that the node has the state of a client from which a visit would start; nothing is changed."""
        if self.state is not None:
            ClientFolder(self.state / job.client, job.run).held(job.after, self._instead(job))

    def counts(self, job: Job) -> str:
        """Return a client's disclosure of its numbers of samples: one of ``claims.COUNTS``."""
        return self.source.counts(self._experiment(job.config), job.client)

    def train(self, job: Job) -> tuple[Trained, VisitOutcome]:
        """Train one client; answer a repeated request with the existing result.

        With secure aggregation, the message in the result is the offer that must not leave the node unmasked.

        Raises:
            ProtofedError: CheckpointError if the node does not have the state from which the visit must start.
        """
        with self._open(job) as (builder, roster, place):
            answered = place.answered()
            if isinstance(place, Kept) and (answered is None or self.keeps_uploads(job.config)):
                self.policy.check_cost(builder, place.folder.notes, job.round)  # masks hide new noise each time
                if answered is not None:
                    place.folder.remember()
            if answered is None:
                self._check_told(job, place)
                place.enter(training=True)
                messages = {job.client: job.message}
                (result,) = Sequential(builder.trainer, roster).train([job.client], messages, job.round)
                if isinstance(place, Kept) and self.policy.allowed is not None:
                    self.policy.allowed.count(place.folder.notes, job.client, len(result.message or b""))
                answered = result, place.trained(result)
            if isinstance(place, Kept):
                self.entered.update(_note(builder, answered[0].message, job.round, place.folder.notes))
            return self._mask(job, builder.trainer, answered[0]), answered[1]

    def keeps_uploads(self, config: str) -> bool:
        """Return whether uploads stay at the node, which sends only masked ones, given a configuration as JSON."""
        return self._experiment(config).secure.aggregation

    def _check_told(self, job: Job, place: ClientStorage) -> None:
        """Refuse to train for a sum from the broadcast of an earlier request: others may have been sent another.

        Those of the request itself are compared (:mod:`protofed_flower.held`).
        """
        told = isinstance(place, Kept) and TOLD in place.folder.notes
        if told and job.message is None and self.keeps_uploads(job.config):
            raise PayloadError(
                f"{job.client}: the request has no broadcast, but an earlier one had: with secure aggregation, all "
                "clients of a round start from the same"
            )

    def _mask(self, job: Job, trainer: LocalTrainer, result: Trained) -> Trained:
        """Return a result with what secure aggregation adds up in place of the upload, if uploads stay."""
        if result.message is None or not self.keeps_uploads(job.config):
            return result
        stage = secure_stage(self._experiment(job.config), trainer)
        assert stage is not None
        offer = stage.offer(job.client, result.message, job.message, job.round)
        return replace(result, message=offer.to_bytes())

    def evaluate(self, job: Job) -> tuple[Evaluated, VisitOutcome]:
        """Evaluate one client, which keeps a delivered broadcast."""
        with self._open(job) as (builder, roster, place):
            place.enter(training=False)
            messages = {job.client: job.message} if job.deliver else None
            (result,) = Sequential(builder.trainer, roster).evaluate([job.client], messages, job.round)
            left = place.delivered() if job.deliver else place.unchanged()
            if isinstance(place, Kept):
                own.show(place, builder, self.source.recorded(builder.experiment), result)
            if self.state is not None and withholds_scores(builder.experiment, builder.method):
                told = ", ".join(f"{rule} {n} of {result.samples}" for rule, n in result.correct.items())
                log.info("%s, round %d: the scores stay here: %s", job.client, job.round, told)
                result = Evaluated(job.client, {}, 0, result.seconds)
            return result, left

    def _experiment(self, config: str) -> Experiment:
        if config in self.known:  # a message asks for it several times
            return self.known[config]
        experiment = self.source.experiment(config, self.policy.permits)
        folder = self.weights or experiment.execution.weights_dir
        execution = replace(experiment.execution, device=self.device, weights_dir=folder)
        found = replace(experiment, data=experiment.data.within(folder), execution=execution)
        self.known[config] = found
        return found

    def _instead(self, job: Job) -> str:
        """Return what else than to restore a lost client may be done, or must not; "" if it may start afresh."""
        if self._experiment(job.config).privacy.mode == "sample":
            # What it has told of its samples is lost too: it would tell it again, and ε would not count that.
            return "whose noise must not be drawn anew (privacy.mode=sample)"
        return "" if self.fresh else "or add fresh=true to --node-config to start afresh"

    def _check(self, experiment: Experiment, job: Job) -> None:
        """Refuse a run that the node's operator does not allow."""
        self.policy.check(experiment)
        check_counts(experiment, job.client, self.counts(job))

    def _build(self, job: Job) -> tuple[Builder, Roster, Snapshot]:
        """Return the builder and roster for a client's visits, and its first snapshot; cached for later visits."""
        experiment = self._experiment(job.config)
        models = None if self.policy.allowed is None else self.policy.allowed.models
        return _build(self.source, experiment_key(experiment), job.summary, job.client, models)

    @contextmanager
    def _open(self, job: Job) -> Iterator[tuple[Builder, Roster, ClientStorage]]:
        """Open the builder, the roster and the storage for a visit; a node never gives a stored client away."""
        if job.state is None and self.state is None:
            raise ConfigError('the node has no folder for its model: add state-dir="FOLDER" to --node-config')
        if job.state is not None and self.state is not None:
            raise ConfigError("the server sent the client's state, but this node stores its clients itself")
        experiment = self._experiment(job.config)
        self._check(experiment, job)
        config = experiment_key(experiment)
        if self.state is None:
            (client,) = self.source.load(experiment, job.client, read_summary(job.summary)).clients
            chosen = tuple((name, client.settings[name]) for name in ("model", "d") if name in client.settings)
            builder, roster = _company(config, job.summary, chosen)
            with closing(roster.store):
                yield builder, roster, Carried(job, roster)
            return
        builder, roster, initial = self._build(job)
        place = self.state / job.client
        asked = ClientFolder(place, job.run)
        asked.held(job.after, self._instead(job))  # refuse before anything is created
        asked.check_new(self.runs)
        with locked(asked.path, job.order), closing(roster.store):
            roster.store.write(job.client, initial)
            folder = ClientFolder(place, job.run)
            held = [*pins(experiment, builder.summary), *self.policy.pins(experiment)]
            check_pins(folder.notes, job.client, held)
            if job.message is not None:
                _check_broadcast(builder.trainer, roster, job.client, job.message)
                folder.notes[TOLD] = []
            if experiment.execution.precision == "bf16":  # measured once per run
                folder.notes[BFLOAT16] = list(
                    bfloat16_kinds(experiment, folder.notes.get(BFLOAT16), lambda: roster)
                )
                roster.compute_in_bfloat16(folder.notes[BFLOAT16])
            yield builder, roster, Kept(job, roster, folder, self._instead(job))


def _note(builder: Builder, upload: bytes | None, round_number: int, notes: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the ledger says of an upload: the shapes of its arrays, and ε so far at the run's δ."""
    method, privacy = builder.method, builder.experiment.privacy
    entered: dict[str, Any] = {}
    if upload and method.upload_schema is not None:
        found = builder.trainer.codec.decode(upload, method.upload_schema)
        entered["shapes"] = {name: tuple(tensor.shape) for name, tensor in found.items()}
    _, repeated = last_and_repeated(notes)
    if privacy.mode != "none" and (releases := releases_of(builder, round_number, repeated)):
        spent = epsilon(releases, privacy.delta)
        entered["epsilon"] = spent if math.isfinite(spent) else None
    return entered


def _check_broadcast(trainer: LocalTrainer, roster: Roster, client: str, message: bytes) -> None:
    """Refuse crafted weights; a broadcast is checked against the schema where it is received."""
    initial = getattr(trainer.method, "initial", {})
    if (schema := trainer.method.broadcast_schema) is None:
        return
    try:
        check_weights(roster.models[roster[client].kind], trainer.codec.decode(message, schema), initial)
    except PayloadError as error:
        raise PayloadError(f"{client}: broadcast: {error}") from None


def experiment_key(experiment: Experiment) -> str:
    """Return an experiment's configuration as JSON."""
    return json.dumps(experiment.to_tree(), sort_keys=True)


@lru_cache(maxsize=4)
def _resolve(config: str) -> Experiment:
    """Return the experiment that this node itself has written as JSON."""
    return resolve(plan_tree(config))


@lru_cache(maxsize=16)
def _build(
    source: Source, config: str, text: str, name: str, models: tuple[str, ...] | None
) -> tuple[Builder, Roster, Snapshot]:
    """Return builder, roster and first snapshot of a client's visits, cached; ``models`` None allows any."""
    experiment, summary = _resolve(config), read_summary(text)
    hardware = Hardware.of(experiment.execution)
    federated = hardware.place(source.load(experiment, name, summary))
    (client,) = federated.clients
    architecture = architecture_of(experiment, federated, client, summary.place)
    if "model" not in client.settings:
        check_model(architecture.name, models)
        check_memory(experiment, federated, architecture)
    builder = Builder(experiment, federated, hardware, replace(summary, architectures=(architecture,)), secret=True)
    roster = builder.roster(Memory())
    builder.fill(roster)
    return builder, roster, roster.snapshot(name)


@lru_cache(maxsize=16)
def _company(config: str, text: str, chosen: tuple[tuple[str, Any], ...]) -> tuple[Builder, Roster]:
    """Return the builder and roster for the visits of all clients that travel and have one architecture.

    They stay with the process of a simulation, which serves any node: data and models are loaded once.
    """
    experiment, summary = _resolve(config), read_summary(text)
    hardware = Hardware.of(experiment.execution)
    federated = hardware.place(load_data(experiment))
    client = replace(federated.clients[0], settings=dict(chosen))
    architecture = architecture_of(experiment, federated, client, summary.place)
    architectures = (architecture,) * len(federated.clients)
    builder = Builder(experiment, federated, hardware, replace(summary, architectures=architectures))
    roster = builder.roster(Memory())
    roster.compute_in_bfloat16(summary.bfloat16)
    return builder, roster
