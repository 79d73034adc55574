"""Reading of untrusted files, a few bytes of which could fill the memory, in a process with limits."""

from __future__ import annotations

import atexit
import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from protofed.data import reader
from protofed.data.checks import open_file
from protofed.data.reader import FRAME
from protofed.errors import DataError
from protofed.untrusted import limits
from protofed.untrusted.limits import Budget

_ADVICE = {
    "parquet": "write fewer rows per file",
    "Excel": "delete empty rows and columns, or save it as CSV",
    "CSV": "split it into several files",
    ".npz": "split it into several files",
}


def read_schema(path: Path) -> Any:
    """Return the ``pyarrow.Schema`` of a parquet file; raises what :func:`read_table` raises."""
    return read_table("parquet", path, Budget(limits.READER_BYTES / 1e9), schema=True).schema


def read_table(form: str, path: Path, budget: Budget, *, schema: bool = False, **options: Any) -> Any:
    """Return a file as a ``pyarrow.Table``.

    Args:
        form: ``parquet``, ``CSV`` or ``Excel`` (the first sheet); the last two as texts.
        options: ``names``, the columns of a parquet file, or None for all; ``encoding`` of a CSV file.

    Raises:
        DataError: If the file is unreadable, has too many rows or columns, or takes too much memory or time.
    """
    import pyarrow as pa

    found: list[bytes] = []

    def receive(kind: bytes, length: int, answers: IO[bytes]) -> None:
        budget.take(length, path)
        found.append(answers.read(length))

    _read_file(form, path, budget, receive, schema=schema, **options)
    tables = [pa.ipc.open_stream(content).read_all() for content in found]
    table = pa.concat_tables([table for table in tables if len(table)] or tables[:1])
    return table.replace_schema_metadata(tables[0].schema.metadata)


def read_arrays(path: Path, budget: Budget, names: Sequence[str], needed: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the arrays of some names of an ``.npz`` file.

    Raises:
        DataError: If the file is unreadable, has none or several of a name, or takes too much memory or time.
    """
    found: dict[str, np.ndarray] = {}
    places: list[memoryview] = []

    def receive(kind: bytes, length: int, answers: IO[bytes]) -> None:
        if kind == b"H":
            about = json.loads(answers.read(length))
            shape, dtype = about["shape"], np.dtype(about["dtype"])
            budget.take(math.prod(shape) * dtype.itemsize, f"{path}: {about['name']}")
            flat = np.empty(math.prod(shape), dtype)
            found[about["name"]] = flat.reshape(shape, order=about["order"])
            places[:] = [flat.view(np.uint8).data]
        else:
            answers.readinto(places[0][:length])  # type: ignore[attr-defined]
            places[0] = places[0][length:]

    _read_file(".npz", path, budget, receive, names=names, needed=needed)
    return found


def read_images(
    payloads: Sequence[Any], where: Callable[[int], str], channels: int, resize: int, size: Sequence[int] | None
) -> tuple[np.ndarray, list[int]]:
    """Decode images.

    Args:
        channels: 1 for grey, 3 for RGB, 0 for grey if all are grey and RGB otherwise.
        resize: Side in pixels to which images are scaled and centre-cropped; 0 keeps the stored size.
        size: Height and width that all must have; None for those of the first image.

    Returns:
        uint8 ``(n, H, W)`` or ``(n, H, W, 3)``, and the places of grey images among coloured ones.

    Raises:
        DataError: If an image is not readable, not 8-bit or too large, or differs in size.
    """
    about: dict[str, Any] = {}

    def receive(kind: bytes, length: int, answers: IO[bytes]) -> None:
        if kind == b"H":
            about.update(json.loads(answers.read(length)))
        else:
            about["images"] = np.empty(about["shape"], np.uint8)
            answers.readinto(about["images"].reshape(-1))  # type: ignore[attr-defined]

    total = sum(len(memoryview(payload)) for payload in payloads)
    memory = limits.READER_BYTES + 2 * total + reader.THREADS * limits.IMAGE_MEMORY
    asked = {"form": "image", "channels": channels, "resize": resize, "size": size}
    try:
        _ask(asked, memory, _seconds(total), receive, payloads)
    except _UnusableError as error:
        raise DataError(f"{where(error.place)}: {error}") from None
    except (TimeoutError, MemoryError, EOFError) as error:
        told = f"takes {error}" if len(payloads) == 1 else f"and {len(payloads) - 1} further images take {error}"
        raise DataError(f"{where(0)}: {told}: save them anew, with fewer pixels") from None
    return about["images"], about["grey"]


_Receive = Callable[[bytes, int, IO[bytes]], None]
"""Takes a frame from the answer, given its kind and its length, which is read before memory is allocated."""


def _seconds(size: int) -> int:
    return limits.READER_SECONDS + size // limits.READER_SPEED


def _read_file(form: str, path: Path, budget: Budget, receive: _Receive, **options: Any) -> None:
    with open_file(path) as file:
        size = file.seek(0, os.SEEK_END)
    expanded = budget.left if form == ".npz" else limits.EXPANSION * size  # an archive's arrays announce their size
    most = limits.READER_BYTES + min(expanded, budget.left)
    taken = 0

    def admit(kind: bytes, length: int, answers: IO[bytes]) -> None:
        nonlocal taken
        taken += length
        if taken > most:
            raise MemoryError(f"more than {most / 1e9:.2g} GB of memory")
        receive(kind, length, answers)

    try:
        _ask({"form": form, "path": os.path.abspath(path), **options}, most, _seconds(size), admit)
    except _UnusableError as error:
        raise DataError(f"{path}: {error}") from None
    except (TimeoutError, MemoryError, EOFError) as error:
        raise DataError(f"{path}: its {size} bytes take {error}: {_ADVICE[form]}") from None


class _UnusableError(Exception):
    """Raised with the process's message about a file, and the place of the image."""

    def __init__(self, text: str, place: int) -> None:
        super().__init__(text)
        self.place = place


def _ask(asked: dict[str, Any], memory: int, seconds: int, receive: _Receive, payloads: Sequence[Any] = ()) -> None:
    """Ask the process; raise _UnusableError with what it says, or MemoryError, TimeoutError or EOFError."""
    lengths = [len(memoryview(payload)) for payload in payloads]
    asked = {**asked, "memory": memory, "seconds": seconds, "lengths": lengths}
    enough = f"more than {memory / 1e9:.2g} GB of memory"
    clean = False
    with _lock:
        try:
            answers, head = _send([json.dumps(asked).encode() + b"\n", *payloads])
            while len(head) == FRAME.size:
                kind, length = FRAME.unpack(head)
                if kind == b"M":
                    raise MemoryError(enough)
                if kind == b"Z":
                    clean = True
                    return
                if kind == b"E":
                    text, place = json.loads(answers.read(length))
                    clean = True
                    raise _UnusableError(text, place)
                receive(kind, length, answers)
                head = answers.read(FRAME.size)
            if _running[0].wait() == -signal.SIGXCPU:
                raise TimeoutError(f"more than {seconds} s")
            raise EOFError(f"{enough}, or are damaged")
        finally:
            if not clean:  # the rest of this answer would be taken for the next one
                _end()


_lock = threading.RLock()
_running: list[subprocess.Popen[bytes]] = []  #: The process that reads for this one, begun when it is needed


def _send(pieces: Sequence[Any]) -> tuple[IO[bytes], bytes]:
    """Send a request to the process, and return where it answers, and how the answer begins."""
    while True:
        begun = not _running
        if begun:
            _running.append(_begin())
        (process,) = _running
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            for piece in pieces:
                process.stdin.write(piece)
            process.stdin.flush()
        head = process.stdout.read(FRAME.size)
        if head or begun or process.wait() != 0:
            return process.stdout, head
        _end()  # it had ended, idle


def _begin() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", reader.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pipesize=2**20,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "ARROW_DEFAULT_MEMORY_POOL": "system",  # others reserve memory in advance
        },
        start_new_session=True,  # an interruption ends this process, and the other one with it
    )


@atexit.register
def _end() -> None:
    while _running:
        process = _running.pop()
        process.kill()
        with suppress(BrokenPipeError), process:
            pass


def _forget() -> None:
    """Leave the process to the one that this one was forked from."""
    global _lock
    _lock = threading.RLock()
    while _running:
        _running.pop().returncode = 0


os.register_at_fork(after_in_child=_forget)
