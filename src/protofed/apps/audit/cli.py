"""The command ``protofed audit``. Heavy imports happen inside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from protofed.cli.common import Directory, TrustCode
from protofed.compute.imports import uncollected
from protofed.errors import printable


def audit(
    directory: Directory,
    out: Annotated[Path | None, typer.Option(help="The page (default: audit.html in RUN).")] = None,
    trust_code: TrustCode = False,
) -> None:
    """Attack a finished run with what its server saw; write what was learned as a page, with audit.json beside it.

    The run goes on for one round, without being changed, and a federation on other draws of the same data is
    trained for as many rounds as the run, to fit the attacks on.
    """
    with uncollected():
        from protofed.apps.audit.auditing import audit_run
        from protofed.apps.audit.report import summary, write_audit

    found = audit_run(directory, trust_code)
    for sentence in summary(found):
        typer.echo(sentence)
    typer.echo(printable(f"Report: {write_audit(found, out or directory / 'audit.html')}"))
