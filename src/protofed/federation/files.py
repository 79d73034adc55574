"""Files that are either whole or not there: write beside, then rename."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from protofed import limits
from protofed.errors import CheckpointError, writing
from protofed.reading import open_ordinary, parse_json, read_text, reason

PARTIAL = ".partial"
"""How names of half-written files and folders end; they begin with a dot."""


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically, creating its folder.

    Raises:
        OutputError: If the system refuses; what was there before is left as it was.
    """
    partial = path.with_name(f".{path.name}{PARTIAL}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_bytes(data)
            os.replace(partial, path)
        except BaseException:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise


def remove_partial(folder: Path) -> None:
    """Remove what a killed process has left half-written in ``folder``, links not followed.

    Raises:
        OutputError: If the system refuses.
    """
    with writing(folder):
        for path in folder.rglob(f".*{PARTIAL}"):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON atomically; NaN and infinities are refused."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        CheckpointError: If the file is missing, damaged, or holds anything else.
    """
    try:
        found = parse_json(read_text(path, limits.JSON_BYTES))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({reason(error)})") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: cannot be read (it holds no object)")
    return found


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file atomically."""
    write_bytes(path, save({n: t.detach().cpu().contiguous() for n, t in tensors.items()}, metadata))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        CheckpointError: If the file is missing or damaged.
    """
    check_tensors(path)
    try:
        return load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({reason(error)})") from None


def check_tensors(path: Path) -> None:
    """Check that a safetensors file is an ordinary one with a header of sensible length, before it is mapped.

    Raises:
        CheckpointError: If it is not.
    """
    try:
        with open_ordinary(path) as file:
            length = int.from_bytes(file.read(8), "little")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({reason(error)})") from None
    if length > limits.TENSOR_HEADER_BYTES:
        raise CheckpointError(f"{path}: cannot be read (its header has {length} bytes)")
