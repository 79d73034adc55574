"""The pages of ``protofed ui``: all runs, one run, several side by side."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import Request
from nicegui import app, run, ui

from protofed.ui import shell
from protofed.ui.runs.comparing import Comparing
from protofed.ui.runs.library import Library
from protofed.ui.runs.one import OneRun
from protofed.ui.runs.overview import Overview
from protofed.ui.runs.parts import STATIC, assets

LINKS = {"Runs": "/", "Compare": "/compare"}

INTERVAL_S = 0.5
"""Pages look for news so often."""


def register(library: Library) -> None:
    """Register the pages."""
    app.add_static_files("/runs-static", str(STATIC))

    async def follow(show: Callable[[], Awaitable[None]]) -> None:
        """Show the runs as they are, now and as long as the tab is open."""

        async def look() -> None:
            await run.io_bound(library.refresh)
            await show()

        ui.timer(INTERVAL_S, look)

    @ui.page("/")
    async def overview() -> None:
        assets()
        with shell.page("Runs", links=LINKS):
            await follow(Overview(library).show)

    @ui.page("/run/{key:path}")
    async def one(key: str) -> None:
        assets()
        if key not in library.runs:
            await run.io_bound(library.poll, look=True)
        seen = library.runs.get(key)
        if seen is None:
            ui.context.client.status_code = 404
            with shell.page("No such run", links=LINKS):
                ui.label("There is no run of this name below the folder that is shown.").classes("lead")
                ui.link("All runs", "/").classes("button")
            return
        with shell.page(seen.run.label if seen.run is not None else key.rpartition("/")[2], links=LINKS):
            await follow(OneRun(library, key).show)

    @ui.page("/compare")
    async def compare(request: Request) -> None:
        assets()
        if not library.version:
            await run.io_bound(library.poll, look=True)
        asked = [key for key in request.query_params.getlist("run") if key in library.runs]
        with shell.page("Compare", links=LINKS):
            await follow(Comparing(library, list(dict.fromkeys(asked))).show)
