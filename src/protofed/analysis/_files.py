"""Reading the files of a run, with errors of one line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from protofed import limits, reading
from protofed.errors import CheckpointError
from protofed.reading import parse_json

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


def read_text(path: Path, most: int = limits.TOML_BYTES) -> str:
    """Return the text of a file of at most ``most`` bytes.

    Raises:
        CheckpointError: If it is missing, unreadable, or no ordinary file of that size.
    """
    with _told(path):
        return reading.read_text(path, most)


def read_object(path: Path) -> dict[str, Any]:
    """Return a file's JSON object.

    Raises:
        CheckpointError: If it is missing or holds anything else.
    """
    text = read_text(path, limits.JSON_BYTES)
    try:
        value = parse_json(text)
    except ValueError as error:
        raise CheckpointError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object")
    return value


def read_config(path: Path) -> dict[str, Any]:
    """Return the content of ``config.toml``, with a method's name and tables where tables are looked for.

    Raises:
        CheckpointError: If it is missing or damaged, or is no resolved configuration.
    """
    with _told(path):
        config = reading.read_toml(path)
    for name in ("method", "evaluation", "execution"):
        if not isinstance(config.get(name, {}), dict):
            raise CheckpointError(f"{path}: {name} should be a table")
    if not isinstance(config.get("method", {}).get("name"), str):
        raise CheckpointError(f"{path}: lacks [method] name: this is no resolved configuration")
    if not (_counts(config.get("seed", 0), most=2**63) and _counts(config.get("rounds", 1))):
        raise CheckpointError(f"{path}: seed and rounds should be whole numbers")
    for name, value in (("method.name", config["method"]["name"]), ("recipe", config.get("recipe", ""))):
        if not _text(value):
            raise CheckpointError(f"{path}: {name} should be a name without control characters")
    return config


def read_summary(path: Path) -> dict[str, Any] | None:
    """Return the content of ``summary.json``; None if there is no such file.

    Raises:
        CheckpointError: If it is damaged.
    """
    if not path.exists() and not path.is_symlink():
        return None
    summary = read_object(path)
    for name in ("label", "protofed", "recipe", "method"):
        if not _text(summary.get(name) or ""):
            raise CheckpointError(f"{path}: {name} should be a text without control characters")
    if not isinstance(summary.get("environment", {}), dict):
        raise CheckpointError(f"{path}: environment should be a table")
    if not _number(summary.get("peak_memory_bytes"), or_none=True):
        raise CheckpointError(f"{path}: peak_memory_bytes should be a number")
    return summary


class Listed(NamedTuple):
    """A run that a comparison lists: its method, its folder, and its values along the axes."""

    method: str
    folder: str
    values: tuple[str, ...]


class ComparisonFile(NamedTuple):
    """What ``comparison.json`` holds: the runs, and the names of the values along each axis."""

    runs: list[Listed]
    axes: dict[str, list[str]]


def read_comparison(path: Path) -> ComparisonFile:
    """Return the runs that ``comparison.json`` lists, and its axes.

    Raises:
        CheckpointError: If it is damaged, or names anything but folders of its own.
    """
    content = read_object(path)
    axes = content.get("axes", {})
    lists = isinstance(axes, dict) and all(isinstance(v, list) and v for v in axes.values())
    if not lists or not all(_text(name) for values in axes.values() for name in values):
        raise CheckpointError(f"{path}: axes must be a table of lists of names")
    try:
        runs = [
            Listed(entry["method"], entry["directory"], tuple(entry.get("values", ())))
            for entry in content.get("runs") or ()
        ]
    except (TypeError, KeyError, AttributeError):
        raise CheckpointError(f"{path}: runs must list method, seed and directory") from None
    for run in runs:
        name = run.folder
        if not isinstance(name, str) or name in ("", ".", "..") or {"/", "\\", "\0"} & set(name):
            raise CheckpointError(f"{path}: {name!r} is no folder of this comparison")
        if len(name.encode(errors="replace")) > limits.FILE_NAME_BYTES:
            raise CheckpointError(f"{path}: {name[:40]!r}… is longer than the name of a folder may be")
        if not _text(run.method):
            raise CheckpointError(f"{path}: {run.method!r} is no name of a method")
        along = zip(run.values, axes.values(), strict=False)
        if len(run.values) != len(axes) or any(value not in names for value, names in along):
            raise CheckpointError(f"{path}: {name}: its values {run.values!r} are not along the axes")
    return ComparisonFile(runs, axes)


def read_rounds(path: Path) -> list[dict[str, Any]]:
    """Return the records of ``rounds.jsonl`` by round; a last line that is still being written is left out.

    Raises:
        CheckpointError: If it is missing or endless, or another line is no record of a round.
    """
    records: dict[int, dict[str, Any]] = {}
    with _told(path), reading.open_ordinary(path, limits.ROUNDS_BYTES) as file:
        for number, line in enumerate(reading.lines(file, limits.LINE_BYTES), start=1):
            if line.strip() and is_written(line):
                record = read_record(line, f"{path}: line {number}")
                records[record["round"]] = record
    return [records[number] for number in sorted(records)]


def is_written(line: bytes) -> bool:
    """Tell whether a line has its end, or lacks nothing but that: its writer may have been stopped right before."""
    if line.endswith(b"\n"):
        return True
    try:
        return isinstance(parse_json(line), dict)
    except ValueError:
        return False


def read_record(line: bytes, where: str) -> dict[str, Any]:
    """Return the record of a round; ``where`` starts errors.

    Raises:
        CheckpointError: If it is none.
    """
    try:
        record = parse_json(line)
    except ValueError:
        record = None
    check_record(record, where)
    result: dict[str, Any] = record
    return result


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn what goes wrong with a file into an error of one line."""
    try:
        yield
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing: is {path.parent} a run directory?") from None
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({reading.reason(error)})") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None


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
    if not _texts(record["participants"]):
        raise CheckpointError(f"{where}: participants should be names")
    for part, names in (("refused", ("client", "field", "reason")), ("missing", ("client", "phase", "reason"))):
        incidents = record.get(part, [])
        if not isinstance(incidents, list) or not all(_incident(incident, names) for incident in incidents):
            what = "a refusal" if part == "refused" else "a missing client's entry"
            raise CheckpointError(f"{where}: {what} should name {', '.join(names[:2])} and {names[2]}")
    _check_robust(record.get("robust", {}), f"{where}: robust")
    attack = record.get("attack", {})
    if not isinstance(attack, dict) or not _texts(attack.get("clients", [])):
        raise CheckpointError(f"{where}: attack should name its clients")
    for part in ("accuracy", "validation"):
        rules = record.get(part, {})
        empty = part == "accuracy" and part in record and not rules
        if empty or not isinstance(rules, dict) or not all(_accuracy(rule) for rule in rules.values()):
            raise CheckpointError(
                f"{where}: {part} should have weighted, client_mean, client_std and clients per rule"
            )


def _check_robust(done: Any, where: str) -> None:
    """Check what a record says of the robust rule."""
    fits = isinstance(done, dict) and isinstance(done.get("kept", ""), str)
    fits = fits and all(
        isinstance(done.get(part, []), list) and all(_incident(entry, ["client"]) for entry in done.get(part, []))
        for part in ("clipped", "left_out", "capped")
    )
    fits = fits and all(_texts(entry.get("fields")) for entry in done.get("capped", []))
    alone = done.get("alone", []) if fits else None
    if not isinstance(alone, list) or not all(map(_counts, alone)) or not _texts(done.get("out_of_proportion", [])):
        raise CheckpointError(f"{where} should be a table of lists of clients and classes")


def _counts(value: Any, least: int = 0, most: int = 2**53) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < most


def _text(value: Any, most: int = limits.CLASS_NAME) -> bool:
    return isinstance(value, str) and len(value) <= most and value.isprintable()


def _texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _number(value: Any, or_none: bool = False) -> bool:
    if value is None:
        return or_none
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -1e300 < value < 1e300


def _incident(incident: Any, names: Sequence[str]) -> bool:
    return isinstance(incident, dict) and all(isinstance(incident.get(name), str) for name in names)


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
    K, M = len(federation["class_names"]), len(federation["clients"])
    if K > limits.CLASSES or M > limits.CLIENTS:
        raise CheckpointError(
            f"{path}: {K} classes and {M} clients: at most {limits.CLASSES} and {limits.CLIENTS} are shown"
        )
    if not all(_text(name) for name in federation["class_names"]):
        raise CheckpointError(f"{path}: class names should be texts without control characters")
    if not _texts(federation.get("notes", [])) or not isinstance(federation.get("exchanges", ""), str):
        raise CheckpointError(f"{path}: notes and exchanges should be texts")
    names = set()
    for number, client in enumerate(federation["clients"], start=1):
        _check_client(client, K, f"{path}: client {number}")
        names.add(client["name"])
    if len(names) < M:
        raise CheckpointError(f"{path}: two clients have the same name")
    return federation


def _check_client(client: Any, K: int, where: str) -> None:
    for name in ("name", "architecture", "parameters", "d", "train", "test"):
        if not isinstance(client, dict) or name not in client:
            raise CheckpointError(f"{where} lacks {name!r}")
    if not all(_text(client[name]) for name in ("name", "architecture")):
        raise CheckpointError(f"{where}: name and architecture should be texts without control characters")
    if not all(_counts(client[name]) for name in ("parameters", "d")):
        raise CheckpointError(f"{where}: parameters and d should be whole numbers")
    extras = client.get("extras") or {}
    if not isinstance(extras, dict) or not all(_counts(size) for size in extras.values()):
        raise CheckpointError(f"{where}: extras should have whole numbers")
    for name in ("train", "test"):
        if not isinstance(client[name], list) or not all(_counts(n) for n in client[name]):
            raise CheckpointError(f"{where}: {name} should list whole numbers")
        if len(client[name]) != K:
            raise CheckpointError(f"{where} has {len(client[name])} {name} counts for {K} classes")
