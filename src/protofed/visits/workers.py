"""Visits in parallel processes that live as long as the run.

Each process takes a few clients at a time, the longest visits first. Snapshots are in files that every process can
read. A process writes new records, which replace the old ones only when its result has arrived, so a process that
dies during a visit changes nothing and the visit is repeated.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

import torch

from protofed.compute import numerics
from protofed.compute.imports import Packed, pack, unpack
from protofed.errors import ProtofedError
from protofed.samples import FederatedData
from protofed.storage import scratch
from protofed.storage.processes import process_context
from protofed.visits.contract import Evaluated, Executor, Messages, Trained
from protofed.visits.packing import PackedData
from protofed.visits.roster import Address, Files, Place, Roster

Build = Callable[[FederatedData, Files], Executor]  #: Builds the executor of a process from the data and the store

RETRIES = 3
TOGETHER = 32  #: Most clients that a process takes at a time
LEAST = 64  #: Least number of tasks for each process, which must end at about the same time
AHEAD = 16
"""Tasks per process that are handed over in advance; later ones know which places of the store are free by then."""


class _Task(NamedTuple):
    """Visits for one process: ``training``, or evaluation with or without ``messages``.

    The clients start from ``addresses``; the process may write over ``free`` places of the store. Tasks with one
    ``number`` are visits of the same kind to different clients.
    """

    number: int
    addresses: dict[str, Address]
    free: dict[int, list[Place]]
    messages: Messages | None
    round: int
    training: bool


class Workers(Executor):
    """Runs visits in parallel processes.

    Args:
        build: Picklable; builds the executor of a process.
        clients: Their store must be a :class:`Files`.
        threads: Per process.
        preload: Module that imports what ``build`` needs, once for all processes.
    """

    remote = False

    def __init__(
        self,
        build: Build,
        federated: FederatedData,
        clients: Roster,
        *,
        processes: int,
        threads: int,
        preload: str = __name__,
    ) -> None:
        assert isinstance(clients.store, Files)
        self.clients = clients
        self.store = clients.store
        self.processes = processes
        self.threads = threads
        self.preload = preload
        self._start = (pack(build), PackedData.of(federated), self.store.folder, threads)
        self._pool: ProcessPoolExecutor | None = None
        self._seconds: dict[tuple[str, bool], float] = {}
        self._runs = 0

    def train(self, names: Iterable[str], messages: Messages, round_number: int) -> Iterator[Trained]:
        """Train the named clients; results come in the order of ``names``."""
        return self._run(list(names), messages, round_number, training=True)

    def evaluate(self, names: Iterable[str], messages: Messages | None, round_number: int) -> Iterator[Evaluated]:
        """Evaluate the named clients; without messages, as training left them."""
        return self._run(list(names), messages, round_number, training=False)

    def description(self) -> dict[str, str | int]:
        """Return facts about the executor for reports."""
        return {"executor": "workers", "processes": self.processes, "threads": self.threads}

    def close(self) -> None:
        """End the processes and remove the files of the clients."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
        self.store.close()

    def _run(
        self, names: Sequence[str], messages: Messages | None, round_number: int, *, training: bool
    ) -> Iterator[Any]:
        """Run visits; yield results in the order of ``names`` as early as possible."""
        self._runs += 1

        def expect_seconds(name: str) -> float:
            member = self.clients[name]
            return self._seconds.get((name, training), len(member.train if training else member.test))

        longest = sorted(names, key=expect_seconds, reverse=True)
        together = max(1, min(TOGETHER, len(names) // (LEAST * self.processes)))
        tasks = []
        for first in range(0, len(longest), together):
            some = longest[first : first + together]
            addresses = {name: self.store.addresses[name] for name in some}
            sent = None if messages is None else {name: messages[name] for name in some}
            tasks.append(_Task(self._runs, addresses, {}, sent, round_number, training))
        done: dict[str, Trained | Evaluated] = {}
        order = iter(names)
        name = next(order, None)
        for results, addresses, free in self._run_tasks(tasks):
            self.store.take_back(free)
            for result in results:
                self.store.adopt(result.client, addresses[result.client])
                self._seconds[result.client, training] = result.seconds
                done[result.client] = result
            while name in done:
                yield done.pop(name)
                name = next(order, None)

    def _run_tasks(self, tasks: list[_Task]) -> Iterator[_Done]:
        """Run tasks in order, and yield their results; repeat tasks of processes that died."""
        left = tasks[::-1]  # the next one is at the end
        deaths = 0
        while left:
            pending: dict[Future[_Done], _Task] = {}
            try:
                while left or pending:
                    while left and len(pending) < AHEAD * self.processes:
                        task = left[-1]._replace(free=left[-1].free or self.store.lend(left[-1].addresses))
                        pending[self._submit(task)] = task
                        left.pop()
                    for future in wait(pending, return_when=FIRST_COMPLETED).done:
                        result = future.result()
                        del pending[future]
                        yield result
            except BrokenProcessPool:
                self._end()
                left += reversed(pending.values())
                deaths += 1
                if deaths > RETRIES:
                    names = [name for task in left[::-1] for name in task.addresses]
                    raise ProtofedError(
                        f"worker processes died {deaths} times in one round, last with {names[0]} or another of "
                        f"{len(names)} clients: short of memory? Lower execution.workers, or set "
                        "execution.executor=sequential"
                    ) from None
            finally:
                if pending:  # abandoned by the caller
                    self._end()

    def _submit(self, task: _Task) -> Future[_Done]:
        try:
            return self._workers().submit(_visit, task)
        except OSError as error:
            self._end()
            raise ProtofedError(
                f"worker processes cannot be started ({error}): is there room in {tempfile.gettempdir()} and "
                "/dev/shm, and is TMPDIR short? Or set execution.executor=sequential"
            ) from None

    def _end(self) -> None:
        if self._pool is not None:
            end(self._pool)
            self._pool = None

    def _workers(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = process_context(self.preload)
            self._pool = ProcessPoolExecutor(self.processes, context, begin, self._start)
        return self._pool


def create_folder() -> Path:
    """Create a folder for snapshots in the system's temporary directory (``TMPDIR``) and return it."""
    return scratch.subfolder("clients")


def end(pool: ProcessPoolExecutor) -> None:
    """Kill all processes of a pool."""
    for running in list((pool._processes or {}).values()):
        running.kill()
    pool.shutdown(cancel_futures=True)


def stay_with_parent() -> None:
    """End this process as soon as its parent ends, and leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


# In the worker process.

_Done = tuple[list[Trained | Evaluated], dict[str, Address], dict[int, list[Place]]]
_bench: tuple[Executor, Files]
_number = 0


def begin(build: Packed, data: PackedData, folder: Path, threads: int) -> None:
    """Initialise a worker process."""
    global _bench
    numerics.prepare()
    stay_with_parent()
    torch.set_num_threads(threads)
    store = Files(folder, owner=False)
    _bench = unpack(build)(data.unpack(), store), store


def _visit(task: _Task) -> _Done:
    global _number
    executor, store = _bench
    if task.number != _number:
        store.part()
        _number = task.number
    store.addresses, store.free = task.addresses, task.free
    visit: Callable[..., Iterable[Any]] = executor.train if task.training else executor.evaluate
    return list(visit(list(task.addresses), task.messages, task.round)), store.addresses, store.free
