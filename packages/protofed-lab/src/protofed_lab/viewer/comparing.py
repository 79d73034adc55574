"""Several runs side by side: accuracies, and in which options they differ."""

from __future__ import annotations

from functools import partial

from nicegui import ui

from protofed_lab.viewer import differences, lines, rows
from protofed_lab.viewer.library import Library
from protofed_lab.viewer.parts import (
    Choice,
    RecordTable,
    accuracy_plots,
    answered,
    check,
    heading,
    options_table,
)

NONE = {"": "choose a run"}


class Comparing:
    """The page that compares runs."""

    def __init__(self, library: Library, keys: list[str]) -> None:
        self.library = library
        readable = [key for key, seen in library.runs.items() if seen.run is not None]
        # Without any wish, the first two.
        self.keys = keys or readable[:2]
        self.keys += [""] * (2 - len(self.keys))
        self.all = False
        self._shown: object = None
        with ui.element("div").classes("row").style("margin-top: 12px"):
            self.choices = [
                Choice("Run" if i == 0 else "with", NONE, key, partial(self._choose, i))
                for i, key in enumerate(self.keys)
            ]
        with ui.element("div").classes("stack"):
            self.answer = ui.label().classes("lead").props('role="status"')
            with ui.element("section").classes("card flush"):
                self.table = RecordTable(_columns([]), label="Results", empty="No run is chosen.")
            with ui.element("section").classes("card flush"):
                heading("Configuration")
                with ui.element("div").classes("row").style("padding: 0 18px 8px"):
                    self.said = ui.label().classes("soft").props('role="status"')
                    check("Show options that are the same, too", False, self._set_all)
                self.options = (
                    ui.html("", sanitize=False)
                    .classes("options")
                    .props('tabindex="0" role="region" aria-label="Options"')
                )
            with ui.element("div").classes("two"):
                self.over_rounds, self.over_bytes = accuracy_plots()

    async def show(self) -> None:
        """Show the runs as they are now."""
        if self._shown != self.library.version:
            self._shown = self.library.version
            self._draw()

    def _choose(self, i: int, key: str) -> None:
        self.keys[i] = key
        chosen = [key for key in self.keys if key]
        ui.navigate.history.replace(rows.comparing(chosen) if chosen else "/compare")
        self._draw()

    def _set_all(self, every: bool) -> None:
        self.all = every
        self._draw()

    def _draw(self) -> None:
        seen = self.library.runs
        names = rows.named(seen)
        for choice in self.choices:
            choice.offer(NONE | names)
        chosen = {key: seen[key] for key in dict.fromkeys(self.keys) if key in names}
        listed = rows.runs(chosen)
        self.table.set_columns(_columns(listed))
        self.table.fill(listed)
        runs = [s.run for s in chosen.values() if s.run is not None]
        for plot, over in ((self.over_rounds, "rounds"), (self.over_bytes, "bytes")):
            plot.draw(lines.accuracy(runs, over=over, each=True))
            plot.say(lines.alike(len(runs)))
        self.answer.set_text(answered(runs))
        options = differences.options([run.config for run in runs])
        differing = sum(option.differs for option in options)
        shown = options if self.all else [option for option in options if option.differs]
        if len(runs) < 2:
            self.said.set_text("Choose two runs.")
        elif not differing:
            self.said.set_text(f"All {len(options)} options are the same.")
        else:
            self.said.set_text(f"{differing} of {len(options)} options differ.")
        self.options.set_content(options_table(shown, list(chosen)) if shown and len(runs) > 1 else "")


def _columns(listed: list[rows.Row]) -> list[dict[str, str]]:
    return [column for column in rows.run_columns(listed) if column["name"] != "seed"]
