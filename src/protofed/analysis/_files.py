"""Reading the files of a run, with errors of one line."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, NoReturn

from protofed.errors import CheckpointError

_PARTS = {
    "participants": list,
    "losses": dict,
    "bytes": dict,
    "parameters": dict,
    "seconds": dict,
    "refused": list,
    "diagnostics": dict,
}
"""What every record of a round holds."""


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
        value = parse_json(read_text(path))
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
            record = parse_json(line)
        except ValueError:
            if number == len(lines):
                break
            record = None
        check_record(record, f"{path}: line {number}")
        records[record["round"]] = record
    return [records[number] for number in sorted(records)]


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: If it is none, too deep to be one, or holds NaN, an infinity or half of a surrogate pair.
    """
    try:
        value = json.loads(text, parse_constant=_not_json)
        marker = "\\ud" if isinstance(text, str) else b"\\ud"
        if marker in text.lower():  # type: ignore[operator]
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def check_record(record: Any, where: str) -> None:
    """Check one record of ``rounds.jsonl``, which starts errors with ``where``.

    Raises:
        CheckpointError: If it is no record of a round, or one of its parts is missing or of another kind.
    """
    if not isinstance(record, dict) or not _counts(record.get("round"), least=1):
        raise CheckpointError(f"{where} is not the record of a round")
    for name, kind in _PARTS.items():
        if name not in record:
            raise CheckpointError(f"{where} lacks {name!r}")
        if not isinstance(record[name], kind):
            raise CheckpointError(f"{where}: {name} should be a {'list' if kind is list else 'table'}")
    for name in ("bytes", "parameters"):
        if not all(_counts(record[name].get(way)) for way in ("up", "down")):
            raise CheckpointError(f"{where}: {name} should count up and down")
    if not all(_number(record["seconds"].get(n)) for n in ("total", "training", "evaluation", "aggregation")):
        raise CheckpointError(f"{where}: seconds should have training, aggregation, evaluation and total")
    if not all(_number(value, or_none=True) for value in record["losses"].values()):
        raise CheckpointError(f"{where}: losses should be numbers")
    for refusal in record["refused"]:
        if not isinstance(refusal, dict) or {"client", "field", "reason"} - refusal.keys():
            raise CheckpointError(f"{where}: a refusal should name client, field and reason")
    for part in ("accuracy", "validation"):
        rules = record.get(part) or {}
        if not isinstance(rules, dict) or not all(_accuracy(rule) for rule in rules.values()):
            raise CheckpointError(
                f"{where}: {part} should have weighted, client_mean, client_std and clients per rule"
            )


def _not_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _counts(value: Any, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**53


def _number(value: Any, or_none: bool = False) -> bool:
    if value is None:
        return or_none
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -1e300 < value < 1e300


def _accuracy(rule: Any) -> bool:
    return (
        isinstance(rule, dict)
        and all(_number(rule.get(name)) for name in ("weighted", "client_mean", "client_std"))
        and isinstance(rule.get("clients"), list)
        and all(_number(value, or_none=True) for value in rule["clients"])
    )


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
        if not all(_counts(client[name]) for name in ("parameters", "d")):
            raise CheckpointError(f"{path}: client {number}: parameters and d should be whole numbers")
        for name in ("train", "test"):
            if not isinstance(client[name], list) or not all(_counts(n) for n in client[name]):
                raise CheckpointError(f"{path}: client {number}: {name} should list whole numbers")
            if len(client[name]) != K:
                raise CheckpointError(
                    f"{path}: client {number} has {len(client[name])} {name} counts for {K} classes"
                )
    return federation
