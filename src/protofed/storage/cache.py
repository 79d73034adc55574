"""What is computed from data once and kept on disk for later runs.

What is on disk is never trusted: a file's name is the hash of its content, and what is damaged is computed again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from protofed.errors import OutputError
from protofed.storage.files import write_bytes
from protofed.untrusted.reading import read_bytes

CACHE = "PROTOFED_CACHE"  #: Environment variable with the folder of the cache; empty for none
MOST = 2**31  #: Most bytes of a file of the cache
log = logging.getLogger("protofed")


def cache_folder(kind: str) -> Path | None:
    """Return the folder of what is kept of a kind; None if there is to be none."""
    if (given := os.environ.get(CACHE)) is not None:
        return Path(given).expanduser() / kind if given else None
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "protofed" / kind


def read_kept(folder: Path | None) -> Iterator[tuple[Path, dict[str, Tensor]]]:
    """Yield what the files of a folder hold; damaged ones are removed."""
    for path in sorted(folder.glob("*.safetensors")) if folder is not None else ():
        try:
            content = read_bytes(path, MOST)
            if _name(content) != path.name:
                raise ValueError("damaged")
            found = load(content)
        except (OSError, ValueError, SafetensorError):
            remove_kept(path)
        else:
            yield path, found


def remove_kept(path: Path) -> None:
    """Remove a file that is not what it should be."""
    log.warning("%s: damaged: what it held is computed again", path)
    path.unlink(missing_ok=True)


def keep(folder: Path | None, tensors: Mapping[str, Tensor]) -> Path | None:
    """Write a file; without room for it, warn and return None in place of the folder."""
    if folder is None:
        return None
    content = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_bytes(folder / _name(content), content)
    except (OSError, OutputError) as error:
        log.warning("%s: nothing is kept there: %s", folder, error)
        return None
    return folder


def _name(content: bytes) -> str:
    return f"{blake2b(content, digest_size=16).hexdigest()}.safetensors"
