"""The commands ``protofed demo``, ``protofed ui`` and ``protofed audit``. Heavy imports happen inside them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

import typer

from protofed.cli.common import Directory, TrustCode
from protofed.errors import printable

Host = Annotated[str, typer.Option(help="Address to listen on; others than this machine's own are seen by others.")]
Port = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Port; 0 for any free one (default: the first from 8520 on).")
]
Browser = Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")]


def demo(host: Host = "127.0.0.1", port: Port = None, browser: Browser = True) -> None:
    """See it learn: two federations side by side on real digits, live in the browser."""
    from protofed_lab import shell
    from protofed_lab.demo import worker

    def site() -> None:
        from protofed_lab.demo.page import site

        site()

    # What learns takes longest to load: it begins while the server does.
    shell.serve(site, title="protofed demo", host=host, port=port, browser=browser, ready=worker.prepare)


def ui(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run, a comparison, or a folder of them.")],
    host: Host = "127.0.0.1",
    port: Port = None,
    browser: Browser = True,
) -> None:
    """Look at runs in the browser, finished or still running; nothing is written, and nothing outside is read."""
    from protofed_lab import shell
    from protofed_lab.viewer.library import Library

    library = Library(directory)

    def site() -> None:
        from protofed_lab.viewer.pages import register

        register(library)

    def ready() -> None:
        # While the web framework is loaded.
        threading.Thread(target=library.refresh, daemon=True).start()

    shell.serve(site, title="protofed ui", host=host, port=port, browser=browser, ready=ready)


def audit(
    directory: Directory,
    out: Annotated[Path | None, typer.Option(help="The page (default: audit.html in RUN).")] = None,
    trust_code: TrustCode = False,
) -> None:
    """Attack a finished run with what its server saw; write what was learned as a page, with audit.json beside it.

    The run goes on for one round, without being changed, and a federation on other draws of the same data is
    trained for as many rounds as the run, to fit the attacks on.
    """
    from protofed_lab.audit.auditing import audit_run
    from protofed_lab.audit.report import summary, write_audit

    found = audit_run(directory, trust_code)
    for sentence in summary(found):
        typer.echo(sentence)
    typer.echo(printable(f"Report: {write_audit(found, out or directory / 'audit.html')}"))
