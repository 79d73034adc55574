"""Reading of files whose formats let a few bytes fill the memory, in a process with limits."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal

from protofed.data import reader
from protofed.data.reader import FRAME
from protofed.errors import DataError
from protofed.untrusted import limits
from protofed.untrusted.limits import Budget
from protofed.untrusted.reading import open_ordinary, reason

Form = Literal["parquet", "Arrow", "Excel"]

_ADVICE = {
    "parquet": "write fewer rows per file",
    "Arrow": "save the data set again by save_to_disk",
    "Excel": "delete empty rows and columns, or save it as CSV",
}


def read_schema(form: Form, path: Path) -> Any:
    """Return the ``pyarrow.Schema`` of a file; raises what :func:`read` raises."""
    return read(form, path, Budget(limits.READER_BYTES / 1e9), schema=True).schema


def read(
    form: Form, path: Path, budget: Budget, names: Sequence[str] | None = None, *, schema: bool = False
) -> Any:
    """Return a file as a ``pyarrow.Table``.

    Args:
        form: ``Arrow`` is a stream, and ``Excel`` the first sheet as texts.
        names: Columns of a parquet file; None for all columns.
        schema: Without rows.

    Raises:
        DataError: If the file is unreadable, has too many rows or columns, or takes too much memory or time.
    """
    import pyarrow as pa

    try:
        with open_ordinary(path) as file:
            size = file.seek(0, os.SEEK_END)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({reason(error)})") from None
    most = limits.READER_BYTES + min(limits.EXPANSION * size, budget.left)
    seconds = limits.READER_SECONDS + size // limits.READER_SPEED
    asked = {"form": form, "path": os.path.abspath(path), "names": names, "schema": schema}
    taken = 0

    def admit(length: int) -> None:
        nonlocal taken
        taken += length
        if taken > most:
            raise MemoryError
        budget.take(length, path)

    try:
        found = _answer({**asked, "memory": most, "seconds": seconds}, admit)
        tables = [pa.ipc.open_stream(content).read_all() for content in found]
        return pa.concat_tables([table for table in tables if len(table)] or tables[:1])
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    except TimeoutError:
        told = f"take more than {seconds} s"
    except MemoryError:
        told = f"take more than {most / 1e9:.2g} GB of memory"
    except EOFError:
        told = f"are damaged, or take more than {most / 1e9:.2g} GB of memory"
    raise DataError(f"{path}: its {size} bytes {told}: {_ADVICE[form]}")


def _answer(asked: dict[str, Any], admit: Callable[[int], None]) -> list[bytes]:
    """Return the tables of an answer as Arrow streams.

    Args:
        admit: Called with the length of each before memory is allocated.

    Raises:
        ValueError: With what the process says of the file.
        MemoryError: If its memory did not suffice.
        TimeoutError: If it used up its time.
        EOFError: If it ended otherwise.
    """
    found: list[bytes] = []
    kind = b"T"
    with _lock:
        try:
            answers, head = _asked(json.dumps(asked).encode() + b"\n")
            while kind == b"T":
                if len(head) < FRAME.size:
                    raise TimeoutError if _running[0].wait() == -signal.SIGXCPU else EOFError
                kind, length = FRAME.unpack(head)
                admit(length)
                found.append(answers.read(length))
                head = answers.read(FRAME.size) if kind == b"T" else b""
        finally:
            if kind == b"T":  # the rest of this answer would be taken for the next one
                _end()
    if kind == b"M":
        raise MemoryError
    if kind == b"E":
        raise ValueError(found[-1].decode())
    return found[:-1]


_lock = threading.RLock()
_running: list[subprocess.Popen[bytes]] = []
"""The process that reads for this one, begun when it is needed."""


def _asked(line: bytes) -> tuple[IO[bytes], bytes]:
    """Send a request to the process, and return where it answers, and how the answer begins."""
    while True:
        begun = not _running
        if begun:
            _running.append(_begin())
        (process,) = _running
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(line)
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
