"""Errors a user can act on: each message is one line that says what is wrong, where, and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_LONGEST = 2000
"""Characters of a message: names and values in it may be of any length."""


class ProtofedError(Exception):
    """Base of every error protofed raises on purpose; the CLI prints it as a single line.

    Names of files and clients stand in messages: what a terminal would not print as it is, is escaped.
    """

    def __str__(self) -> str:
        """Return the message as one line of moderate length."""
        message = super().__str__()
        return printable(message if len(message) <= _LONGEST else message[:_LONGEST] + "…")


class ConfigError(ProtofedError):
    """An option, name or recipe that does not fit."""


class DataError(ProtofedError):
    """Data that is missing, unreadable or outside what was declared."""


class ModelError(ProtofedError):
    """A model that cannot be built, split or fed."""


class PayloadError(ProtofedError):
    """A message that does not satisfy its schema."""


class DivergedError(PayloadError):
    """A message whose numbers are not finite or too large: what a diverged model sends."""


class FederationError(ProtofedError):
    """A round that could not be completed: clients are missing, or gave nothing usable."""


class CheckpointError(ProtofedError):
    """A run directory or checkpoint that cannot be continued."""


class OutputError(ProtofedError):
    """Files that cannot be written: the disk is full, or the folder is read-only or gone."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name ``path`` where the system refuses to write there.

    Raises:
        OutputError: In place of an OSError.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(
            f"{path}: cannot be written ({reason}); what was there is unchanged, and a run goes on with --resume"
        ) from None


def printable(text: str) -> str:
    r"""Return a text with everything but letters, signs and spaces escaped: line ends, control codes, directions.

    Example:
        >>> print(printable("a\nb\x1b[31m"))
        a\nb\x1b[31m
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def unknown_name(kind: str, name: str, valid: Iterable[str]) -> str:
    """Return the message for an unknown name: the nearest valid one, or all of them.

    Example:
        >>> unknown_name("method", "fedprot", ["fedavg", "fedproto"])
        "unknown method 'fedprot': did you mean 'fedproto'? Valid: fedavg, fedproto"
    """
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"unknown {kind} {name!r}: {hint}Valid: {', '.join(names) or 'none'}"
