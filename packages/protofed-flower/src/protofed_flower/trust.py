"""Checks of the trust between a node and its SuperLink: certificates, their dates, a TLS handshake, private keys.

Every error message names the specific problem and its remedy.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPSConnection
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from protofed.errors import ConfigError
from protofed.untrusted import limits
from protofed.untrusted.reading import read_bytes
from protofed_flower.folder import check_private

log = logging.getLogger("protofed")
TIMEOUT = 5.0  #: Seconds to wait for the SuperLink
CLOCKS_DIFFER = timedelta(hours=1)
"""Time by which certificates and rosters are backdated, for machines whose clocks are slow."""
SOON = timedelta(days=30)  #: Time before the end of a certificate or roster in which it is warned of
NEW_KEY = "`ssh-keygen -t ecdsa -b 384 -N '' -f FILE`"


def split_address(text: str) -> tuple[str, int]:
    """Return host and port."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or "/" in text or not port.isdecimal() or len(port) > 5 or not 0 < int(port) < 65536:
        raise ConfigError(f"{text[:99]}: expected HOST:PORT without https://, e.g. 10.0.0.5:8443")
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
    certificates = _certificates(path, content)
    for certificate in certificates:
        if certificate.issuer != certificate.subject and not _may_sign(certificate):
            raise ConfigError(
                f"{path}: a server's certificate, not an authority's: give the authority's, e.g. ca.crt"
            )
        check_dates(certificate, path)
    return certificates


def handshake(host: str, port: int, path: Path, authorities: Sequence[x509.Certificate]) -> x509.Certificate:
    """Perform the TLS handshake of a SuperNode and return the SuperLink's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(path)
    try:
        return _fetch_certificate(host, port, context)
    except ssl.SSLCertVerificationError as error:
        refusal = error
    except OSError as error:  # includes SSLError
        reason = getattr(error, "reason", None) or error.strerror or error
        raise ConfigError(
            f"{host}:{port}: no TLS there ({reason}): start the SuperLink with --ssl-certfile, --ssl-keyfile and "
            "--ssl-ca-certfile, or correct the port"
        ) from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # only to read the certificate; no data are sent
    context.verify_mode = ssl.CERT_NONE
    try:
        shown = _fetch_certificate(host, port, context)
    except OSError:
        raise ConfigError(f"{host}:{port}: certificate refused: {refusal.verify_message}") from None
    raise ConfigError(f"{host}:{port}: {_reason(refusal, shown, host, path, authorities)}")


def stated_time(host: str, port: int, path: Path) -> datetime | None:
    """Return the time that a SuperLink states, given the file of its authorities; None if it states none."""
    connection = HTTPSConnection(host, port, timeout=TIMEOUT, context=ssl.create_default_context(cafile=path))
    try:
        connection.request("HEAD", "/")
        found = parsedate_to_datetime(connection.getresponse().headers["Date"])
    except (OSError, HTTPException, TypeError, ValueError):
        return None
    finally:
        connection.close()
    return found if found.tzinfo is not None else None


def check_key(path: Path) -> str:
    """Check that a SuperNode can use a private key, and describe the key."""
    key = load_key(path)
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


def check_issued(path: Path, key: Path, authority: Path) -> datetime:
    """Check that an authority issued a node's certificate for its key; return the end of the certificate."""
    certificate = load_certificate(path)
    if public_key(certificate) != load_key(key).public_key():
        raise ConfigError(f"{path}: is for another key than {key}: ask the authority for the one of this key")
    if not any(issued(certificate, other) for other in read_authorities(authority)):
        raise ConfigError(
            f"{path}: of another federation, issued by {full_name(certificate.issuer)}, not by the authority in "
            f"{authority}: ask that one"
        )
    check_dates(certificate, path, "the authority")
    return certificate.not_valid_after_utc


def load_certificate(path: Path) -> x509.Certificate:
    """Return the first certificate in a PEM file."""
    return _certificates(path, _read(path))[0]


def public_key(certificate: x509.Certificate) -> object:
    """Return the public key in a certificate; None if it is of an unknown kind or damaged."""
    try:
        return certificate.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None


def issued(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Return whether an authority signed a certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


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


def _certificates(path: Path, content: bytes) -> list[x509.Certificate]:
    try:
        found = x509.load_pem_x509_certificates(content)
        for certificate in found:  # parsed when first read
            _ = certificate.issuer, certificate.subject, certificate.extensions
            _ = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    except (ValueError, x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        raise ConfigError(f"{path}: not a certificate in PEM form (-----BEGIN CERTIFICATE-----)") from None
    return found


def _may_sign(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def check_dates(certificate: x509.Certificate, where: object, whom: str = "the SuperLink's operator") -> None:
    """Refuse a certificate that is not valid now."""
    check_period(certificate.not_valid_before_utc, certificate.not_valid_after_utc, where, whom)


def check_period(start: datetime, end: datetime, where: object, whom: str) -> None:
    """Raise unless something is valid now; ``whom`` can renew it."""
    now = datetime.now(UTC)
    clock = f"and this machine's clock says {now:%Y-%m-%d %H:%M}"
    if now > end:
        raise ConfigError(f"{where}: expired on {end:%Y-%m-%d %H:%M} UTC, {clock}: ask {whom} for a new one")
    if now < start:
        raise ConfigError(
            f"{where}: not valid before {start:%Y-%m-%d %H:%M} UTC, {clock}: compare the clocks of the two "
            "machines, set the wrong one, or wait"
        )


def remaining(end: datetime) -> str:
    """Return a warning that something valid ends soon, or "" if it does not."""
    left = end - datetime.now(UTC)
    return f"ends in {left.days} days, ask for a new one" if left < SOON else ""


def log_end(path: Path, end: datetime) -> None:
    """Warn in the log of a file that ends soon."""
    if warning := remaining(end):
        log.warning("%s: valid until %s UTC, %s", path, f"{end:%Y-%m-%d %H:%M}", warning)


def log_certificates(path: Path) -> None:
    """Warn in the log of certificates in a PEM file that end soon or are not valid."""
    try:
        for certificate in _certificates(path, _read(path)):
            check_dates(certificate, path)
            log_end(path, certificate.not_valid_after_utc)
    except ConfigError as error:
        log.warning("%s", error)


def _fetch_certificate(host: str, port: int, context: ssl.SSLContext) -> x509.Certificate:
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
            check_dates(shown, "its certificate")
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
    check_private(path)
    return key


def load_signer(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the private key of an authority."""
    try:
        key = serialization.load_pem_private_key(_read(path), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path}: not an ECDSA private key in PEM form without passphrase, such as ca.key")
    check_private(path)
    return key


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path, limits.PEM_BYTES)
    except OSError as error:
        message = f"{path}: cannot be read ({error.strerror}): correct the path or its permissions"
        raise ConfigError(message) from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}: no file of keys or certificates") from None
