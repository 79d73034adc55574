"""A SuperNode whose messages are answered by processes that have Flower and torch loaded already.

Flower's SuperExec starts the program ``flwr-clientapp`` for every message, and loading it takes longer than a small
visit. A process that has loaded all of it forks for every message instead. A program of the same name, first in the
``PATH`` of the SuperNode, passes its arguments on; nothing of Flower is changed.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from protofed import methods
from protofed.errors import ConfigError

POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
"""Variable with the seconds between two looks of a SuperExec for work, by default 1."""
MOST = 2**16
"""Bytes of the arguments of one program."""
_PROGRAM = "flwr-clientapp"
_LOADED = (
    "flwr.supernode.cli",
    "protofed.apps.flower.client_app",
    "httpcore",
    "PIL.PngImagePlugin",
    "pandas",
    "pyarrow.parquet",
)
"""What messages import; the last four are what Flower and the readers of a client's data import when first used."""
_PASS_ON = """#!{python} -IS
import json, socket, sys
with socket.socket(socket.AF_UNIX) as s:
    s.connect({path!r})
    socket.send_fds(s, [json.dumps(sys.argv[1:]).encode()], [1, 2])
    s.recv(1)
"""


def run(command: Sequence[str]) -> int:
    """Run a SuperNode to its end; return its status."""
    if not hasattr(os, "fork"):
        raise ConfigError("deploy warm needs a system with fork: start flower-supernode itself")
    if not command or shutil.which(command[0]) is None:
        raise ConfigError(f"deploy warm: expected the command of a SuperNode, not {' '.join(command)[:80]!r}")
    with tempfile.TemporaryDirectory(prefix="protofed-warm-") as name, socket.socket(socket.AF_UNIX) as server:
        folder = Path(name)  # for this user alone
        server.bind(str(folder / "socket"))
        server.listen()
        server.settimeout(0.2)
        program = folder / _PROGRAM
        program.write_text(_PASS_ON.format(python=sys.executable, path=str(folder / "socket")))
        program.chmod(0o700)
        path = f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        process = subprocess.Popen(command, env={POLL: "0.1", **os.environ, "PATH": path})
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda signum, frame: process.send_signal(signum))
        _load()
        children = set[int]()
        while process.poll() is None:
            with suppress(OSError, ValueError):  # nobody asked, or not as the program does
                children.add(_serve(server))
            for child in list(children):
                if os.waitpid(child, os.WNOHANG)[0]:
                    children.discard(child)
        return process.returncode


def _load() -> None:
    """Import all that answering a message needs; nothing is computed, so that no threads are lost by forking."""
    for name in _LOADED:
        importlib.import_module(name)
    methods.methods()


def _serve(server: socket.socket) -> int:
    """Answer a message in a new process; return its id."""
    connection, _ = server.accept()
    with connection:
        connection.settimeout(5.0)
        text, streams, *_ = socket.recv_fds(connection, MOST, 2)
        arguments = json.loads(text)
        child = os.fork()
        if not child:
            _answer(arguments, streams)
        for stream in streams:
            os.close(stream)
        return child


def _answer(arguments: Sequence[str], streams: Sequence[int]) -> None:
    """Be the program ``flwr-clientapp``."""
    from flwr.supernode.cli import flwr_clientapp

    status = 1
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
        for target, stream in zip((1, 2), streams, strict=True):
            os.dup2(stream, target)
        sys.argv = [_PROGRAM, *arguments]
        flwr_clientapp()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
