"""Rosters for secure aggregation: the names and public keys of a federation's clients, signed by its authority.

A node takes the other clients of a round from such a file, which its operator was given, and never from the server.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from protofed.errors import ConfigError
from protofed.untrusted import claims, limits
from protofed.untrusted.decoding import ClassName, decode, parse
from protofed.untrusted.reading import read_text, reason
from protofed_flower import trust
from protofed_flower.identity import bound, period

FIELDS = ("federation", "from", "until", "clients")
SIGNATURE = "signature"
_ALGORITHM = ec.ECDSA(hashes.SHA384())


_Roster = TypedDict(
    "_Roster", {"federation": ClassName, "from": str, "until": str, "clients": dict[str, str], "signature": str}
)


class SignedRoster(NamedTuple):
    """A roster that an authority signed."""

    federation: str
    start: datetime
    until: datetime
    keys: dict[str, ec.EllipticCurvePublicKey]

    def name(self, key: ec.EllipticCurvePublicKey) -> str:
        """Return the name of the client with a key; "" if there is none."""
        return next((name for name, other in self.keys.items() if other == key), "")


def sign_roster(
    clients: Mapping[str, str],
    authority: ec.EllipticCurvePrivateKey,
    federation: str,
    start: datetime,
    end: datetime,
) -> bytes:
    """Return the content of a roster's file; public keys are in OpenSSH form."""
    try:
        if not federation.strip() or not federation.isprintable():
            raise ValueError(f"name of the federation {claims.clean(federation, 40)!r}: expected printable text")
        keys = {claims.client_name(name): " ".join(key.split()[:2]) for name, key in clients.items()}
        _keys(keys)
        fields = {
            "federation": claims.class_name(federation),
            "from": start.isoformat(timespec="seconds"),
            "until": end.isoformat(timespec="seconds"),
            "clients": keys,
        }
    except ValueError as error:
        raise ConfigError(f"roster: {error}") from None
    signature = authority.sign(_statement(fields), _ALGORITHM)
    text = json.dumps({**fields, SIGNATURE: base64.b64encode(signature).decode()}, indent=2, ensure_ascii=False)
    return f"{text}\n".encode()


def read_signed(path: Path, authority: Path) -> SignedRoster:
    """Read a roster that is valid now."""
    found = read_dated(path, authority)
    trust.check_period(found.start, found.until, path, "the authority")
    return found


def read_dated(path: Path, authority: Path) -> SignedRoster:
    """Read a roster that may be out of its time."""
    certificates = trust.read_authorities(authority)
    try:
        content = parse(read_text(path, limits.JSON_CHARACTERS), "roster")
        if not isinstance(content, Mapping) or SIGNATURE not in content:
            raise ValueError("has no signature: a node needs the roster that the federation's authority has signed")
        fields = decode(content, _Roster, "roster", ValueError, exact=True)
        if not any(_signed(fields, certificate) for certificate in certificates):
            names = ", ".join(trust.full_name(c.subject) for c in certificates)
            raise ValueError(
                f"not signed by {names} ({authority}), or changed since: ask the authority for a new one"
            )
        return SignedRoster(fields["federation"], *period(fields), _keys(fields["clients"]))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {reason(error)}") from None


def _keys(clients: Mapping[str, str]) -> dict[str, ec.EllipticCurvePublicKey]:
    """Return the public keys of clients, given in OpenSSH form by name."""
    keys: dict[str, ec.EllipticCurvePublicKey] = {}
    owners: dict[str, str] = {}
    for name, fingerprint in bound(clients).items():
        try:
            key = serialization.load_ssh_public_key(clients[name].encode())
        except (ValueError, KeyError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError(f"{name}: not an ECDSA public key in OpenSSH form, such as the line of node1.pub")
        if (other := owners.setdefault(fingerprint, name)) != name:
            raise ValueError(f"{other} and {name} have the same key: each client signs with its own")
        keys[name] = key
    return keys


def _statement(fields: Mapping[str, Any]) -> bytes:
    """Return the bytes of a roster that an authority signs."""
    return b"protofed roster\0" + json.dumps({n: fields[n] for n in FIELDS}, sort_keys=True).encode()


def _signed(fields: Mapping[str, Any], authority: x509.Certificate) -> bool:
    """Return whether an authority signed a roster."""
    key = trust.public_key(authority)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    try:
        key.verify(base64.b64decode(str(fields[SIGNATURE])), _statement(fields), _ALGORITHM)
    except (InvalidSignature, ValueError):
        return False
    return True
