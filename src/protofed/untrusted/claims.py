"""Names of clients, classes and models that other parties give, and what clients tell of their numbers of samples.

All functions raise ``ValueError`` with the reason only; callers add the source.
"""

from __future__ import annotations

import re
import unicodedata

from protofed.untrusted import limits

COUNTS = ("exact", "coarse", "none")
"""Disclosures of sample counts: exactly, as the next power of two, or only the classes."""
EVEN = "even"  #: Disclosure of a client whose samples are protected: their number, dealt evenly among all classes
PRIVATE = "private"  #: Name in a description for a model that only the node can build

_ARCHITECTURE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_CODE = re.compile(r"(.*\.py|[^\W\d][\w.]*):[^\W\d][\w.]*", re.DOTALL)
_CALLABLE = re.compile(r"(?=.{3,256}$)[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


def is_code(text: str) -> bool:
    """Return whether a text names code: ``package.module:attribute`` or ``file.py:attribute``."""
    return _CODE.fullmatch(text) is not None


def clean(text: object, most: int = limits.REASON) -> str:
    """Return the ``str`` of any object as one printable line, cut to ``most`` characters."""
    shown = str(text)[: 4 * most]
    visible = "".join(c if unicodedata.category(c)[0] not in "CZ" else " " for c in shown)
    line = " ".join(visible.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


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
    if not name or not name.isprintable():
        raise ValueError(f"class name {clean(name, 80)!r}: expected printable text")
    return name


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


def model(value: object) -> str:
    """Return the name of an architecture, or ``package.module:callable``, which is not imported."""
    if isinstance(value, str) and (_ARCHITECTURE.fullmatch(value) or _CALLABLE.fullmatch(value)):
        return value
    raise ValueError(f"model {describe(value)}: expected the name of an architecture, or package.module:callable")


def _text(value: object, what: str, most: int) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected {what}, not {describe(value)}")
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


def describe(value: object) -> str:
    """Return a short description of any value."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, (list, tuple, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    return clean(repr(value[:120] if isinstance(value, (str, bytes)) else value), 80)
