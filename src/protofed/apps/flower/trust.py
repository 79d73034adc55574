"""Checks of the trust between a node and its SuperLink: certificates, a TLS handshake, the node's key.

Every error message names the specific problem and its remedy.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from protofed.errors import ConfigError

TIMEOUT = 5.0
"""Seconds to wait for the SuperLink."""
CLOCKS_DIFFER = timedelta(hours=1)
"""Time by which certificates and rosters are backdated, for machines whose clocks are slow."""
NEW_KEY = "`ssh-keygen -t ecdsa -b 384 -N '' -f FILE`"


def split_address(text: str) -> tuple[str, int]:
    """Return host and port."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or "/" in text or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"{text}: expected HOST:PORT without https://, e.g. 10.0.0.5:8443")
    return host, int(port)


def connect(host: str, port: int) -> socket.socket:
    """Open a TCP connection."""
    try:
        return socket.create_connection((host, port), timeout=TIMEOUT)
    except socket.gaierror:
        reason = f"the name {host} cannot be resolved: correct it, or use the machine's address"
    except ConnectionRefusedError:
        reason = "connection refused, no server is listening: start the SuperLink, or correct host and port"
    except TimeoutError:
        reason = f"no answer within {TIMEOUT:g} s: correct the address, or open the port in firewalls between"
    except (OSError, UnicodeError) as error:
        reason = f"cannot be reached ({getattr(error, 'strerror', None) or error}): check address and network"
    raise ConfigError(f"{host}:{port}: {reason}")


def read_authorities(path: Path) -> list[x509.Certificate]:
    """Return the certificates of authorities in a PEM file."""
    content = _read(path)
    if b"PRIVATE KEY-----" in content:
        raise ConfigError(f"{path}: holds a private key: give the authority's certificate, e.g. ca.crt")
    try:
        certificates = x509.load_pem_x509_certificates(content)
    except ValueError:
        raise ConfigError(f"{path}: not a certificate in PEM form (-----BEGIN CERTIFICATE-----)") from None
    for certificate in certificates:
        if certificate.issuer != certificate.subject and not _may_sign(certificate):
            raise ConfigError(
                f"{path}: a server's certificate, not an authority's: give the authority's, e.g. ca.crt"
            )
        _check_dates(certificate, str(path))
    return certificates


def handshake(host: str, port: int, path: Path, authorities: Sequence[x509.Certificate]) -> x509.Certificate:
    """Perform the TLS handshake of a SuperNode and return the SuperLink's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(path)
    try:
        return _shown(host, port, context)
    except ssl.SSLCertVerificationError as error:
        refusal = error
    except OSError as error:  # includes SSLError
        reason = getattr(error, "reason", None) or error.strerror or error
        raise ConfigError(
            f"{host}:{port}: no TLS there ({reason}): start the SuperLink with --ssl-certfile, --ssl-keyfile and "
            "--ssl-ca-certfile, or correct the port"
        ) from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = (
        False,
        ssl.CERT_NONE,
    )  # only to read the certificate; no data are sent
    try:
        shown = _shown(host, port, context)
    except OSError:
        raise ConfigError(f"{host}:{port}: certificate refused: {refusal.verify_message}") from None
    raise ConfigError(f"{host}:{port}: {_reason(refusal, shown, host, path, authorities)}")


def check_key(path: Path) -> str:
    """Check that a SuperNode can use a private key, and describe the key."""
    key = load_key(path)
    mode = path.stat().st_mode & 0o777
    if os.name == "posix" and mode & 0o077:
        raise ConfigError(f"{path}: other users may read or change it (mode {mode:04o}): `chmod 600 {path}`")
    public = path.with_name(f"{path.name}.pub")
    if not public.exists():
        return f"{path}: ECDSA {key.curve.name}, no {public.name} beside it"
    again = f"`ssh-keygen -y -f {path} > {public}`"
    try:
        other = serialization.load_ssh_public_key(_read(public))
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{public}: not a public key in OpenSSH form: {again}") from None
    if other != key.public_key():
        raise ConfigError(f"{public}: belongs to another private key than {path}: {again}, and register that")
    return f"{path}: ECDSA {key.curve.name}, {public.name} matches"


def host_names(certificate: x509.Certificate) -> str:
    """Return the names and addresses for which a certificate is valid."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return "no host at all (no SAN)"
    return ", ".join(str(name.value) for name in names)


def full_name(name: x509.Name) -> str:
    """Return the name of an authority or server."""
    return repr(name.rfc4514_string())


def _may_sign(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _check_dates(certificate: x509.Certificate, where: str) -> None:
    start, end, now = certificate.not_valid_before_utc, certificate.not_valid_after_utc, datetime.now(UTC)
    if now > end:
        raise ConfigError(
            f"{where}: expired on {end:%Y-%m-%d %H:%M} UTC: ask the SuperLink's operator for a new one"
        )
    if now < start:
        raise ConfigError(
            f"{where}: not valid before {start:%Y-%m-%d %H:%M} UTC, and this machine's clock says "
            f"{now:%Y-%m-%d %H:%M}: set the clock, or wait"
        )


def _shown(host: str, port: int, context: ssl.SSLContext) -> x509.Certificate:
    with connect(host, port) as plain, context.wrap_socket(plain, server_hostname=host) as wrapped:
        content = wrapped.getpeercert(binary_form=True)
    assert content is not None  # a TLS server always presents one
    return x509.load_der_x509_certificate(content)


def _reason(
    refusal: ssl.SSLCertVerificationError,
    shown: x509.Certificate,
    host: str,
    path: Path,
    authorities: Sequence[x509.Certificate],
) -> str:
    """Explain OpenSSL's verification error (X509_V_ERR_…)."""
    if refusal.verify_code in (9, 10):  # not yet valid, expired
        try:
            _check_dates(shown, "its certificate")
        except ConfigError as error:
            return str(error)
    if refusal.verify_code in (62, 64):  # mismatch of a name, of an address
        return (
            f"name mismatch: its certificate is for {host_names(shown)}, not for {host}: connect by one of those, "
            f"or have one made with --host {host}"
        )
    if refusal.verify_code in (7, 18, 19, 20, 21):  # signature, self-signed, issuer unknown
        known = ", ".join(full_name(authority.subject) for authority in authorities)
        return (
            f"wrong CA: its certificate was issued by {full_name(shown.issuer)}, but {path} holds {known}: ask the "
            "SuperLink's operator for its ca.crt"
        )
    return f"certificate refused: {refusal.verify_message}"


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the private key of a SuperNode."""
    content = _read(path)
    if content.startswith((b"ecdsa-", b"ssh-", b"sk-")):
        raise ConfigError(f"{path}: a public key: give the private one, the file without .pub")
    if not content.startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----"):
        raise ConfigError(
            f"{path}: not a private key in OpenSSH form: `protofed deploy keys` makes one, or {NEW_KEY}"
        )
    try:
        key = serialization.load_ssh_private_key(content, None)
    except TypeError:
        raise ConfigError(
            f"{path}: has a passphrase, which a SuperNode cannot ask for: drop it, `ssh-keygen -p -N '' -f {path}`"
        ) from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{path}: a damaged or unknown private key ({error}): make a new one, {NEW_KEY}"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        kind = type(key).__name__.removesuffix("PrivateKey").lstrip("_")
        raise ConfigError(f"{path}: a key of type {kind}, but Flower needs ECDSA: {NEW_KEY}")
    return key


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        message = f"{path}: cannot be read ({error.strerror}): correct the path or its permissions"
        raise ConfigError(message) from None
