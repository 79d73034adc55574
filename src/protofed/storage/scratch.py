"""A folder for the temporary files of this process, which is removed however the process ends.

A process that is killed cannot clean up, so the next one does. Each process holds a lock on its folder, which the
system releases when the process ends, and folders without a lock are removed by the next process that creates one.
Files that Python's ``multiprocessing`` may leave behind (a socket, named semaphores) are placed so that they are
removed as well.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import tempfile
from contextlib import suppress
from multiprocessing import process, util
from pathlib import Path

from protofed.errors import writing

PREFIX = "protofed-"
MARK = ".scratch"  #: An empty file that distinguishes our folders from others with a similar name
SEMAPHORES = Path("/dev/shm")  #: Folder in which Linux lists named semaphores, as ``sem.NAME``

LONGEST = 80  #: Maximum bytes of a folder's path for sockets; systems allow 104 or 108 including the socket's name

_short: list[int] = []  #: File descriptors that hold the locks on folders for sockets
_mine: tuple[int, Path, int] | None = None
"""The id of the process that created the folder, the folder, and the file descriptor that holds its lock."""


def folder() -> Path:
    """Return this process's folder, below the system's folder for temporary files (``TMPDIR``)."""
    global _mine
    if _mine is None or _mine[0] != os.getpid() or not _mine[1].is_dir():
        with writing(Path("the folder for temporary files")):
            base = Path(tempfile.gettempdir())
            remove_dead(base)
            path, lock = _claim(base)
        if _mine is not None and _mine[0] == os.getpid():
            os.close(_mine[2])  # the folder was removed by someone else
        _mine = (os.getpid(), path, lock)
        util.Finalize(None, _leave, (path,), exitpriority=-100)  # after all processes of multiprocessing end
    return _mine[1]


def subfolder(name: str) -> Path:
    """Create and return a folder inside this process's folder."""
    above = folder()
    with writing(above):
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=above))


def hold_multiprocessing() -> None:
    """Make ``multiprocessing`` keep its socket in this process's folder and name its semaphores after it.

    Child processes inherit these settings.
    """
    settings = process.current_process()._config  # type: ignore[attr-defined]
    if not Path(settings.get("tempdir") or MARK).is_dir():
        settings["tempdir"] = str(_for_sockets())
    if settings["semprefix"] == "/mp":
        settings["semprefix"] = f"/{folder().name}"


def _for_sockets() -> Path:
    """Return a folder with a path short enough for sockets: this process's folder, or a similar one in ``/tmp``."""
    path = folder()
    if len(os.fsencode(path)) <= LONGEST or not Path("/tmp").is_dir():
        return path
    with writing(Path("the folder for sockets")):
        remove_dead(Path("/tmp"))
        path, lock = _claim(Path("/tmp"))
    _short.append(lock)
    util.Finalize(None, _remove, (path,), exitpriority=-100)
    return path


def remove_dead(base: Path) -> None:
    """Remove the folders in ``base`` that ended processes of this user have left behind."""
    folders: list[Path] = []
    with suppress(OSError):  # a folder may be writable but not listable
        folders = [path for path in base.iterdir() if re.fullmatch(PREFIX + "[0-9a-f]{8}", path.name)]
    for path in folders:
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
    """Create and lock a folder; retry if another process removes it in between."""
    while True:
        path = base / f"{PREFIX}{secrets.token_hex(4)}"
        path.mkdir(mode=0o700)
        with suppress(FileNotFoundError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            with suppress(OSError):  # a file system without locks, where no other process gets one either
                fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                (path / MARK).touch()
                return path, lock
            except OSError:
                os.close(lock)
                raise


def _leave(path: Path) -> None:
    """Remove a folder, and those of processes that were killed meanwhile: nobody may come after this one."""
    _remove(path)
    remove_dead(path.parent)


def _remove(path: Path) -> None:
    for semaphore in SEMAPHORES.glob(f"sem.{path.name}-*") if SEMAPHORES.is_dir() else ():
        with suppress(OSError):
            semaphore.unlink()
    shutil.rmtree(path, ignore_errors=True)
