"""A node's settings: those of ``--node-config``, and of the file ``node.toml`` that ``config`` there names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protofed.errors import ConfigError, unknown_name
from protofed.untrusted.reading import read_toml, reason

FILES = ("client-dir", "state-dir", "weights-dir", "roster", "authority", "key", "ledger")
"""Paths, which a file may give relative to its own folder."""
OTHERS = (
    "client",
    "counts",
    "least-samples",
    "device",
    "fresh",
    "runs",
    "least-peers",
    "least-threshold",
    "privacy",
    "names",
)
SPENT = ("epsilon", "delta")  #: Settings that may also stand among what is allowed


def node_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node's settings by name.

    Its table ``allow`` is left to :mod:`protofed_flower.allow`, and ``data``, how its data are read, to
    :mod:`protofed_flower.sources`.

    Raises:
        ConfigError: The file cannot be read, has an unknown setting, or one that ``--node-config`` has as well.
    """
    if "config" not in config:
        return dict(config)
    path = Path(str(config["config"])).expanduser()
    try:
        found = read_toml(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({reason(error)}): correct config in --node-config") from None
    known = {*FILES, *OTHERS, *SPENT, "allow", "data"}
    if (strange := next((name for name in found if name not in known), None)) is not None:
        raise ConfigError(f"{path}: {unknown_name('setting', strange, known)}")
    if twice := sorted(found.keys() & config.keys()):
        raise ConfigError(f"{path}: {twice[0]} stands in --node-config as well: leave one out")
    for name in FILES:
        if name in found:
            found[name] = str(path.parent / Path(str(found[name])).expanduser())
    allow = found.get("allow")
    if isinstance(allow, Mapping):
        spent = {name: allow[name] for name in SPENT if name in allow}
        if twice := sorted(found.keys() & spent.keys()):
            raise ConfigError(f"{path}: {twice[0]} stands outside [allow] as well: leave one out")
        found |= {"privacy": "sample"} | found | spent if spent else {}
        found["allow"] = {name: value for name, value in allow.items() if name not in SPENT}
    return {**{name: value for name, value in config.items() if name != "config"}, **found}
