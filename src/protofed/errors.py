"""Errors that a user can act on. Each message is one line that says what is wrong, where, and how to fix it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_LONGEST = 2000  #: Maximum number of characters of a message, because names and values in it may have any length


class ProtofedError(Exception):
    """Base class of all errors that protofed raises deliberately; the CLI prints them as a single line.

    Messages contain names of files and clients, so non-printable characters are escaped. They may hold values of
    samples too, so that of an error at a node the server is told the code alone, and what comes with it.

    Attributes:
        code: Of ``protofed_flower.refusals.CODES``.
        option: Dotted name of the option concerned; "" for none.
        names: Names of classes or columns that do not fit, if they may be told.
    """

    code = "fault"

    def __init__(self, message: str = "", *, code: str = "", option: str = "", names: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.code = code or type(self).code
        self.option = option
        self.names = tuple(names)

    def __str__(self) -> str:
        """Return the message as one line of moderate length."""
        message = super().__str__()
        return printable(message if len(message) <= _LONGEST else message[:_LONGEST] + "…")


class ConfigError(ProtofedError):
    """An invalid option, name or recipe."""

    code = "settings"


class RefusalError(ConfigError):
    """What a node does not do for a server, whatever the message says."""


def refusal(code: str, option: str = "", text: str = "", names: Iterable[str] = ()) -> RefusalError:
    """Return a refusal, with what the server is told of it and a sentence for the node's log."""
    return RefusalError(text or f"{option}: {code}", code=code, option=option, names=names)


class OptionError(ConfigError, ValueError):
    """A value outside the range of its option."""


class DataError(ProtofedError):
    """Data that are missing, unreadable or inconsistent with their declaration."""

    code = "data"


class MissingDataError(DataError):
    """A ``data.path`` at which nothing is."""


class ModelError(ProtofedError):
    """A model that cannot be built or split, or does not accept the data."""

    code = "model"


class PayloadError(ProtofedError):
    """A message that violates its schema."""

    code = "request"


class DivergedError(PayloadError):
    """A message with numbers that are not finite or too large, as sent by a diverged model."""

    code = "diverged"


class FederationError(ProtofedError):
    """A round that could not be completed, because clients are missing or returned nothing usable."""


class CheckpointError(ProtofedError):
    """A run directory or checkpoint that cannot be read or continued."""

    code = "state"


class OutputError(ProtofedError):
    """A file that cannot be written: the disk is full, the folder read-only, missing or used by another process."""

    code = "disk"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert an OSError inside the block to an OutputError that names ``path``."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(
            f"{path}: cannot be written ({reason}); existing files are unchanged, and --resume continues a run"
        ) from None


def printable(text: str) -> str:
    r"""Return a text with non-printable characters (line ends, control codes, text directions) escaped.

    Example:
        >>> print(printable("a\nb\x1b[31m"))
        a\nb\x1b[31m
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def require(condition: bool, message: str) -> None:
    """Raise ConfigError unless a condition holds."""
    if not condition:
        raise ConfigError(message)


INSTEAD = {
    ("robust.rule", "krum"): "is gone: use multi_krum, which compares uploads alike and keeps more than one",
    ("codec", "int4"): "is gone: use int8, of which a message takes twice the bytes",
    ("model", "timm"): "is gone: use model.name=timm:create_model with model.options",
    ("model", "googlenet"): "is gone: use model.name=torchvision.models:googlenet",
    ("model", "transformers"): "is gone: docs/examples/hugging_face_net.py has it",
    ("encoder", "transformers"): "is gone: docs/examples/hugging_face_net.py has it",
    ("option of cnn4", "batch_norm"): "is gone: leave it out, or use model.norm",
    ("option of encoder.options", "threshold"): "is gone: leave it out",
    ("option of data.options", "side"): "is gone: leave it out, images have the side of the first data set",
    ("option of data.options", "turns"): "is gone: leave it out",
    ("partition", "file"): "is gone: write clients/NAME/train.npz and test.npz, and name the folder by data.path",
    ("figure", "surface"): "is gone: the comparison's grid.csv has the number of every combination",
    ("figure", "alignment"): "is ProtoNorm's: protofed reproduce in a checkout draws it",
    ("tracker", "trackio"): "is gone: derive one from protofed.experiments.tracking.Tracker",
    ("engine", "flower"): "needs protofed-flower: pip install protofed-flower",
}
"""What to do about names that earlier versions had, or that distributions have which are not installed."""


def unknown_name(kind: str, name: str, valid: Iterable[str]) -> str:
    """Return the error message for an unknown name, with the nearest valid name and all valid names.

    Example:
        >>> unknown_name("method", "FEDPROTO", ["fedavg", "fedproto"])
        "unknown method 'FEDPROTO': did you mean 'fedproto'? Valid: fedavg, fedproto"
    """
    if instead := INSTEAD.get((kind, name)):
        return f"{kind} {name!r} {instead}"
    names = sorted(set(valid))
    close = [n for n in names if n.lower() == name.lower()] or difflib.get_close_matches(name, names, 1, 0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"unknown {kind} {name!r}: {hint}Valid: {', '.join(names) or 'none'}"
