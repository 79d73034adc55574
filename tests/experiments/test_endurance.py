"""Fifty kills, two hundred rounds, two thousand clients: nothing changes, and nothing grows."""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial
from pathlib import Path

import pytest

import protofed
from support import SMALL_RUN, build, client, federated

pytestmark = pytest.mark.slow
KILLS = 50
CHOSEN = {**SMALL_RUN, "method.name": "fedproto", "rounds": 8, "execution.threads": 1, "checkpoint.every": 1}


def memory() -> float:
    """Return the resident memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def forked(work) -> int:
    """Return the wait status of a process in which ``work`` ran."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1]


def disturbed(out: Path, rng: random.Random) -> None:
    """Begin or continue a run, and die before or after a file gets its name, or after some time."""
    replace, left, late = os.replace, rng.randrange(1, 25), rng.random() < 0.5

    def counted(*names, **more) -> None:
        nonlocal left
        left -= 1
        if not left and not late:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(*names, **more)
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    if rng.random() < 0.7:
        os.replace = counted
    else:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.05, 1.2))
    protofed.run("quickstart", CHOSEN, out=out, resume=(out / "config.toml").exists())


def tensors(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*.safetensors")}


def test_a_run_that_is_killed_fifty_times_is_an_undisturbed_one(tmp_path):
    whole, rng, kills, runs = tmp_path / "whole", random.Random(11), 0, 0
    assert forked(lambda: protofed.run("quickstart", CHOSEN, out=whole)) == 0
    while kills < KILLS:
        out, runs = tmp_path / f"run{runs}", runs + 1
        while forked(partial(disturbed, out, random.Random(rng.random()))):
            kills += 1
            assert kills < 10 * KILLS, "no run is ever finished"
            if kills == KILLS:
                assert forked(lambda out=out: protofed.run("quickstart", CHOSEN, out=out, resume=True)) == 0
                break
        assert tensors(out) == tensors(whole)
        assert not [path for path in out.rglob("*") if ".partial" in path.name]
    print(f"{kills} kills in {runs} runs")


def slope(points: list[tuple[int, float]]) -> float:
    """Return the least squares' slope of memory in MB per step."""
    x, y = ([point[i] for point in points] for i in (0, 1))
    middle = sum(x) / len(x)
    return sum((a - middle) * b for a, b in zip(x, y, strict=True)) / sum((a - middle) ** 2 for a in x)


class Watching(protofed.Progress):
    """Notes the memory after each round."""

    def __init__(self) -> None:
        self.points: list[tuple[int, float]] = []

    def round(self, label, record) -> None:
        self.points.append((record.round, memory()))


def test_two_hundred_rounds_take_no_more_memory_than_fifty(tmp_path):
    watching = Watching()
    chosen = {**CHOSEN, "rounds": 200}
    protofed.run("quickstart", chosen, out=tmp_path / "run", progress=watching)
    late = [point for point in watching.points if point[0] >= 50]
    print(watching.points[::25], f"{slope(late):.4f} MB per round")
    assert slope(late) < 0.05
    assert late[-1][1] - late[0][1] < 15


def test_two_thousand_clients_take_no_more_memory_round_after_round():
    begun, points = time.monotonic(), []
    data = federated(*(client(f"c{i:04d}", [i % 4, (i + 1) % 4] * 2) for i in range(2000)))
    federation = build("fedproto", data, rounds=8, evaluation__every=4)
    for record in federation.run():
        points.append((record.round, memory()))
        assert record.participants
    late = points[2:]
    print(points, f"{slope(late):.3f} MB per round, {time.monotonic() - begun:.0f} s")
    assert slope(late) < 1.0
