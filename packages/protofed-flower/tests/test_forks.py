"""``protofed deploy node``: a SuperNode whose messages are answered by forks of a process that has loaded torch."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from deployment import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")
NODE = """
import os, sys, types
from pathlib import Path
here = Path(sys.argv[1])
flower = types.ModuleType("flwr.supernode.cli")
flower.flwr_clientapp = lambda: print("forked", os.getpid(), *sys.argv, flush=True) or sys.exit(3)
sys.modules[flower.__name__] = flower
from protofed_flower import forks
forks._LOADED = []
forks.shutil.which = lambda name, path: str(here / name)
forks.start(["--port", "a b"])
"""

TALK = """
import os, socket, stat
from pathlib import Path
(place,) = Path(os.environ["TMPDIR"]).iterdir()
print(oct(stat.S_IMODE(place.stat().st_mode)))
for said in (b"", b"[", b"7", b"\\xff" * 70000):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(place / "socket"))
        s.sendall(said)
"""


def node(folder: Path, script: str, left: int = 0) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Start a node whose SuperNode is a shell script; return it, and what is left in its temporary folder."""
    for name, text in (("flower-supernode", script), ("flwr-clientapp", 'echo "itself" "$@"')):
        (folder / name).write_text(f"#!/bin/sh\n{textwrap.dedent(text)}\n")
        (folder / name).chmod(0o755)
    place = folder / "tmp"
    place.mkdir(exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(place)}
    command = [sys.executable, "-c", NODE, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    until(lambda: len(os.listdir(place)) == left, 10, "end of the process that forks")
    return done, done.stdout.splitlines()


def test_messages_are_answered_by_forks(tmp_path):
    done, lines = node(tmp_path, 'echo $$ "$@"; flwr-clientapp --token "x y"; flwr-clientapp 2; exit 7')
    assert (done.returncode, done.stderr) == (7, "")  # the SuperNode is what was started
    (pid, *words), first, second = (line.split(" ") for line in lines)
    assert words == ["--port", "a", "b"]
    assert [first[0], *first[2:]] == ["forked", "flwr-clientapp", "--token", "x", "y"]
    assert [second[0], *second[2:]] == ["forked", "flwr-clientapp", "2"]
    assert len({pid, first[1], second[1]}) == 3  # each by a process of its own
    assert not any(psutil.pid_exists(int(number)) for number in (pid, first[1], second[1]))


def test_without_the_process_that_forks_flowers_program_answers(tmp_path):
    done, lines = node(tmp_path, "rm $TMPDIR/*/socket; flwr-clientapp 2")
    assert (done.returncode, done.stderr, lines) == (0, "", ["itself 2"])


def test_what_killed_processes_leave_the_next_node_removes(tmp_path):
    assert node(tmp_path, "kill -9 $(cat /proc/$$/task/$$/children) $$", left=1)[0].returncode == -9
    assert node(tmp_path, "echo plain")[1] == ["plain"]


def test_a_folder_for_no_socket_is_told(tmp_path):
    (place := tmp_path / ("long" * 30)).mkdir()
    done, lines = node(place, "echo plain")
    assert (done.returncode, lines) == (0, ["plain"])
    assert done.stderr.startswith("every message loads a program: no socket in ")
    assert done.stderr.count("\n") == 1


def test_nothing_is_computed_and_no_gpu_is_looked_for_before_a_fork(tmp_path):
    """CUDA cannot be used in a process that forked after it was asked for devices, and threads are lost."""
    script = """
import os, sys, torch
def never(*_): raise SystemExit("asked for a GPU")
torch._C._cuda_getDeviceCount = torch.cuda.is_available = torch.cuda.device_count = torch.cuda._lazy_init = never
before = len(os.listdir("/proc/self/task"))
from protofed_flower import forks
class Ended:
    settimeout = staticmethod(lambda seconds: None)
forks._serve(Ended, 0)
assert len(os.listdir("/proc/self/task")) == before
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_whoever_is_not_the_program_gets_nothing(tmp_path):
    """The folder is for this user alone, and other bytes than arguments start nothing."""
    (tmp_path / "talk.py").write_text(TALK)
    _, lines = node(tmp_path, f"{sys.executable} {tmp_path}/talk.py; flwr-clientapp 1")
    assert lines[0] == "0o700"
    assert [line[:6] for line in lines[1:]] == ["forked"]
