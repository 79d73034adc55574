"""Quick imports, where a process begins."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Import without looking for garbage: imports leave hardly any, and the search takes a third of their time.

    What is there afterwards stays to the end of the process, so later searches, and the last one, leave it out, and
    processes that are forked share it. Meant for programs, not for a library that is imported by one.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()
