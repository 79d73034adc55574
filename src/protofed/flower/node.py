"""A node at work: takes one of its clients through a visit.

Nothing here knows Flower: a visit is the same as on the local engine, between fetching a client and leaving it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from protofed.errors import ConfigError, PayloadError
from protofed.experiments.config import Experiment, resolve
from protofed.experiments.workshop import fill, open_workshop, place
from protofed.flower.census import Shared
from protofed.flower.messages import Description, Job, Left
from protofed.flower.sources import Source
from protofed.flower.state import ClientFolder, locked
from protofed.flower.visits import Carried, Kept, Place
from protofed.training import Evaluated, Memory, Parked, Roster, Trained, Visitor
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

    def train(self, job: Job) -> tuple[Trained, Left]:
        """Train one client, once for each request.

        Raises:
            ProtofedError: If the broadcast, the data or the state do not fit; CheckpointError if the node does not
                hold the state that the visit must start from.
        """
        with self._open(job) as (visitor, roster, place):
            answered = place.answered()
            if answered is not None:
                return answered
            place.enter(training=True)
            with roster.visit(job.client) as client:
                result = visitor.train(client, job.message, job.round)
            return result, place.trained(result)

    def evaluate(self, job: Job) -> tuple[Evaluated, Left]:
        """Score one client; it keeps what it is delivered.

        Raises:
            ProtofedError: As :meth:`train`.
        """
        with self._open(job) as (visitor, roster, place):
            place.enter(training=False)
            with roster.visit(job.client, keep=job.deliver) as client:
                result = visitor.evaluate(client, job.message, job.round, deliver=job.deliver)
            return result, place.delivered() if job.deliver else place.unchanged()

    def _experiment(self, config: str) -> Experiment:
        experiment = _resolve(config)
        return replace(experiment, execution=replace(experiment.execution, device=self.device))

    @contextmanager
    def _open(self, job: Job) -> Iterator[tuple[Visitor, Roster, Place]]:
        """Open what a visit needs; a node that keeps its clients never gives one away.

        Raises:
            ConfigError: If the job and the node do not go together.
        """
        if job.state is None and self.state is None:
            raise ConfigError('the node has no place for its model: add state-dir="FOLDER" to --node-config')
        if job.state is not None and self.state is not None:
            raise ConfigError("the server asks for the client itself, but this node keeps its own")
        experiment = self._experiment(job.config)
        visitor, roster, initial = _workshop(self.source, experiment_key(experiment), job.census, job.client)
        roster.store.write(job.client, initial)
        with closing(roster.store):
            if self.state is None:
                _use_bfloat16(roster, Shared.of(job.census).bfloat16)
                yield visitor, roster, Carried(job, roster)
                return
            path = self.state / job.client
            with locked(path):
                folder = ClientFolder(path, job.run)
                if experiment.execution.precision == "bf16":
                    if BFLOAT16 not in folder.notes:  # found out once per run
                        folder.notes[BFLOAT16] = faster_in_bfloat16(roster)
                    _use_bfloat16(roster, folder.notes[BFLOAT16])
                yield visitor, roster, Kept(job, roster, folder, self.fresh)


def _use_bfloat16(roster: Roster, kinds: Collection[str]) -> None:
    for kind, model in roster.models.items():
        model.in_bfloat16 = kind in kinds


def experiment_key(experiment: Experiment) -> str:
    """Return an experiment as JSON, which :func:`_resolve` undoes."""
    return json.dumps(experiment.to_tree(), sort_keys=True)


@lru_cache(maxsize=4)
def _resolve(config: str) -> Experiment:
    try:
        tree: dict[str, Any] = json.loads(config)
    except ValueError as error:
        raise PayloadError(f"config: not JSON ({error})") from None
    return resolve(tree)


@lru_cache(maxsize=16)
def _workshop(source: Source, config: str, census: str, name: str) -> tuple[Visitor, Roster, Parked]:
    """Return what a client's visits need, and where it begins; kept, because a process may see many of them."""
    experiment, shared = _resolve(config), Shared.of(census)
    federated = place(experiment, source.load(experiment, name, shared.classes))
    visitor, roster = open_workshop(experiment, federated, Memory(), census=shared.census)
    fill(experiment, federated, visitor.method, roster, shared.census)
    return visitor, roster, roster.parked(name)
