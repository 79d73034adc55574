"""The ServerApp: the round loop of a simulation, with clients at the nodes of a network."""

from __future__ import annotations

import logging
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from protofed.errors import ConfigError, ProtofedError
from protofed.experiments.assemble import describe_clients, found, load_data
from protofed.experiments.config import Experiment, Tree, apply_overrides, load_recipe, parse_overrides, resolve
from protofed.experiments.rundir import RunDirectory, directory_for
from protofed.experiments.running import Progress, Run, conduct
from protofed.experiments.workshop import Census, open_workshop, place
from protofed.federation import Federation
from protofed.federation.files import read_json, write_json
from protofed.flower.census import elsewhere, scored, shared
from protofed.flower.gathering import Gathering, Party, meet, recall
from protofed.flower.grid import STATES, GridExecutor, Nodes
from protofed.flower.node import experiment_key
from protofed.flower.state import ClientFolder
from protofed.training import Memory

log = logging.getLogger("protofed")
NODES = "nodes.json"
"""In the run directory: which clients there are, so that a server that starts again knows those who are away."""


def serve(
    grid: Grid,
    experiment: Experiment,
    files: RunDirectory,
    gathering: Gathering,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    label: str = "",
    report: bool = True,
) -> Run:
    """Run an experiment with the clients of a network; see :func:`~protofed.experiments.running.conduct`.

    Raises:
        ProtofedError: For anything wrong with the experiment, the directory or the clients; FederationError if too
            few clients come or stay.
    """
    # Nodes decide for themselves where they compute.
    experiment = replace(
        experiment,
        execution=replace(experiment.execution, executor="sequential", threads=0, workers=0, device="cpu"),
    )
    if not files.finished:
        files.open(experiment, resume=resume)  # before anybody is asked

    def begin() -> tuple[Federation, Tree]:
        return _federation(grid, experiment, files, gathering)

    def gather(federation: Federation) -> None:
        _gather(experiment, federation, files.path)

    result = conduct(
        experiment, files, begin, resume=True, progress=progress, label=label, report=report, gather=gather
    )
    shutil.rmtree(files.path / STATES, ignore_errors=True)
    return result


def _federation(
    grid: Grid, experiment: Experiment, files: RunDirectory, gathering: Gathering
) -> tuple[Federation, Tree]:
    """Meet the clients and build the federation as the server knows it."""
    nodes = Nodes(grid, experiment_key(experiment), gathering.bindings())
    known = files.path / NODES
    party = recall(known, nodes, experiment, gathering) if known.is_file() else None
    if party is None:
        party = meet(nodes, experiment, gathering)
        write_json(known, party.to_tree())
    federated = elsewhere(party.clients, party.classes)
    own = [number for number, d in enumerate(party.clients) if d.name in party.sizes]
    census = Census.of(experiment, federated).without(experiment, own)
    visitor, roster = open_workshop(experiment, federated, Memory(), census=census, absent=party.sizes)
    roster.here = []
    told = shared(census, party.classes)
    executor = GridExecutor(
        nodes,
        party.run,
        files.path,
        roster,
        {d.name: record for d, record in zip(party.clients, told, strict=True)},
        scored(party.clients),
        visitor.method.rules,
        experiment.participation.deadline_s,
    )
    federation = found(experiment, visitor, executor)
    return federation, _described(party, describe_clients(federation, federated, party.sizes))


def _described(party: Party, description: Tree) -> Tree:
    """Add who was left out, and what clients withhold."""
    for client, d in zip(description["clients"], party.clients, strict=True):
        if d.counts != "exact":
            client["counts"] = d.counts
    for kind, what in (("coarse", "the next power of two"), ("none", "1 where there are any")):
        if names := [d.name for d in party.clients if d.counts == kind]:
            description["notes"].append(f"Numbers of samples shown of {', '.join(names)}: {what}.")
    left_out = [{"client": who, "reason": why} for who, why in party.left_out.items()]
    return {**description, "left_out": left_out} if left_out else description


def _gather(experiment: Experiment, federation: Federation, directory: Path) -> None:
    """Bring the clients' models here if this is a simulation, whose nodes share a disk with the server."""
    if not (directory / STATES).is_dir():
        return
    _, roster = open_workshop(experiment, place(experiment, load_data(experiment)), Memory())
    run = read_json(directory / NODES)["run"]
    roster.here = []
    for name in roster:
        folder = ClientFolder(directory / STATES / name, run)
        if folder.latest is not None:
            roster.store.write(name, folder.read(folder.latest))
            roster.here.append(name)
    federation.executor.clients = roster


class Log(Progress):
    """Tells what happens in the server's log."""

    def started(self, label: str, rounds: int, done: int, directory: Path) -> None:
        """Name the run directory."""
        log.info("%s: rounds %d to %d, run directory %s", label, done + 1, rounds, directory)

    def round(self, label: str, record: Mapping[str, Any]) -> None:
        """Tell accuracy, traffic and who was missing."""
        accuracy = {rule: round(100 * a["weighted"], 1) for rule, a in record.get("accuracy", {}).items()}
        missing = [f"{m['client']} ({m['reason']})" for m in record["missing"]]
        missing += [f"{r['client']} (refused: {r['field']} {r['reason']})" for r in record["refused"]]
        traffic = f"{record['bytes']['up']} B up, {record['bytes']['down']} B down"
        log.info("%s round %d: %s, %s%s", label, record["round"], accuracy, traffic, _listed(missing))

    def finished(self, label: str, run: Run) -> None:
        """Name the report."""
        log.info("%s: complete, report %s", label, run.report)


def _listed(missing: Sequence[str]) -> str:
    return f"; without {', '.join(missing)}" if missing else ""


app = ServerApp()
"""The ServerApp of a deployment; ``app.toml`` says what its run config may hold."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the recipe that the run config names."""
    flower = logging.getLogger("flwr")
    log.handlers, log.level, log.propagate = flower.handlers, logging.INFO, False
    config = dict(context.run_config)
    try:
        overrides = parse_overrides(shlex.split(str(config.get("overrides", ""))))
        experiment = resolve(apply_overrides(load_recipe(str(config.get("recipe", "quickstart"))), overrides))
        resume = str(config.get("resume", ""))
        out = resume or str(config.get("out", ""))
        directory = directory_for(out or None, experiment, resume=bool(resume))
        gathering = Gathering(
            int(config.get("clients", 0)),
            float(config.get("wait-s", 600.0)),
            tuple(name for name in str(config.get("classes", "")).split(",") if name),
            roster=str(config.get("roster", "")),
            identity=str(config.get("identity", "key")),
            clients_per_node=int(config.get("clients-per-node", 1)),
        )
        serve(grid, experiment, RunDirectory(directory), gathering, resume=bool(resume), progress=Log())
    except ProtofedError as error:
        log.error("error: %s", error)
        raise
    except ValueError as error:
        raise ConfigError(f"run config: {error}") from None
