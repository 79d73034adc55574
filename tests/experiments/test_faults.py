"""A full disk, a folder that is gone, a clock that is set, SIGTERM: one line, and the run can be continued."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch

import protofed
from protofed.config.schema import apply_overrides, load_recipe, resolve
from protofed.errors import OutputError, ProtofedError
from protofed.experiments.assemble import assemble
from protofed.rounds import checkpoint
from protofed.rounds.checkpoint import Saving, load_checkpoint
from protofed.storage.files import remove_partial, write_bytes, write_text
from protofed.visits.roster import StoreSnapshot
from support import assert_mistake, experiment, few, one_line, ordinary, write_vectors

SMALL = {
    "data.source": "path",
    "model.name": "mlp",
    "model.d": 8,
    "method.name": "fedproto",
    "rounds": 4,
    "execution.executor": "sequential",
    "execution.threads": 1,
}


@pytest.fixture(scope="module", autouse=True)
def _data(tmp_path_factory) -> None:
    SMALL["data.path"] = str(write_vectors(tmp_path_factory.mktemp("data")))


def command() -> list[str]:
    return [sys.executable, "-m", "protofed", "run", "quickstart", *(f"{k}={v}" for k, v in SMALL.items())]


def tensors(run: Path) -> dict[str, bytes]:
    return {str(p.relative_to(run)): p.read_bytes() for p in sorted(run.rglob("*.safetensors"))}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, bytes]:
    """The files of a run that nothing happened to."""
    out = tmp_path_factory.mktemp("whole") / "run"
    protofed.run("quickstart", SMALL, out=out)
    return tensors(out)


class At(protofed.Progress):
    """Does something to a run after a round."""

    def __init__(self, round_number: int, act) -> None:
        self.at, self.act = round_number, act

    def round(self, label, record) -> None:
        if record.round == self.at:
            self.act()


def finish(out: Path) -> dict[str, bytes]:
    protofed.run("quickstart", SMALL, out=out, resume=True)
    assert not [p for p in out.rglob("*") if p.name.endswith(".partial")]
    return tensors(out)


def fill_disk_for(monkeypatch, word: str) -> None:
    opened = Path.open

    def open_full(path: Path, mode: str = "r", **options: Any) -> Any:
        if mode not in ("wb", "xb") or word not in str(path):
            return opened(path, mode, **options)
        opened(path, mode).close()
        return opened(Path("/dev/full"), "wb")

    monkeypatch.setattr(Path, "open", open_full)


@few(
    "word",
    ["server.safetensors", "clients.records", "state.json", "model.safetensors", "summary.json", "report.html"],
    1,
)
def test_a_full_disk_while_this_is_written(tmp_path, monkeypatch, undisturbed, word):
    """Whatever file does not fit, nothing half-written stays and the run goes on later with the same numbers."""
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        fill_disk_for(patch, word)
        with one_line(OutputError, r"cannot be written \(No space left on device\)", says=str(out)):
            protofed.run("quickstart", SMALL, out=out)
    assert not [p for p in out.rglob("*") if p.name.endswith(".partial")]
    assert finish(out) == undisturbed


def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(tmp_path, monkeypatch):
    federation, _ = assemble(experiment(rounds=3), ordinary())
    next(federation.run())
    Saving(tmp_path).save(federation.state, federation.executor.clients)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*.*") if p.is_file()}
    with monkeypatch.context() as patch:
        fill_disk_for(patch, "clients.records")
        federation.state.round = 2
        with pytest.raises(OutputError, match="No space left"):
            Saving(tmp_path).save(federation.state, federation.executor.clients)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*.*") if p.is_file()} == before
    assert load_checkpoint(tmp_path, federation.state, federation.executor.clients)
    assert federation.round == 1


@pytest.fixture
def beside(monkeypatch) -> None:
    """Write every checkpoint beside the training, however small it is."""
    monkeypatch.setattr(checkpoint, "LARGE", 0)


@few("clients_in", ["memory", "disk"], 1)
def test_a_checkpoint_beside_the_training_is_that_of_its_round(tmp_path, monkeypatch, beside, clients_in):
    write, held = StoreSnapshot.write, threading.Event()

    def late(self: StoreSnapshot, file: BinaryIO) -> Any:
        held.wait(60)
        return write(self, file)

    monkeypatch.setattr(StoreSnapshot, "write", late)
    settings = {**SMALL, "execution.clients_in": clients_in}
    federation, _ = assemble(resolve(apply_overrides(load_recipe("quickstart"), settings)))
    saving, run = Saving(tmp_path / "checkpoint"), federation.run()
    next(run)
    saving.save(federation.state, federation.executor.clients)
    kept = {n: federation.executor.clients.snapshot(n).model for n in federation.names}
    next(run)
    held.set()
    saving.wait()
    monkeypatch.undo()
    assert load_checkpoint(tmp_path / "checkpoint", federation.state, federation.executor.clients)
    assert federation.round == 1
    for name in federation.names:
        model = federation.executor.clients.snapshot(name).model
        assert all(torch.equal(model[n], kept[name][n]) for n in model)
    federation.executor.close()


@pytest.mark.slow
def test_a_run_with_checkpoints_beside_the_training_goes_on_after_it_was_stopped(tmp_path, undisturbed, beside):
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        protofed.run("quickstart", SMALL, out=tmp_path / "run", progress=At(2, stop))
    assert [p.name for p in (tmp_path / "run" / "checkpoint").iterdir()] == ["round-000002"]
    assert finish(tmp_path / "run") == undisturbed


@pytest.mark.slow
def test_a_full_disk_beside_the_training_ends_the_run(tmp_path, monkeypatch, undisturbed, beside):
    with monkeypatch.context() as patch:
        fill_disk_for(patch, "clients.records")
        with one_line(OutputError, r"cannot be written \(No space left on device\)", says="round-000001"):
            protofed.run("quickstart", SMALL, out=tmp_path / "run")
    assert finish(tmp_path / "run") == undisturbed


@pytest.mark.slow
def test_half_a_line_of_rounds_is_written_again(tmp_path, undisturbed):
    out = tmp_path / "run"

    def stop() -> None:
        with (out / "rounds.jsonl").open("a") as file:
            file.write('{"round": 3, "participants": ["cli')
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        protofed.run("quickstart", SMALL, out=out, progress=At(2, stop))
    assert finish(out) == undisturbed


def test_a_folder_that_vanishes(tmp_path):
    out = tmp_path / "run"
    with one_line(OutputError, "is gone", says=str(out)):
        protofed.run("quickstart", SMALL, out=out, progress=At(2, lambda: shutil.rmtree(out)))
    assert not out.exists()


@pytest.mark.slow
@few("round_number", [2, 4], 1)
def test_a_folder_that_is_moved_is_continued_where_it_is(tmp_path, undisturbed, round_number):
    out, other = tmp_path / "run", tmp_path / "other"
    with pytest.raises(OutputError, match=r"moved, continue with the same command, --resume and its new --out"):
        protofed.run("quickstart", SMALL, out=out, progress=At(round_number, lambda: out.rename(other)))
    assert not out.exists()
    assert finish(other) == undisturbed


@pytest.mark.slow
def test_a_clock_that_jumps(tmp_path, monkeypatch, undisturbed):
    now = [time.time()]

    def jumping() -> float:
        now[0] += -3600.0 if int(now[0]) % 2 else 7201.5
        return now[0]

    monkeypatch.setattr(time, "time", jumping)
    run = protofed.run("quickstart", SMALL, out=tmp_path / "run")
    assert tensors(tmp_path / "run") == undisturbed
    for record in run.rounds:
        assert all(0 <= seconds < 600 for seconds in record.seconds.values())


def test_no_link_of_a_folder_chooses_what_is_written(tmp_path, monkeypatch):
    """Whatever the temporary file is called, it is no link that was there before."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    monkeypatch.setattr(secrets, "token_hex", lambda n: "ab")
    for name in (".report.html.partial", ".report.html.ab.partial"):
        (tmp_path / name).symlink_to(victim)
    with pytest.raises(OutputError, match="File exists"):
        write_text(tmp_path / "report.html", "new")
    monkeypatch.undo()
    write_text(tmp_path / "report.html", "new")
    assert victim.read_text() == "precious"
    assert not (tmp_path / "report.html").is_symlink()
    assert (tmp_path / "report.html").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_half_written_files_of_a_killed_run_go(tmp_path):
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    (folder / "checkpoint" / ".round-000003.partial" / "clients").mkdir(parents=True)
    (folder / ".summary.json.partial").touch()
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    (folder / ".link.partial").symlink_to(elsewhere)
    (folder / "notes.partial").touch()
    remove_partial(folder)
    assert {p.name for p in folder.rglob("*")} == {"checkpoint", "notes.partial"}
    assert (elsewhere / "kept").exists()


def test_a_refused_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_bytes(path, b"old")
    fill_disk_for(monkeypatch, "file")
    with pytest.raises(OutputError, match="file: cannot be written"):
        write_bytes(path, b"newer")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


# Through the command line, with what a system really does.


def segments() -> set[str]:
    """Return torch's shared memory that has a name: of none but a process that is about to remove it."""
    return {path.name for path in Path("/dev/shm").glob("torch_*")}


def limited(kilobytes: int) -> list[str]:
    """Return a command that runs the experiment while no file may grow beyond a size."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2); "
        "sys.argv = sys.argv[2:]; from protofed.cli.main import main; main()"
    )
    # -B: Python would cut the bytecode that it stores at the limit too, for every later process.
    return [sys.executable, "-B", "-c", code, str(1024 * kilobytes), *command()[2:]]


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["sequential", "workers"])
def test_a_limit_on_files_is_one_line(tmp_path, executor):
    chosen = [*limited(12), f"execution.executor={executor}", "--out", str(tmp_path / "run"), "--quiet"]
    before = segments()
    done = subprocess.run(chosen, capture_output=True, text=True, timeout=300)
    assert_mistake(done.returncode, done.stderr, "File too large")
    assert segments() <= before  # torch itself would leave what it could not fill


MOUNTS = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]


@pytest.fixture
def mounts(tmp_path) -> Path:
    """A folder over which a process may mount a file system that only it sees."""
    place = tmp_path / "place"
    place.mkdir()
    try:
        tried = subprocess.run([*MOUNTS, f"mount -t tmpfs none {place}"], capture_output=True, timeout=20)
    except FileNotFoundError:
        pytest.skip("no unshare")
    if tried.returncode:
        pytest.skip("mounting is not allowed here")
    return place


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mount", "reason"),
    [
        ("mount -t tmpfs -o size=64k none {0}", "but only 65.5 kB are free"),
        ("mount -t tmpfs -o ro none {0}", "Read-only file system"),
    ],
    ids=["full", "read-only"],
)
def test_a_disk_that_takes_nothing_is_one_line(mounts, mount, reason):
    script = f'{mount.format(mounts)} && exec "$@"'
    arguments = [*MOUNTS, script, "sh", *command(), "--out", str(mounts / "run"), "--quiet"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300)
    assert_mistake(done.returncode, done.stderr, reason)
    assert done.stderr.startswith(f"error: {mounts / 'run'}")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["TMPDIR", "/dev/shm"])
def test_workers_without_room(mounts, place):
    there = mounts if place == "TMPDIR" else place
    script = f'mount -t tmpfs -o size=50k none {there} && exec "$@"'
    out = mounts.parent / "run"
    chosen = [*command(), "execution.executor=workers", "--out", str(out), "--quiet"]
    done = subprocess.run(
        [*MOUNTS, script, "sh", *chosen],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "TMPDIR": str(mounts if place == "TMPDIR" else mounts.parent)},
    )
    assert_mistake(done.returncode, done.stderr)


@pytest.mark.slow
@few("executor", ["workers", "sequential"], 1)
def test_sigterm_is_as_ctrl_c(tmp_path, undisturbed, executor):
    out, temporary = tmp_path / "run", tmp_path / "t"
    temporary.mkdir()
    long = [*command(), "rounds=4", f"execution.executor={executor}", "--out", str(out), "--quiet"]
    with subprocess.Popen(
        long, env={**os.environ, "TMPDIR": str(temporary)}, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 120
        while not (out / "rounds.jsonl").exists() or not (out / "rounds.jsonl").stat().st_size:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 143, said
    assert re.fullmatch(
        r"fedproto stopped after round \d of 4: .*; repeat the command with --resume to continue\n", said
    )
    assert not [p for p in temporary.iterdir() if not p.name.startswith("torchinductor_")]
    assert not (out / "summary.json").exists()
    assert finish(out) == undisturbed


@pytest.mark.slow
def test_a_job_of_a_comparison_that_dies_is_one_line(tmp_path):
    source = tmp_path / "dies.py"
    source.write_text(
        "import os, signal\nfrom protofed.methods.fedproto import FedProto\n\n"
        "class Dies(FedProto):\n    name = 'dies'\n\n    def upload(self, local, statistics):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    chosen = {name: value for name, value in SMALL.items() if name != "method.name"}
    with one_line(ProtofedError, r"one of 2 processes \(--jobs\) died"):
        protofed.compare("quickstart", [f"{source}:Dies", "local"], overrides=chosen, jobs=2, out=tmp_path / "c")


@pytest.mark.parametrize("settings", [{}, {"execution.clients_in": "disk"}, {"execution.executor": "workers"}])
def test_a_federation_that_is_larger_than_the_disk_is_refused_before_training(tmp_path, monkeypatch, settings):
    usage = shutil.disk_usage(tmp_path)._replace(free=10_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    advice = "TMPDIR" if settings else "--out"
    with one_line(OutputError, r"clients need \S+ k?B, but only 10.0 kB are free: .*", says=advice):
        protofed.run("quickstart", {**SMALL, **settings}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_federation_whose_clients_fit_once_does_without_checkpoints(tmp_path, monkeypatch):
    federation, _ = assemble(resolve(apply_overrides(load_recipe("quickstart"), SMALL)))
    usage = shutil.disk_usage(tmp_path)._replace(free=federation.executor.clients.size)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OutputError, match=r"checkpoint.every=0"):
        protofed.run("quickstart", SMALL, out=tmp_path / "run")
    assert protofed.run("quickstart", {**SMALL, "checkpoint.every": 0}, out=tmp_path / "run").rounds
