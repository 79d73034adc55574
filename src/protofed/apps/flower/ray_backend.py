"""Flower's Ray backend, extended to survive the loss of a machine.

Flower keeps a dead actor in its pool, where it fails one visit after the other. This backend replaces a dead actor
if the cluster still has room for one, and repeats the visit that was lost with it: a simulated client travels with
its visit, so the repetition starts from the same state.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from flwr.app import Context, Message
from flwr.common.constant import PARTITION_ID_KEY
from flwr.server.superlink.fleet.vce.backend import raybackend
from flwr.simulation.ray_transport.ray_actor import pool_size_from_resources
from ray.exceptions import RayError, RayTaskError

from protofed.errors import FederationError

ATTEMPTS = 3
"""Number of actors lost with a visit after which the visit counts as the cause."""
PATIENCE = 10.0
"""Seconds within which an idle actor must show that it is alive, once another one has died."""
START = 60.0
"""Seconds to wait for a new actor if all are lost."""
PAUSE = 0.5
"""Seconds between two polls for actors that have started."""
log = logging.getLogger("protofed")


class LastingBackend(raybackend.RayBackend):
    """A backend whose actors come and go with the machines of the cluster."""

    def build(self, app_fn: Any) -> None:
        """Start the actors."""
        super().build(app_fn)
        assert self.pool is not None
        self.idle = self.pool.pool
        self.actors = len(self.idle)
        self.starting: dict[Any, Any] = {}
        self.lost = 0.0
        self.changed = threading.Condition()

    def process_message(self, message: Message, context: Context) -> tuple[Message, Context]:
        """Carry out a visit.

        Raises:
            FederationError: If no machine is left, or the visit lost :data:`ATTEMPTS` actors.
            RayTaskError: If the app failed.
        """
        client = str(context.node_config[PARTITION_ID_KEY])
        reason = ""
        for _ in range(ATTEMPTS):
            actor = self._take()
            try:
                _, reply, updated = ray.get(actor.run.remote(self.app_fn, message, client, context))
            except RayTaskError:
                self._give(actor)
                raise
            except RayError as error:
                reason = " ".join(str(error).split())[:200]
                log.warning("a Ray actor was lost with a visit (%s): repeating the visit", reason)
                self._replace()
                continue
            self._give(actor)
            return reply, updated
        raise FederationError(f"the visit lost {ATTEMPTS} Ray actors, last: {reason}")

    def _take(self) -> Any:
        with self.changed:
            while not self.idle:
                if not self.actors and time.monotonic() > self.lost + START:
                    raise FederationError("no machine of the Ray cluster is left with room for a client")
                self._welcome()
                self.changed.wait(0.0 if self.idle else PAUSE)
            return self.idle.pop()

    def _give(self, actor: Any) -> None:
        with self.changed:
            self.idle.append(actor)
            self.changed.notify()

    def _replace(self) -> None:
        """Remove an actor that has died and those that died with it; start others if there is room."""
        assert self.pool is not None
        with self.changed:
            alive = [actor for actor in self.idle if _lives(actor)]
            self.actors -= 1 + len(self.idle) - len(alive)
            try:
                room = pool_size_from_resources(self.client_resources)
            except ValueError:  # raised by Flower if there is none
                room = 0
            self.idle[:] = alive
            self.lost = time.monotonic()
            for _ in range(room - self.actors - len(self.starting)):
                actor = self.pool.create_actor_fn()  # type: ignore[no-untyped-call]
                self.starting[actor.__ray_ready__.remote()] = actor
            self.changed.notify_all()

    def _welcome(self) -> None:
        """Add actors that have started to the idle ones; some may never start, for lack of room."""
        for ready in ray.wait(list(self.starting), timeout=0)[0] if self.starting else ():
            actor = self.starting.pop(ready)
            if _lives(actor):
                self.idle.append(actor)
                self.actors += 1


def _lives(actor: Any) -> bool:
    try:
        return bool(ray.get(actor.__ray_ready__.remote(), timeout=PATIENCE))
    except (RayError, TimeoutError):
        return False


@contextmanager
def lasting() -> Iterator[None]:
    """Let Flower's simulation engine use :class:`LastingBackend` inside the block."""
    original = raybackend.RayBackend
    raybackend.RayBackend = LastingBackend  # type: ignore[misc]
    try:
        yield
    finally:
        raybackend.RayBackend = original  # type: ignore[misc]
