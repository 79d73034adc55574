"""Folders that are created whole or not at all, and files and folders that only their owner may use."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from protofed.errors import ConfigError


def check_private(path: Path) -> None:
    """Refuse a file or folder that its mode opens to other users."""
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        right = f"`chmod {'700' if path.is_dir() else '600'} {shlex.quote(str(path))}`"
        raise ConfigError(f"{path}: other users may read or change it (mode {mode:04o}): {right}")


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents, which only their owner may enter."""
    for part in reversed((folder, *folder.parents)):
        if not part.is_dir():
            part.mkdir(mode=0o700, exist_ok=True)


def check_new(directory: Path, never: str) -> None:
    """Raise unless a folder is new or empty; ``never`` says why, e.g. ``"keys are never overwritten"``."""
    target = directory.expanduser()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        state = "is not empty" if target.is_dir() else "is a file"
        raise ConfigError(f"{directory} {state}: {never}: choose a new directory")


def write_folder(directory: Path, files: Mapping[str, tuple[bytes, int]]) -> list[Path]:
    """Create a folder with files, which only its owner may enter.

    The files are written to a temporary folder beside ``directory``, which is then renamed. The rename fails if
    ``directory`` has received files in the meantime.

    Args:
        files: Content and mode by name, which may contain slashes.
    """
    target = directory.expanduser().resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))  # with mode 0700
        try:
            for name, (content, mode) in files.items():
                path = partial / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                    file.write(content)
            os.rename(partial, target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as error:
        raise ConfigError(f"{directory}: cannot be written ({error.strerror}): choose another directory") from None
    return [directory / name for name in files]
