"""The ServerApp: the ordinary round loop, with clients at the nodes of a network."""

from __future__ import annotations

import logging
import shlex
import shutil
import signal
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from protofed.config.coverage import withholds_scores
from protofed.data.tables import SiteColumn
from protofed.engine import (
    Builder,
    Experiment,
    Federation,
    FederationSummary,
    Hardware,
    Memory,
    Progress,
    RoundRecord,
    Run,
    RunDirectory,
    ServerState,
    apply_overrides,
    bfloat16_kinds,
    build_federation,
    directory_for,
    load_data,
    load_recipe,
    parse_overrides,
    reporters,
    resolve,
    resting_place,
    run_federation,
)
from protofed.errors import ConfigError, ProtofedError
from protofed.experiments.description import describe_clients
from protofed.experiments.ending import describe_models, forgotten, read_generations, without
from protofed.storage.files import write_json
from protofed.untrusted import claims
from protofed_flower.gathering import REQUEST_BITS, Anew, Gathering, Party, meet, recall
from protofed_flower.grid import GridExecutor
from protofed_flower.ledger import NODES, Receipts
from protofed_flower.messages import Expected
from protofed_flower.node import experiment_key
from protofed_flower.nodes import Nodes
from protofed_flower.protocol import over
from protofed_flower.sources import plan_text
from protofed_flower.summary import client_summaries, describe_federation, scored

log = logging.getLogger("protofed")


def serve(
    grid: Grid,
    experiment: Experiment,
    files: RunDirectory,
    gathering: Gathering,
    *,
    resume: bool = False,
    simulated: bool = False,
    **more: Any,
) -> Run:
    """Run an experiment with the clients of a network; see :func:`~protofed.experiments.running.run_federation`.

    Args:
        resume: ``files`` may contain a part of this run.
        simulated: Nodes hold shares of data that the server has too. Clients are then stored at the server and
            travel with their visits to any machine; otherwise each is stored at its node.
        more: ``progress``, ``report`` and ``measure``.

    Raises:
        ProtofedError: FederationError if too few clients connect or remain.
    """

    def begin(hardware: Hardware) -> tuple[Federation, dict[str, Any]]:
        return _federation(grid, experiment, hardware, files, gathering, simulated)

    if experiment.evaluation.on != "own":
        log.info(
            "evaluation.on=%s is for simulations: nodes score their own test samples", experiment.evaluation.on
        )
        experiment = replace(experiment, evaluation=replace(experiment.evaluation, on="own"))
    # Fail before any node is asked.
    done = files.finished and not files.differs(experiment)
    claim = nullcontext() if done else files.claim(experiment, resume=resume)
    new = simulated and not files.path.exists()
    with claim:
        try:
            return run_federation(_as_server(experiment), files, begin, resume=True, **more)
        except ConfigError:
            if new and not files.rounds():  # it would stand in the way of the corrected command
                shutil.rmtree(files.path, ignore_errors=True)
            raise


def _as_server(experiment: Experiment) -> Experiment:
    """Return the experiment with the server's own execution options; nodes choose theirs."""
    execution = replace(experiment.execution, executor="sequential", threads=0, workers=0, device="cpu")
    return replace(experiment, execution=execution)


def _federation(
    grid: Grid,
    experiment: Experiment,
    hardware: Hardware,
    files: RunDirectory,
    gathering: Gathering,
    simulated: bool,
) -> tuple[Federation, dict[str, Any]]:
    """Gather the clients and build the federation as the server knows it."""
    if experiment.model.start:
        raise ConfigError("model.start (--from) is for clients of this machine: use --engine local")
    if experiment.shift.used and not simulated:
        raise ConfigError("shift changes data of simulations, and clients here have their own: leave it out")
    local = _as_server(experiment)
    if simulated:  # all nodes belong to this run
        gathering = replace(gathering, simulated=True)
    receipts = None if simulated else Receipts(files.path)
    config = experiment_key(local) if simulated else plan_text(local)
    expected = Expected(gathering.classes, tuple(SiteColumn(*astuple(c)) for c in experiment.data.expected))
    nodes = Nodes(grid, config, expected.to_json(), gathering.bindings(), receipts=receipts)
    gathering.check_admitted(local.robust.admitted)
    local = without(local, forgotten(files.path))
    record = files.path / NODES
    party = _party(nodes, local, files, gathering)
    if not simulated:  # an admitted client may be absent
        here = {d.name for d in party.clients}
        for name in experiment.robust.admitted.keys() - here:
            log.warning(
                "robust.admitted: %s is not among the clients of this run (%s)", name, ", ".join(sorted(here))
            )
        local = without(local, local.robust.admitted.keys() - here)

    def began_anew(client: str, round_number: int) -> None:
        note = Anew(client=client, round=round_number)
        if note not in party.anew[-len(party.clients) :]:
            log.warning("%s: its node had lost its state, so it started afresh in round %d", client, round_number)
            party.anew.append(note)
            write_json(record, party.to_tree())

    if simulated:  # the server can load the data itself
        names, everyone = {d.name for d in party.clients}, hardware.place(load_data(local))
        federated = replace(everyone, clients=tuple(c for c in everyone.clients if c.name in names))
    else:
        federated = describe_federation(party.clients, party.classes, local.data, local.encoder)
    sizes = {} if simulated else party.sizes
    private = [number for number, d in enumerate(party.clients) if d.name in sizes]
    summary = FederationSummary.of(local, federated).without(local, private)
    if simulated:
        summary = replace(summary, bfloat16=tuple(_bfloat16(experiment, files)))
    builder = Builder(local, federated, hardware, summary, absent=sizes)
    roster = builder.roster(resting_place(local, builder.roster(None).size) if simulated else None)
    roster.compute_in_bfloat16(summary.bfloat16)
    state, rules = ServerState(), builder.method.rules
    weights = scored(party.clients, None if simulated else local)
    if not simulated and withholds_scores(local, builder.method):
        weights, rules = {n: replace(w, test=0, validation=0) for n, w in weights.items()}, ()
    executor = GridExecutor(
        nodes,
        party.run,
        party.order << REQUEST_BITS,
        roster,
        state,
        dict(zip(roster, client_summaries(local, summary), strict=True)),
        weights,
        rules,
        experiment.participation.deadline_s,
        began_anew,
    )
    try:
        if simulated:
            builder.fill(roster)
        federation = build_federation(local, builder.trainer, executor, state, over(executor.ask))
        described = describe_clients(federation, federated, sizes)
        described |= {"models": describe_models(local, federated)} if simulated else {"network": {"run": party.run}}

        def excluded(who: str, reason: str) -> None:
            if party.left_out.get(who) != reason:
                party.left_out[who] = reason
                write_json(record, party.to_tree())
                files.write_federation(_describe_party(party, described))

        nodes.excluded = excluded
        return federation, _describe_party(party, described)
    except BaseException:
        executor.close()
        raise


def _party(nodes: Nodes, experiment: Experiment, files: RunDirectory, gathering: Gathering) -> Party:
    """Return the clients of the run, new or resumed, and keep a record of them."""
    record = files.path / NODES
    if record.is_file():
        generations = read_generations(files.path) if files.finished else {}
        party = recall(record, nodes, experiment, gathering, generations)
    else:
        party = meet(nodes, experiment, gathering)
        nodes.members, nodes.left_out = {d.name for d in party.clients}, dict(party.left_out)
    # The requests of a restarted server must be numbered above all earlier ones, even if its clock was set back.
    party.order = max(party.order + 1, int(time.time()))
    write_json(record, party.to_tree())
    return party


def _describe_party(party: Party, description: dict[str, Any]) -> dict[str, Any]:
    """Return a description with the clients left out and the numbers that clients withhold."""
    counts, notes = {d.name: d.counts for d in party.clients if d.counts != "exact"}, list(description["notes"])
    clients = [c | ({"counts": counts[c["name"]]} if c["name"] in counts else {}) for c in description["clients"]]
    roundings = {
        "coarse": "the next power of two",
        "none": "1 where there are any",
        claims.EVEN: "for training, their sum dealt evenly among the classes",
    }
    for kind, rounding in roundings.items():
        if names := [name for name, counted in counts.items() if counted == kind]:
            notes.append(f"Numbers of samples shown of {', '.join(names)}: {rounding}.")
    description = {**description, "notes": notes, "clients": clients}
    left_out = [{"client": who, "reason": why} for who, why in party.left_out.items()]
    return {**description, "left_out": left_out} if left_out else description


def _bfloat16(experiment: Experiment, files: RunDirectory) -> Collection[str]:
    """Return the kinds of models that a simulation computes in bfloat16, measured with the nodes' options."""
    hardware = Hardware.of(experiment.execution)
    return bfloat16_kinds(
        experiment,
        files.bfloat16(),
        lambda: Builder(experiment, hardware.place(load_data(experiment)), hardware).roster(Memory()),
    )


class Log(Progress):
    """Progress reports in the server's log."""

    def started(self, label: str, rounds: int, done: int, directory: Path) -> None:
        """Log the run directory."""
        log.info("%s: rounds %d to %d, run directory %s", label, done + 1, rounds, directory)

    def round(self, label: str, record: RoundRecord) -> None:
        """Log accuracy, traffic and missing clients."""
        accuracy = {
            rule: round(100 * own, 1) for rule, own in (record.accuracy.weighted if record.accuracy else {}).items()
        }
        missing = [f"{m.client} ({m.reason})" for m in record.missing]
        missing += [f"{r.client} (refused: {r.field} {r.reason})" for r in record.refused]
        traffic = f"{record.bytes['up']} B up, {record.bytes['down']} B down"
        without = f"; without {', '.join(missing)}" if missing else ""
        log.info("%s round %d: %s, %s%s", label, record.round, accuracy, traffic, without)

    def finished(self, label: str, run: Run) -> None:
        """Log the path of the report."""
        log.info("%s: complete, report %s", label, run.report)


@contextmanager
def _interrupted_first() -> Iterator[None]:
    """Let an interrupt free the run directory before Flower, which waits for a SuperLink that is gone, exits."""
    flower = signal.getsignal(signal.SIGINT)
    main_thread = threading.current_thread() is threading.main_thread()  # not so in simulations
    try:
        if main_thread:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, flower)
        signal.raise_signal(signal.SIGINT)
        raise
    finally:
        if main_thread:
            signal.signal(signal.SIGINT, flower)


def clip_by_default(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe as a deployment runs it: with ``robust.rule = "clip"``, where it chooses none.

    Secure aggregation hides the single uploads that a rule would compare.
    """
    robust, secure = tree.get("robust", {}), tree.get("secure", {})
    tables = isinstance(robust, dict) and isinstance(secure, dict)
    if not tables or "rule" in robust or secure.get("aggregation"):
        return tree
    return {**tree, "robust": {**robust, "rule": "clip"}}


app = ServerApp()  #: The ServerApp of a deployment; ``app.toml`` lists the options of its run config


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the recipe that the run config names."""
    flower = logging.getLogger("flwr")
    log.handlers, log.level, log.propagate = flower.handlers, logging.INFO, False
    config = dict(context.run_config)
    try:
        overrides = parse_overrides(shlex.split(str(config.get("overrides", ""))))
        # Flower's own simulation; its module moves between releases.
        simulated = type(grid).__name__ == "InMemoryGrid"
        tree = apply_overrides(load_recipe(str(config.get("recipe", "quickstart"))), overrides)
        experiment = resolve(tree if simulated else clip_by_default(tree))
        resume = str(config.get("resume", ""))
        out = resume or str(config.get("out", ""))
        directory = directory_for(out or None, experiment, resume=bool(resume))
        gathering = Gathering(
            int(config.get("clients", 0)),
            float(config.get("wait-s", 600.0)),
            tuple(name for name in str(config.get("classes", "")).split(",") if name),
            roster=str(config.get("roster", "")),
            certificates=tuple(name for name in str(config.get("certificates", "")).split(",") if name),
        )
        gathering.log_ends()
        files = RunDirectory(directory)
        with _interrupted_first():
            serve(
                grid,
                experiment,
                files,
                gathering,
                resume=bool(resume),
                simulated=simulated,
                progress=Log(),
                **reporters(),
            )
    except ProtofedError as error:
        log.error("error: %s", error)
        raise
    except ValueError as error:
        raise ConfigError(f"run config: {error}") from None
