"""Simulations on Flower's engine (Ray), with nodes on this machine."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from protofed.engine import Experiment, Run, RunDirectory, load_data
from protofed.errors import FederationError
from protofed_flower.client_app import app
from protofed_flower.gathering import Gathering
from protofed_flower.server_app import serve

NODES = 32
"""Maximum number of simulated nodes: Flower's engine looks through all messages for each, ten times a second."""


def simulate(experiment: Experiment, directory: Path, *, resume: bool = False, **more: Any) -> Run:
    """Run an experiment on Flower's simulation engine, whose nodes are processes on this machine."""
    files = RunDirectory(directory)
    clients = len(load_data(experiment).clients)
    results: list[Run] = []
    errors: list[BaseException] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            results.append(
                serve(grid, experiment, files, Gathering(clients), resume=resume, simulated=True, **more)
            )
        except BaseException as error:
            errors.append(error)
            raise

    # Ray's processes have the lowest priority by default: beside any other work, and beside this one, they starve.
    for name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED", "RAY_worker_niceness"):
        os.environ.setdefault(name, "0")
    logging.getLogger("flwr").setLevel(logging.WARNING)
    backend: dict[str, dict[str, Any]] = {
        "client_resources": {"num_cpus": max(1, experiment.execution.threads), "num_gpus": 0.0},
        # By default, Ray would join a cluster that is running.
        "init_args": {"address": "local", "logging_level": logging.ERROR, "log_to_driver": False},
    }
    try:
        run_simulation(server, app, num_supernodes=min(clients, NODES), backend_config=backend)
    except Exception:
        if not errors:
            raise
    if errors:
        raise errors[0]
    if not results:
        raise FederationError("Flower's simulation engine ended without a result")
    return results[0]
