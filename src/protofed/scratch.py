"""This process's folder for temporary files, which goes with it, however it ends.

A process that is killed cannot tidy up, so the next one does: each holds a lock on its folder, which the system
releases when the process is gone, and a folder that nobody holds is removed by whoever makes one next. What
Python's ``multiprocessing`` leaves behind (a socket, named semaphores) is put where it is found again.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
from contextlib import suppress
from multiprocessing import process, util
from pathlib import Path

from protofed.errors import writing

try:
    import fcntl
except ImportError:  # Windows: folders go at a normal end only
    fcntl = None  # type: ignore[assignment]

PREFIX = "protofed-"
MARK = ".scratch"
"""An empty file that tells a folder of ours from one that only has such a name."""
SEMAPHORES = Path("/dev/shm")
"""Where Linux shows named semaphores, as ``sem.NAME``."""

LONGEST = 80
"""Bytes of a path to which a socket's name can be added: systems allow 104 or 108 in all."""

_short: list[int] = []
"""Descriptors that hold the locks of folders for sockets."""
_mine: tuple[int, Path, int] | None = None
"""The process that made it, the folder, and the descriptor that holds the lock."""


def folder() -> Path:
    """Return this process's folder in the system's place for temporary files (``TMPDIR``).

    Raises:
        OutputError: If none can be made.
    """
    global _mine
    if _mine is None or _mine[0] != os.getpid() or not _mine[1].is_dir():
        with writing(Path("the folder for temporary files")):
            base = Path(tempfile.gettempdir())
            remove_dead(base)
            path, lock = _claim(base)
        if _mine is not None and _mine[0] == os.getpid():
            os.close(_mine[2])  # of a folder that somebody removed
        _mine = (os.getpid(), path, lock)
        util.Finalize(None, _remove, (path,), exitpriority=-100)  # after all processes of multiprocessing
    return _mine[1]


def subfolder(name: str) -> Path:
    """Return a new folder in this process's own.

    Raises:
        OutputError: If none can be made.
    """
    above = folder()
    with writing(above):
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=above))


def hold_multiprocessing() -> None:
    """Let ``multiprocessing`` keep its socket in this process's folder, and name its semaphores after it.

    A process that it has started has this from its parent.
    """
    settings = process.current_process()._config  # type: ignore[attr-defined]
    if not Path(settings.get("tempdir") or MARK).is_dir():
        settings["tempdir"] = str(_for_sockets())
    if settings["semprefix"] == "/mp":
        settings["semprefix"] = f"/{folder().name}"


def _for_sockets() -> Path:
    """Return a folder whose path leaves room for a socket: this process's own, or one like it in ``/tmp``."""
    own = folder()
    if len(os.fsencode(own)) <= LONGEST or not Path("/tmp").is_dir():
        return own
    with writing(Path("the folder for sockets")):
        remove_dead(Path("/tmp"))
        path, lock = _claim(Path("/tmp"))
    _short.append(lock)
    util.Finalize(None, _remove, (path,), exitpriority=-100)
    return path


def remove_dead(base: Path) -> None:
    """Remove what this user's processes have left in ``base``, if they have ended."""
    if fcntl is None:
        return
    found: list[Path] = []
    with suppress(OSError):  # a folder that may be written to, but not listed
        found = [path for path in base.iterdir() if re.fullmatch(PREFIX + "[0-9a-f]{8}", path.name)]
    for path in found:
        with suppress(OSError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                ours = (path / MARK).is_file() or not any(path.iterdir())
                if ours and os.fstat(lock).st_uid == os.geteuid():
                    _remove(path)
            finally:
                os.close(lock)


def _claim(base: Path) -> tuple[Path, int]:
    """Make a folder and lock it; another process may take it for a dead one's in between."""
    while True:
        path = base / f"{PREFIX}{secrets.token_hex(4)}"
        path.mkdir(mode=0o700)
        with suppress(FileNotFoundError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY) if fcntl else os.open(os.devnull, os.O_RDONLY)
            if fcntl:
                with suppress(OSError):  # a file system without locks, where nobody else gets one either
                    fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                (path / MARK).touch()
                return path, lock
            except OSError:
                os.close(lock)
                raise


def _remove(path: Path) -> None:
    """Remove a folder and the semaphores that are named after it."""
    for semaphore in SEMAPHORES.glob(f"sem.{path.name}-*") if SEMAPHORES.is_dir() else ():
        with suppress(OSError):
            semaphore.unlink()
    shutil.rmtree(path, ignore_errors=True)
