"""Whose client is whose: names bound to the keys of the nodes that bring them.

What this rests on: with ``--enable-supernode-auth`` the SuperLink checks on every request of a node that it is
signed with the private half of the key under which the node was registered, and tells the ServerApp the public half
(``Grid.get_nodes``). Without node authentication every SuperNode makes up a key when it starts; nodes are then
believed with ``identity="name"``, or one that restarts counts as a stranger.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from protofed import claims
from protofed.errors import ConfigError

Identity = Literal["key", "name"]
IDENTITIES = ("key", "name")
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_PUBLIC = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


@dataclass
class Bindings:
    """Which key brings which clients.

    Attributes:
        keys: Fingerprint of each client's key; empty where a node shows none.
        closed: Whether only these clients may take part.
        by: ``key``, or ``name`` to believe what nodes say they are.
        per_key: How many clients a key may bring.
    """

    keys: dict[str, str] = field(default_factory=dict)
    closed: bool = False
    by: Identity = "key"
    per_key: int = 1

    def refusal(self, name: str, key: str) -> str:
        """Return why a node with ``key`` may not bring client ``name``; empty if it may."""
        if name not in self.keys:
            return self._stranger(name, key)
        if self.by == "key" and self.keys[name] != key:
            return f"says it is {name}, whose key is {self.keys[name] or 'none'}, not {key or 'none'}"
        return ""

    def _stranger(self, name: str, key: str) -> str:
        if self.closed:
            return f"says it is {name}, whom the roster does not name"
        same = next((other for other in self.keys if claims.twin(other) == claims.twin(name)), None)
        if same is not None:
            return f"says it is {name}, which reads as {same}"
        if self.by == "key" and key and len(own := self.names(key)) >= self.per_key:
            return (
                f"says it is {name}, but its key is that of {', '.join(own)}: allow clients-per-node={len(own) + 1}"
            )
        return ""

    def bind(self, name: str, key: str) -> None:
        """Let ``key`` alone bring client ``name`` from now on."""
        self.keys.setdefault(name, key)

    def names(self, key: str) -> list[str]:
        """Return the clients that a key brings."""
        return [name for name, other in self.keys.items() if other == key]


def fingerprint(key: bytes) -> str:
    """Return a public key's fingerprint as ``ssh-keygen -lf node1.pub`` prints it; empty for what is no key.

    Args:
        key: PEM, as Flower keeps it, or OpenSSH's one line.
    """
    try:
        load = (
            serialization.load_ssh_public_key if not key.startswith(b"-----") else serialization.load_pem_public_key
        )
        blob = load(key).public_bytes(*_PUBLIC).split()[1]
    except (ValueError, TypeError, UnsupportedAlgorithm, IndexError, AttributeError):
        return ""
    return "SHA256:" + base64.b64encode(hashlib.sha256(base64.b64decode(blob)).digest()).decode().rstrip("=")


def read_roster(path: Path) -> dict[str, str]:
    """Read a JSON file ``{"north": "SHA256:…", "south": "ecdsa-sha2-nistp384 AAAA…"}``.

    Returns:
        The fingerprint of each client's key.

    Raises:
        ConfigError: If the file cannot be read, or a name or a key is none.
    """
    try:
        found = claims.parse(path.read_text(encoding="utf-8"), "roster")
        if not isinstance(found, Mapping) or not found:
            raise ValueError("expected an object from clients' names to public keys or their fingerprints")
        return bound(found)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}): correct the path, or its rights") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def bound(found: Mapping[object, object]) -> dict[str, str]:
    """Return the fingerprint of each client's key from plain values.

    Raises:
        ValueError: If a name or a key is none, or two names read the same.
    """
    keys: dict[str, str] = {}
    for given, key in found.items():
        name = claims.client_name(given)
        print_ = key if isinstance(key, str) and _FINGERPRINT.fullmatch(key) else fingerprint(str(key).encode())
        if not print_:
            raise ValueError(f"{name}: neither a public key nor a fingerprint SHA256:…: {claims.clean(key, 60)!r}")
        other = next((n for n in keys if claims.twin(n) == claims.twin(name)), None)
        if other is not None:
            raise ValueError(f"names {other!r} and {name!r} read the same: rename one")
        keys[name] = print_
    return keys
