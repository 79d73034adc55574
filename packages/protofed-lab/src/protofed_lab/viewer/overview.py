"""All runs: what they reached, and a table to choose from."""

from __future__ import annotations

from collections import Counter

from nicegui import ui

from protofed.runs.run import rules_of
from protofed_lab.viewer import lines, rows
from protofed_lab.viewer.following import SeenRun, State
from protofed_lab.viewer.library import Library
from protofed_lab.viewer.parts import NOTHING_YET, Choice, RecordTable, accuracy_plots, answered, check

MAIN_RULE = {"": "each method's main rule"}

TOLD = (State.RUNNING, State.QUIET, State.STARTING, State.WAITING, State.FINISHED, State.DAMAGED)

NO_RUNS = "No run here yet. One that begins below this folder will appear by itself."


class Overview:
    """The page of all runs."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.each = False
        self.picked: list[str] = []
        self._shown: object = None
        self._told = ui.label().classes("crumb").props('role="status"')
        self.answer = ui.label().classes("lead").props('role="status"')
        with ui.element("div").classes("stack"):
            with ui.element("div").classes("row"):
                self.rule = Choice("Accuracy by", MAIN_RULE, "", lambda _: self._draw())
                check("A line for every seed", False, self._set_each)
            with ui.element("section").classes("card flush"):
                self.table = RecordTable(
                    rows.run_columns([]), label="Runs", empty=NO_RUNS, on_pick=self._pick, filterable=True
                )
                with self.table:
                    self._compare = ui.link("Compare", "/compare").classes("button strong")
                    self._compare.set_visibility(False)
            with ui.element("div").classes("two"):
                self.over_rounds, self.over_bytes = accuracy_plots(**NOTHING_YET)

    async def show(self) -> None:
        """Show the runs as they are now."""
        if self._shown == (self.library.version,):
            return
        self._shown = (self.library.version,)
        self._told.set_text(f"{self.library.root}: {told(self.library.runs)}")
        self._draw()

    def _draw(self) -> None:
        seen = self.library.runs
        readable = [s.run for s in seen.values() if s.run is not None]
        self.rule.offer(MAIN_RULE | {name: rule.title for name, rule in rules_of(readable).items()})
        listed = rows.runs(seen, self.rule.value)
        self.table.set_columns(rows.run_columns(listed))
        self.table.fill(listed)
        chosen = [s.run for key, s in seen.items() if s.run is not None and (not self.picked or key in self.picked)]
        self.answer.set_text(answered(chosen))
        spread = not self.each and len({run.label for run in chosen}) < len(chosen)
        note = "mean and standard deviation over seeds" if spread else ""
        if self.picked:
            note = ", ".join(filter(None, (f"{len(chosen)} chosen in the table", note)))
        for plot, over in ((self.over_rounds, "rounds"), (self.over_bytes, "bytes")):
            drawn = lines.accuracy(chosen, rule=self.rule.value, over=over, each=self.each, among=readable)
            plot.draw(drawn)
            plot.say("; ".join(filter(None, (note, lines.alike(len(drawn))))))

    def _set_each(self, each: bool) -> None:
        self.each = each
        self._draw()

    def _pick(self, keys: list[str]) -> None:
        self.picked = [key for key in keys if key in self.library.runs]
        self._compare.set_visibility(len(self.picked) > 1)
        self._compare.set_text(f"Compare {len(self.picked)} runs")
        self._compare.props(f'href="{rows.comparing(self.picked)}"')
        self._draw()


def told(seen: dict[str, SeenRun]) -> str:
    """Count the runs in each state.

    Example:
        >>> told({})
        'no runs'
    """
    counts = Counter(s.state for s in seen.values())
    words = [f"{counts[state]} {state}" for state in TOLD if counts[state]]
    return f"{len(seen)} run{'s' if len(seen) > 1 else ''} ({', '.join(words)})" if seen else "no runs"
