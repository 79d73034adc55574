"""The page: what its controls make the process do, and what it sends to the browser.

Dots and curves are drawn by ``static/demo.js``. It says when a frame has been drawn, and only then gets the next
one, the newest: a slow browser sees fewer rounds and never falls behind.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

from fastapi import Response
from nicegui import Client, app, ui

from protofed.text import duration, percent, size
from protofed_lab import shell
from protofed_lab.demo import digits
from protofed_lab.demo.layout import DemoLayout
from protofed_lab.demo.setup import SIDES, Chosen, Setup, Side, usual
from protofed_lab.demo.words import answered, in_rounds, title, why_low
from protofed_lab.demo.worker import Message, Worker

MAX_DEMOS = 8  #: Pages that may learn at a time
SHEET_COLUMNS = 20


def site() -> None:
    """Register the page."""
    open_now: set[Demo] = set()

    @app.get("/demo/digits.png")
    def images() -> Response:
        return Response(
            digits.sheet(SHEET_COLUMNS), media_type="image/png", headers={"Cache-Control": "max-age=86400"}
        )

    @app.on_shutdown
    async def close() -> None:
        await asyncio.gather(*(demo.close() for demo in open_now))

    @ui.page("/")
    async def demonstration(client: Client) -> None:
        with shell.page("See it learn"):
            shell.assets("demo.css", "demo.js")
            demo = Demo(client)

            async def leave() -> None:
                open_now.discard(demo)
                await demo.close()

            client.on_connect(demo.drawn)  # what said so may have been lost with the connection
            client.on_disconnect(demo.pause)
            client.on_delete(leave)
            with ui.element().style("display: contents") as place:
                demo.layout.build()
            ui.on("drawn", demo.drawn, args=[])
        await client.connected()
        if len(open_now) >= MAX_DEMOS:  # requests without a browser do not count
            place.set_visibility(False)
            with client.content:
                ui.label(f"{MAX_DEMOS} demonstrations are open already: close one, then reload this page.")
        elif not demo.closed:
            open_now.add(demo)
            await demo.start()


class Demo:
    """One page and its process."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.setup = Setup()
        self.running = False
        self.layout = DemoLayout(self)
        self._worker: Worker | None = None
        self.closed = False
        self._newest: dict[str, Any] | None = None
        self._points: list[list[float]] = []
        self._counts: list[list[int]] = []
        self._drawing = False

    # Life.

    async def start(self) -> None:
        """Start the process and the first demonstration."""
        loop = asyncio.get_running_loop()

        def tell(message: Message) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._hear, message)

        self.script("mount", self.layout.charts)
        worker = await asyncio.to_thread(Worker, tell)
        if self.closed:
            await asyncio.to_thread(worker.close)
            return
        self._worker = worker
        self.begin()

    async def close(self) -> None:
        """End the process."""
        self.closed = True
        worker, self._worker = self._worker, None
        if worker is not None:
            await asyncio.to_thread(worker.close)

    def send(self, command: str, *arguments: Any) -> None:
        """Send a command to the process that learns."""
        if self._worker is not None:
            self._worker.send(command, *arguments)

    def script(self, function: str, argument: Any) -> None:
        """Call a function of ``static/demo.js``."""
        if not self.closed:
            text = json.dumps(argument, separators=(",", ":"))
            self.client.run_javascript(f"protofedDemo.{function}({text})")

    # Commands.

    def begin(self, **changes: Any) -> None:
        """Begin anew, with a changed setup; what ran goes on running."""
        self.setup = replace(self.setup, **changes)
        self.layout.problem("")
        self.layout.words()
        self.layout.busy("Preparing …")
        self.send("begin", self.setup)
        if self.running:
            self.send("go")

    def toggle(self) -> None:
        """Run or pause."""
        if self.running:
            self.pause()
        else:
            self.running = True
            self.send("go")
            self.layout.buttons(running=True)

    def pause(self) -> None:
        """Stop after this round."""
        self.running = False
        self.send("pause")
        if not self.closed:
            with self.client:
                self.layout.buttons(running=False)

    def step(self) -> None:
        """Run one round."""
        self.pause()
        self.send("step")

    def reset(self) -> None:
        """Return to the initial weights."""
        self.pause()
        self.begin()

    def choose(self, side: Side, method: str) -> None:
        """Put another method on a side; both sides begin anew, from the same weights."""
        if method and method != self.setup.chosen(side).method:
            self.setup = self.setup.with_chosen(side, usual(method))
            self.begin()

    def change(self, side: Side, name: str, value: float) -> None:
        """Change an option of a method while it runs."""
        chosen = self.setup.chosen(side)
        options = {name: int(value) if name == "s" else value}
        self.setup = self.setup.with_chosen(side, Chosen(chosen.method, {**chosen.options, **options}))
        self.send("change", side, options)

    # Messages of the process.

    def _hear(self, message: Message) -> None:
        if self.closed:
            return
        kind, content = message
        with self.client:
            if kind == "ready":
                self._ready(content)
            elif kind == "frame":
                self._frame(content)
            else:
                text = content.get("text", "The process that learns has ended. Reload the page to start another.")
                self.layout.busy("")
                self.layout.problem(text)
                self.pause()

    def _ready(self, content: dict[str, Any]) -> None:
        self._newest, self._points = None, []
        self.layout.busy("")
        self._counts = content["counts"]
        self.layout.ready(content)
        names = {side: title(self.setup.chosen(side).method) for side in SIDES}
        if names["left"] == names["right"]:
            names = {side: f"{name}, {side}" for side, name in names.items()}
        scene = {
            "digits": self.setup.digits,
            "clients": self.setup.client_names(),
            "dots": content["dots"],
            "images": digits.rows("test", self.setup.digits).tolist(),
            "columns": SHEET_COLUMNS,
            "rays": {side: d == 2 for side, d in content["dimensions"].items()},
            "methods": names,
        }
        self.script("scene", scene)

    def _frame(self, content: dict[str, Any]) -> None:
        point = [content["round"]]
        for side in SIDES:
            view = content[side]
            point += [view["accuracy"], view["head"], view["bytes"]]
            separation, unseen = view.pop("separation"), view.pop("unseen")
            view["texts"] = {
                "accuracy": percent(view["accuracy"]),
                "head": percent(view["head"]),
                "bytes": size(view["bytes"]),
                "seconds": duration(view["seconds"]),
                "ended": ""
                if view["ended"] is None
                else f"Finished after {in_rounds(view['ended'])}, "
                f"{size(view['bytes'])}, {duration(view['seconds'])}",
                "clients": ["–" if a is None else percent(a) for a in view.pop("clients")],
                "separation": "–" if separation is None else f"{separation:.1f}",
                "unseen": "–" if unseen is None else percent(unseen),
            }
        accuracies = [content[side]["accuracy"] for side in SIDES]
        left, right = (self.setup.chosen(side).method for side in SIDES)
        sent = tuple(content[side]["bytes"] for side in SIDES)
        content["answer"] = answered((left, right), tuple(accuracies), sent)
        self.layout.why(why_low(self.setup, self._counts, accuracies, content["round"]))
        self._points.append(point)
        self._newest = content
        if content["finished"] and self.running:
            self.pause()
        self._push()

    def _push(self) -> None:
        """Send the newest frame and all points of the curves since the last one, if the browser is waiting."""
        if self._drawing or self._newest is None:
            return
        frame = {**self._newest, "points": self._points}
        self._newest, self._points, self._drawing = None, [], True
        self.script("frame", frame)

    def drawn(self) -> None:
        """Note that the browser has drawn a frame."""
        self._drawing = False
        self._push()
