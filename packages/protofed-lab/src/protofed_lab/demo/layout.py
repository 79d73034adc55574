"""The page's parts: controls, two planes, curves, and what stands beside them."""

from __future__ import annotations

import html
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from nicegui import ui

from protofed_lab import shell
from protofed_lab.demo.setup import MAX_CLIENTS, ROUNDS, SIDES, Side
from protofed_lab.demo.words import KNOBS, METHODS, listed, look_for, title

if TYPE_CHECKING:
    from protofed_lab.demo.page import Demo

SKEWS = {"paired": "by halves, 3 : 1", "apart": "by halves, each its own digits", "dirichlet": "by Dir(α)"}
MODELS = {"same": "784→64→16→d for all", "mixed": "four different ones"}
_STROKE = '<svg class="stroke" aria-hidden="true"><line x1="0" y1="5" x2="26" y2="5"/></svg>'
DIMENSIONS = (2, 3, 4, 8, 16, 32)


class DemoLayout:
    """The parts of one page."""

    def __init__(self, demo: Demo) -> None:
        self.demo = demo
        self.charts: dict[str, int] = {}
        self._controls: list[Any] = []
        self._method: dict[Side, Any] = {}
        self._does: dict[Side, Any] = {}
        self._panel: dict[Side, Any] = {}
        self._knobs: dict[Side, Any] = {}

    def build(self) -> None:
        """Lay the page out."""
        with ui.element("div").classes("demo"):
            self._lead = ui.label().classes("lead")
            self._build_controls()
            for side in SIDES:
                self._build_side(side)
            self._build_curves()
            with ui.element("aside").classes("aside"):
                self._build_words()
                self._build_clients()
        self.words()
        for control in self._controls:
            control.disable()

    def _build_controls(self) -> None:
        with ui.element("section").classes("card controls").props('aria-label="Controls"'):
            with ui.element("div").classes("buttons"):
                self._run = ui.button("Run", icon="play_arrow", on_click=self.demo.toggle).props(
                    "unelevated no-caps text-color=on-accent"
                )
                step = ui.button("Step", icon="skip_next", on_click=self.demo.step).props("outline no-caps")
                reset = ui.button("Reset", icon="replay", on_click=self.demo.reset).props("outline no-caps")
                self._controls += [self._run, step, reset]
            with ui.element("div").classes("round"):
                ui.html('Round <b data-read="round">0</b>', sanitize=False)
                ui.label(f"of {ROUNDS}").classes("soft")
            with ui.element("div").classes("speed"):
                self._slider("Speed", "rounds a second", 1, 30, 1, 10, partial(self.demo.send, "speed"))
            self._busy = ui.label("Loading what learns …").classes("busy soft").props('role="status"')
            self._status = ui.label().classes("hidden").props('role="status" aria-live="polite"')
            self._error = ui.label().classes("problem").props('role="alert"')
            self._error.set_visibility(False)
        ui.keyboard(on_key=self._key, repeating=False)

    def _build_side(self, side: Side) -> None:
        with ui.element("section").classes(f"card side {side}").props(f'data-side="{side}"'):
            with ui.element("div").classes("head"):
                ui.html(_STROKE, sanitize=False)
                chosen = self.demo.setup.chosen(side).method
                self._method[side] = (
                    ui.select(
                        listed(dict.fromkeys(METHODS)),
                        label=f"Method on the {side}",
                        value=chosen,
                        on_change=lambda e, side=side: self.demo.choose(side, e.value),
                    )
                    .props("dense borderless options-dense")
                    .classes("method")
                )
                self._does[side] = ui.label().classes("soft does")
                ui.html(
                    '<span class="figure" data-read="accuracy" title="Accuracy on the test images">–</span>',
                    sanitize=False,
                )
            plane = shell.chart(
                _plane_options(), label=f"Test images and prototypes in the plane of features, {side} side"
            ).classes("plane")
            self.charts[side] = plane.id
            ui.html(
                '<p class="ended" data-read="ended"></p>'
                '<dl class="reads"><div><dt>Sent so far</dt><dd data-read="bytes">–</dd></div>'
                '<div title="Time of computing on one core, features of an encoder included">'
                '<dt>Computed</dt><dd data-read="seconds">–</dd></div>'
                '<div title="Distance of the two closest circles, in mean distances of a dot from the circle of '
                'its digit"><dt>Separation</dt><dd data-read="separation">–</dd></div>'
                '<div title="Accuracy on test images of digits that a client has no training images of">'
                '<dt>Unseen digits</dt><dd data-read="unseen">–</dd></div></dl>',
                sanitize=False,
            )
            self._panel[side] = ui.element("div").classes("knobs")

    def _build_curves(self) -> None:
        with ui.element("section").classes("card curves"):
            with ui.element("div").classes("head"):
                ui.html("<h2>Accuracy</h2>", sanitize=False)
                for side in SIDES:
                    ui.html(f'{_STROKE}<span data-read="method"></span>', sanitize=False).classes(
                        f"line {side}"
                    ).props(f'data-side="{side}"')
                ui.element("span").classes("spring")
                self._toggle("Against", {"round": "rounds", "bytes": "bytes"}, "round", "against")
                self._toggle("By", {"accuracy": "prototypes", "head": "head"}, "accuracy", "by")
            ui.html('<p class="answer" data-read="answer"></p>', sanitize=False)
            curves = shell.chart(_curve_options(), label="Accuracy of both sides, round by round").classes("curve")
            self.charts["curves"] = curves.id

    def _build_words(self) -> None:
        with ui.element("section").classes("card words"):
            ui.html("<h2>What to look for</h2>", sanitize=False)
            self._paragraphs = ui.html("", sanitize=False).classes("paragraphs")
            self._notes = ui.label().classes("note")
            self._notes.set_visibility(False)
            self._why = ui.label().classes("note").props('role="status"')
            self._why.set_visibility(False)
            ui.html('<ul class="key" aria-label="Key"></ul>', sanitize=False)

    def _build_clients(self) -> None:
        with ui.element("section").classes("card clients"):
            ui.html("<h2>The clients</h2>", sanitize=False)
            self._table = ui.html("", sanitize=False).classes("table")
            with ui.element("div").classes("fields"):
                clients = ui.number(
                    "Clients", value=2, min=2, max=MAX_CLIENTS, step=1, on_change=self._set_clients
                ).props("dense outlined")
                figures = {n: str(n) for n in range(10)}
                chosen = list(self.demo.setup.digits)
                self._digits = _select("Digits", figures, chosen, self._set_digits, multiple=True)
                skew = _select("Divided", SKEWS, "paired", self._set_skew).classes("wide")
                models = _select("Models", MODELS, "same", lambda v: self.demo.begin(models=v)).classes("wide")
                sizes = {d: str(d) for d in DIMENSIONS}
                dimension = _select("Dimension d", sizes, 2, lambda v: self.demo.begin(d=v))
                seed = ui.number(
                    "Seed", value=0, min=0, max=9999, step=1, on_change=lambda e: self._set_seed(e.value)
                ).props("dense outlined")
            self._alpha = ui.element("div").classes("alpha")
            with self._alpha:
                unit, act = "small: few digits per client", lambda v: self.demo.begin(alpha=round(10**v, 3))
                self._slider("α", unit, -1.3, 1, 0.1, -0.5, act, lambda v: f"{10**v:.2g}")
            self._alpha.set_visibility(False)
            with ui.element("div").classes("fields"):
                look = partial(self.demo.send, "look")
                self._look = _select("Dots of", {-1: "all clients"}, -1, lambda v: look(None if v < 0 else v))
                glyphs = ui.switch("Digits for dots", on_change=lambda e: self.demo.script("glyphs", e.value))
            self._controls += [clients, self._digits, skew, models, dimension, seed, self._look, glyphs]

    def _slider(
        self,
        name: str,
        unit: str,
        low: float,
        high: float,
        step: float,
        value: float,
        act: Callable[[float], None],
        write: Callable[[float], str] = "{:g}".format,
    ) -> None:
        """Add a slider with its name, its value and a word on its effect.

        It is the browser's own, since Quasar's puts its role on an element that cannot have the focus.
        """
        with ui.element("label").classes("slider"):
            with ui.element("span").classes("caption"):
                ui.html(f"<b>{name}</b>", sanitize=False)
                shown = ui.label(write(value)).classes("value")
                ui.label(unit).classes("soft")
            # As plain HTML: a bound element would be set back to the server's value while a hand moves it.
            slider = ui.html(
                f'<input type="range" min="{low:g}" max="{high:g}" step="{step:g}" value="{value:g}" '
                f'aria-label="{name}: {unit}">',
                sanitize=False,
            )

            def turned(event: Any) -> None:
                value = float(event.args)
                shown.set_text(write(value))
                act(value)

            slider.on("input", turned, throttle=0.05, js_handler="(event) => emit(event.target.value)")

    def _toggle(self, name: str, options: dict[str, str], value: str, function: str) -> None:
        ui.toggle(options, value=value, on_change=lambda e: self.demo.script(function, e.value)).props(
            f'dense unelevated no-caps toggle-color=primary toggle-text-color=on-accent aria-label="{name}"'
        ).classes("toggle")

    # What changes on the page.

    def buttons(self, *, running: bool) -> None:
        """Show whether the demonstration runs."""
        self._run.set_text("Pause" if running else "Run")
        self._run.props(f"icon={'pause' if running else 'play_arrow'}")
        self._status.set_text("Running" if running else "Paused")

    def busy(self, text: str) -> None:
        """Show what the page is waiting for; ``""`` for nothing."""
        shell.tell(self._busy, text)

    def problem(self, text: str) -> None:
        """Show an error; ``""`` for none."""
        shell.tell(self._error, text)

    def why(self, text: str) -> None:
        """Show why both sides do badly; ``""`` if they do not."""
        shell.tell(self._why, text)

    def words(self) -> None:
        """Describe what runs on either side, and what to look for."""
        methods = {side: self.demo.setup.chosen(side).method for side in SIDES}
        does = {side: METHODS.get(method, ("", f"runs {method}"))[1] for side, method in methods.items()}
        self._lead.set_text(
            "Two federations with the same clients, data and initial weights. "
            f"The left one {does['left']}; the right one {does['right']}."
        )
        for side in SIDES:
            self._does[side].set_text(does[side])
            # There is less room than in the list.
            self._method[side].props(f'display-value="{title(methods[side])}"')
        told = look_for(methods["left"], methods["right"], self.demo.setup.clients)
        self._paragraphs.set_content("".join(f"<p>{text}</p>" for text in told))

    def ready(self, content: dict[str, Any]) -> None:
        """Show what a new setup consists of, as the process tells it."""
        setup = self.demo.setup
        names = setup.client_names()
        for side in SIDES:
            self._method[side].set_options(listed(content["methods"]))
            self._show_knobs(side, content["knobs"][side])
        self._table.set_content(counts_table(names, setup.digits, content["counts"], content["models"]))
        options = {-1: "all clients", **dict(enumerate(names))}
        if self._look.options != options:
            self._look.set_options(options, value=self._look.value if self._look.value in options else -1)
        shell.tell(self._notes, " ".join(content["notes"]))
        for control in self._controls:
            control.enable()

    def _show_knobs(self, side: Side, knobs: dict[str, float]) -> None:
        """Show a slider for each option that may change; those there already stay, with the focus on them."""
        shape = {name: self.demo.setup.d if name == "s" else None for name in knobs}
        if self._knobs.get(side) == (self.demo.setup.chosen(side).method, shape):
            return
        self._knobs[side] = (self.demo.setup.chosen(side).method, shape)
        self._panel[side].clear()
        with self._panel[side]:
            for name, value in knobs.items():
                knob = KNOBS[name]
                high = self.demo.setup.d if name == "s" else max(knob.high, value)
                act = partial(self.demo.change, side, name)
                self._slider(knob.title, knob.help, knob.low, high, knob.step, value, act)

    def _set_clients(self, event: Any) -> None:
        if event.value is not None and 2 <= int(event.value) <= MAX_CLIENTS:
            self.demo.begin(clients=int(event.value))

    def _set_seed(self, value: float | None) -> None:
        if value is not None and value >= 0:
            self.demo.begin(seed=int(value))

    def _set_digits(self, digits: list[int]) -> None:
        if len(digits) < 2:
            self.problem("Choose at least two digits.")
            return
        self.demo.begin(digits=tuple(sorted(digits)))

    def _set_skew(self, skew: str) -> None:
        self._alpha.set_visibility(skew == "dirichlet")
        self.demo.begin(skew=skew)

    def _key(self, event: Any) -> None:
        if not event.action.keydown or event.modifiers.ctrl or event.modifiers.meta or event.modifiers.alt:
            return
        actions = {" ": self.demo.toggle, "s": self.demo.step, "r": self.demo.reset}
        if self._run.enabled and (action := actions.get(event.key.name.lower())):
            action()


def _select(label: str, options: dict[Any, str], value: Any, act: Callable[[Any], None], **more: Any) -> Any:
    chosen = ui.select(options, label=label, value=value, on_change=lambda e: act(e.value), **more)
    return chosen.props("dense outlined options-dense")


def counts_table(names: list[str], shown: tuple[int, ...], counts: list[list[int]], models: list[str]) -> str:
    """Return the clients and their training images per digit as an HTML table, darker where there are more."""
    most = max(max(row) for row in counts) or 1
    head = "".join(f'<th scope="col">{digit}</th>' for digit in shown)
    head += "".join(
        f'<th scope="col" class="{side}" aria-label="Accuracy, {side}">{_STROKE}</th>' for side in SIDES
    )
    rows = "".join(
        f'<tr><th scope="row" title="{html.escape(model)}"><i data-client="{number}"></i>'
        f"{name.removeprefix('Client ')}</th>"
        + "".join(f'<td{"" if n else " class=none"} style="--share:{n / most:.2f}">{n}</td>' for n in row)
        + "".join(f'<td class="accuracy" data-accuracy="{side}-{number}"></td>' for side in SIDES)
        + "</tr>"
        for number, (name, row, model) in enumerate(zip(names, counts, models, strict=True))
    )
    return (
        '<table class="counts"><caption class="soft">Training images of each digit, and accuracy</caption>'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _plane_options() -> dict[str, Any]:
    axis = {
        "type": "value",
        "min": -1,
        "max": 1,
        "splitNumber": 4,
        "splitLine": {"showMinLine": False, "showMaxLine": False},
        **{part: {"show": False} for part in ("axisLine", "axisTick", "axisLabel")},
    }
    around = {"left": 6, "right": 6, "top": 6, "bottom": 6}
    return {"grid": around, "xAxis": axis, "yAxis": axis, "series": []}


def _curve_options() -> dict[str, Any]:
    return {
        "grid": {"left": 44, "right": 120, "top": 14, "bottom": 26},
        "xAxis": {"type": "value", "min": 0, "minInterval": 1, "splitLine": {"show": False}},
        "yAxis": {"type": "value", "scale": True, "max": 1, "axisLabel": {}, "splitNumber": 4},
        "tooltip": {"trigger": "axis", "transitionDuration": 0},
        "series": [],
    }
