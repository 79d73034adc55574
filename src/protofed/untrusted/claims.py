"""Strict validation of names, numbers and settings that come from untrusted parties.

The author of a node's description and answers, a federation folder's ``client.toml`` or a partition file is not
trusted. All functions check type and range before anything is allocated, and raise ``ValueError`` with the reason
only; callers add the source.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from protofed.errors import unknown_name
from protofed.untrusted import limits

COUNTS = ("exact", "coarse", "none")
"""Disclosures of sample counts: exactly, as the next power of two, or only the classes."""
EVEN = "even"
"""Disclosure of a client whose samples are protected: their number, dealt evenly among all classes."""
PRIVATE = "private"
"""Name in a description for a model that only the node can build."""

_ARCHITECTURE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_CALLABLE = re.compile(r"(?=.{3,256}$)[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)


def clean(text: object, most: int = limits.REASON) -> str:
    """Return the ``str`` of any object as one printable line, cut to ``most`` characters."""
    shown = str(text)[: 4 * most]
    visible = "".join(c if unicodedata.category(c)[0] not in "CZ" else " " for c in shown)
    line = " ".join(visible.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


# Names.


def client_name(value: object) -> str:
    """Return a client's name in Unicode's composed form.

    A name may contain letters of any script, digits, inner spaces, dashes and underscores, because it becomes the
    name of a folder.

    Example:
        >>> client_name("Köln 2")
        'Köln 2'
    """
    text = _text(value, "a name", 4 * limits.CLIENT_NAME)
    name = unicodedata.normalize("NFC", text)
    if not name or any(not _names(c) for c in name) or name != name.strip(" ") or not _starts(name[0]):
        raise ValueError(f"name {clean(name, 80)!r}: use letters, digits, inner spaces, '-' and '_' only")
    if len(name) > limits.CLIENT_NAME or len(name.encode()) > limits.CLIENT_NAME_BYTES:
        raise ValueError(
            f"name {clean(name, 40)!r}: {len(name)} characters of {len(name.encode())} bytes, at most "
            f"{limits.CLIENT_NAME} of {limits.CLIENT_NAME_BYTES} are allowed"
        )
    return name


def twin(name: str) -> str:
    """Return a normal form shared by names that some file systems, or readers, cannot tell apart."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def class_name(value: object) -> str:
    """Return the name of a class: printable text of bounded length."""
    name = _text(value, "a class name", limits.CLASS_NAME)
    if not name or any(unicodedata.category(c)[0] == "C" for c in name):
        raise ValueError(f"class name {clean(name, 80)!r}: expected printable text")
    return name


def class_names(values: object) -> tuple[str, ...]:
    """Return distinct names of classes from a list of bounded length."""
    names = tuple(class_name(v) for v in items(values, "classes", limits.CLASSES))
    if len(set(names)) < len(names):
        raise ValueError(f"classes: {clean(Counter(names).most_common(1)[0][0], 80)!r} occurs more than once")
    return names


def identifier(value: object, what: str) -> str:
    """Return the name of a network, a prediction rule or a term of a loss: a short identifier."""
    if not isinstance(value, str) or not _IDENTIFIER.fullmatch(value):
        raise ValueError(f"{what} {clean(value, 40)!r}: expected up to 64 letters, digits and underscores")
    return value


# Numbers.


def whole(value: object, what: str, least: int, most: int) -> int:
    """Return an integer in ``[least, most]``.

    Raises:
        ValueError: If it is out of range or not an ``int`` (a bool, a float or text is not accepted).
    """
    if type(value) is not int:
        raise ValueError(f"{what}: expected a whole number, not {shown(value)}")
    if not least <= value <= most:
        raise ValueError(f"{what}: must be from {least} to {most}, not {shown(value)}")
    return value


def number(value: object, what: str, above: float, most: float) -> float:
    """Return a finite ``int`` or ``float`` in ``(above, most]``."""
    if type(value) not in (int, float):
        raise ValueError(f"{what}: expected a number, not {shown(value)}")
    if not above < value <= most:  # type: ignore[operator]  # also refuses NaN
        raise ValueError(f"{what}: must be above {above:g} and at most {most:g}, not {shown(value)}")
    return float(value)  # type: ignore[arg-type]


def flag(value: object, what: str) -> bool:
    """Return a bool.

    Raises:
        ValueError: 0 and 1 are not accepted.
    """
    if type(value) is not bool:
        raise ValueError(f"{what}: expected true or false, not {shown(value)}")
    return value


def counts(values: object, what: str, classes: int, kind: str) -> tuple[int, ...]:
    """Return sample counts, one per class.

    Args:
        kind: Degree of disclosure, one of :data:`COUNTS`.
    """
    checked = tuple(whole(v, what, 0, limits.CLAIMED_SAMPLES) for v in items(values, what, limits.CLASSES))
    if len(checked) != classes:
        raise ValueError(f"{what}: {len(checked)} counts do not fit {classes} classes")
    if sum(checked) > limits.CLAIMED_SAMPLES:
        raise ValueError(f"{what}: {sum(checked)} samples, at most {limits.CLAIMED_SAMPLES} are allowed")
    if any(n != withheld(n, kind) for n in checked):
        raise ValueError(f"{what}: not {kind} counts: expected {'0 or 1' if kind == 'none' else 'powers of two'}")
    return checked


def withheld(count: int, kind: str) -> int:
    """Return the disclosed form of a sample count.

    Args:
        kind: One of :data:`COUNTS`, or :data:`EVEN`.

    Returns:
        The count itself, the next power of two, or 1 if there are any samples; 0 stays 0.
    """
    if kind in ("exact", EVEN) or not count:
        return count
    return 1 if kind == "none" else 1 << (count - 1).bit_length()


def shape(values: object) -> tuple[int, ...]:
    """Return the shape of a sample: a list of positive integers with a bounded product."""
    sides = items(values, "input_shape", limits.INPUT_DIMENSIONS)
    checked = tuple(whole(side, "input_shape", 1, limits.INPUT_SIDE) for side in sides)
    if (size := math.prod(checked)) > limits.INPUT_NUMBERS:
        raise ValueError(f"input_shape: {size} numbers per sample, at most {limits.INPUT_NUMBERS} are allowed")
    return checked


# Settings.


def model(value: object) -> str:
    """Return the name of an architecture, or ``package.module:callable``, which is not imported."""
    if isinstance(value, str) and (_ARCHITECTURE.fullmatch(value) or _CALLABLE.fullmatch(value)):
        return value
    raise ValueError(f"model {shown(value)}: expected the name of an architecture, or package.module:callable")


SETTINGS: dict[str, Callable[[object], Any]] = {
    "model": model,
    "d": lambda v: whole(v, "d", 1, 2**16),
    "epochs": lambda v: whole(v, "epochs", 1, 1000),
    "batch_size": lambda v: whole(v, "batch_size", 1, 10**6),
    "lr": lambda v: number(v, "lr", 0.0, 10.0),
    "counts": lambda v: one_of(v, "counts", COUNTS),
    "least_samples": lambda v: whole(v, "least_samples", 0, limits.CLAIMED_SAMPLES),
}
"""Settings that a client may choose in its ``client.toml``, with the functions that validate them."""


def settings(values: object) -> dict[str, Any]:
    """Return a client's settings."""
    table = mapping(values, "settings", SETTINGS, complete=False)
    return {name: SETTINGS[name](value) for name, value in table.items()}


def one_of(value: object, what: str, choices: Collection[str]) -> str:
    """Return a string that is one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        *others, last = choices
        raise ValueError(f"{what}: must be {', '.join(others)} or {last}, not {shown(value)}")
    return value


# Structures.


def parse(text: object, what: str, most: int = limits.JSON_CHARACTERS) -> Any:
    """Return the value of a JSON text of at most ``most`` characters, without NaN and infinities."""
    if not isinstance(text, str):
        raise ValueError(f"{what}: expected text, not {shown(text)}")
    if len(text) > most:
        raise ValueError(f"{what}: {len(text)} characters, at most {most} are allowed")
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError(f"{what}: not JSON (nested too deeply)") from None
    except (ValueError, MemoryError) as error:
        raise ValueError(f"{what}: not JSON ({clean(error, 120)})") from None


def items(values: object, what: str, most: int) -> Sequence[Any]:
    """Return a list of at most ``most`` items."""
    if not isinstance(values, (list, tuple)):
        raise ValueError(f"{what}: expected a list, not {shown(values)}")
    if len(values) > most:
        raise ValueError(f"{what}: {len(values)} entries, at most {most} are allowed")
    return values


def mapping(values: object, what: str, keys: Iterable[str], *, complete: bool = True) -> Mapping[str, Any]:
    """Return a table that has only the allowed ``keys``, if ``complete`` all of them."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{what}: expected a table, not {shown(values)}")
    for key in values:
        if key not in keys:
            raise ValueError(unknown_name(what.removesuffix("s"), clean(key, 40), keys))
    for key in keys if complete else ():
        if key not in values:
            raise ValueError(f"{what}: {key} is missing")
    return values


def _text(value: object, what: str, most: int) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected {what}, not {shown(value)}")
    if len(value) > most:
        raise ValueError(f"{what} has {len(value)} characters, at most {most} are allowed")
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise ValueError(f"{what} contains an unpaired surrogate: expected Unicode text")
    return value


def _names(character: str) -> bool:
    """Return whether a character is allowed in client names: letters with their marks, digits and three others."""
    return character in " -_" or unicodedata.category(character) in ("Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Nd")


def _starts(character: str) -> bool:
    """Return whether a name may start with a character; a combining mark would join the preceding text."""
    return unicodedata.category(character)[0] != "M"


def shown(value: object) -> str:
    """Return a short description of any value."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, (list, tuple, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    return clean(repr(value[:120] if isinstance(value, (str, bytes)) else value), 80)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
