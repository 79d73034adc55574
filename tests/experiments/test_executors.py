"""Defaults for machines of any size."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial

import torch

import protofed
from protofed.experiments import Progress, executors, memory
from protofed.experiments.assemble import assemble
from protofed.experiments.hardware import Hardware
from protofed.visits.workers import Workers
from support import experiment, few, ordinary

MACHINES = [(1, 64, "fedlda", None), (64, 64, "fedlda", (3, 1)), (64, 2, "fedproto", (2, 32))]


@few(("cores", "gigabytes", "method", "expected"), MACHINES, 3)
def test_processes_follow_cores_and_memory(monkeypatch, cores, gigabytes, method, expected):
    monkeypatch.setattr(executors, "LONG", 0)
    monkeypatch.setattr(memory, "memory_gb", lambda: gigabytes)
    monkeypatch.setattr(memory, "tree_bytes", lambda: 0)
    hardware = replace(Hardware.of(experiment().execution), cores=cores)
    with closing(assemble(experiment(method), ordinary(), hardware=hardware)[0].executor) as made:
        assert (made.processes, made.threads) == expected if isinstance(made, Workers) else cores == 1


@few(("narrow", "asked", "used"), [(128, 0, 1), (2, 0, 2), (128, 3, 3)], 1)
def test_closed_forms_of_few_features_use_one_thread(tmp_path, monkeypatch, request, narrow, asked, used):
    request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(2)
    seen: list[int] = []
    monkeypatch.setattr(executors, "NARROW", narrow)
    monkeypatch.setattr(Progress, "round", lambda *_: seen.append(torch.get_num_threads()))
    options = {"method.name": "fedlda", "data.samples": 200, "data.clients": 2, "execution.threads": asked}
    protofed.run("quickstart", {**options, "execution.executor": "sequential"}, out=tmp_path / "run")
    assert (seen, torch.get_num_threads()) == ([used], asked or 2)
