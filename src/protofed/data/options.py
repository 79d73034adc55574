"""What to load: the typed ``data`` section of a configuration."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from protofed import limits
from protofed.errors import ConfigError
from protofed.limits import Budget
from protofed.options import build_options, option

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class DataOptions:
    """Which data, how much of it, and how each client's share is held out."""

    source: str = option("digits", "name of a data set, or 'path'")
    path: str = option("", "source=path: a federation folder, an image folder, parquet files or an .npz file")
    data_dir: str = option("", "folder with local copies of named data sets; default: PROTOFED_DATA")
    clients: int = option(20, "number of clients a data set is divided among (0 = all, partition=natural only)")
    samples: int = option(0, "use only this many samples, chosen per class (0 = all)")
    test_fraction: float = option(0.25, "share of each client's samples held out for testing, in [0, 1)")
    validation_fraction: float = option(0.0, "share of each client's training part held out, in [0, 1)")
    classes: int = option(0, "number of classes K (0 = as the data say)")
    image_column: str = option("", "column with the images or features ('' = detect)")
    label_column: str = option("", "column with the labels ('' = detect)")
    max_gb: float = option(
        0.0, "GB of memory that data may take, whatever files announce (0 = half of the machine's)"
    )
    trust_code: bool = option(
        False, "import the models that a federation folder's client.toml files name as package.module:callable"
    )
    options: Any = option(None, "options of the data set itself: a mapping, or its own Options object")

    def check(self) -> None:
        """Raise ConfigError for a value outside its range."""
        for name in ("clients", "samples", "classes"):
            if getattr(self, name) < 0:
                raise ConfigError(f"data.{name} = {getattr(self, name)}: must be 0 or more")
        if self.classes > limits.CLASSES:
            raise ConfigError(f"data.classes = {self.classes}: there may be {limits.CLASSES}")
        if not 0 <= self.max_gb < float("inf"):
            raise ConfigError(f"data.max_gb = {self.max_gb}: must be 0 or more")
        for name in ("test_fraction", "validation_fraction"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"data.{name} = {getattr(self, name)}: must be at least 0 and below 1")

    def budget(self) -> Budget:
        """Return the memory that all that is read may take together."""
        return Budget(self.max_gb or memory_gb() / 2)


def memory_gb() -> float:
    """Return the memory of this machine, or of the container this process runs in, in GB."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # "max" is no number
        found = min(found, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return found / 1e9


def resolve_options(kind: type[T], given: Any, section: str) -> T:
    """Return ``given`` as an instance of the options dataclass ``kind``.

    Args:
        kind: A frozen dataclass, every field with a default.
        given: None (all defaults), an instance of ``kind``, or a mapping from the names users write.
        section: How the options are addressed, e.g. ``"partition"``; used in messages.

    Raises:
        ConfigError: For an unknown name (the nearest valid one is named) or a value of the wrong type.
    """
    if isinstance(given, kind):
        return given
    if given is None:
        return kind()
    if not isinstance(given, Mapping):
        raise ConfigError(f"{section}: expected a mapping or {kind.__name__}, got {type(given).__name__}")
    return build_options(kind, given, section)
