"""Reading the files of a run, with errors of one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from msgspec import Struct

from protofed.errors import CheckpointError
from protofed.runs.comparison import ComparisonFile
from protofed.runs.description import FederationDescription
from protofed.runs.metrics import Metrics
from protofed.runs.records import RoundRecord
from protofed.runs.summary import Summary
from protofed.untrusted import limits, reading
from protofed.untrusted.decoding import Count, Line, decode, within
from protofed.untrusted.reading import parse_json


class _Method(Struct):
    name: Line


class _Config(Struct):
    """The parts of a resolved configuration that readers need."""

    method: _Method
    evaluation: dict[str, Any] = {}
    execution: dict[str, Any] = {}
    recipe: Line = ""
    seed: Annotated[int, within(least=0, most=limits.SEED)] = 0
    rounds: Count = 1


def read_text(path: Path, most: int = limits.TOML_BYTES) -> str:
    """Return the text of a file of at most ``most`` bytes."""
    with _one_line_errors(path):
        return reading.read_text(path, most)


def read_object(path: Path) -> dict[str, Any]:
    """Return a file's JSON object."""
    text = read_text(path, limits.JSON_BYTES)
    try:
        value = parse_json(text)
    except ValueError as error:
        raise CheckpointError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object")
    return value


def read_config(path: Path) -> dict[str, Any]:
    """Return the content of ``config.toml``, with a method's name and tables where tables are looked for."""
    with _one_line_errors(path):
        config = reading.read_toml(path)
    decode(config, _Config, f"{path}")
    return config


def read_summary(path: Path) -> Summary | None:
    """Return the content of ``summary.json``; None if there is no such file."""
    if not path.exists() and not path.is_symlink():
        return None
    return Summary.from_dict(read_object(path), f"{path}")


def read_metrics(path: Path, federation: FederationDescription) -> Metrics | None:
    """Return the content of ``metrics.json``; None if there is no such file."""
    if not path.exists() and not path.is_symlink():
        return None
    names = [client.name for client in federation.clients]
    return Metrics.from_dict(read_object(path), f"{path}", names, len(federation.class_names))


def read_federation(path: Path) -> FederationDescription:
    """Return the content of ``federation.json``."""
    return FederationDescription.from_dict(read_object(path), f"{path}")


def read_comparison(path: Path) -> ComparisonFile:
    """Return the content of ``comparison.json``."""
    return ComparisonFile.from_dict(read_object(path), f"{path}")


def read_rounds(path: Path) -> list[RoundRecord]:
    """Return the records of ``rounds.jsonl`` by round; a last line that is still being written is left out."""
    return in_order({record.round: record for record in (read_record(*line) for line in _lines(path))}, path)


def in_order(records: Mapping[int, RoundRecord], path: Path) -> list[RoundRecord]:
    """Return the records of one run, ascending by round.

    Raises:
        CheckpointError: If rounds were scored by different rules.
    """
    ordered = [records[number] for number in sorted(records)]
    scored = [(r.round, set(scores.weighted)) for r in ordered for scores in (r.accuracy, r.validation) if scores]
    for round_number, rules in scored:
        if rules != scored[0][1]:
            raise CheckpointError(
                f"{path}: round {round_number} was scored by other rules than round {scored[0][0]}"
            )
    return ordered


def _lines(path: Path) -> Iterator[tuple[bytes, str]]:
    """Yield the complete lines of ``rounds.jsonl``, each with its place for errors."""
    with _one_line_errors(path), reading.open_ordinary(path, limits.ROUNDS_BYTES) as file:
        for number, line in enumerate(reading.lines(file, limits.LINE_BYTES), start=1):
            if line.strip() and is_written(line):
                yield line, f"{path}: line {number}"


def is_written(line: bytes) -> bool:
    """Return whether a line is complete; only its end may be missing, since a writer may be stopped before it."""
    if line.endswith(b"\n"):
        return True
    try:
        return isinstance(parse_json(line), dict)
    except ValueError:
        return False


def read_record(line: bytes, where: str) -> RoundRecord:
    """Return the record of a round."""
    try:
        value = parse_json(line)
    except ValueError:
        value = None
    return RoundRecord.from_dict(value, where)


@contextmanager
def _one_line_errors(path: Path) -> Iterator[None]:
    """Turn any fault of a file into an error of one line."""
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
