"""Identity of clients: names bound to the keys of the nodes that hold the clients.

With ``--enable-supernode-auth``, the SuperLink verifies that every request of a node is signed with the private
half of the key under which the node was registered, and gives the public half to the ServerApp
(``Grid.get_nodes``). Without node authentication, every SuperNode generates a key when it starts, so a restarted
node counts as a stranger.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from protofed.errors import ConfigError
from protofed.untrusted import claims, limits
from protofed.untrusted.decoding import decode, parse
from protofed.untrusted.reading import read_text
from protofed_flower import trust

_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_PUBLIC = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


@dataclass
class Bindings:
    """The key to which each client's name is bound."""

    keys: dict[str, str] = field(default_factory=dict)  #: Fingerprint by client; "" if its node shows none
    closed: bool = False  #: Only these clients may take part
    simulated: bool = False  #: All nodes belong to the run, so names need no key, and a node may bring many

    def refusal(self, name: str, key: str) -> str:
        """Return why a node with this key fingerprint ("" for none) may not hold a client; "" if it may."""
        if name in self.keys:
            known = self.simulated or self.keys[name] == key
            return (
                "" if known else f"says it is {name}, whose key is {self.keys[name] or 'none'}, not {key or 'none'}"
            )
        if self.closed:
            return f"says it is {name}, which the roster does not list"
        same = next((other for other in self.keys if claims.twin(other) == claims.twin(name)), None)
        if same is not None:
            return f"says it is {name}, which reads as {same}"
        if not self.simulated and key and (names := self.names(key)):
            return f"says it is {name}, but its key is that of {', '.join(names)}"
        return ""

    def bind(self, name: str, key: str) -> None:
        """Bind a client to a key fingerprint ("" for none), unless it is bound already."""
        self.keys.setdefault(name, key)

    def names(self, key: str) -> list[str]:
        """Return the names bound to a key."""
        return [name for name, other in self.keys.items() if other == key]


def fingerprint(key: bytes) -> str:
    """Return the fingerprint of a PEM or OpenSSH public key as ``ssh-keygen -lf`` prints it; "" if invalid."""
    try:
        load = (
            serialization.load_ssh_public_key if not key.startswith(b"-----") else serialization.load_pem_public_key
        )
        blob = load(key).public_bytes(*_PUBLIC).split()[1]
    except (ValueError, TypeError, UnsupportedAlgorithm, IndexError, AttributeError):
        return ""
    return "SHA256:" + base64.b64encode(hashlib.sha256(base64.b64decode(blob)).digest()).decode().rstrip("=")


class KnownClients(NamedTuple):
    """What a roster says."""

    keys: dict[str, str]  #: Each client's fingerprint
    end: datetime | None  #: Of a roster that an authority signed; None for another


def period(fields: Mapping[str, object]) -> tuple[datetime, datetime]:
    """Return the beginning and the end of a signed roster; ValueError for anything else."""
    try:
        start, end = (datetime.fromisoformat(str(fields[name])).astimezone(UTC) for name in ("from", "until"))
    except (KeyError, OverflowError) as error:
        raise ValueError(f"roster: no dates ({error})") from None
    return start, end


def read_roster(path: Path) -> KnownClients:
    """Read a JSON file ``{"north": "SHA256:…", "south": "ecdsa-sha2-nistp384 AAAA…"}``.

    A roster that an authority signed is read as well, if it is valid now. The server needs no signature: its
    operator chooses the file.
    """
    try:
        roster, end = parse(read_text(path, limits.JSON_CHARACTERS), "roster"), None
        if isinstance(roster, Mapping) and "signature" in roster:
            start, end = period(roster)
            trust.check_period(start, end, path, "the authority")
            roster = roster.get("clients")
        if not isinstance(roster, Mapping) or not roster:
            raise ValueError("expected an object that maps clients' names to public keys or their fingerprints")
        named = {claims.client_name(name): entry for name, entry in roster.items()}
        return KnownClients(bound(decode(named, dict[str, str], error=ValueError, exact=True)), end)
    except OSError as error:
        message = f"{path}: cannot be read ({error.strerror}): correct the path or its permissions"
        raise ConfigError(message) from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def bound(table: Mapping[str, str]) -> dict[str, str]:
    """Return each client's fingerprint from plain values; ValueError for invalid or equal names or keys."""
    keys: dict[str, str] = {}
    for given, key in table.items():
        name = claims.client_name(given)
        print_ = key if _FINGERPRINT.fullmatch(key) else fingerprint(key.encode())
        if not print_:
            raise ValueError(f"{name}: neither a public key nor a fingerprint SHA256:…: {claims.clean(key, 60)!r}")
        other = next((n for n in keys if claims.twin(n) == claims.twin(name)), None)
        if other is not None:
            raise ValueError(f"names {other!r} and {name!r} read the same: rename one")
        keys[name] = print_
    return keys
