"""Measure a simulation on Ray: seconds per round of 100 clients, locally, on Ray and on two Ray nodes of one core.

Usage: ``papers/tools/cluster.py [--rounds 4]``. This needs ``protofed-flower`` and MNIST in PROTOFED_DATA or
../shared/data; two nodes need ``unshare --mount``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests"))  # the tests start and stop the same processes

from raycluster import RayCluster, own_disks  # noqa: E402

from deployment import BIN, rounds_of  # noqa: E402

OPTIONS = ("method.name=fedproto", "evaluation.on=own", "evaluation.every=1", "checkpoint.every=0")


def measure(name: str, out: Path, rounds: int, words: tuple[str, ...], environment: Mapping[str, str]) -> float:
    """Run 100 clients, print a line, and return the median round after the first, in seconds."""
    command = [str(BIN / "protofed"), "run", "many-clients", *OPTIONS, f"rounds={rounds}", *words]
    start = time.perf_counter()
    done = subprocess.run(
        [*command, "--quiet", "--out", str(out)], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{name}: {done.stdout}{done.stderr}")
    whole = time.perf_counter() - start
    seconds = [record["seconds"]["total"] for record in rounds_of(out)]
    median: float = statistics.median(seconds[1:])
    print(f"{name:32s} {median:8.2f}  {seconds[0]:8.2f}  {whole - sum(seconds):8.1f}", flush=True)
    return median


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    rounds = parser.parse_args().rounds
    print(f"{'':32s}    round     first      rest")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "runs").mkdir()
        own: dict[str, str] = dict(os.environ)
        local = measure("local, workers", root / "local", rounds, ("execution.executor=workers",), own)
        ray = measure("Ray, one node of two cores", root / "ray", rounds, ("--engine", "flower"), own)
        print(f"Ray / local: {ray / local:.2f}")
        if not own_disks():
            print("two nodes: left out, this system gives a process no mounts of its own")
            return
        with RayCluster(root / "runs") as cluster:
            place, words = root / "runs" / "two", ("--engine", "flower")
            both = measure("Ray, two nodes of one core", place, rounds, words, cluster.environment)
        print(f"two nodes / local: {both / local:.2f}")


if __name__ == "__main__":
    main()
