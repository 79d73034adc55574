"""A SuperNode whose messages are answered by forks of one process that has loaded Flower and torch.

Flower's SuperExec starts the program ``flwr-clientapp`` for every message, and loading it takes longer than a small
visit. A program of that name, first in the ``PATH`` of the SuperNode, hands its arguments to the process that
forks; nothing of Flower is changed, and where nobody forks, Flower's own program answers.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from protofed.engine import resolve, scratch_folder
from protofed.errors import ConfigError, OutputError

log = logging.getLogger("protofed")
MOST = 2**16  #: Bytes of the arguments of one program
_LOADED = "protofed_flower.client_app", "flwr.supernode.cli", "httpcore"  #: What each message imports
_HAND_ON = """
import json, os, socket, sys
arguments, asking = sys.argv[3:], socket.socket(socket.AF_UNIX)
try:
    asking.connect(sys.argv[1])
    socket.send_fds(asking, [json.dumps(arguments).encode()], [1, 2])
except OSError:
    os.execv(sys.argv[2], [sys.argv[2], *arguments])
asking.recv(1)
"""


def start(arguments: Sequence[str]) -> NoReturn:
    """Become ``flower-supernode``, beside a process that forks for each of its messages (on Linux)."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    supernode, answering = (shutil.which(name, path=path) for name in ("flower-supernode", "flwr-clientapp"))
    if supernode is None or answering is None:
        raise ConfigError("flower-supernode and flwr-clientapp are not in the PATH: install protofed-flower anew")
    if sys.platform == "linux":  # elsewhere, libraries that are loaded may not be forked
        try:
            path = os.pathsep.join([str(_fork_beside(answering)), path])
        except (OSError, OutputError) as error:
            log.warning("every message loads a program: no socket in %s (%s)", tempfile.gettempdir(), error)
    environment = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2", **os.environ, "PATH": path}
    os.execve(supernode, [supernode, *arguments], environment)


def _fork_beside(answering: str) -> Path:
    """Begin the process that forks; return a folder, for this user alone, with the program that asks it."""
    folder, node = scratch_folder(), os.getpid()
    try:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(folder / "socket"))
        listening.listen()
        program = folder / "flwr-clientapp"
        hand_on = shlex.join([sys.executable, "-ISc", _HAND_ON, str(folder / "socket"), answering])
        program.write_text(f'#!/bin/sh\nexec {hand_on} "$@"\n')
        program.chmod(0o700)
        if os.fork():
            return folder
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    try:
        _serve(listening, node)
    finally:  # messages load programs from now on
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


def _serve(listening: socket.socket, node: int) -> None:
    """Load what messages import, and fork for each until the node ends.

    Nothing is computed before, and no GPU is looked for: neither threads nor CUDA outlive a fork. Random numbers
    that protect samples are the operating system's, of which no two forks have the same.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    listening.settimeout(0.2)
    with suppress(KeyboardInterrupt):
        for name in _LOADED:
            importlib.import_module(name)
        resolve({})  # looks through all methods, as each message does
        while os.getppid() == node:
            with suppress(OSError, ValueError):  # nobody asked, or not as the program does
                _fork(listening)


def _fork(listening: socket.socket) -> None:
    """Wait for the arguments of a program, and be it in another process."""
    asking, _ = listening.accept()
    with asking:
        asking.settimeout(5.0)
        text, streams, *_ = socket.recv_fds(asking, MOST, 2)
        arguments = json.loads(text)
        if not os.fork():
            _answer(arguments, streams)
        for stream in streams:
            os.close(stream)


def _answer(arguments: Sequence[str], streams: Sequence[int]) -> NoReturn:
    """Be the program ``flwr-clientapp``."""
    from flwr.supernode.cli import flwr_clientapp

    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    try:
        for target, stream in zip((1, 2), streams, strict=True):
            os.dup2(stream, target)
        sys.argv = ["flwr-clientapp", *arguments]
        flwr_clientapp()
    except SystemExit:
        pass  # Flower has said why
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
