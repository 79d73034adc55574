"""Benchmark of what people wait for: commands as they are typed, with the time of their first answer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from benchmarks.request import Note, Request, Result, new_table
from protofed.errors import ConfigError, unknown_name
from protofed.experiments.memory import tree_bytes
from protofed.text import size

ROOT = Path(__file__).parents[1]
ANSWER = re.compile(rb"[Ff]ederating (helps|does)|from federating is seen")  # in a line of a first answer
REFERENCE = [sys.executable, "-c", "import torch"]  # by which runs on busy machines can be compared
_WAITING = """  # runs a command, and writes when it ended and the CPU seconds of all its processes
import ctypes, os, resource, subprocess, sys, time
try:
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # whoever outlives its parent becomes a child of this process
except (AttributeError, OSError):
    pass
status, ended = subprocess.call(sys.argv[1:]), time.perf_counter()
try:
    while True:
        os.wait()
except ChildProcessError:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
open("times", "w").write(f"{ended} {used.ru_utime + used.ru_stime}")
sys.exit(status)
"""


class Row(NamedTuple):
    """A command that people wait for."""

    words: str
    #: Seconds to reach on two idle cores: until the first answer, or None, and until the end
    goals: tuple[float | None, float]
    prepare: Callable[[Path], Sequence[str]]  #: Writes what is needed into a folder and returns the command


def _python(code: str) -> Sequence[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


def _protofed(*arguments: str) -> Sequence[str]:
    return [sys.executable, "-m", "protofed", *arguments]


def _environment(folder: Path) -> Sequence[str]:
    """Clone this repository; what ``uv run`` does first is measured."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder / "clone")], check=True)
    return ["uv", "sync", "--quiet", "--directory", "clone"]


def _tables(folder: Path) -> Sequence[str]:
    """Write four CSV files with numbers, categories, gaps and dates, whose classes are skewed by site."""
    random = np.random.default_rng(0)
    weights = random.normal(size=(8, 4))
    for site in range(4):
        rows = 250
        x = random.normal(size=(rows, 8)) + 0.3 * random.normal(size=8)
        ward = random.integers(4, size=rows)
        skew = random.dirichlet(np.full(4, 0.7))
        y = (x @ weights + np.log(skew + 1e-3) + 1.5 * random.gumbel(size=(rows, 4))).argmax(1)
        lines = ["admitted,ward," + ",".join(f"lab_{n}" for n in range(8)) + ",diagnosis"]
        for row in range(rows):
            labs = ["" if random.random() < 0.02 else f"{value:.3f}" for value in x[row]]
            day = f"2024-{random.integers(1, 13):02d}-{random.integers(1, 29):02d}"
            lines.append(",".join([day, "ABCD"[ward[row]], *labs, f"d{y[row]}"]))
        place = folder / "sites"
        place.mkdir(exist_ok=True)
        (place / f"hospital-{site}.csv").write_text("\n".join(lines) + "\n")
    return _protofed("try", "sites", "--label", "diagnosis")


def _images(folder: Path) -> Sequence[str]:
    """Write 330 images of 32 × 32 pixels at three sites, in a folder per class."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits, random = load_digits(), np.random.default_rng(0)
    skew = random.dirichlet(np.full(3, 0.5), size=10)
    for number in random.permutation(len(digits.target))[:330]:
        label = int(digits.target[number])
        place = folder / "sites" / f"clinic-{random.choice(3, p=skew[label])}" / f"digit-{label}"
        place.mkdir(parents=True, exist_ok=True)
        pixels = (digits.images[number] * 15.9).astype(np.uint8)
        Image.fromarray(pixels).resize((32, 32)).convert("RGB").save(place / f"{number}.png")
    return _protofed("try", "sites")


def _search(folder: Path) -> Sequence[str]:
    return _python("""
        import numpy as np
        from sklearn.model_selection import GridSearchCV, GroupKFold
        from protofed.trained.estimator import ProtofedClassifier
        random = np.random.default_rng(0)
        X, y = random.normal(size=(600, 12)), random.integers(3, size=600)
        X[:, :3] += 2 * np.eye(3)[y]
        methods = {"method": ["fedlda", "fedproto"]}
        search = GridSearchCV(ProtofedClassifier(), methods, cv=GroupKFold(3))
        print(search.fit(X, y, groups=np.arange(600) % 6).best_params_)
    """)


def closed_forms(clients: int, per_client: int, dim: int) -> None:
    """Run the closed form with ``dim`` random features over many clients of digits, and write the report."""
    from benchmarks.scaling import alike
    from protofed.analysis.report import write_report
    from protofed.config.schema import resolve
    from protofed.experiments.assemble import assemble
    from protofed.experiments.description import describe_clients
    from protofed.experiments.encoding import encode
    from protofed.experiments.rundir import RunDirectory
    from protofed.experiments.running import run_federation

    tree: dict[str, Any] = {
        "recipe": "felt",
        "data": {"source": "digits"},
        "method": {"name": "fedlda"},
        "encoder": {"name": "random", "dim": dim},
        "rounds": 1,
    }
    experiment = resolve(tree)

    def begin(hardware: Any) -> Any:
        data = encode(alike(experiment, clients, per_client), experiment.encoder, "", kept=False)
        federation, federated = assemble(experiment, data, None, hardware)
        return federation, describe_clients(federation, federated)

    place = Path("run")
    run_federation(experiment, RunDirectory(place), begin)
    write_report([place], place / "report.html")


def _mnist(folder: Path) -> Sequence[str]:
    """Compute the features once, so that they are kept when the command is measured."""
    options = [
        "method.name=fedlda",
        "rounds=1",
        "data.clients=500",
        "encoder.name=auto",
        "encoder.dim=64",
        "partition.self_balancing=true",
        "partition.min_size=1",
    ]
    _wait_for(_protofed("run", "mnist-dirichlet", *options, "--out", "first", "--quiet"), folder)
    return _protofed("run", "mnist-dirichlet", *options, "--out", "second", "--quiet")


MANY = "from benchmarks.felt import closed_forms; closed_forms(10_000, 60, 64)"
ROWS: dict[str, Row] = {
    "environment": Row("an environment, packages downloaded", (None, 35), _environment),
    "first": Row("`protofed run`: the comparison of the README", (None, 25), lambda folder: _protofed("run")),
    "try-tables": Row("`protofed try`, four CSV files", (5, 8), _tables),
    "try-images": Row("`protofed try`, 330 images of 32 pixels", (12, 25), _images),
    "search": Row("`GridSearchCV`, two methods, three folds", (None, 49), _search),
    "closed-many": Row("closed form, 10,000 clients of 60 samples, D = 64", (None, 25), lambda _: _python(MANY)),
    "closed-mnist": Row("closed form, 500 clients of MNIST, features kept", (None, 4), _mnist),
}


def check_felt(request: Request) -> None:
    """Raise ConfigError unless there are such rows."""
    for name in request.cases:
        if name not in ROWS:
            raise ConfigError(unknown_name("row", name, list(ROWS)))


def felt(request: Request, note: Note) -> Iterator[Result]:
    """Run each command in a folder of its own; CPU seconds are those of all processes that it has started."""
    figures: list[dict[str, Any]] = []
    for name in request.cases or ROWS:
        note(name)
        row = ROWS[name]
        with tempfile.TemporaryDirectory(prefix="protofed-felt-") as folder:
            command = row.prepare(Path(folder))
            reference = _wait_for(REFERENCE, Path(folder))["cpu_seconds"]
            found = {"reference_cpu_seconds": reference, **_wait_for(command, Path(folder))}
        figures.append({"row": name, "words": row.words, "goals": row.goals, **found})
        yield Result(_table(figures), figures)


def _wait_for(command: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run a command to its end and return its seconds, those until its first answer, and its peak memory."""
    start = time.perf_counter()
    path = os.pathsep.join(map(str, (ROOT, ROOT / "src")))
    environment = {**os.environ, "PYTHONPATH": path, "PROTOFED_CACHE": str(folder / "cache")}
    first, peak, ended = None, 0, Event()
    with (
        (folder / "stderr").open("wb") as errors,
        subprocess.Popen(
            [sys.executable, "-c", _WAITING, *command],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as process,
    ):

        def watch() -> None:
            nonlocal peak
            while not ended.wait(0.5):
                peak = max(peak, tree_bytes(process.pid))

        watching = Thread(target=watch, daemon=True)
        watching.start()
        for line in process.stdout or ():
            if first is None and ANSWER.search(line):
                first = time.perf_counter() - start, tree_cpu(process.pid)
        status = process.wait()
        ended.set()
        watching.join()
    if status:
        last = ((folder / "stderr").read_text().strip().splitlines() or ["it printed no error"])[-1]
        raise ConfigError(f"{' '.join(command[1:])[:80]} ended with status {status}: {last}")
    end, used = map(float, (folder / "times").read_text().split())  # by the clock that all processes share
    return {
        "seconds": end - start,
        "cpu_seconds": used,
        "first_seconds": first and min(first[0], end - start),  # a short command may end before it is read
        "first_cpu_seconds": first and first[1],
        "peak_memory_bytes": peak,
    }


def tree_cpu(process: int) -> float:
    """Return the CPU seconds of a process and its descendants so far; 0 where unknown."""
    folder = Path("/proc") / str(process)
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        children = [child for task in folder.glob("task/*/children") for child in task.read_text().split()]
    except OSError:
        return 0.0
    own = sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    return own + sum(tree_cpu(int(child)) for child in children)


def _table(figures: Sequence[dict[str, Any]]) -> Table:
    table = new_table(
        "What people wait for: seconds, and CPU seconds of all processes",
        "First: until the first answer. Goals are for two idle cores; elsewhere, CPU seconds count beside "
        "those of an import of torch.",
        *("", "first, s", "CPU s", "goal", "all, s", "CPU s", "goal", "torch", "memory"),
    )
    for row in figures:
        first, last = row["goals"]
        times = [row["first_seconds"], row["first_cpu_seconds"], first]
        times += [row["seconds"], row["cpu_seconds"], last, row["reference_cpu_seconds"]]
        shown = ["" if value is None else f"{value:.3g}" for value in times]
        table.add_row(row["row"], *shown, size(row["peak_memory_bytes"]))
    return table
