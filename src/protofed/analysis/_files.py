"""Reading the files of a run, with errors of one line."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from protofed.errors import CheckpointError

_RECORD = ("participants", "losses", "bytes", "parameters", "seconds", "refused", "diagnostics")


def read_text(path: Path) -> str:
    """Return a file's text.

    Raises:
        CheckpointError: If it is missing or unreadable.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing: is {path.parent} a run directory?") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from None


def read_object(path: Path) -> dict[str, Any]:
    """Return a file's JSON object.

    Raises:
        CheckpointError: If it is missing or holds anything else.
    """
    try:
        value = json.loads(read_text(path))
    except ValueError as error:
        raise CheckpointError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object")
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """Return a file's TOML.

    Raises:
        CheckpointError: If it is missing or damaged.
    """
    try:
        return tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise CheckpointError(f"{path}: not valid TOML ({error})") from None


def read_rounds(path: Path) -> list[dict[str, Any]]:
    """Return the records of ``rounds.jsonl`` by round; a last line that is still being written is left out.

    Raises:
        CheckpointError: If it is missing, or another line is no record of a round.
    """
    lines = read_text(path).splitlines()
    records: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            records[int(record["round"])] = record
        except (ValueError, TypeError, KeyError):
            if number == len(lines):
                break
            raise CheckpointError(f"{path}: line {number} is not the record of a round") from None
        for name in _RECORD:
            if name not in record:
                raise CheckpointError(f"{path}: line {number} lacks {name!r}")
    return [records[number] for number in sorted(records)]


def read_federation(path: Path) -> dict[str, Any]:
    """Return the content of ``federation.json``: class names, and every client with its sample counts.

    Raises:
        CheckpointError: If it is missing or damaged.
    """
    federation = read_object(path)
    for name in ("class_names", "clients"):
        if not isinstance(federation.get(name), list):
            raise CheckpointError(f"{path}: lacks the list {name!r}")
    K = len(federation["class_names"])
    for number, client in enumerate(federation["clients"], start=1):
        for name in ("name", "architecture", "parameters", "d", "train", "test"):
            if not isinstance(client, dict) or name not in client:
                raise CheckpointError(f"{path}: client {number} lacks {name!r}")
        for name in ("train", "test"):
            if len(client[name]) != K:
                raise CheckpointError(
                    f"{path}: client {number} has {len(client[name])} {name} counts for {K} classes"
                )
    return federation
