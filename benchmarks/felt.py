"""Benchmark of what people wait for: commands as they are typed, with the time of their first answer."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import psutil
from rich.table import Table

from benchmarks.request import Note, Request, Result, new_table
from protofed.errors import ConfigError, unknown_name
from protofed.experiments.memory import TreeMemory
from protofed.text import size

ROOT = Path(__file__).parents[1]
HISTORY = ROOT / "papers/studies/tables/felt.csv"  #: What was measured before, and goals on two idle cores
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
    """A command that people wait for; what it writes into a file ``seconds`` counts instead of its own."""

    words: str  #: As in :data:`HISTORY`
    prepare: Callable[[Path], Sequence[str]]  #: Writes what is needed into a folder and returns the command


def _python(code: str) -> Sequence[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


def _protofed(*arguments: str) -> Sequence[str]:
    return [sys.executable, "-m", "protofed", *arguments]


def _clone(folder: Path, *command: str) -> Sequence[str]:
    """Clone this repository; the environment is made by the command, which is not to see the one that runs this."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder / "clone")], check=True)
    return ["env", "-u", "PYTHONPATH", "-u", "VIRTUAL_ENV", "-u", "UV_NO_SYNC", "uv", *command]


def _tables(folder: Path) -> Sequence[str]:
    """Write four CSV files with numbers, categories, gaps and dates, whose classes are skewed by site."""
    random = np.random.default_rng(0)
    weights = random.normal(size=(8, 4))
    (folder / "sites").mkdir()
    for site in range(4):
        x = random.normal(size=(250, 8)) + 0.3 * random.normal(size=8)
        skew = random.dirichlet(np.full(4, 0.7))
        y = (x @ weights + np.log(skew + 1e-3) + 1.5 * random.gumbel(size=(250, 4))).argmax(1)
        known = np.where(random.random(x.shape) < 0.02, np.nan, x)
        table = pd.DataFrame(known, columns=[f"lab_{n}" for n in range(8)])
        table["diagnosis"] = [f"d{label}" for label in y]
        table.insert(0, "ward", random.choice(list("ABCD"), 250))
        table.insert(0, "admitted", np.datetime64("2024-01-01") + random.integers(365, size=250))
        table.to_csv(folder / "sites" / f"hospital-{site}.csv", index=False, float_format="%.3f")
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


def _deployed(_: Path) -> Sequence[str]:
    """Deploy the guide's three hospitals on this machine; the median of rounds 2 to 8 counts."""
    return _python(f"""
        import statistics, sys
        from pathlib import Path
        sys.path.append({str(ROOT / "tests")!r})
        from deployment import Deployment, rounds_of, write_trial
        recipe, out = Path("recipe.toml").resolve(), Path("out").resolve()
        recipe.write_text('recipe="t"\\nrounds=8\\nmethod.name="fedproto"\\nmodel.name="mlp"\\ndata.source="digits"')
        with Deployment(Path("flower").resolve(), sorted(write_trial(Path.cwd()).iterdir())) as three:
            three.up()
            three.begin(recipe, out)
            three.finish()
        rounds = [record["seconds"]["total"] for record in rounds_of(out)[1:]]
        Path("seconds").write_text(str(statistics.median(rounds)))
    """)


MANY = "from benchmarks.felt import closed_forms; closed_forms(10_000, 60, 64)"
ROWS: dict[str, Row] = {
    "typed": Row(
        "README's first command as typed, packages downloaded",
        lambda folder: _clone(folder, "run", "--directory", "clone", "protofed", "run"),
    ),
    "environment": Row(
        "of it, the environment", lambda folder: _clone(folder, "sync", "--quiet", "--directory", "clone")
    ),
    "first": Row("`protofed run`, six methods (before: ten)", lambda _: _protofed("run")),
    "try-tables": Row("`protofed try`, four CSV files of 250 rows: first answer, all", _tables),
    "try-images": Row("`protofed try`, 330 images of 32 pixels: first answer, all", _images),
    "search": Row("`GridSearchCV`, two methods, three folds", _search),
    "closed-many": Row("closed form, 10,000 clients of 60 samples, 64 features (1.7 GB)", lambda _: _python(MANY)),
    "closed-mnist": Row("closed form, 500 clients of MNIST, features kept", _mnist),
    "deployed": Row("a deployed round, three hospitals", _deployed),
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
        figures.append({"row": name, "words": row.words, **found})
        yield Result(_table(figures), figures)


def _wait_for(command: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run a command to its end and return its seconds, those until its first answer, and its peak memory."""
    start = time.perf_counter()
    path = os.pathsep.join(map(str, (ROOT, ROOT / "src")))
    environment = {**os.environ, "PYTHONPATH": path, "PROTOFED_CACHE": str(folder / "cache")}
    first = None
    with (
        (folder / "stderr").open("wb") as errors,
        subprocess.Popen(
            [sys.executable, "-c", _WAITING, *command],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as process,
        TreeMemory(process.pid) as memory,
    ):
        for line in process.stdout or ():
            if first is None and ANSWER.search(line):
                first = time.perf_counter() - start, tree_cpu(process.pid)
        status = process.wait()
    if status:
        last = ((folder / "stderr").read_text().strip().splitlines() or ["it printed no error"])[-1]
        raise ConfigError(f"{' '.join(command[1:])[:80]} ended with status {status}: {last}")
    end, used = map(float, (folder / "times").read_text().split())  # by the clock that all processes share
    own = folder / "seconds"
    return {
        "seconds": float(own.read_text()) if own.is_file() else end - start,
        "cpu_seconds": used,
        "first_seconds": first and min(first[0], end - start),  # a short command may end before it is read
        "first_cpu_seconds": first and first[1],
        "peak_memory_bytes": memory.peak,
    }


def tree_cpu(process: int) -> float:
    """Return the CPU seconds of a process and its descendants so far."""
    with suppress(psutil.NoSuchProcess):
        whole = psutil.Process(process)
        return sum(sum(each.cpu_times()[:4]) for each in (whole, *whole.children(recursive=True)))
    return 0.0


def _table(figures: Sequence[dict[str, Any]]) -> Table:
    (_, *dates, _, _), *rows = csv.reader(HISTORY.read_text(encoding="utf-8").splitlines())
    history = {words: cells for words, *cells in rows}
    table = new_table(
        "What people wait for: seconds until the first answer and all, now and before",
        "Goals are for two idle cores; elsewhere, CPU seconds of all processes count beside those of an import of "
        "torch.",
        *("", *dates, "now", "goal", "CPU", "torch", "memory"),
    )
    for row in figures:
        *before, _, goal = history.get(row["words"], [""] * (len(dates) + 2))
        now, used, torch = (
            ", ".join(f"{value:.3g}" for value in (row.get(f"first_{kind}"), row[kind]) if value is not None)
            for kind in ("seconds", "cpu_seconds", "reference_cpu_seconds")
        )
        table.add_row(row["row"], *before, now, goal, used, torch, size(row["peak_memory_bytes"]))
    return table
