"""Removal of a client from a finished run whose server keeps each client's sums."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from protofed import methods
from protofed.config.schema import Experiment
from protofed.errors import CheckpointError, ConfigError, PayloadError, unknown_name, writing
from protofed.experiments.assemble import assemble
from protofed.experiments.ending import END, forgotten, open_run, read_server, wipe, without
from protofed.experiments.loading import load_data
from protofed.experiments.rundir import RunDirectory
from protofed.experiments.running import Progress, Report, run_experiment
from protofed.methods import Method, Task, Tensors
from protofed.rounds.checkpoint import Checkpoint
from protofed.rounds.state import ServerState
from protofed.runs.loading import load_run
from protofed.runs.run import Run
from protofed.storage.files import read_json
from protofed.trained.metrics import measure
from protofed.untrusted import claims


def forget(
    directory: Path,
    client: str,
    trust_code: bool = False,
    *,
    progress: Progress | None = None,
    report: Report | None = None,
) -> Run | None:
    """Take a client out of a finished run of a closed form.

    What it sent is taken out of the server's state, from which the rounds begin again with the other clients, and
    all that the directory holds of it is removed save its name. Killed at any moment, the directory holds either
    the run as it was or the new one, which ``--resume`` or the same call completes.

    Returns:
        The run without the client; None if the others are at the nodes of a network, where the server has yet to
        run the rounds.

    Raises:
        ConfigError: If the client has sent nothing, or its uploads cannot be taken out.
        CheckpointError: If the run has not finished, or a file is missing or damaged.
    """
    run, files = load_run(directory), RunDirectory(directory)
    with open_run(run, trust_code) as experiment, files.alone():
        gone = forgotten(directory)
        if client not in gone:
            _take_out(run, files, experiment, client)
        elif run.finished:
            raise ConfigError(f"{directory}: {client} was forgotten on {gone[client]} already")
        wipe(directory)
        if run.federation.network:
            return None
        return run_experiment(experiment, files, resume=True, progress=progress, report=report, measure=measure)


def _take_out(run: Run, files: RunDirectory, experiment: Experiment, client: str) -> None:
    """Replace the end of a run by a state from which the others begin again."""
    where = run.directory
    kind = methods.get(experiment.method)
    if not _keeps_sums(kind):
        able = sorted(n for n, m in methods.methods().items() if _keeps_sums(m))
        raise ConfigError(
            f"{where}: {kind.name} keeps no sums from which a client's could be taken out, as these do: "
            + ", ".join(able)
        )
    if why := _hidden(run, experiment, client):
        raise ConfigError(f"{where}: {why}: run it again without {client}")
    if not run.finished or not (where / END).is_file():
        raise CheckpointError(f"{where}: no finished run of a server: finish it with --resume")
    names = [each.name for each in run.clients]
    if client not in names:
        raise ConfigError(f"{where}: {unknown_name('client', client, names)}")
    names.remove(client)
    gone = {**forgotten(where), client: time.strftime("%Y-%m-%d")}
    state = ServerState(tensors=_rest(run, kind, experiment, client), forgotten=gone)
    if not run.federation.network:  # what cannot be run must not be begun
        assemble(without(experiment, gone), load_data(experiment).without(gone))[0].executor.close()
    shutil.rmtree(files.checkpoints, ignore_errors=True)  # a remnant: end.json is newer
    Checkpoint(files.checkpoints, state, names).write()
    with writing(where):
        (where / "summary.json").unlink()  # from here on, the checkpoint is the run


def _keeps_sums(kind: type[Method]) -> bool:
    """Return whether a method's server keeps each client's sums: then it has a method ``without``."""
    return hasattr(kind, "without") and kind.traits(kind.Options()).exchanges != "nothing"


def _hidden(run: Run, experiment: Experiment, client: str) -> str:
    """Return why a client's sums are unknown or not all that a run has of it; "" otherwise."""
    if experiment.secure.aggregation:
        return f"secure.aggregation shows its server the sum over all clients, not what {client} added to it"
    if experiment.privacy.mode != "none":
        return f"what {client} sent is hidden by noise (privacy.mode={experiment.privacy.mode})"
    table = read_json(run.directory / "federation.json").get("table")
    if isinstance(table, dict) and table.get("standardise") in ("federated", "chosen"):
        return f"everybody's samples are standardised by those of {client} too (data.standardise=federated)"
    return ""


def _rest(run: Run, kind: type[Method], experiment: Experiment, client: str) -> Tensors:
    """Return the state of the server without a client's sums."""
    path = run.directory / "server.safetensors"
    server = read_server(run.directory)
    try:
        weights = server["weights"]
        task = Task(
            len(run.class_names), weights.shape[1], experiment.rounds, experiment.seed, 0.0, dtype=weights.dtype
        )
        method: Any = kind(experiment.method_options, task)
        rest: Tensors = method.without(server, client)
    except ConfigError as error:
        raise ConfigError(f"{run.directory}: {error}") from None
    except (PayloadError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: damaged ({claims.clean(error)})") from None
    return rest
