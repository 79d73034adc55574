"""The archives that a site and the server get: settings, certificates, and files that start the program there."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

import protofed
from protofed.errors import ConfigError
from protofed.storage.files import write_bytes
from protofed.untrusted.claims import client_name
from protofed_flower import trust
from protofed_flower.authority import CERTIFICATE, SERVER
from protofed_flower.keys import subject_name

LOOPBACK = "127.0.0.1"  #: By which the SuperLink's own processes reach it


def create_kit(folder: Path, site: str | None, superlink: str, out: Path) -> None:
    """Write an archive for ``/srv``, the same bytes for the same arguments; it holds no secret.

    Args:
        folder: Of the authority or the server, with ``ca.crt`` and, for the server, ``server.pem``.
        site: Whose archive it is; None for the server's.
        superlink: Address by which nodes reach the SuperLink, as ``HOST:PORT``.
        out: New file.
    """
    try:
        name = "" if site is None else client_name(site)
    except ValueError as error:
        raise ConfigError(f"--site: {error}") from None
    host, port = trust.split_address(superlink)
    host = str(subject_name(host, "--superlink").value)
    if out.exists():
        raise ConfigError(f"{out} is there already: kits are never overwritten: choose a new name with --out")
    authorities = trust.read_authorities(folder / CERTIFICATE)
    certificates = {CERTIFICATE: authorities}
    if site is None:
        certificates[SERVER] = [_server_certificate(folder / SERVER, authorities, host)]
    files = {
        file: b"".join(c.public_bytes(serialization.Encoding.PEM) for c in found)
        for file, found in certificates.items()
    }
    values = {"site": name, "superlink": superlink, "port": str(port), "version": protofed.__version__}
    kind, unpacked = ("server", "protofed-server") if site is None else ("node", "protofed")
    for template in resources.files("protofed_flower").joinpath("templates", kind).iterdir():
        text = template.read_text(encoding="utf-8")
        for field, value in values.items():
            text = text.replace(f"{{{field}}}", value)
        files[template.name] = text.encode()
    write_bytes(out, _archive(unpacked, files))


def _server_certificate(path: Path, authorities: Sequence[x509.Certificate], host: str) -> x509.Certificate:
    """Return the server's certificate if nodes, and the SuperLink's own processes, will accept it."""
    certificate = trust.load_certificate(path)
    trust.check_dates(certificate, path, "the authority")
    if not any(trust.issued(certificate, authority) for authority in authorities):
        raise ConfigError(
            f"{path}: not issued by the authority in {CERTIFICATE}: give the folder of one federation"
        )
    found = trust.host_names(certificate)
    wanted = dict.fromkeys((host, LOOPBACK))
    if not {name.lower() for name in wanted} <= set(found.lower().split(", ")):
        options = " ".join(f"--host {name}" for name in wanted)
        raise ConfigError(
            f"{path}: is for {found}, but nodes reach the SuperLink as {host}, and its own processes as "
            f"{LOOPBACK}: have a certificate made with {options}"
        )
    return certificate


def _archive(folder: str, files: dict[str, bytes]) -> bytes:
    """Return a ``.tar.gz`` with neither times nor owners."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(files[name])
            archive.addfile(member, io.BytesIO(files[name]))
    return gzip.compress(packed.getvalue(), mtime=0)
