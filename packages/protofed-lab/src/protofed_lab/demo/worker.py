"""The process in which a demonstration learns, and the page's end of it.

A page has a process of its own, so that learning never keeps the server from answering and two tabs never wait for
each other. The process ends when its pipe does: when the page closes, and when the server is gone, however it went.
"""

from __future__ import annotations

import base64
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from protofed.errors import ProtofedError
from protofed.storage import scratch
from protofed_lab.demo.setup import SIDES, VARIANTS, Setup, Side

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from protofed_lab.demo.engine import View

METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
GRID = 32_000  #: Points travel as whole numbers, the outermost of them as this one
NOTHING = -32_768  #: In place of a coordinate that is not there
Message = tuple[str, dict[str, Any]]


def prepare() -> None:
    """Begin to load what learning needs, in a process from which those of the pages are forked."""
    scratch.hold_multiprocessing()
    if METHOD == "forkserver":
        from multiprocessing import forkserver

        multiprocessing.set_forkserver_preload(["protofed_lab.demo.preload"])
        forkserver.ensure_running()


class Worker:
    """A page's end: commands go down, messages come up through ``tell``, called in a thread of its own.

    Messages: ``ready`` (a setup has begun; what it consists of), ``frame`` (there is something new to see),
    ``refused`` (a setup or an option does not fit: one line), ``gone`` (the process has ended).
    """

    def __init__(self, tell: Callable[[Message], None]) -> None:
        """Start the process; takes as long as :func:`prepare` is not done."""
        context: Any = multiprocessing.get_context(METHOD)  # all start methods have Pipe and Process
        self._pipe, far_end = context.Pipe()
        self._lock = threading.Lock()
        self.process = context.Process(target=work, args=(far_end,), daemon=True, name="protofed demo")
        self.process.start()
        far_end.close()
        threading.Thread(target=self._listen, args=(tell,), daemon=True).start()

    def send(self, command: str, *arguments: Any) -> None:
        """Send a command, the name of a method of :class:`Session`."""
        with self._lock, suppress(OSError):
            self._pipe.send((command, arguments))

    def close(self) -> None:
        """End the process."""
        self.send("quit")
        self.process.join(1.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def _listen(self, tell: Callable[[Message], None]) -> None:
        with suppress(EOFError, OSError):
            while True:
                tell(self._pipe.recv())
        self._pipe.close()
        tell(("gone", {}))


def work(pipe: Connection) -> None:
    """Run a session until its pipe ends: the main function of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the server decides
    import torch

    torch.set_num_threads(1)
    with suppress(EOFError, OSError):
        Session(pipe).run()


class Session:
    """Carries out the commands of a page: sets up demonstrations, runs them, and sends views of them."""

    def __init__(self, pipe: Connection) -> None:
        from protofed_lab.demo.engine import FederationPair

        self._pipe = pipe
        self._make = FederationPair
        self.pair: FederationPair | None = None
        self.running = False
        self.rate = 10.0
        self.client: int | None = None
        self._due = 0.0

    def run(self) -> None:
        """Carry out commands until the one to quit."""
        while True:
            wait = max(0.0, self._due - time.monotonic()) if self.running else None
            while self._pipe.poll(wait):
                command, arguments = self._pipe.recv()
                if command == "quit":
                    return
                getattr(self, command)(*arguments)
                wait = 0.0 if self.running else None
            if self.running:
                # A round that took too long is not caught up with.
                self._due = max(self._due + 1 / self.rate, time.monotonic())
                self.step()

    # Commands.

    def begin(self, setup: Setup) -> None:
        """Begin a demonstration from its first round."""
        try:
            self.pair = self._make(setup)
        except ProtofedError as error:
            self._tell("refused", text=str(error))
            return
        if self.client is not None and self.client >= setup.clients:
            self.client = None
        self._describe()
        self._show()

    def go(self) -> None:
        """Run on."""
        self.running = self.pair is not None and not self.pair.finished
        self._due = time.monotonic()

    def pause(self) -> None:
        """Stop after this round."""
        self.running = False

    def step(self) -> None:
        """Run one round."""
        if self.pair is None or self.pair.finished:
            return
        try:
            self.pair.step()
        except ProtofedError as error:
            self.running = False
            self._tell("refused", text=str(error))
            return
        self.running = self.running and not self.pair.finished
        self._show()

    def speed(self, rate: float) -> None:
        """Run ``rate`` rounds a second, or as many as are possible."""
        self.rate = rate

    def change(self, side: Side, options: dict[str, Any]) -> None:
        """Go on with other options of a method."""
        if self.pair is None:
            return
        try:
            self.pair.sides[side].change(options)
        except ProtofedError as error:
            self._tell("refused", text=str(error))

    def look(self, client: int | None) -> None:
        """Show this client's features, or all clients'."""
        self.client = client
        if self.pair is not None:
            self._describe()
            self._show()

    # What is told.

    def _describe(self) -> None:
        from protofed import methods
        from protofed_lab.demo.engine import rounds_needed

        assert self.pair is not None
        pair = self.pair
        roster = pair.sides["left"].federation.executor.clients
        self._tell(
            "ready",
            counts=[c.train.counts(len(pair.setup.digits)).tolist() for c in pair.federated.clients],
            models=[member.architecture for member in roster.values()],
            dots=pair.dots(self.client),
            knobs={side: live.knobs() for side, live in pair.sides.items()},
            methods={name: rounds_needed(VARIANTS.get(name, name), {}) for name in (*methods.methods(), *VARIANTS)},
            notes=[f"{side.capitalize()}: {note}" for side, live in pair.sides.items() for note in live.notes],
            dimensions={side: live.d for side, live in pair.sides.items()},
        )

    def _show(self) -> None:
        assert self.pair is not None
        dots = self.pair.dots(self.client)
        views = {side: pack(self.pair.sides[side].view(dots)) for side in SIDES}
        self._tell("frame", round=self.pair.round, finished=self.pair.finished, **views)

    def _tell(self, kind: str, **content: Any) -> None:
        self._pipe.send((kind, content))


def pack(view: View) -> dict[str, Any]:
    """Return a view in little room: its points as 16-bit numbers in base64, with the length of the outermost."""
    import numpy as np

    points = [view.dots, view.own.reshape(-1, 2), view.shared.reshape(-1, 2)]
    finite = np.concatenate([np.abs(p[np.isfinite(p)]) for p in points])
    scale = float(finite.max()) if finite.size and finite.max() > 0 else 1.0
    dots, own, shared = (_pack(_on_grid(p, scale), "<i2") for p in points)
    return {
        "accuracy": round(view.accuracy, 5),
        "head": round(view.head, 5),
        "clients": [None if a is None else round(a, 4) for a in view.clients],
        **{name: getattr(view, name) for name in ("bytes", "seconds", "ended", "separation", "unseen")},
        "scale": scale,
        "dots": dots,
        "own": own,
        "shared": shared,
        "labels": view.labels.tolist(),
        "predicted": _pack(view.predicted, "<i1"),
    }


def _on_grid(points: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
    import numpy as np

    whole = np.isfinite(points).all(1, keepdims=True)
    return np.where(whole, np.rint(np.where(whole, points, 0.0) / scale * GRID), NOTHING)


def _pack(values: NDArray[Any], kind: str) -> str:
    return base64.b64encode(values.astype(kind).tobytes()).decode()
