"""The parts that pages of runs are made of: plots, tables of records, choices, cards."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from nicegui import Client, ui
from nicegui.element import Element

from protofed.analysis.answer import answer
from protofed.analysis.report.facts import Card
from protofed.runs.run import Run
from protofed_lab import shell
from protofed_lab.viewer.differences import Option
from protofed_lab.viewer.following import SeenRun, State
from protofed_lab.viewer.lines import Feed, Lines
from protofed_lab.viewer.rows import Row, Sent, state_text

_FED: WeakKeyDictionary[Client, list[Plot | RecordTable]] = WeakKeyDictionary()
"""Tab → its parts that are sent news only."""


def tell_again(client: Client) -> None:
    """Send a tab everything anew: what was on its way when a connection broke may be lost or out of order."""
    for element in list(client.elements.values()):
        element.update()
    for part in _FED.get(client, ()):
        part.tell_again()


def assets() -> None:
    """Add the scripts and styles of runs to the page that is being built."""
    shell.assets("runs.js", "runs.css", defer=True)


def heading(text: str, note: str = "") -> None:
    """Write a heading, and a note below it."""
    ui.html(html.escape(text), sanitize=False, tag="h2")
    if note:
        ui.label(note).classes("soft")


def answered(runs: Sequence[Run]) -> str:
    """Return what runs of one recipe answer; "" if they are of several, or compare nothing."""
    found = answer(runs) if len(runs) > 1 else None
    return found.text if found else ""


class Plot:
    """A chart in a card, fed with numbers."""

    def __init__(
        self, kind: str, title: str, note: str = "", *, height: str = "", missing: str = "", **settings: Any
    ) -> None:
        """Build it.

        Args:
            kind: ``lines``, ``heat`` or ``dots``.
            height: CSS; the shell's if ``""``.
            missing: Text where there is nothing to draw.
            settings: For the script: axes, units, colours.
        """
        with ui.element("section").classes("card plot") as self.card:
            heading(title)
            self.note = ui.label().classes("soft")
            self.say(note)
            self.above = ui.element("div").classes("above-chart")
            self.chart = shell.chart({}, label=title)
            if height:
                self.chart.style(f"height: {height}")
            legend = ui.element("div").classes("legend").props('role="group" aria-label="Show or hide"')
        self._kind, self._settings = kind, {**settings, "legend": legend.id, "missing": missing}
        self._missing = missing
        self._lines: Lines | None = None
        self._message: dict[str, Any] | None = None
        self._feed = Feed()
        self._call("plot", kind, self._settings)
        _FED.setdefault(self.chart.client, []).append(self)

    def draw(self, lines: Lines) -> None:
        """Draw lines."""
        message = self._feed.changes(lines)
        if message is not None or self._lines is None:
            self._call("feed", message or {})
        self._lines = lines

    def show(self, content: Mapping[str, Any] | None, missing: str = "") -> None:
        """Show other content of a heat map or of dots, or why there is none.

        Args:
            missing: Instead of the usual text where there is nothing to draw.
        """
        message = {"content": content, "missing": missing or self._missing}
        if message != self._message:
            self._message = message
            self._call("feed", message)

    def tell_again(self) -> None:
        """Send everything anew."""
        self._call("plot", self._kind, self._settings)
        if self._lines is not None:
            self._feed = Feed()
            self._call("feed", self._feed.changes(self._lines) or {})
        if self._message is not None:
            self._call("feed", self._message)

    def say(self, note: str) -> None:
        """Change the line below the heading."""
        shell.tell(self.note, note)

    def _call(self, function: str, *arguments: Any) -> None:
        listed = ", ".join(
            json.dumps(a, separators=(",", ":"), allow_nan=False) for a in (self.chart.id, *arguments)
        )
        self.chart.client.run_javascript(f"runs.{function}({listed})")


NOTHING_YET = {"unevaluated": "No round has been evaluated yet.", "unsent": "Nothing has been sent yet."}


def accuracy_plots(
    *notes: str, sent: str = "Sent by all parties, up and down (log scale)", unevaluated: str = "", unsent: str = ""
) -> tuple[Plot, Plot]:
    """Build charts of accuracy against rounds and bytes, with texts for missing accuracy or bytes."""
    first, second = notes or ("", "")
    title = "Test accuracy against"
    return (
        Plot("lines", f"{title} rounds", first, y="percent", xName="Round", missing=unevaluated),
        Plot("lines", f"{title} bytes sent", second, y="percent", x="bytes", log=True, xName=sent, missing=unsent),
    )


class RecordTable(Element, component=shell.STATIC / "table.js"):
    """A table that is sorted and filtered in the browser."""

    def __init__(
        self,
        columns: Sequence[Mapping[str, str]],
        *,
        label: str,
        empty: str = "nothing here",
        on_pick: Callable[[list[str]], None] | None = None,
        filterable: bool = False,
    ) -> None:
        """Build it without rows.

        Args:
            columns: ``name``, ``label``, ``kind`` (text, number or state), and perhaps ``title``.
            label: For screen readers.
            empty: Text without rows.
            on_pick: Called with the ids of the ticked rows; None for a table without boxes.
            filterable: Show a filter.
        """
        super().__init__()
        self._props["columns"] = list(columns)
        self._props["label"] = label
        self._props["empty"] = empty
        self._props["pickable"] = on_pick is not None
        self._props["filterable"] = filterable
        self._sent = Sent()
        self._rows: Sequence[Row] | None = None
        _FED.setdefault(self.client, []).append(self)
        self._column_names = [c["name"] for c in columns]
        if on_pick is not None:
            self.on("picked", lambda event: on_pick([str(key) for key in event.args]))

    def fill(self, rows: Sequence[Row]) -> None:
        """Show these rows."""
        self._rows = rows
        news = self._sent.changes(rows)
        if news is not None:
            self.run_method("merge", *news)

    def tell_again(self) -> None:
        """Send everything anew."""
        if self._rows is not None:
            self._sent = Sent()
            self.fill(self._rows)

    def set_columns(self, columns: Sequence[Mapping[str, str]]) -> None:
        """Show other columns of the same rows."""
        names = [c["name"] for c in columns]
        if names != self._column_names:
            self._column_names = names
            self._props["columns"] = list(columns)
            self.update()


class Choice:
    """A list to choose one of."""

    def __init__(self, label: str, options: Mapping[str, str], value: str, on_change: Callable[[str], Any]) -> None:
        """Build it; ``options`` are values and their texts."""
        self.value, self._options = value, dict(options)
        self._on_change = on_change
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

    async def _changed(self, event: Any) -> None:
        if event.args in self._options:
            self.value = event.args
            result = self._on_change(self.value)
            if result is not None:
                await result


def check(label: str, value: bool, on_change: Callable[[bool], Any]) -> None:
    """Build a box to tick."""
    with ui.element("label").classes("check"):
        box = ui.element("input").props('type="checkbox"' + (" checked" if value else ""))
        box.on(
            "change", lambda event: on_change(bool(event.args)), js_handler="(event) => emit(event.target.checked)"
        )
        ui.label(label)


class Status:
    """The progress of a run: a pill and a bar."""

    def __init__(self) -> None:
        self._pill = ui.html("", sanitize=False, tag="span").classes("pill").props('role="status"')
        self._bar = ui.element("progress").props('max="1" aria-label="Rounds done"')
        self._shown: object = None

    def show(self, seen: SeenRun, part: float) -> None:
        """Show another state.

        Args:
            part: Complete share of the rounds, in [0, 1].
        """
        if self._shown == (seen.state, state_text(seen), part):
            return
        self._shown = (seen.state, state_text(seen), part)
        self._pill.set_content(f'<i aria-hidden="true"></i>{html.escape(state_text(seen))}')
        self._pill.classes(replace=f"pill {seen.state}")
        self._bar.set_visibility(seen.live and seen.run is not None and seen.state is not State.WAITING)
        self._bar.props(f'value="{part:.4f}"')


class Cards:
    """Headline numbers."""

    def __init__(self) -> None:
        self._place = ui.element("div").classes("figures")
        self._shown: dict[str, tuple[Any, Any]] = {}

    def show(self, cards: Sequence[Card]) -> None:
        """Show these."""
        if list(self._shown) != [card.label for card in cards]:
            self._place.clear()
            self._shown = {}
            with self._place:
                for card in cards:
                    with ui.element("div").classes("card"):
                        ui.label(card.label).classes("eyebrow")
                        value = ui.label(card.value).classes("figure" + (" long" if "\n" in card.value else ""))
                        self._shown[card.label] = value, ui.label(card.note).classes("eyebrow")
        for card in cards:
            value, note = self._shown[card.label]
            value.set_text(card.value)
            note.set_text(card.note)


def options_table(options: Sequence[Option], names: Sequence[str]) -> str:
    """Return options of ``names`` as an HTML table that marks differences by weight, a bar and words."""
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in names)
    body = "".join(
        f'<tr{" class=differs" if option.differs else ""}><th scope="row">{html.escape(option.name)}'
        + ('<span class="unseen"> (differs)</span>' if option.differs else "")
        + "</th>"
        + "".join(f"<td>{html.escape(value)}</td>" for value in option.values)
        + "</tr>"
        for option in options
    )
    return f'<table><thead><tr><th scope="col">Option</th>{head}</tr></thead><tbody>{body}</tbody></table>'
