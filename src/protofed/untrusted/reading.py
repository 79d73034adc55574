"""Reading of untrusted files, which are opened only if they are ordinary files and read only up to a limit.

All functions raise ``OSError`` if the system refuses access and ``ValueError`` if the content is invalid; callers
turn either into a one-line error with :func:`reason`.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from protofed.untrusted import limits

_LARGE = re.compile(rb"[eE]\+?[0-9]{3}")  #: An exponent with which a number may be too large


def open_ordinary(path: Path, most: int | None = None) -> BinaryIO:
    """Open a regular file of at most ``most`` bytes; anything else is a ValueError, and a pipe does not block."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")
    try:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("is not an ordinary file")
        if most is not None and status.st_size > most:
            raise ValueError(f"has {status.st_size} bytes, more than {most}")
    except BaseException:
        file.close()
        raise
    return file


def read_bytes(path: Path, most: int) -> bytes:
    """Return the content of an ordinary file of at most ``most`` bytes; anything else is a ValueError."""
    with open_ordinary(path, most) as file:
        content = file.read(most + 1)
    if len(content) > most:  # the file has grown since it was opened
        raise ValueError(f"has more than {most} bytes")
    return content


def read_text(path: Path, most: int) -> str:
    """Return the text of an ordinary file in UTF-8, of at most ``most`` bytes; anything else is a ValueError."""
    return read_bytes(path, most).decode("utf-8")


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of an ordinary TOML file; ValueError if it is too large, nested too deeply, or not TOML."""
    return parse_toml(read_text(path, limits.TOML_BYTES).replace("\r\n", "\n"))


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; raise ValueError if it is invalid, nested too deeply, or has an integer beyond 64 bits."""
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"not valid TOML: {error}") from None
    _check_values(tables)
    return tables


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: If it is not JSON, is nested too deeply, or contains NaN, an infinity, a number beyond 64 bits,
            or an unpaired surrogate.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8-sig")  # json would also read UTF-16, which is not looked through here
    raw = text.encode("utf-8", "surrogatepass")
    real = _number if _may_overflow(raw) else None  # a function in Python takes longer than everything else
    try:
        value = json.loads(text, parse_constant=_not_json, parse_float=real, parse_int=_integer)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if raw.count(b"[") + raw.count(b"{") > limits.DEPTH:
        _check_values(value)
    if b"\\ud" in raw.lower():
        json.dumps(value, ensure_ascii=False).encode()
    return value


def lines(file: BinaryIO, most: int) -> Iterator[bytes]:
    """Yield the lines of a file, including line ends; ValueError if one is longer than ``most`` bytes."""
    while line := file.readline(most + 1):
        if len(line) > most:
            raise ValueError(f"is longer than {most} bytes")
        yield line


def reason(error: Exception) -> str:
    """Return the reason of an error, without the path."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def _check_values(value: Any) -> None:
    level: list[Any] = [[value]]
    depth = -1
    while level:
        if depth > limits.DEPTH:
            raise ValueError(f"is nested more than {limits.DEPTH} deep")
        inner = [v for values in level for v in (values.values() if isinstance(values, dict) else values)]
        if large := next((v for v in inner if isinstance(v, int) and not -(2**63) <= v < 2**64), None):
            raise ValueError(f"{str(large)[:20]} is too large a number")
        level, depth = [v for v in inner if isinstance(v, (dict, list))], depth + 1


def _not_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _may_overflow(text: bytes) -> bool:
    """Return whether a text may hold a number beyond the largest float: by its exponent or its digits."""
    step = 100  # a row of digits twice as long covers a whole step somewhere, and a shorter one ends with e99
    return bool(_LARGE.search(text)) or any(text[i : i + step].isdigit() for i in range(0, len(text), step))


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is too large a number")
    return value


def _integer(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**64:
        raise ValueError(f"{text[:20]} is too large a number")
    return int(text)
