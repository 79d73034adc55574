"""Defaults for machines of any size."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
import torch

from protofed.experiments import Progress, executors, memory
from protofed.experiments.assemble import assemble
from protofed.experiments.description import describe_clients
from protofed.experiments.hardware import Hardware
from protofed.experiments.rundir import RunDirectory
from protofed.experiments.running import run_federation
from protofed.visits.workers import Workers
from support import experiment, ordinary


@pytest.mark.parametrize(
    ("cores", "gigabytes", "method", "processes", "threads"),
    [(1, 64, "fedlda", 1, 0), (64, 64, "fedlda", 3, 1), (64, 64, "fedproto", 3, 21), (64, 2, "fedproto", 2, 32)],
)
def test_processes_and_threads_follow_cores_and_memory(monkeypatch, cores, gigabytes, method, processes, threads):
    monkeypatch.setattr(executors, "LONG", 0)
    monkeypatch.setattr(memory, "memory_gb", lambda: gigabytes)
    monkeypatch.setattr(memory, "tree_bytes", lambda: 0)
    asked = experiment(method)
    federation, _ = assemble(asked, ordinary(), hardware=replace(Hardware.of(asked.execution), cores=cores))
    with closing(federation.executor) as executor:
        found = (executor.processes, executor.threads) if isinstance(executor, Workers) else (1, 0)
    assert found == (processes, threads)


@pytest.mark.parametrize(
    ("method", "narrow", "asked", "expected"),
    [
        ("fedlda", 128, 0, 1),
        ("fedlda", 2, 0, 2),
        ("fedlda", 128, 3, 3),
        ("fedproto", 128, 0, 2),
    ],
)
def test_closed_forms_of_few_features_compute_by_one_thread(tmp_path, monkeypatch, method, narrow, asked, expected):
    seen: list[int] = []
    tried = experiment(method, rounds=1, execution__threads=asked)

    class Look(Progress):
        def round(self, label, record):
            seen.append(torch.get_num_threads())

    def begin(hardware):
        federation, federated = assemble(tried, ordinary(), hardware=hardware)
        return federation, describe_clients(federation, federated)

    monkeypatch.setattr(executors, "NARROW", narrow)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run_federation(tried, RunDirectory(tmp_path / "run"), begin, progress=Look())
        assert (seen, torch.get_num_threads()) == ([expected], asked or 2)
    finally:
        torch.set_num_threads(before)
