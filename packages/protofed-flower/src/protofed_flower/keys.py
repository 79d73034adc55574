"""Keys, certificates and certificate requests of a federation with TLS and authenticated SuperNodes."""

from __future__ import annotations

import inspect
import ipaddress
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from protofed.errors import ConfigError
from protofed.untrusted.claims import client_name
from protofed_flower.folder import check_new, write_folder
from protofed_flower.identity import fingerprint
from protofed_flower.roster import sign_roster
from protofed_flower.trust import CLOCKS_DIFFER

HOSTS = ("127.0.0.1", "localhost")
SERVER_NAME = "protofed SuperLink"
CURVE = ec.SECP384R1  #: Flower accepts NIST's curves and generates its own keys on this one
CURVES = ("secp256r1", "secp384r1", "secp521r1")  #: NIST's curves: P-256, P-384, P-521
_DNS = re.compile(r"(\*\.)?([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.)*[A-Za-z]([A-Za-z0-9-]*[A-Za-z0-9])?")


class Signed(NamedTuple):
    """A certificate with its private key."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def create_keys(
    directory: Path,
    nodes: int,
    hosts: Sequence[str] = HOSTS,
    days: int = 365,
    clients: Sequence[str] = (),
    federation: str = "trial",
) -> list[Path]:
    """Write ``ca.crt``, ``ca.key``, ``server.pem``, ``server.key``, ``node1``, ``node1.pub`` etc., ``roster.json``.

    The directory is created as a whole or not at all. Only its owner may enter it or read the private keys.

    Args:
        nodes: Those of a trial; 0 where each node makes its own key (see :func:`create_request`).
        hosts: By which nodes reach the SuperLink.
        clients: Each node's client, for the roster; by default the files' names ``node1`` and so on.
    """
    if clients and len(clients) != nodes:
        raise ConfigError(f"--client names {len(clients)} clients, but there are {nodes} nodes: name one for each")
    names = [subject_name(host) for host in hosts]
    check_new(directory, "keys are never overwritten")
    start = datetime.now(UTC) - CLOCKS_DIFFER
    end = start + CLOCKS_DIFFER + timedelta(days=days)
    authority = certificate_authority(start, end, federation)
    files = _pem_files("ca.crt", "ca.key", authority)
    files |= _pem_files("server.pem", "server.key", server_certificate(authority, names, start, end))
    listed = {}
    for number in range(1, nodes + 1):
        made = _node_files(f"node{number}")
        listed[clients[number - 1] if clients else f"node{number}"] = made[f"node{number}.pub"][0].decode()
        files |= made
    if len(listed) < nodes:
        raise ConfigError("--client names a client twice: name one for each node")
    files["roster.json"] = sign_roster(listed, authority.key, federation, start, end), 0o644
    return write_folder(directory, files)


def create_request(directory: Path, site: str) -> str:
    """Write a new private key, ``SITE``, and ``SITE.request``; return the key's fingerprint.

    The key signs the request (PKCS #10), which shows the authority that the site has it.
    """
    try:
        name = client_name(site)
    except ValueError as error:
        raise ConfigError(f"--site: {error}") from None
    check_new(directory, "keys are never overwritten")
    key = ec.generate_private_key(CURVE())
    request = x509.CertificateSigningRequestBuilder().subject_name(_name(name)).sign(key, hashes.SHA384())
    content = request.public_bytes(serialization.Encoding.PEM)
    write_folder(directory, {name: (_openssh(key), 0o600), f"{name}.request": (content, 0o644)})
    return fingerprint(public_line(key.public_key()).encode())


def node_certificate(
    authority: Signed, name: str, key: ec.EllipticCurvePublicKey, start: datetime, end: datetime
) -> bytes:
    """Return the certificate of a node for its key, in PEM form."""
    return _pem(_certificate(authority, name, key, start, end))


def renewed_certificate(authority: Signed, old: x509.Certificate, start: datetime, end: datetime) -> bytes:
    """Return a server's certificate anew, for the same key and hosts, in PEM form."""
    key, san = old.public_key(), old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return _pem(_certificate(authority, SERVER_NAME, key, start, end, san))


def public_line(key: ec.EllipticCurvePublicKey) -> str:
    """Return a public key in OpenSSH's one-line form."""
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def certificate_authority(start: datetime, end: datetime, federation: str = "trial") -> Signed:
    """Create a self-signed certificate authority."""
    key = ec.generate_private_key(CURVE())
    # The number in the name tells the authorities of different trials apart in error messages.
    name = _name(f"protofed {federation} CA {os.urandom(4).hex()}")
    builder = (
        _builder(name, name, key.public_key(), start, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
    )
    return Signed(key, builder.sign(key, hashes.SHA256()))


def server_certificate(
    authority: Signed, hosts: Sequence[x509.GeneralName], start: datetime, end: datetime
) -> Signed:
    """Create a server's certificate."""
    key = ec.generate_private_key(CURVE())
    san = x509.SubjectAlternativeName(hosts)
    return Signed(key, _certificate(authority, SERVER_NAME, key.public_key(), start, end, san))


def _certificate(
    authority: Signed,
    name: str,
    key: ec.EllipticCurvePublicKey,
    start: datetime,
    end: datetime,
    hosts: x509.SubjectAlternativeName | None = None,
) -> x509.Certificate:
    """Return the certificate of a server with its hosts, or of a node, which cannot sign others."""
    own = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    use = ExtendedKeyUsageOID.CLIENT_AUTH if hosts is None else ExtendedKeyUsageOID.SERVER_AUTH
    builder = (
        _builder(_name(name), authority.certificate.subject, key, start, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        .add_extension(own, critical=False)
    )
    builder = builder if hosts is None else builder.add_extension(hosts, critical=False)
    return builder.sign(authority.key, hashes.SHA256())


def subject_name(host: str, option: str = "--host") -> x509.GeneralName:
    """Return the name or address of a host as certificates state it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if _DNS.fullmatch(host):
            return x509.DNSName(host)
    raise ConfigError(f"{option} {host!r}: expected an IP address or a DNS name, without a port, e.g. 10.0.0.5")


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(text: str) -> x509.Name:
    try:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
    except ValueError:
        raise ConfigError(
            f"{text!r}: {len(text.encode())} bytes, but a certificate's name has at most 64"
        ) from None


def _usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{use: use in allowed for use in inspect.signature(x509.KeyUsage).parameters})


def _pem_files(certificate: str, key: str, signed: Signed) -> dict[str, tuple[bytes, int]]:
    private = signed.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {certificate: (_pem(signed.certificate), 0o644), key: (private, 0o600)}


def _node_files(name: str) -> dict[str, tuple[bytes, int]]:
    key = ec.generate_private_key(CURVE())
    public = f"{public_line(key.public_key())} {name}\n"
    return {name: (_openssh(key), 0o600), f"{name}.pub": (public.encode(), 0o644)}


def _openssh(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
