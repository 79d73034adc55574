"""Rosters for secure aggregation: the names and public keys of a federation's clients, signed by its authority.

A node takes the other clients of a round from such a file, which its operator was given, and never from the server.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from protofed import claims, limits
from protofed.errors import ConfigError
from protofed.flower import trust
from protofed.flower.identity import bound
from protofed.privacy.secure import FEWEST
from protofed.privacy.secure_peers import KnownPeers, Peers
from protofed.privacy.secure_protocol import TRUSTING
from protofed.reading import read_text, reason

FIELDS = ("federation", "from", "until", "clients")
SIGNATURE = "signature"
SETTINGS = ("roster", "authority", "key")
"""Files that a node needs for secure aggregation, in ``--node-config``."""
_ALGORITHM = ec.ECDSA(hashes.SHA384())


class SignedRoster(NamedTuple):
    """A roster that an authority signed.

    Attributes:
        federation: Name of the federation.
        until: End of its validity.
        keys: Public key of each client, by name.
    """

    federation: str
    until: datetime
    keys: dict[str, ec.EllipticCurvePublicKey]

    def names(self, key: ec.EllipticCurvePublicKey) -> list[str]:
        """Return the names of the clients with a key."""
        return [name for name, other in self.keys.items() if other == key]


def sign_roster(
    clients: Mapping[str, str],
    authority: ec.EllipticCurvePrivateKey,
    federation: str,
    start: datetime,
    days: int,
) -> bytes:
    """Return the content of a roster's file.

    Args:
        clients: Public key of each client in OpenSSH form, by name.
        authority: The authority's private key.
        federation: Name of the federation.
        start: Start of its validity.
        days: Validity in days.

    Raises:
        ConfigError: If a name or a key is invalid, or occurs twice.
    """
    try:
        fields = {
            "federation": claims.class_name(federation),
            "from": start.isoformat(timespec="seconds"),
            "until": (start + timedelta(days=days)).isoformat(timespec="seconds"),
            "clients": dict(clients),
        }
        _keys(clients)
    except ValueError as error:
        raise ConfigError(f"roster: {error}") from None
    signature = authority.sign(_statement(fields), _ALGORITHM)
    text = json.dumps({**fields, SIGNATURE: base64.b64encode(signature).decode()}, indent=2, ensure_ascii=False)
    return f"{text}\n".encode()


def read_signed(path: Path, authority: Path) -> SignedRoster:
    """Read a roster.

    Args:
        path: The roster.
        authority: PEM file of the authority's certificate.

    Raises:
        ConfigError: If either file is unreadable, or the roster invalid, expired or not signed by the authority.
    """
    certificates = trust.read_authorities(authority)
    try:
        content = claims.parse(read_text(path, limits.JSON_CHARACTERS), "roster")
        if not isinstance(content, Mapping) or SIGNATURE not in content:
            raise ValueError("has no signature: a node needs the roster that `protofed deploy roster` has signed")
        fields = claims.mapping(content, "roster", (*FIELDS, SIGNATURE))
        if not any(_signed(fields, certificate) for certificate in certificates):
            names = ", ".join(trust.full_name(c.subject) for c in certificates)
            raise ValueError(
                f"not signed by {names} ({authority}), or changed since: ask the authority for a new one"
            )
        start, until = (datetime.fromisoformat(str(fields[name])) for name in ("from", "until"))
        now = datetime.now(UTC)
        if not start <= now <= until:
            raise ValueError(
                f"valid from {start:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC, and this machine's clock says "
                f"{now:%Y-%m-%d %H:%M}: ask the authority for a new one, or set the clock"
            )
        return SignedRoster(claims.class_name(fields["federation"]), until, _keys(fields["clients"]))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path}: {reason(error)}") from None


def client_keys(pairs: Sequence[str]) -> dict[str, str]:
    """Return the public key of each client, by name.

    Args:
        pairs: Names with files of public keys, as ``NAME=FILE``.

    Raises:
        ConfigError: If an item has another form, a file cannot be read, or a name occurs twice.
    """
    keys: dict[str, str] = {}
    for pair in pairs:
        name, separator, file = pair.partition("=")
        if not separator or name in keys:
            raise ConfigError(f"--client {pair}: expected NAME=FILE, each name once, e.g. north=north.pub")
        try:
            keys[name] = " ".join(read_text(Path(file).expanduser(), limits.JSON_CHARACTERS).split()[:2])
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file}: {reason(error)}") from None
    return keys


def check_secure(config: Mapping[str, Any], name: str, secure: bool) -> None:
    """Check that a node and a run agree on secure aggregation, before any training.

    Args:
        config: The node's configuration.
        name: The node's client.
        secure: Whether the run has secure aggregation.

    Raises:
        ConfigError: If they do not.
    """
    if secure:
        peers_of(config, name)
    elif "roster" in config:
        raise ConfigError(
            "secure.aggregation=false, but this node has a roster, and its uploads leave it in sums only: set "
            "secure.aggregation=true, or take the roster out of --node-config"
        )


def peers_of(config: Mapping[str, Any], name: str) -> Peers:
    """Return what a node takes for true about the other clients of a round.

    Args:
        config: The node's configuration.
        name: The node's client.

    Raises:
        ConfigError: If a node of a deployment has no roster, or its roster, authority, key and settings do not fit.
    """
    if "client-dir" not in config:
        return TRUSTING  # a simulation, whose nodes and server are one program
    missing = [setting for setting in SETTINGS if setting not in config]
    if missing:
        raise ConfigError(
            f"secure aggregation: the node has no {missing[0]} to know the other clients by: add "
            + " ".join(f'{setting}="FILE"' for setting in missing)
            + " to --node-config"
        )
    roster, authority, key = (Path(str(config[setting])).expanduser() for setting in SETTINGS)
    private, found = trust.load_key(key), read_signed(roster, authority)
    if name not in found.keys:
        raise ConfigError(f"{roster}: does not list {name}: ask the authority for one that does")
    if found.keys[name] != private.public_key():
        raise ConfigError(f"{roster}: lists {name} with another key than {key}: correct one of them")
    try:
        least = claims.whole(config.get("least-peers", FEWEST - 1), "least-peers", FEWEST - 1, limits.CLIENTS)
        threshold = claims.whole(config.get("least-threshold", FEWEST), "least-threshold", FEWEST, limits.CLIENTS)
    except ValueError as error:
        raise ConfigError(f"{error} (in --node-config)") from None
    return KnownPeers(private, found.keys, found.federation, least, threshold)


def _keys(clients: object) -> dict[str, ec.EllipticCurvePublicKey]:
    """Return the public keys of clients, given in OpenSSH form by name.

    Raises:
        ValueError: If a name or a key is invalid, or two clients have the same.
    """
    if not isinstance(clients, Mapping) or not clients:
        raise ValueError("clients: expected a table of public keys by name")
    keys: dict[str, ec.EllipticCurvePublicKey] = {}
    owners: dict[str, str] = {}
    for name, fingerprint in bound(clients).items():
        try:
            key = serialization.load_ssh_public_key(str(clients[name]).encode())
        except (ValueError, KeyError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError(f"{name}: not an ECDSA public key in OpenSSH form, such as the line of node1.pub")
        if (other := owners.setdefault(fingerprint, name)) != name:
            raise ValueError(f"{other} and {name} have the same key: each client signs with its own")
        keys[name] = key
    return keys


def _statement(fields: Mapping[str, Any]) -> bytes:
    """Return what an authority signs of a roster."""
    return b"protofed roster\0" + json.dumps({n: fields[n] for n in FIELDS}, sort_keys=True).encode()


def _signed(fields: Mapping[str, Any], authority: x509.Certificate) -> bool:
    """Return whether an authority signed a roster."""
    key = authority.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    try:
        key.verify(base64.b64decode(str(fields[SIGNATURE])), _statement(fields), _ALGORITHM)
    except (InvalidSignature, ValueError):
        return False
    return True
