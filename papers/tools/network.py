"""Measure Flower's overhead: seconds per round of the local engine, a Ray simulation and a deployment on loopback.

Usage: ``papers/tools/network.py [--rounds 4]``. This needs ``protofed-flower``; the case of real clients also
needs ``fed-mnist7k`` in PROTOFED_DATA or ../shared/data.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests"))  # the tests start and stop the same processes

from deployment import BIN, Deployment, rounds_of, until, write_trial  # noqa: E402
from protofed.data import DataOptions  # noqa: E402
from protofed.data.copies import data_dirs  # noqa: E402

CLIENTS = 3


def trivial(root: Path) -> tuple[Path, str]:
    """Create three clients with a few hundred digits; return their folder and the settings of a small network."""
    shutil.move(write_trial(root), root / "clients")
    return root, '[model]\nname = "mlp"\nd = 32\n'


def real(root: Path) -> tuple[Path, str] | None:
    """Copy three clients of fed-mnist7k; return their folder and the settings of cnn2, or None without the data."""
    data = next((folder / "fed-mnist7k" for folder in data_dirs(DataOptions())), None)
    if data is None or not data.is_dir():
        print("real clients: left out, no fed-mnist7k in PROTOFED_DATA or ../shared/data")
        return None
    (root / "clients").mkdir(parents=True)
    for folder in sorted((data / "clients").iterdir())[:CLIENTS]:
        shutil.copytree(folder, root / "clients" / folder.name)
    return root, '[model]\nname = "cnn2"\nd = 512\n[training]\nlr = 0.01\nbatch_size = 32\n'


def recipe(root: Path, data: Path, settings: str, rounds: int) -> Path:
    """Write the experiment as a recipe and return its path."""
    path = root / "experiment.toml"
    path.write_text(
        f'rounds = {rounds}\n[method]\nname = "fedproto"\n[data]\nsource = "path"\npath = "{data}"\n{settings}'
    )
    return path


def seconds(out: Path, whole: float) -> str:
    """Return the median round after the first, the first round, and the rest of the run's time, in seconds."""
    rounds = [record["seconds"]["total"] for record in rounds_of(out)]
    return f"{statistics.median(rounds[1:]):8.2f}  {rounds[0]:8.2f}  {whole - sum(rounds):8.1f}"


def measure(name: str, root: Path, data: Path, settings: str, rounds: int) -> None:
    chosen = recipe(root, data, settings, rounds)
    print(f"\n{name:24s}    round     first      rest")
    for label, words in (("local", ()), ("simulation (Ray)", ("--engine", "flower"))):
        out, start = root / label.split()[0], time.perf_counter()
        command = [str(BIN / "protofed"), "run", str(chosen), "--quiet", "--out", str(out), *words]
        subprocess.run(command, check=True, capture_output=True)
        print(f"{label:24s} {seconds(out, time.perf_counter() - start)}", flush=True)
    place = root / "deployment"
    place.mkdir()
    with Deployment(place, sorted((data / "clients").iterdir())) as deployment:
        deployment.up()
        out, start = root / "deployment-run", time.perf_counter()
        deployment.begin(chosen, out)
        deployment.finish()
        print(f"{'deployment (loopback)':24s} {seconds(out, time.perf_counter() - start)}", flush=True)


def closed(root: Path, data: Path) -> None:
    """Measure a closed form, which needs one round: seconds from its submission, with all nodes up."""
    chosen = root / "closed.toml"
    chosen.write_text(
        f'rounds = 1\n[method]\nname = "fedlda"\n[encoder]\nname = "auto"\ndim = 512\n[data]\nsource = "path"\n'
        f'path = "{data}"\n'
    )
    print("\nclosed form                 record  finished")
    place, out = root / "closed", root / "closed-run"
    place.mkdir()
    with Deployment(place, sorted((data / "clients").iterdir())) as deployment:
        deployment.environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.1"
        deployment.up()
        until(lambda: deployment.log("link").count("Activated") >= CLIENTS, 120, "nodes")
        time.sleep(5)
        start = time.perf_counter()
        deployment.begin(chosen, out)
        until(lambda: bool(rounds_of(out)), 120, "round")
        record = time.perf_counter() - start
        until(lambda: "Finished task" in deployment.log("link"), 120, "end")
        print(f"{'deployment (loopback)':24s} {record:8.1f}  {time.perf_counter() - start:8.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    rounds = parser.parse_args().rounds
    print("Seconds: the median round after the first, the first round, and the rest of the program.")
    for name, make in (("trivial clients", trivial), ("real clients", real)):
        with tempfile.TemporaryDirectory() as temporary:
            root = Path(temporary)
            case = make(root / "data")
            if case is not None:
                measure(name, root, *case, rounds)
                if name == "real clients":
                    closed(root, case[0])


if __name__ == "__main__":
    main()
