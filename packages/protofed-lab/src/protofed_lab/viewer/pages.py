"""The pages of ``protofed ui``: all runs, one run, several side by side."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import Request
from fastapi.responses import HTMLResponse
from nicegui import Client, app, run, ui

from protofed.analysis.report.page import render
from protofed_lab import shell
from protofed_lab.viewer.comparing import Comparing
from protofed_lab.viewer.library import READING_S, Library
from protofed_lab.viewer.one import OneRun
from protofed_lab.viewer.overview import Overview
from protofed_lab.viewer.parts import assets, tell_again

LINKS = {"Runs": "/", "Compare": "/compare"}

INTERVAL_S = 0.5
"""Pages look for news so often."""


class Connections:
    """Notes when a tab comes back after its connection broke."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._count = self._answered = 0
        client.on_connect(self._connected)

    def _connected(self) -> None:
        self._count += 1

    def restored(self) -> bool:
        """Call back once when the tab is connected again and nothing is on its way to it."""
        back = self._count > max(1, self._answered) and not self._client.outbox.messages
        if back:
            self._answered = self._count
        return back


def register(library: Library) -> None:
    """Register the pages."""

    async def follow(show: Callable[[], Awaitable[None]]) -> None:
        """Show the runs as they are, now and as long as the tab is open."""
        client = ui.context.client
        connections = Connections(client)

        async def look() -> None:
            await run.io_bound(library.refresh)
            if connections.restored():
                tell_again(client)
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
            await run.io_bound(library.poll, look=True, first=[key], most_s=0.0)
        seen = library.runs.get(key)
        if seen is None:
            ui.context.client.status_code = 404
            with shell.page("No such run", links=LINKS):
                ui.label("There is no run of this name below the folder that is shown.").classes("lead")
                ui.link("All runs", "/").classes("button")
            return
        with shell.page(seen.run.label if seen.run is not None else key.rpartition("/")[2], links=LINKS):
            await follow(OneRun(library, key).show)

    @app.get("/report/{key:path}")
    async def report(key: str) -> HTMLResponse:
        seen = library.runs.get(key)
        if seen is None or seen.run is None:
            return HTMLResponse("There is no report of such a run.", status_code=404)
        return HTMLResponse(await run.io_bound(render, [seen.run]))

    @ui.page("/compare")
    async def compare(request: Request) -> None:
        assets()
        keys = request.query_params.getlist("run")
        if not library.runs or any(key not in library.runs for key in keys):
            await run.io_bound(library.poll, look=True, first=keys, most_s=READING_S)
        asked = [key for key in keys if key in library.runs]
        with shell.page("Compare", links=LINKS):
            await follow(Comparing(library, list(dict.fromkeys(asked))).show)
