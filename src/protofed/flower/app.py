"""The folder that ``flwr run`` takes: an app that is one file, whatever lies beside it.

Flower bundles a folder's Python, TOML, JSON, YAML and Markdown files and sends them to every node. The nodes have
protofed installed, so the bundle of this app holds ``pyproject.toml`` alone.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import protofed
from protofed.flower.folder import check_new, write_folder

IGNORED = """# Flower bundles nothing that is named here: `flwr run` sends pyproject.toml alone.
/*
!/.gitignore
!/pyproject.toml
"""


def create_app(directory: Path) -> list[Path]:
    """Write a Flower app.

    Args:
        directory: New, or empty.

    Returns:
        ``pyproject.toml``, with the defaults of a run's configuration, and ``.gitignore``.

    Raises:
        ConfigError: If the directory holds something or cannot be made.
    """
    check_new(directory, "an app is never overwritten")
    text = resources.files("protofed.flower").joinpath("app.toml").read_text(encoding="utf-8")
    files = {"pyproject.toml": text.replace("{version}", protofed.__version__), ".gitignore": IGNORED}
    return write_folder(directory, {name: (content.encode(), 0o644) for name, content in files.items()})
