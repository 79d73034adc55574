"""A node at work: takes one of its clients through a visit, and keeps what the client became.

Nothing here knows Flower: a visit is the same as in a simulation, between reading a folder and writing it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from protofed import claims
from protofed.errors import CheckpointError, PayloadError
from protofed.experiments.assemble import sizes_of
from protofed.experiments.config import Experiment, resolve
from protofed.experiments.workshop import Architecture, fill, is_code, open_workshop, place, recipe_names
from protofed.flower.census import Shared
from protofed.flower.messages import Description, Job
from protofed.flower.sources import Source, check_counts
from protofed.flower.state import ClientFolder, Generation, digest
from protofed.training import Client, ClientData, Evaluated, Memory, Parked, Roster, Trained, Visitor
from protofed.training.calibration import faster_in_bfloat16

BFLOAT16 = "bfloat16"


@dataclass(frozen=True)
class Node:
    """What one machine brings to the federation.

    Attributes:
        source: Where its clients' data are.
        state: Folder in which its clients' models and states are kept, one folder per client.
        device: Where it computes: ``auto``, ``cpu`` or ``cuda``.
    """

    source: Source
    state: Path
    device: Literal["auto", "cpu", "cuda"] = "auto"

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

    def train(self, job: Job) -> Trained:
        """Train one client, once for each request.

        Raises:
            ProtofedError: If the broadcast, the data or the state do not fit.
        """
        visitor, roster, folder = self._open(job)
        samples = len(roster.members[job.client].train)
        request = digest(job.round, job.message)
        latest = folder.latest
        if latest and latest.round == job.round and latest.request == request:
            return Trained(job.client, folder.reply(latest), json.loads(latest.losses), samples, 0.0)
        if latest and latest.round > job.round:
            raise CheckpointError(
                f"{job.client} has trained in round {latest.round} and was asked for round {job.round}: the server "
                "is behind; remove the client's state folder to begin anew"
            )
        start = folder.before if latest and latest.round == job.round else latest
        parked = self._enter(roster, folder, start, job.client)
        with roster.visit(job.client) as client:
            result = visitor.train(client, job.message, job.round)
        losses = json.dumps(result.losses)
        folder.trained(roster.parked(job.client), job.round, request, result.message, losses, parked)
        return result

    def evaluate(self, job: Job) -> Evaluated:
        """Score one client; it keeps what it is delivered."""
        visitor, roster, folder = self._open(job)
        self._enter(roster, folder, folder.latest, job.client)
        with roster.visit(job.client, keep=job.deliver) as client:
            result = visitor.evaluate(client, job.message, job.round, deliver=job.deliver)
        if job.deliver:
            folder.delivered(roster.parked(job.client))
        return result

    def client(self, job: Job) -> Client:
        """Return a client as it stands, for inspection."""
        _, roster, folder = self._open(job)
        self._enter(roster, folder, folder.latest, job.client)
        return roster[job.client]

    def _experiment(self, config: str) -> Experiment:
        experiment = _resolve(config)
        return replace(experiment, execution=replace(experiment.execution, device=self.device))

    def _open(self, job: Job) -> tuple[Visitor, Roster, ClientFolder]:
        experiment = self._experiment(job.config)
        check_counts(experiment, job.client, self.counts(job))
        visitor, roster, initial = _workshop(self.source, experiment_key(experiment), job.census, job.client)
        folder = ClientFolder(self.state / job.client, job.run)
        self._choose_precision(experiment, roster, folder)
        if folder.latest is None:
            roster.store.write(job.client, initial)
        return visitor, roster, folder

    def _choose_precision(self, experiment: Experiment, roster: Roster, folder: ClientFolder) -> None:
        """Find out once per run what this machine computes faster in bfloat16."""
        if experiment.execution.precision != "bf16":
            return
        if BFLOAT16 not in folder.notes:
            folder.note(BFLOAT16, faster_in_bfloat16(roster))
        for kind, model in roster.models.items():
            model.in_bfloat16 = kind in folder.notes[BFLOAT16]

    @staticmethod
    def _enter(roster: Roster, folder: ClientFolder, generation: Generation | None, name: str) -> Parked:
        """Bring a client to where it stood; return that."""
        if generation is not None:
            try:
                roster.replace(name, folder.read(generation))
            except (KeyError, RuntimeError) as error:
                reason = str(error).splitlines()[0]
                raise CheckpointError(f"{folder.path}: does not fit the model of {name} ({reason})") from None
        return roster.parked(name)


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
def _workshop(source: Source, config: str, census: str, name: str) -> tuple[Visitor, Roster, Parked]:
    """Return what a client's visits need, and where it begins; kept, because a process may see many of them."""
    experiment, shared = _resolve(config), Shared.of(census)
    federated = place(experiment, source.load(experiment, name, shared.classes))
    shared = replace(shared, architecture=_own(experiment, shared.architecture, federated.clients[0]))
    visitor, roster = open_workshop(experiment, federated, Memory(), census=shared.census)
    fill(experiment, federated, visitor.method, roster, shared.census)
    return visitor, roster, roster.parked(name)


def _own(experiment: Experiment, told: Architecture, client: ClientData) -> Architecture:
    """Return the architecture that the server told, a model of the client's own by its name.

    Raises:
        PayloadError: If it is code that neither the recipe nor the client names.
    """
    if told.name == claims.PRIVATE:
        if not is_code(own := client.settings.get("model", "")):
            raise PayloadError("census: tells of a model of the client's own, but its client.toml names none")
        return replace(told, name=own, options={})
    if is_code(told.name) and not recipe_names(experiment, told.name):
        raise PayloadError(f"census: architecture {told.name!r} is code that the recipe does not name")
    return told
