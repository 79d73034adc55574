"""The app folder for ``flwr run``.

Flower bundles a folder's Python, TOML, JSON, YAML and Markdown files and sends them to every node. The nodes have
protofed installed, so the bundle of this app consists of ``pyproject.toml`` alone, whatever else is in the folder.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import protofed
from protofed_flower.folder import check_new, write_folder

IGNORED = """# Flower does not bundle ignored files: `flwr run` sends only pyproject.toml.
/*
!/.gitignore
!/pyproject.toml
"""


def create_app(directory: Path) -> list[Path]:
    """Write a Flower app, ``pyproject.toml`` and ``.gitignore``, into a directory that is empty or new."""
    check_new(directory, "an app is never overwritten")
    text = resources.files("protofed_flower").joinpath("app.toml").read_text(encoding="utf-8")
    files = {"pyproject.toml": text.replace("{version}", protofed.__version__), ".gitignore": IGNORED}
    return write_folder(directory, {name: (content.encode(), 0o644) for name, content in files.items()})
