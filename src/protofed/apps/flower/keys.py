"""Certificates and node keys for a trial of a real federation with TLS and authenticated SuperNodes."""

from __future__ import annotations

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

from protofed.apps.flower.folder import check_new, write_folder
from protofed.apps.flower.roster import sign_roster
from protofed.apps.flower.trust import CLOCKS_DIFFER
from protofed.errors import ConfigError

HOSTS = ("127.0.0.1", "localhost")
CURVE = ec.SECP384R1
"""Flower accepts NIST's curves (P-256, P-384, P-521) and generates its own keys on this one."""
_DNS = re.compile(r"(\*\.)?([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.)*[A-Za-z]([A-Za-z0-9-]*[A-Za-z0-9])?")


class Signed(NamedTuple):
    """A certificate with its private key."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def create_keys(
    directory: Path, nodes: int, hosts: Sequence[str] = HOSTS, days: int = 365, clients: Sequence[str] = ()
) -> list[Path]:
    """Write ``ca.crt``, ``ca.key``, ``server.pem``, ``server.key``, ``node1``, ``node1.pub`` etc., ``roster.json``.

    The directory is created as a whole or not at all. Only its owner may enter it or read the private keys.

    Args:
        hosts: By which nodes reach the SuperLink.
        clients: Each node's client, for the roster; by default the files' names ``node1`` and so on.
    """
    if clients and len(clients) != nodes:
        raise ConfigError(f"--client names {len(clients)} clients, but there are {nodes} nodes: name one for each")
    names = [_subject_name(host) for host in hosts]
    check_new(directory, "keys are never overwritten")
    start = datetime.now(UTC) - CLOCKS_DIFFER
    end = start + CLOCKS_DIFFER + timedelta(days=days)
    authority = certificate_authority(start, end)
    files = _pem_files("ca.crt", "ca.key", authority)
    files |= _pem_files("server.pem", "server.key", server_certificate(authority, names, start, end))
    listed = {}
    for number in range(1, nodes + 1):
        made = _node_files(f"node{number}")
        listed[clients[number - 1] if clients else f"node{number}"] = made[f"node{number}.pub"][0].decode()
        files |= made
    if len(listed) < nodes:
        raise ConfigError("--client names a client twice: name one for each node")
    files["roster.json"] = sign_roster(listed, authority.key, "trial", start, end), 0o644
    return write_folder(directory, files)


def certificate_authority(start: datetime, end: datetime) -> Signed:
    """Create a self-signed certificate authority."""
    key = ec.generate_private_key(CURVE())
    # The number in the name tells the authorities of different trials apart in error messages.
    name = _name(f"protofed trial CA {os.urandom(4).hex()}")
    usage = _usage(key_cert_sign=True, crl_sign=True)
    builder = (
        _builder(name, name, key, start, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return Signed(key, builder.sign(key, hashes.SHA256()))


def server_certificate(
    authority: Signed, hosts: Sequence[x509.GeneralName], start: datetime, end: datetime
) -> Signed:
    """Create a server's certificate."""
    key = ec.generate_private_key(CURVE())
    issuer = authority.certificate
    builder = (
        _builder(_name("protofed trial SuperLink"), issuer.subject, key, start, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False
        )
    )
    return Signed(key, builder.sign(authority.key, hashes.SHA256()))


def _subject_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if _DNS.fullmatch(host):
            return x509.DNSName(host)
    raise ConfigError(f"--host {host!r}: expected an IP address or a DNS name, without a port, e.g. 10.0.0.5")


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _pem_files(certificate: str, key: str, signed: Signed) -> dict[str, tuple[bytes, int]]:
    private = signed.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        certificate: (signed.certificate.public_bytes(serialization.Encoding.PEM), 0o644),
        key: (private, 0o600),
    }


def _node_files(name: str) -> dict[str, tuple[bytes, int]]:
    key = ec.generate_private_key(CURVE())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return {name: (private, 0o600), f"{name}.pub": (public + f" {name}\n".encode(), 0o644)}
