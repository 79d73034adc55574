"""Measure the closed forms: features of complete data with a cold cache, and a federation of many clients.

    python tools/closed_form.py features cifar10-dirichlet encoder.name=scattering encoder.dim=512
    python tools/closed_form.py clients mnist-dirichlet encoder.name=scattering encoder.dim=512 --clients 10000

``clients`` draws the same number of samples for every client, runs the one round as ``protofed run`` does, and
writes the run with its report to a temporary folder. Both print seconds of the clock and of all cores, and the peak
memory of all processes.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.scaling import alike
from protofed.analysis.report import write_report
from protofed.config.schema import Experiment, Tree, apply_overrides, load_recipe, parse_overrides, resolve
from protofed.experiments.assemble import assemble
from protofed.experiments.description import describe_clients
from protofed.experiments.encoding import CACHE, encode
from protofed.experiments.hardware import Hardware
from protofed.experiments.loading import load_data
from protofed.experiments.memory import TreeMemory
from protofed.experiments.rundir import RunDirectory
from protofed.experiments.running import run_federation
from protofed.models.encoders import EncoderOptions
from protofed.rounds.loop import Federation
from protofed.text import size


@contextmanager
def measured(what: str) -> Iterator[None]:
    """Print what the block takes."""
    start, before = time.perf_counter(), cpu()
    with TreeMemory() as memory:
        yield
    seconds = time.perf_counter() - start
    print(f"{what}: {seconds:.1f} s, {cpu() - before:.1f} CPU s, peak {size(memory.peak)}", flush=True)


def cpu() -> float:
    """Return the CPU seconds of this process and of those that it has waited for."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in spent)


def features(experiment: Experiment) -> None:
    """Compute the features of all samples."""
    federated = load_data(replace(experiment, encoder=EncoderOptions()))
    number = sum(
        len(part) for c in federated.clients for part in (c.train, c.test, c.validation) if part is not None
    )
    with measured(f"features of {number} samples"):
        encode(federated, experiment.encoder)


def clients(experiment: Experiment, number: int, samples: int) -> None:
    """Run a federation of many clients with a few samples each."""
    federated = alike(experiment, number, samples)
    with measured("features"):
        federated = encode(federated, experiment.encoder)

    def begin(hardware: Hardware) -> tuple[Federation, Tree]:
        federation, _ = assemble(experiment, federated, hardware=hardware)
        return federation, describe_clients(federation, federated)

    with tempfile.TemporaryDirectory() as folder:
        files = RunDirectory(Path(folder) / "run")
        with measured(f"run of {number} clients"):
            result = run_federation(experiment, files, begin)
        print(size(sum(file.stat().st_size for file in files.path.rglob("*") if file.is_file())), "on disk")
        last = result.rounds[-1]
        print({name: round(value, 1) for name, value in last.seconds.items()})
        assert last.accuracy
        print({rule: f"{score:.1%}" for rule, score in last.accuracy.weighted.items()})
        with measured("report"):
            write_report([files.path], files.path / "report.html")


def main() -> None:
    """Measure what the command line asks for, with a cold cache."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["features", "clients"])
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument(
        "--samples", type=int, default=60, help="of each client, training and test samples together"
    )
    asked = parser.parse_args()
    experiment = resolve(apply_overrides(load_recipe(asked.recipe), parse_overrides(asked.overrides)))
    with tempfile.TemporaryDirectory() as cache:
        os.environ[CACHE] = cache
        if asked.what == "features":
            features(experiment)
        else:
            clients(experiment, asked.clients, asked.samples)


if __name__ == "__main__":
    main()
