"""The authority of a federation: it approves the keys of sites, and revokes them.

Its folder holds ``ca.key``, ``ca.crt``, the signed ``roster.json``, and for each site ``sites/NAME.pub`` and
``sites/NAME.crt``, but no site's private key. ``revoked.json`` records the keys that have left the roster and never
return.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from protofed.errors import CheckpointError, ConfigError, unknown_name, writing
from protofed.storage.files import json_text, lock, read_json, write_bytes
from protofed.untrusted import claims, limits
from protofed.untrusted.decoding import ClientName, Line, decode
from protofed.untrusted.reading import read_bytes, reason
from protofed_flower import trust
from protofed_flower.identity import fingerprint
from protofed_flower.keys import CURVES, Signed, node_certificate, public_line, renewed_certificate
from protofed_flower.roster import read_dated, sign_roster

CERTIFICATE, KEY, ROSTER, SERVER, REVOKED = "ca.crt", "ca.key", "roster.json", "server.pem", "revoked.json"
SITES = "sites"  #: Folder of the sites' public files, whose names are any


class SiteRequest(NamedTuple):
    """A site's request: its name and the key of its node, which it has shown to have."""

    name: str
    key: ec.EllipticCurvePublicKey


class Approved(NamedTuple):
    """A site whose key was approved, and the fingerprint of the key that it replaced; "" if none."""

    name: str
    fingerprint: str
    replaced: str


@dataclass(frozen=True)
class Revoked:
    """A key that was removed from the roster, and the time in ISO 8601 (UTC)."""

    client: ClientName
    why: Literal["revoked", "replaced"]
    time: Line


@dataclass
class Authority:
    """An authority's folder, which this process alone changes."""

    folder: Path
    signer: Signed
    federation: str
    keys: dict[str, str]  #: Of the roster, by name, in OpenSSH form
    revoked: dict[str, Revoked]  #: By fingerprint

    def revoke(self, name: str, why: Literal["revoked", "replaced"]) -> str:
        """Take a site's key out of the roster; return its fingerprint."""
        print_ = fingerprint(self.keys.pop(name).encode())
        self.revoked[print_] = Revoked(name, why, datetime.now(UTC).isoformat(timespec="seconds"))
        return print_

    def period(self, days: int | None) -> tuple[datetime, datetime]:
        """Return the validity of what is signed now; None for as long as the authority's certificate is valid."""
        now, last = datetime.now(UTC), self.signer.certificate.not_valid_after_utc
        end = last if days is None else min(now + timedelta(days=days), last)
        if days is not None and end < now + timedelta(days=days - 1):
            raise ConfigError(
                f"--days {days}: the authority's certificate ends on {last:%Y-%m-%d}: at most {(last - now).days}, "
                f"or begin anew with `protofed deploy keys … --days {days}`"
            )
        return now - trust.CLOCKS_DIFFER, end

    def save(self, files: dict[str, bytes], start: datetime, end: datetime) -> None:
        """Write files, the record of revoked keys and, last, the roster, each replaced as a whole."""
        roster = sign_roster(self.keys, self.signer.key, self.federation, start, end)
        if self.revoked:
            record = {print_: asdict(entry) for print_, entry in self.revoked.items()}
            files = {**files, REVOKED: json_text(record).encode()}
        for name, content in {**files, ROSTER: roster}.items():
            write_bytes(self.folder / name, content)


def approve(
    folder: Path, requests: Sequence[Path], days: int | None, renew: bool = False
) -> tuple[list[Approved], datetime]:
    """Add sites to the roster; without requests, sign it and the server's certificate for a new period.

    Args:
        days: None for as long as the authority's certificate is valid.
        renew: The sites are in the roster, and their new keys replace the old ones.

    Returns:
        The sites, and the end of what was signed.
    """
    found = [read_request(path) for path in requests]
    with _open_authority(folder) as authority:
        files: dict[str, bytes] = {}
        start, end = authority.period(days)
        approved = []
        for path, (name, key) in zip(requests, found, strict=True):
            approved.append(_admit(authority, path, name, key, renew))
            authority.keys[name] = public_line(key)
            files[f"{SITES}/{name}.pub"] = f"{authority.keys[name]} {name}\n".encode()
            files[f"{SITES}/{name}.crt"] = node_certificate(authority.signer, name, key, start, end)
        if len({name for name, _ in found}) < len(found):
            raise ConfigError("two of the requests are of one site: approve one of them")
        if not requests and (folder / SERVER).exists():
            old = trust.load_certificate(folder / SERVER)
            if not trust.issued(old, authority.signer.certificate):
                raise ConfigError(f"{folder / SERVER}: not of this authority: restore it, or move it away")
            files[SERVER] = renewed_certificate(authority.signer, old, start, end)
        authority.save(files, start, end)
    return approved, end


def _admit(authority: Authority, path: Path, name: str, key: ec.EllipticCurvePublicKey, renew: bool) -> Approved:
    """Check that a site may have a key, and take its old one out of the roster."""
    line = public_line(key)
    print_ = fingerprint(line.encode())
    if (old := authority.revoked.get(print_)) is not None:
        raise ConfigError(
            f"{path}: the key {print_} was {old.why} on {old.time[:10]} (of {old.client}): have the site make a "
            "new one with `protofed deploy request`"
        )
    before = authority.keys.get(name)
    if before is not None and not renew:
        raise ConfigError(
            f"{path}: {name} is in the roster with the key {fingerprint(before.encode())}: --renew replaces it, "
            "if the site has said so over another channel"
        )
    if before is None and renew:
        raise ConfigError(f"{path}: {name} is not in the roster: leave out --renew to add it")
    return Approved(name, print_, authority.revoke(name, "replaced") if before not in (None, line) else "")


def revoke(folder: Path, name: str, days: int | None) -> str:
    """Take a site out of the roster for good; return the fingerprint of its key."""
    name = unicodedata.normalize("NFC", name)
    with _open_authority(folder) as authority:
        if name not in authority.keys:
            raise ConfigError(f"{folder / ROSTER}: {unknown_name('site', name, authority.keys)}")
        print_ = authority.revoke(name, "revoked")
        authority.save({}, *authority.period(days))
        for suffix in ("pub", "crt"):  # so that nobody registers them again
            with writing(folder):
                (folder / SITES / f"{name}.{suffix}").unlink(missing_ok=True)
    return print_


def read_request(path: Path) -> SiteRequest:
    """Read a site's certificate request, and check that whoever made it has the key."""
    try:
        content = read_bytes(path, limits.REQUEST_BYTES)
        if b"PRIVATE KEY-----" in content:
            raise ValueError("holds a private key, which never leaves a site: have a new one made there")
        try:
            request = x509.load_pem_x509_csr(content)
            subject = list(request.subject)
            key, valid = request.public_key(), request.is_signature_valid
        except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion):
            raise ValueError("not a certificate request, such as `protofed deploy request` makes") from None
        if not valid:
            raise ValueError("its signature fails: it was changed, or whoever made it does not have the key")
        if [attribute.oid for attribute in subject] != [NameOID.COMMON_NAME]:
            raise ValueError("its subject is not one common name, that of the site")
        name = claims.client_name(subject[0].value)
        if unicodedata.normalize("NFC", path.stem) != name:
            raise ValueError(f"asks for the name {name}: rename the file to {name}.request if that site sent it")
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in CURVES:
            raise ValueError(f"its key is not one that Flower takes: ECDSA on {', '.join(CURVES)}")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {reason(error)}") from None
    return SiteRequest(name, key)


@contextmanager
def _open_authority(folder: Path) -> Iterator[Authority]:
    """Open an authority's folder for a change; nobody else changes it meanwhile."""
    key, (certificate, *more) = trust.load_signer(folder / KEY), trust.read_authorities(folder / CERTIFICATE)
    if more or trust.public_key(certificate) != key.public_key():
        raise ConfigError(f"{folder / CERTIFICATE}: is not the certificate of {KEY} beside it alone: restore it")
    with (folder / KEY).open("rb") as file:
        if not lock(file.fileno()):
            raise ConfigError(f"{folder}: another process is changing the roster: wait for its end")
        roster = read_dated(folder / ROSTER, folder / CERTIFICATE)
        keys, path = {name: public_line(public) for name, public in roster.keys.items()}, folder / REVOKED
        try:
            record = read_json(path) if path.exists() else {}
            revoked = decode(record, dict[str, Revoked], error=ValueError, exact=True)
        except ValueError as error:
            raise CheckpointError(f"{path}: damaged ({claims.clean(error)}): restore it") from None
        yield Authority(folder, Signed(key, certificate), roster.federation, keys, revoked)
