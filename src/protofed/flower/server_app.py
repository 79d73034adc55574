"""The ServerApp: the round loop of a simulation, with clients at the nodes of a network."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from protofed import limits
from protofed.errors import ConfigError, ProtofedError
from protofed.experiments.assemble import describe_clients, found, load_data, resting_place
from protofed.experiments.config import Experiment, Tree, apply_overrides, load_recipe, parse_overrides, resolve
from protofed.experiments.rundir import RunDirectory, directory_for
from protofed.experiments.running import Progress, Run, conduct
from protofed.experiments.workshop import Census, fill, open_workshop, place
from protofed.federation import Federation
from protofed.federation.files import write_json
from protofed.flower.census import elsewhere, scored, shared
from protofed.flower.gathering import REQUEST_BITS, Gathering, Party, meet, recall
from protofed.flower.grid import GridExecutor, Nodes
from protofed.flower.node import experiment_key
from protofed.samples import FederatedData
from protofed.training import Memory
from protofed.training.calibration import faster_in_bfloat16

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
    simulated: bool = False,
) -> Run:
    """Run an experiment with the clients of a network; see :func:`~protofed.experiments.running.conduct`.

    Args:
        grid: Flower's.
        experiment: What is run.
        files: Where to.
        gathering: Whom to wait for.
        resume: Whether ``files`` may hold a part of this run.
        progress: Is told what happens.
        label: What ``progress`` calls the run.
        report: Whether to write the HTML report.
        simulated: Whether the nodes hold shares of data that the server has too. Clients then rest here and travel
            with their visits, to whichever machine these happen on; otherwise each rests with its node.

    Raises:
        ProtofedError: For anything wrong with the experiment, the directory or the clients; FederationError if too
            few clients come or stay.
    """
    if not files.finished:
        files.open(experiment, resume=resume)  # before anybody is asked

    def begin() -> tuple[Federation, Tree]:
        return _federation(grid, experiment, files, gathering, simulated)

    return conduct(_as_server(experiment), files, begin, resume=True, progress=progress, label=label, report=report)


def _as_server(experiment: Experiment) -> Experiment:
    """Return the experiment as the server computes it: nodes decide for themselves where they compute."""
    execution = replace(experiment.execution, executor="sequential", threads=0, workers=0, device="cpu")
    return replace(experiment, execution=execution)


def _federation(
    grid: Grid, experiment: Experiment, files: RunDirectory, gathering: Gathering, simulated: bool
) -> tuple[Federation, Tree]:
    """Meet the clients and build the federation as the server knows it."""
    here = _as_server(experiment)
    if simulated:  # all nodes are this run's own
        gathering = replace(gathering, identity="name", clients_per_node=limits.CLIENTS)
    nodes = Nodes(grid, _told(here, simulated), gathering.bindings())
    known = files.path / NODES
    party = recall(known, nodes, here, gathering) if known.is_file() else None
    if party is None:
        party = meet(nodes, here, gathering)
    # Requests of a server that was restarted come after all that it made before, whatever its clock says.
    party.order = max(party.order + 1, int(time.time()))
    write_json(known, party.to_tree())

    def began_anew(client: str, round: int) -> None:
        note = {"client": client, "round": round}
        if note not in party.anew[-len(party.clients) :]:
            log.warning("%s: its node had lost its state and let it begin anew in round %d", client, round)
            party.anew.append(note)
            write_json(known, party.to_tree())

    federated = _with_samples(here, party) if simulated else elsewhere(party.clients, party.classes)
    sizes = {} if simulated else party.sizes
    own = [number for number, d in enumerate(party.clients) if d.name in sizes]
    census = Census.of(here, federated).without(here, own)
    low = _bfloat16(experiment, files) if simulated else ()
    trainer, roster = open_workshop(here, federated, Memory(), low, census=census, absent=sizes)
    roster.away = True
    if simulated:
        roster.store = resting_place(here, roster)
    else:
        roster.here = []
    told = shared(census, party.classes, low)
    executor = GridExecutor(
        nodes,
        party.run,
        party.order << REQUEST_BITS,
        roster,
        {d.name: record for d, record in zip(party.clients, told, strict=True)},
        scored(party.clients),
        trainer.method.rules,
        experiment.participation.deadline_s,
        began_anew,
    )
    try:
        if simulated:
            fill(here, federated, trainer.method, roster)
        federation = found(here, trainer, executor)
        return federation, _described(party, describe_clients(federation, federated, sizes))
    except BaseException:
        executor.close()
        raise


def _with_samples(experiment: Experiment, party: Party) -> FederatedData:
    """Return the data of a simulation's clients, which the server has too."""
    federated = place(experiment, load_data(experiment))
    names = {d.name for d in party.clients}
    return replace(federated, clients=tuple(c for c in federated.clients if c.name in names))


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


def _told(experiment: Experiment, simulated: bool) -> str:
    """Return the experiment as nodes are told it: those of a deployment not where the server has its files."""
    if not simulated:
        partition = experiment.partition_options
        if hasattr(partition, "path"):
            experiment = replace(experiment, partition_options=replace(partition, path=""))
        experiment = replace(experiment, data=replace(experiment.data, path="", data_dir=""))
    return experiment_key(experiment)


def _bfloat16(experiment: Experiment, files: RunDirectory) -> list[str]:
    """Return the kinds of models that a simulation computes in bfloat16, found out once per run."""
    if experiment.execution.precision != "bf16":
        return []
    found = files.bfloat16()
    if found is None:
        found = faster_in_bfloat16(open_workshop(experiment, place(experiment, load_data(experiment)), Memory())[1])
    return found


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
        # Flower's own simulation; its module moves between releases.
        simulated = type(grid).__name__ == "InMemoryGrid"
        files = RunDirectory(directory)
        serve(grid, experiment, files, gathering, resume=bool(resume), progress=Log(), simulated=simulated)
    except ProtofedError as error:
        log.error("error: %s", error)
        raise
    except ValueError as error:
        raise ConfigError(f"run config: {error}") from None
