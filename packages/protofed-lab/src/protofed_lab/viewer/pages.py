"""The pages of ``protofed ui``: all runs as they go on, and the reports of one run or of several."""

from __future__ import annotations

import html
import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from nicegui import Client, app, run, ui
from nicegui.element import Element

from protofed.analysis.answer import answer
from protofed.analysis.report.page import render
from protofed.runs.run import rules_of
from protofed_lab import shell
from protofed_lab.viewer import lines, rows
from protofed_lab.viewer.library import Library, SeenRun, State

INTERVAL_S = 0.5  #: Pages look for news so often
REPORT_S = 15  #: Seconds between two reports of a run that goes on
MAIN_RULE = {"": "each method's main rule"}
COUNTED = (State.RUNNING, State.QUIET, State.STARTING, State.WAITING, State.FINISHED, State.DAMAGED)
NO_RUNS = "No run here yet. One that begins below this folder will appear by itself."
NO_REPORT = "There is no such run below the folder that is shown, or it cannot be read."


def register(library: Library) -> None:
    """Register the pages."""
    drawing = threading.Lock()

    def report(keys: Sequence[str]) -> HTMLResponse:
        if any(key not in library.runs for key in keys):
            library.poll()
        seen = [library.runs[key] for key in dict.fromkeys(keys) if key in library.runs]
        runs = [each.run for each in seen if each.run is not None]
        if not runs or len(runs) < len(set(keys)):
            told = [f"<p>{html.escape(each.reason)}</p>" for each in seen if each.run is None]
            return HTMLResponse(f"<!doctype html><p>{NO_REPORT}</p>{''.join(told)}", status_code=404)
        with drawing:  # Matplotlib draws one figure at a time
            page = render(runs)
        goes_on = any(each.state in (State.STARTING, State.RUNNING) for each in seen)
        return HTMLResponse(page, headers={"Refresh": str(REPORT_S)} if goes_on else {})

    @ui.page("/")
    async def overview(client: Client) -> None:
        shell.assets("runs.js", "runs.css", defer=True)
        with shell.page("Runs"):
            shown = Overview(library)

            async def look() -> None:
                await run.io_bound(library.refresh)
                shown.show()

            ui.timer(INTERVAL_S, look)
        # What was on its way when a connection broke may be lost: everything is sent anew.
        connections: list[Client] = []

        def connected() -> None:
            connections.append(client)
            if len(connections) > 1:
                client.run_javascript("location.reload()")

        client.on_connect(connected)

    @app.get("/run/{key:path}")
    def one(key: str) -> HTMLResponse:
        return report([key])

    @app.get("/compare")
    def compare(request: Request) -> HTMLResponse:
        return report(request.query_params.getlist("run"))


class Overview:
    """The page of all runs."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.each = False
        self.picked: list[str] = []
        self._shown = -1
        self._counted = ui.label().classes("crumb").props('role="status"')
        self.answer = ui.label().classes("lead").props('role="status"')
        with ui.element("div").classes("stack"):
            with ui.element("div").classes("row"):
                self.rule = Choice("Accuracy by", MAIN_RULE, self._draw)
                with ui.element("label").classes("check"):
                    box = ui.element("input").props('type="checkbox"')
                    box.on("change", self._set_each, js_handler="(event) => emit(event.target.checked)")
                    ui.label("A line for every seed")
            with ui.element("section").classes("card flush"):
                self.table = RecordTable(rows.run_columns([]), self._pick)
                with self.table:
                    self._compare = ui.link("Compare", "/compare").classes("button strong")
                    self._compare.set_visibility(False)
            with ui.element("div").classes("two"):
                sent = "Sent by all parties, up and down (log scale)"
                self.over_rounds = LinePlot(
                    "Test accuracy against rounds", xName="Round", missing="No round has been evaluated yet."
                )
                self.over_bytes = LinePlot(
                    "Test accuracy against bytes sent",
                    x="bytes",
                    log=True,
                    xName=sent,
                    missing="Nothing has been sent yet.",
                )

    def show(self) -> None:
        """Show the runs as they are now."""
        if self._shown != self.library.version:
            self._shown = self.library.version
            self._counted.set_text(f"{self.library.root}: {count(self.library.runs)}")
            self._draw()

    def _draw(self) -> None:
        seen = self.library.runs
        readable = [s.run for s in seen.values() if s.run is not None]
        self.rule.offer(MAIN_RULE | {name: rule.title for name, rule in rules_of(readable).items()})
        listed = rows.runs(seen, self.rule.value)
        self.table.fill(rows.run_columns(listed), listed)
        chosen = [s.run for key, s in seen.items() if s.run is not None and (not self.picked or key in self.picked)]
        found = answer(chosen) if len(chosen) > 1 else None
        self.answer.set_text(found.text if found else "")
        spread = not self.each and len({run.label for run in chosen}) < len(chosen)
        note = "mean and standard deviation over seeds" if spread else ""
        if self.picked:
            note = ", ".join(filter(None, (f"{len(chosen)} chosen in the table", note)))
        for plot, over in ((self.over_rounds, "rounds"), (self.over_bytes, "bytes")):
            drawn = lines.accuracy(chosen, rule=self.rule.value, over=over, each=self.each, among=readable)
            plot.draw(drawn, "; ".join(filter(None, (note, lines.alike(len(drawn))))))

    def _set_each(self, event: Any) -> None:
        self.each = bool(event.args)
        self._draw()

    def _pick(self, keys: list[str]) -> None:
        self.picked = [key for key in keys if key in self.library.runs]
        self._compare.set_visibility(len(self.picked) > 1)
        self._compare.set_text(f"Compare {len(self.picked)} runs")
        self._compare.props(f'href="{rows.comparing(self.picked)}"')
        self._draw()


def count(seen: Mapping[str, SeenRun]) -> str:
    """Count the runs in each state.

    Example:
        >>> count({})
        'no runs'
    """
    counts = Counter(s.state for s in seen.values())
    words = [f"{counts[state]} {state}" for state in COUNTED if counts[state]]
    return f"{len(seen)} run{'s' if len(seen) > 1 else ''} ({', '.join(words)})" if seen else "no runs"


class LinePlot:
    """A chart of lines in a card, drawn by ``static/runs.js``.

    Args:
        settings: For the script: axes, units, and the text where there is nothing to draw.
    """

    def __init__(self, title: str, **settings: Any) -> None:
        with ui.element("section").classes("card plot"):
            ui.html(title, sanitize=False, tag="h2")
            self.note = ui.label().classes("soft")
            self.chart = shell.chart({}, label=title)
            legend = ui.element("div").classes("legend").props('role="group" aria-label="Show or hide"')
        self._drawn: lines.Lines | None = None
        self._call("plot", {"y": "percent", **settings, "legend": legend.id})

    def draw(self, found: lines.Lines, note: str) -> None:
        """Draw lines, with a note above them."""
        shell.tell(self.note, note)
        if found != self._drawn:
            self._drawn = found
            self._call("feed", {key: {**vars(line), "look": vars(line.look)} for key, line in found.items()})

    def _call(self, function: str, argument: Any) -> None:
        told = json.dumps(argument, separators=(",", ":"), allow_nan=False)
        self.chart.client.run_javascript(f"runs.{function}({self.chart.id}, {told})")


class RecordTable(Element, component=shell.STATIC / "table.js"):
    """A table of runs that is sorted and filtered in the browser; ``pick`` is called with the ticked rows' ids."""

    def __init__(self, columns: list[dict[str, str]], pick: Callable[[list[str]], None]) -> None:
        super().__init__()
        self._props.update(columns=columns, label="Runs", empty=NO_RUNS)
        self._rows: Sequence[rows.Row] | None = None
        self.on("picked", lambda event: pick([str(key) for key in event.args]))

    def fill(self, columns: list[dict[str, str]], filled: Sequence[rows.Row]) -> None:
        """Show these columns and rows."""
        if columns != self._props["columns"]:
            self._props["columns"] = columns
            self.update()
        if filled != self._rows:
            self._rows = filled
            self.run_method("fill", filled)


class Choice:
    """A list to choose one of; ``options`` are values and their texts, of which ``""`` is chosen at first."""

    def __init__(self, label: str, options: Mapping[str, str], on_change: Callable[[], None]) -> None:
        self.value, self._options, self._on_change = "", dict(options), on_change
        with ui.element("label").classes("field"):
            ui.label(label)
            self._select = ui.html(self._inner(), sanitize=False, tag="select").props(f'aria-label="{label}"')
            self._select.on("change", self._changed, js_handler="(event) => emit(event.target.value)")

    def offer(self, options: Mapping[str, str]) -> None:
        """Change what can be chosen."""
        if dict(options) != self._options:
            self._options = dict(options)
            self._select.set_content(self._inner())

    def _inner(self) -> str:
        return "".join(
            f'<option value="{html.escape(value, quote=True)}"{" selected" if value == self.value else ""}>'
            f"{html.escape(text)}</option>"
            for value, text in self._options.items()
        )

    def _changed(self, event: Any) -> None:
        if event.args in self._options:
            self.value = event.args
            self._on_change()
