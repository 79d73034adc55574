"""``protofed new``."""

from __future__ import annotations

import keyword
from importlib import resources
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from protofed.cli.common import console
from protofed.errors import ConfigError

new = typer.Typer(no_args_is_help=True, help="Write files to start from.")


@new.callback()
def files() -> None:
    """Write files to start from."""


@new.command()
def method(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the method and of its file, such as fedmine.")
    ],
    directory: Annotated[Path, typer.Option("--in", help="Folder of the two files.")] = Path(),
) -> None:
    """Write a method that runs, NAME.py, and its test, test_NAME.py."""
    from protofed.storage.files import write_text

    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise ConfigError(f"{name!r} cannot be a module: use small letters, digits and _, such as fedmine")
    title = "".join(part.capitalize() for part in name.split("_"))
    targets = {directory / f"{name}.py": "method.py.txt", directory / f"test_{name}.py": "test.py.txt"}
    for path in targets:
        if path.exists():
            raise ConfigError(f"{path}: is there already: choose another name, or remove it")
    for path, template in targets.items():
        text = (resources.files("protofed.cli.templates") / template).read_text(encoding="utf-8")
        write_text(path, Template(text).substitute(name=name, title=title))
    file = directory / f"{name}.py"
    console.print(f"Written: {file} and its test. Try: protofed run method.name={file}:{title}", soft_wrap=True)
