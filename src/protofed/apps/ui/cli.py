"""``protofed demo`` and ``protofed ui``: pages on this machine. Heavy imports happen inside commands."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

Host = Annotated[str, typer.Option(help="Address to listen on; others than this machine's own are seen by others.")]
Port = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Port; 0 for any free one (default: the first from 8520 on).")
]
Browser = Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")]


def demo(host: Host = "127.0.0.1", port: Port = None, browser: Browser = True) -> None:
    """See it learn: two federations side by side on real digits, live in the browser."""
    _need_nicegui()
    from protofed.apps.ui.demo import open_demo

    open_demo(host=host, port=port, browser=browser)


def runs(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run, a comparison, or a folder of them.")],
    host: Host = "127.0.0.1",
    port: Port = None,
    browser: Browser = True,
) -> None:
    """Look at runs in the browser, finished or still running."""
    _need_nicegui()
    from protofed.apps.ui.runs import open_runs

    open_runs(directory, host=host, port=port, browser=browser)


def _need_nicegui() -> None:
    """End the command unless the package is there; printed here, since main takes brackets as markup."""
    if importlib.util.find_spec("nicegui") is None:
        typer.echo("error: the package nicegui is missing: pip install 'protofed[ui]'", err=True)
        raise typer.Exit(2)
