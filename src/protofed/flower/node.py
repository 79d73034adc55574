"""A node at work: takes one of its clients through a visit.

Nothing here knows Flower: a visit is the same as on the local engine, between fetching a client and leaving it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from protofed import claims
from protofed.errors import ConfigError, PayloadError
from protofed.experiments.assemble import sizes_of
from protofed.experiments.config import Experiment, resolve
from protofed.experiments.workshop import Architecture, fill, is_code, open_workshop, place, recipe_names
from protofed.flower.census import Shared
from protofed.flower.messages import Description, Job, Left
from protofed.flower.sources import Source, check_counts
from protofed.flower.state import ClientFolder, locked
from protofed.flower.visits import Carried, Kept, Place
from protofed.samples import ClientData
from protofed.training import Evaluated, LocalTrainer, Memory, Parked, Roster, Sequential, Trained
from protofed.training.calibration import faster_in_bfloat16

BFLOAT16 = "bfloat16"


@dataclass(frozen=True)
class Node:
    """What one machine brings to the federation.

    Attributes:
        source: Where its clients' data are.
        state: Folder in which its clients' models and states are kept, one folder per client; None for a node of a
            simulation, whose clients travel with their visits.
        device: Where it computes: ``auto``, ``cpu`` or ``cuda``.
        fresh: Whether a client whose state is lost begins anew instead of being refused.
    """

    source: Source
    state: Path | None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    fresh: bool = False

    def describe(self, config: str) -> list[Description]:
        """Return what the server has to know of the clients."""
        return self.source.describe(self._experiment(config))

    def fit(self, job: Job) -> dict[str, Any]:
        """Return the sizes of a client's model, as :func:`~protofed.experiments.assemble.sizes_of` does.

        Raises:
            ProtofedError: If it cannot be built, or the method cannot work with it.
        """
        experiment = self._experiment(job.config)
        check_counts(experiment, job.client, self.counts(job))
        _, roster, _ = _workshop(self.source, experiment_key(experiment), job.census, job.client)
        return sizes_of(roster.models[roster.members[job.client].kind])

    def counts(self, job: Job) -> str:
        """Return how much the client says of its numbers of samples."""
        return self.source.counts(self._experiment(job.config), job.client)

    def train(self, job: Job) -> tuple[Trained, Left]:
        """Train one client, once for each request.

        Raises:
            ProtofedError: If the broadcast, the data or the state do not fit; CheckpointError if the node does not
                hold the state that the visit must start from.
        """
        with self._open(job) as (trainer, roster, place):
            answered = place.answered()
            if answered is not None:
                return answered
            place.enter(training=True)
            (result,) = Sequential(trainer, roster).train([job.client], {job.client: job.message}, job.round)
            return result, place.trained(result)

    def evaluate(self, job: Job) -> tuple[Evaluated, Left]:
        """Score one client; it keeps what it is delivered.

        Raises:
            ProtofedError: As :meth:`train`.
        """
        with self._open(job) as (trainer, roster, place):
            place.enter(training=False)
            messages = {job.client: job.message} if job.deliver else None
            (result,) = Sequential(trainer, roster).evaluate([job.client], messages, job.round)
            return result, place.delivered() if job.deliver else place.unchanged()

    def _experiment(self, config: str) -> Experiment:
        experiment = _resolve(config)
        return replace(experiment, execution=replace(experiment.execution, device=self.device))

    @contextmanager
    def _open(self, job: Job) -> Iterator[tuple[LocalTrainer, Roster, Place]]:
        """Open what a visit needs; a node that keeps its clients never gives one away.

        Raises:
            ConfigError: If the job and the node do not go together.
        """
        if job.state is None and self.state is None:
            raise ConfigError('the node has no place for its model: add state-dir="FOLDER" to --node-config')
        if job.state is not None and self.state is not None:
            raise ConfigError("the server asks for the client itself, but this node keeps its own")
        experiment = self._experiment(job.config)
        check_counts(experiment, job.client, self.counts(job))
        trainer, roster, initial = _workshop(self.source, experiment_key(experiment), job.census, job.client)
        keep = nullcontext() if self.state is None else locked(self.state / job.client, job.run, job.order)
        with keep, closing(roster.store):
            roster.store.write(job.client, initial)
            if self.state is None:
                _use_bfloat16(roster, Shared.of(job.census).bfloat16)
                yield trainer, roster, Carried(job, roster)
                return
            folder = ClientFolder(self.state / job.client, job.run)
            if experiment.execution.precision == "bf16":
                if BFLOAT16 not in folder.notes:  # found out once per run
                    folder.notes[BFLOAT16] = faster_in_bfloat16(roster)
                _use_bfloat16(roster, folder.notes[BFLOAT16])
            yield trainer, roster, Kept(job, roster, folder, self.fresh)


def _use_bfloat16(roster: Roster, kinds: Collection[str]) -> None:
    for kind, model in roster.models.items():
        model.in_bfloat16 = kind in kinds


def experiment_key(experiment: Experiment) -> str:
    """Return an experiment as JSON, which :func:`_resolve` undoes."""
    return json.dumps(experiment.to_tree(), sort_keys=True)


@lru_cache(maxsize=4)
def _resolve(config: str) -> Experiment:
    try:
        tree = claims.parse(config, "config")
        if not isinstance(tree, dict):
            raise ValueError("config: expected a table")
    except ValueError as error:
        raise PayloadError(str(error)) from None
    return resolve(tree)


@lru_cache(maxsize=16)
def _workshop(source: Source, config: str, census: str, name: str) -> tuple[LocalTrainer, Roster, Parked]:
    """Return what a client's visits need, and where it begins; kept, because a process may see many of them."""
    experiment, shared = _resolve(config), Shared.of(census)
    federated = place(experiment, source.load(experiment, name, shared.classes))
    shared = replace(shared, architecture=_own(experiment, shared.architecture, federated.clients[0]))
    trainer, roster = open_workshop(experiment, federated, Memory(), census=shared.census)
    fill(experiment, federated, trainer.method, roster, shared.census)
    return trainer, roster, roster.parked(name)


def _own(experiment: Experiment, told: Architecture, client: ClientData) -> Architecture:
    """Return the architecture that the server told, a model of the client's own by its name.

    Raises:
        PayloadError: If it is code that neither the recipe nor the client names.
    """
    if told.name == claims.PRIVATE:
        if not is_code(own := client.settings.get("model", "")):
            raise PayloadError("census: tells of a model of the client's own, but its client.toml names none")
        return replace(told, name=own, options={})
    named = recipe_names(experiment, told.name) or told.name == client.settings.get("model")
    if is_code(told.name) and not named:
        raise PayloadError(f"census: architecture {told.name!r} is code that no recipe or client names")
    return told
