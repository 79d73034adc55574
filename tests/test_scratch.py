"""Temporary files go with their process, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from protofed.errors import OutputError
from protofed.storage import scratch
from support import one_line, write_vectors

SHARED_MEMORY = Path("/dev/shm")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="locks and shared memory as on Linux")


def start(code: str, folder: Path, **options) -> subprocess.Popen[str]:
    environment = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        **options,
    )


HOLD = "from protofed.storage import scratch; print(scratch.folder(), flush=True); input()"


def begun(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


def test_a_folder_goes_at_the_end_of_its_process(tmp_path):
    process = start(HOLD, tmp_path)
    folder = begun(process)
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o777 == 0o700
    process.communicate("\n")
    assert list(tmp_path.iterdir()) == []


def test_the_dead_are_removed_and_the_living_are_not(tmp_path):
    living, dead = start(HOLD, tmp_path), start(HOLD, tmp_path)
    folders = begun(living), begun(dead)
    (folders[1] / "clients-1").mkdir()
    (folders[1] / "clients-1" / "file").touch()
    dead.kill()
    dead.communicate()
    assert folders[1].is_dir()
    third = start(HOLD, tmp_path)
    expected = {folders[0], begun(third)}
    assert set(tmp_path.iterdir()) == expected
    for process in (living, third):
        process.communicate("\n")
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_ends_removes_what_killed_ones_left(tmp_path):
    first, worker = start(HOLD, tmp_path), start(HOLD, tmp_path)
    begun(first), begun(worker)
    worker.kill()
    worker.communicate()
    first.communicate("\n")
    assert list(tmp_path.iterdir()) == []


def test_what_only_has_such_a_name_stays(tmp_path):
    """Whoever can write to a shared folder for temporary files cannot have other files removed."""
    for name in ("protofed-results", "protofed-0123456z", "protofed-01234567"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").touch()
    (tmp_path / "protofed-aaaaaaaa").write_text("a file")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / scratch.MARK).touch()
    (tmp_path / "protofed-bbbbbbbb").symlink_to(elsewhere)
    os.mkfifo(tmp_path / "protofed-cccccccc")
    inside = tmp_path / "protofed-dddddddd"
    inside.mkdir()
    (inside / scratch.MARK).touch()
    (inside / "link").symlink_to(elsewhere)
    (tmp_path / "protofed-eeeeeeee").mkdir()  # killed between making it and marking it
    scratch.remove_dead(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {
        "protofed-results",
        "protofed-0123456z",
        "protofed-01234567",
        "protofed-aaaaaaaa",
        "protofed-bbbbbbbb",
        "protofed-cccccccc",
        "elsewhere",
    }
    assert (elsewhere / scratch.MARK).exists()


def test_no_place_for_temporary_files(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "_mine", None)
    monkeypatch.setattr(scratch.tempfile, "gettempdir", lambda: str(tmp_path / "gone"))
    with one_line(OutputError, r"temporary files: cannot be written \(No such file or directory\)"):
        scratch.folder()


RUN = """
import sys, protofed
if __name__ == "__main__":
    class Tell(protofed.Progress):
        def round(self, label, record):
            print("round", record.round, flush=True)
    chosen = {"execution.executor": "workers", "execution.workers": 2, "method.name": "fedproto"}
    chosen |= {"data.source": "path", "data.path": sys.argv[2], "model.name": "mlp", "rounds": 100_000}
    protofed.run("quickstart", chosen, out=sys.argv[1], progress=Tell())
"""


def left(place: Path) -> list[Path]:
    """Return what lies there, without the folder of torch's compiler, which all of a user's processes share."""
    return [path for path in place.iterdir() if not path.name.startswith("torchinductor_")]


def semaphores() -> set[str]:
    return {p.name for p in SHARED_MEMORY.iterdir() if p.name.startswith(("sem.protofed-", "torch_"))}


@pytest.mark.slow
@pytest.mark.parametrize(
    "everything", [pytest.param(False, marks=pytest.mark.slow), True], ids=["the run", "its processes too"]
)
def test_the_next_process_removes_what_a_killed_run_left(tmp_path, everything):
    scripts, place = tmp_path / "s", tmp_path / "t"
    scripts.mkdir()
    place.mkdir()
    script = scripts / "main.py"
    script.write_text(RUN)
    data = write_vectors(tmp_path / "data")

    before = semaphores()
    killed = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "killed"), str(data)],
        env={**os.environ, "TMPDIR": str(place)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert begun(killed) == Path("round 1")
    (folder,) = left(place)  # and none of multiprocessing's beside it
    assert any(p.name.startswith("clients-") for p in folder.iterdir())
    processes = [psutil.Process(killed.pid), *psutil.Process(killed.pid).children(recursive=True)]
    assert len(processes) >= 4
    if everything:
        os.killpg(killed.pid, signal.SIGKILL)
    else:
        killed.kill()
    killed.communicate()
    assert not psutil.wait_procs(processes[1:], timeout=30)[1]
    assert folder.is_dir()

    after = start(HOLD, place)
    own = begun(after)
    assert left(place) == [own]
    after.communicate("\n")
    assert left(place) == []
    deadline = time.monotonic() + 10
    while semaphores() - before and time.monotonic() < deadline:  # others' tests have some for a moment
        time.sleep(0.2)
    assert not {name for name in semaphores() - before if folder.name in name}
