"""One run: its rounds, its clients, its prototypes, its configuration."""

from __future__ import annotations

import html
import itertools
import time
from typing import Any

from nicegui import run as threads
from nicegui import ui

from protofed.analysis.differing import troubles
from protofed.analysis.figures.lines import scalars
from protofed.analysis.one_class import one_class
from protofed.analysis.report import facts, tables
from protofed.errors import CheckpointError
from protofed.runs.run import Run
from protofed_lab import shell
from protofed_lab.viewer import differences, lines, rows, vectors
from protofed_lab.viewer.following import SeenRun
from protofed_lab.viewer.library import Library
from protofed_lab.viewer.parts import (
    NOTHING_YET,
    Cards,
    Choice,
    Plot,
    RecordTable,
    Status,
    accuracy_plots,
    heading,
    options_table,
)
from protofed_lab.viewer.site import SiteView, site_view

DISTANCES = {"distance_max": "largest", "distance_mean": "mean", "distance_min": "smallest"}
MARGINS = {"margin_mean": "mean", "margin_min": "smallest"}
SHOWN_ELSEWHERE = {*DISTANCES, *MARGINS}

REFUSAL = ("client", "field", "reason", "seed", "times", "rounds")

GLOBAL = {"": "all clients together (global)"}


class OneRun:
    """The page of one run."""

    def __init__(self, library: Library, key: str) -> None:
        self.library, self.key = library, key
        self._version = 0
        self._vectors: object = None
        self._next_vectors = 0.0
        self._built = False
        with ui.element("p").classes("crumb"):
            ui.html(f"<code>{html.escape(key)}</code>", sanitize=False, tag="span")
            ui.link("Report", rows.report_address(key))
        with ui.element("div").classes("wide").style("margin-top: 10px"):
            self.status = Status()
        self.fault = ui.label().classes("card alarm").props('role="alert"').style("margin-top: 16px")
        self.fault.set_visibility(False)
        self.place = ui.element("div").classes("stack")

    async def show(self) -> None:
        """Show the run as it is now."""
        seen = self.library.runs.get(self.key)
        if seen is None:
            shell.tell(self.fault, "This run is gone: its folder was moved or deleted.")
            return
        if seen.version != self._version:
            self._version = seen.version
            run = seen.run
            shell.tell(self.fault, seen.reason or " ".join(_warnings(run) if run else []))
            self.status.show(seen, rows.part_done(run) if run is not None else 0.0)
            self.place.set_visibility(run is not None)
            if run is not None:
                if not self._built:
                    self._built = True
                    with self.place:
                        self._build(run)
                self._draw(seen, run)
        if self._built and seen.run is not None:
            await self._look_at_vectors(seen.run)

    def _build(self, run: Run) -> None:
        about = facts.about(run)
        if about:
            ui.label(about).classes("soft").style("max-width: 76ch; margin-top: -6px")
        self.cards = Cards()
        with ui.element("div").classes("two"):
            self.over_rounds, self.over_bytes = accuracy_plots(
                "A sample is given the class that an inference rule names.",
                "By all clients and to them, since the start.",
                sent="Bytes sent so far (log scale)",
                **NOTHING_YET,
            )
            self.losses = Plot(
                "lines",
                "Training loss",
                "Mean per training sample.",
                xName="Round",
                missing="No client has trained yet.",
                legendFrom=2,
            )
            self.measured = Plot(
                "lines",
                "What the method measured",
                xName="Round",
                missing="The method records no numbers.",
                legendFrom=2,
            )
            with self.measured.above:
                self.quantity = Choice("Show", {}, "", lambda _: self._draw_measured())
        self._build_clients(run)
        self._build_metrics()
        self._build_prototypes(run)
        self._build_configuration(run)

    def _build_clients(self, run: Run) -> None:
        M, K = len(run.clients), len(run.class_names)
        with ui.element("section").classes("card"):
            heading("One site")
            self.site = Choice("Site", {n: n for n in run.names}, run.names[0], lambda _: self._draw_site())
            self.site_view = {}
            with ui.element("dl").classes("site"):
                for word in SiteView._fields:
                    ui.html(word.capitalize(), sanitize=False, tag="dt")
                    with ui.element("dd"):
                        self.site_view[word] = ui.label()
        heading("Clients")
        with ui.element("div").classes("two"):
            split = Plot(
                "heat",
                "Who holds what",
                f"Training samples of {M} clients and {K} classes; darker or brighter is more.",
                height=f"{min(760, max(260, 100 + 20 * M))}px",
                ramp="counts",
                root=True,
                write="count",
                labels=True,
                xName="Class",
                yName="Client",
            )
            held = [[n or None for n in c.train] for c in run.clients]
            named = {"rows": run.names, "columns": run.class_names, "unit": "training samples"}
            split.show({**named, "values": held})
            self.per_client = Plot(
                "dots",
                "Accuracy of each client",
                height="360px",
                xName="Client, worst to best",
                missing="No client has been evaluated yet.",
                legendFrom=2,
            )
        with ui.element("section").classes("card flush"):
            self.clients = RecordTable(rows.client_columns(run), label="Clients", filterable=M > 12)

    def _build_metrics(self) -> None:
        self.metrics = ui.element("div").classes("stack").style("margin-top: 0")
        with self.metrics:
            heading("Metrics")
            self.measured_by = ui.label().classes("soft")
            with ui.element("div").classes("two"):
                self.confusion = Plot(
                    "heat",
                    "Who is taken for whom",
                    "Test samples of all clients by their class and the class given; the diagonal is right.",
                    ramp="counts",
                    root=True,
                    write="count",
                    labels=True,
                    xName="Class given",
                    yName="Class",
                )
                with ui.element("section").classes("card flush"):
                    self.classes = RecordTable(rows.CLASS_COLUMNS, label="Metrics by class")
        self.metrics.set_visibility(False)

    def _draw_metrics(self, run: Run) -> None:
        self.metrics.set_visibility(run.measured is not None)
        if run.measured is None:
            return
        rule, names = run.rule(run.measured.rule).title.lower(), run.class_names
        self.measured_by.set_text(f"Of the models after round {run.measured.round}, by {rule}.")
        matrix = run.measured.overall.matrix(len(names)).tolist()
        values = [[number or None for number in row] for row in matrix]
        self.confusion.show({"rows": names, "columns": names, "values": values, "unit": "test samples"})
        self.classes.fill(rows.classes(run))

    def _build_prototypes(self, run: Run) -> None:
        K = len(run.class_names)
        heading("Prototypes")
        with ui.element("div").classes("row"):
            names = {c.name: c.name for c in run.clients}
            self.owner = Choice("Of", GLOBAL | names, "", lambda _: self._again())
            self.when = ui.label().classes("soft").props('role="status"')
        with ui.element("div").classes("two"):
            self.distances = Plot(
                "heat",
                "Distances between classes",
                "Euclidean, from prototype to prototype; blank: a class without one.",
                height=f"{min(620, max(320, 120 + 18 * K))}px",
                xName="Class",
                yName="Class",
            )
            with ui.element("div").classes("stack").style("margin-top: 0"):
                self.margins = Plot(
                    "dots",
                    "Margins",
                    "From each class to its nearest other, divided by the largest of these distances.",
                    height="220px",
                    y="number",
                    xName="Class",
                    legendFrom=2,
                )
                self.entries = Plot(
                    "heat",
                    "Entry by entry",
                    "One row per class, one column per dimension.",
                    height=f"{min(520, max(240, 120 + 14 * K))}px",
                    ramp="signed",
                    xName="Dimension",
                    yName="Class",
                )
            self.distances_over = Plot(
                "lines",
                "Distances over the rounds",
                "Between the global prototypes.",
                xName="Round",
                missing="No round has recorded any.",
            )
            self.margins_over = Plot(
                "lines",
                "Margins over the rounds",
                "Of the global prototypes, divided by the largest.",
                xName="Round",
                missing="No round has recorded any.",
            )

    def _build_configuration(self, run: Run) -> None:
        with ui.element("section").classes("card flush"):
            heading("Configuration", "As it was resolved: a recipe that repeats the run.")
            with ui.element("div").classes("row").style("padding: 0 18px 10px"):
                self.other = Choice("Differences from", {"": "choose a run"}, "", self._compare)
            options = differences.options([run.config])
            ui.html(options_table(options, ["Value"]), sanitize=False).classes("options").props(
                'tabindex="0" role="region" aria-label="Options"'
            )
        self.refused = ui.element("section").classes("card flush")
        with self.refused:
            heading("Uploads refused")
            columns = [rows.column(n, n.capitalize(), kind="text") for n in REFUSAL]
            self.refusals = RecordTable(columns, label="Uploads refused")
        self.refused.set_visibility(False)

    def _draw(self, seen: SeenRun, run: Run) -> None:
        self.cards.show(facts.cards(run))
        self.over_rounds.draw(lines.by_rule(run))
        self.over_bytes.draw(lines.by_rule(run, "bytes"))
        self.losses.draw(lines.losses(run))
        names = dict.fromkeys(n for r in run.rounds for n in scalars(r.diagnostics) if n not in SHOWN_ELSEWHERE)
        if names and self.quantity.value not in names:
            self.quantity.value = next(iter(names))
        self.quantity.offer({name: _spell_out(name) for name in names})
        self._draw_measured()
        self.distances_over.draw(lines.measured(run, DISTANCES))
        self.margins_over.draw(lines.measured(run, MARGINS))
        self._draw_clients(run)
        self._draw_metrics(run)
        refused = tables.list_refusals([run])
        self.refused.set_visibility(refused is not None)
        if refused is not None:
            self.refusals.fill([_refusal(i, [cell.text for cell in row]) for i, row in enumerate(refused.rows)])
        others = {key: s for key, s in self.library.runs.items() if key != self.key}
        self.other.offer({"": "choose a run"} | rows.named(others))

    def _draw_measured(self) -> None:
        run = self.library.runs[self.key].run
        if run is not None:
            name = self.quantity.value
            self.measured.draw(lines.measured(run, {name: _spell_out(name)}) if name else {})

    def _draw_site(self) -> None:
        run = self.library.runs[self.key].run
        if run is None:
            return
        beside = run.directory.parent
        others = [s.run for s in self.library.runs.values() if s.run is not None and s.directory.parent == beside]
        for word, text in site_view(run, self.site.value, others)._asdict().items():
            self.site_view[word].set_text(text)

    def _draw_clients(self, run: Run) -> None:
        self._draw_site()
        self.clients.set_columns(rows.client_columns(run))
        self.clients.fill(rows.clients(run))
        if not run.evaluations:
            self.per_client.show(None)
            return
        main = run.main_rule
        first = run.client_accuracies(main)
        order = sorted((i for i, a in enumerate(first) if a is not None), key=lambda i: first[i] or 0.0)
        groups, looks = [], lines.rule_looks(run)
        for rule in run.rules:
            values = run.client_accuracies(rule)
            shown = [None if values[i] is None else round(100 * (values[i] or 0.0), 2) for i in order]
            groups.append({"name": run.rule(rule).title, "look": vars(looks[rule]), "values": shown})
        self.per_client.show({"names": [run.clients[i].name for i in order], "groups": groups})
        self.per_client.say(f"At round {run.last_evaluation}, sorted by {run.rule(main).title.lower()}.")

    # Prototypes are large, and change with every checkpoint: they are looked at less often than the rest.

    async def _again(self) -> None:
        self._next_vectors, self._vectors = 0.0, None
        run = self.library.runs[self.key].run
        if run is not None:
            await self._look_at_vectors(run)

    async def _look_at_vectors(self, run: Run) -> None:
        if time.monotonic() < self._next_vectors:
            return
        owner = self.owner.value
        try:
            source = vectors.source(run, self.library.border, owner)
            if (source, owner) == self._vectors:
                self._next_vectors = time.monotonic() + 1.0
                return
            content = await threads.io_bound(_geometry, run, source)
        except CheckpointError as error:
            content, source = {"fault": str(error)}, None
        if owner != self.owner.value:
            return
        self._vectors = (source, owner)
        many = len((content or {}).get("entries", ())) * len((content or {}).get("names", ())) > 2000
        self._next_vectors = time.monotonic() + (5.0 if many else 1.5)
        self._show_vectors(run, source, content)

    def _show_vectors(self, run: Run, source: vectors.PrototypeFile | None, content: dict[str, Any] | None) -> None:
        if content is None or "fault" in content:
            waiting = "They are there after the first checkpoint." if not run.finished else ""
            if source and not self.owner.value:
                waiting = "The server of this method keeps none: choose a client."
            self.when.set_text("")
            self._lack_vectors(content["fault"] if content else waiting or "This run has left none.")
            return
        names, step = content["names"], content["row_step"]
        thinned = f"; every {step}th class is shown" if step > 1 else ""
        self.when.set_text(f"After round {source.round if source else '?'}{thinned}.")
        if not any(value is not None for row in content["entries"] for value in row):
            self._lack_vectors("None of these prototypes is finite.")
            return
        self.distances.show({"rows": names, "columns": names, "values": content["distances"]})
        margins = {"name": "margin", "look": vars(lines.Look(0, "o")), "values": content["margins"]}
        self.margins.show({"names": run.class_names, "groups": [margins]})
        columns = content["column_step"]
        dimensions = [str(i * columns) for i in range(len(content["entries"][0]))]
        self.entries.show({"rows": names, "columns": dimensions, "values": content["entries"]})
        if columns > 1:
            self.entries.say(f"One row per class; of every {columns} dimensions one is shown.")

    def _lack_vectors(self, why: str) -> None:
        for plot in (self.distances, self.margins, self.entries):
            plot.show(None, why)

    def _compare(self, key: str) -> None:
        if key:
            ui.navigate.to(rows.comparing([self.key, key]))


def _geometry(run: Run, source: vectors.PrototypeFile | None) -> dict[str, Any] | None:
    if source is None:
        return None
    table = vectors.read(source, len(run.class_names))
    return vectors.geometry(*table, run.class_names) if table is not None else None


def _refusal(i: int, texts: list[str]) -> rows.Row:
    cells = {name: [text, text] for name, text in zip(REFUSAL, texts, strict=True)}
    return {"id": str(i), "title": texts[0], "cells": cells}


def _spell_out(name: str) -> str:
    return name.replace("_", " ").replace(".", ": ")


def _warnings(run: Run) -> list[str]:
    """Return what a reader has to know before the numbers."""
    return [*itertools.chain(*troubles([run])), one_class([run])]
