"""Atomic writing of files, by renaming a temporary one, and checked reading."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from protofed.errors import CheckpointError, OutputError, writing
from protofed.text import size
from protofed.untrusted import claims, limits
from protofed.untrusted.reading import open_ordinary, parse_json, read_text, reason

PARTIAL = ".partial"  #: Suffix of the names of partially written files and folders, which begin with a dot


def lock(file: IO[str] | int) -> bool:
    """Lock an open file or folder until it is closed, if no other process has; return whether this one may go on.

    Raises:
        OSError: If its file system has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Write a file atomically, creating its folder.

    Raises:
        OutputError: An existing file is left unchanged.
    """
    # A folder of others may hold a link by any name that can be foreseen.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}{PARTIAL}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("xb") as file:
                file.write(data)
            os.replace(partial, path)
        except BaseException:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise


def check_room(folder: Path, needed: int, what: str, advice: str) -> None:
    """Check that there is room for ``needed`` bytes before files are written."""
    place = next((p for p in (folder, *folder.absolute().parents) if p.is_dir()), Path("/"))
    with writing(place):
        free = shutil.disk_usage(place).free
    if needed > free:
        raise OutputError(f"{folder}: {what} need {size(needed)}, but only {size(free)} are free: {advice}")


def is_occupied(folder: Path, but: str = "") -> bool:
    """Return whether a folder holds anything but ``but`` and what a killed process had half written."""
    return any(p.name != but and not p.name.endswith(PARTIAL) for p in folder.glob("*"))


def remove_partial(folder: Path) -> None:
    """Remove the partial files and folders of a killed process below ``folder``, without following links."""
    with writing(folder):
        for path in folder.rglob(f".*{PARTIAL}"):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8."""
    write_bytes(path, text.encode())


def json_text(value: Any) -> str:
    """Return the text of a JSON file."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON atomically; raise ValueError for NaN or an infinity."""
    write_text(path, json_text(value))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        value = parse_json(read_text(path, limits.JSON_BYTES))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({reason(error)})") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: cannot be read (not a JSON object)")
    return value


def read_tensors(path: Path, names: Iterable[str] | None = None) -> dict[str, Tensor]:
    """Read the named tensors of a safetensors file, as far as it has them; all by default."""
    with open_tensors(path) as file:
        if names is None:
            return load_file(path)
        present = set(file.keys())
        return {name: file.get_tensor(name) for name in names if name in present}


def check_format(path: Path, written: object, reads: int) -> None:
    """Check that this version of the library reads a file's format."""
    if written != reads:
        raise CheckpointError(
            f"{path}: written in format {claims.clean(written, 20)} by another version of protofed; this one reads "
            f"format {reads}: continue with that version, or start again"
        )


@contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """Open a safetensors file that is a regular file and has a header of plausible length.

    Raises:
        CheckpointError: If it, or what the block takes from it, cannot be read.
    """
    try:
        with open_ordinary(path) as header:
            length = int.from_bytes(header.read(8), "little")
        if length > limits.TENSOR_HEADER_BYTES:
            raise ValueError(f"its header has {length} bytes")
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({reason(error)})") from None
