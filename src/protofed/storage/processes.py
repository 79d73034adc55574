"""Processes that are forked from a server, which has imported what they need."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
from multiprocessing.context import BaseContext

from protofed.compute import numerics
from protofed.storage import scratch

PRELOAD = "protofed.experiments.preload"  #: Module with the imports of an experiment's processes


def process_context(preload: str = PRELOAD, *more: str) -> BaseContext:
    """Return the multiprocessing context in which processes are started.

    Torch's threads do not survive a fork of this process. Where the system permits, processes are forked from a
    server that has only imported what they need (of the modules named first: there is one server), which takes
    milliseconds instead of seconds. Imports must not compute with torch, or threads would begin in the server.
    """
    scratch.hold_multiprocessing()
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*more, preload])  # the last one lets no process search them for garbage
    return context


def get_ready(*more: str) -> None:
    """Start the fork server, if there are cores for it: it imports while this process does."""
    if numerics.cores() > 1 and process_context(PRELOAD, *more).get_start_method() == "forkserver":
        multiprocessing.forkserver.ensure_running()
