"""The archive that a site gets: its node's settings, the authority's certificate, and files that start the node."""

from __future__ import annotations

import gzip
import io
import tarfile
from importlib import resources
from pathlib import Path

from cryptography.hazmat.primitives import serialization

import protofed
from protofed.apps.flower import trust
from protofed.apps.flower.keys import subject_name
from protofed.errors import ConfigError
from protofed.storage.files import write_bytes
from protofed.untrusted.claims import client_name

FOLDER = "protofed"
"""Folder in the archive, which is unpacked in ``/srv``."""
AUTHORITY = "ca.crt"


def create_kit(folder: Path, site: str, superlink: str, out: Path) -> None:
    """Write a site's archive, the same bytes for the same arguments; it holds no secret.

    Args:
        folder: Of the authority or the server, with ``ca.crt``.
        superlink: Address by which nodes reach the SuperLink, as ``HOST:PORT``.
        out: New file.
    """
    try:
        name = client_name(site)
    except ValueError as error:
        raise ConfigError(f"--site: {error}") from None
    subject_name(trust.split_address(superlink)[0], "--superlink")
    if out.exists():
        raise ConfigError(f"{out} is there already: kits are never overwritten: choose a new name with --out")
    certificates = trust.read_authorities(folder / AUTHORITY)
    values = {"site": name, "superlink": superlink, "version": protofed.__version__}
    files = {AUTHORITY: b"".join(c.public_bytes(serialization.Encoding.PEM) for c in certificates)}
    for template in resources.files("protofed.apps.flower").joinpath("templates").iterdir():
        text = template.read_text(encoding="utf-8")
        for field, value in values.items():
            text = text.replace(f"{{{field}}}", value)
        files[template.name] = text.encode()
    write_bytes(out, _archive(files))


def _archive(files: dict[str, bytes]) -> bytes:
    """Return a ``.tar.gz`` with neither times nor owners."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            member = tarfile.TarInfo(f"{FOLDER}/{name}")
            member.size = len(files[name])
            archive.addfile(member, io.BytesIO(files[name]))
    return gzip.compress(packed.getvalue(), mtime=0)
