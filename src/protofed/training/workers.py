"""Clients side by side in processes that live as long as the run.

Each process takes one client at a time, whoever comes next, the longest visits first. A client's model and state
are files that any process can read; a process writes new files, and only when its result has arrived do they become
the client's own. So a process that dies in the middle of a visit leaves everything as it was, and the visit is
repeated.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import NamedTuple

import torch

from protofed.errors import ProtofedError
from protofed.training.executor import Messages
from protofed.training.roster import Address, Files, Roster
from protofed.training.samples import FederatedData, PackedData
from protofed.training.visit import Evaluated, Trained, Visitor

Workshop = Callable[[FederatedData, Files], tuple[Visitor, Roster]]
"""Builds, in any process, what visits need; weights come from the store."""

RETRIES = 3


class _Task(NamedTuple):
    """One visit: ``deliver`` is None for training, else as in :meth:`Visitor.evaluate`."""

    name: str
    address: Address
    message: bytes | None
    round: int
    deliver: bool | None


class Workers:
    """Runs visits in processes.

    Args:
        build: Builds visitor and roster in a process; must be picklable.
        federated: The clients' data, which all processes share.
        clients: The roster of this process; its store must be :class:`Files`.
        processes: How many.
        threads: Of each process.
    """

    def __init__(
        self, build: Workshop, federated: FederatedData, clients: Roster, *, processes: int, threads: int
    ) -> None:
        assert isinstance(clients.store, Files)
        self.clients = clients
        self.store = clients.store
        self.processes = processes
        self._start = (build, PackedData.of(federated), self.store.folder, threads)
        self._pool: ProcessPoolExecutor | None = None
        self._seconds: dict[tuple[str, bool], float] = {}

    def train(self, names: Iterable[str], messages: Messages, round: int) -> Iterator[Trained]:
        """Train the named clients; results come in the order of ``names``."""
        tasks = {n: _Task(n, self.store.addresses[n], messages[n], round, None) for n in names}
        for result in self._run(tasks):
            assert isinstance(result, Trained)
            yield result

    def evaluate(self, names: Iterable[str], messages: Messages | None, round: int) -> Iterator[Evaluated]:
        """Evaluate the named clients; without messages, as they were left by training."""
        given = messages or {}
        tasks = {n: _Task(n, self.store.addresses[n], given.get(n), round, messages is not None) for n in names}
        for result in self._run(tasks):
            assert isinstance(result, Evaluated)
            yield result

    def description(self) -> dict[str, str | int]:
        """Return what a report says of it."""
        return {"executor": "workers", "processes": self.processes, "threads": self._start[-1]}

    def close(self) -> None:
        """End the processes and remove the clients' files."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
        self.store.close()

    def _run(self, tasks: dict[str, _Task]) -> Iterator[Trained | Evaluated]:
        """Run tasks, longest first; yield in their order as soon as it is complete so far."""
        done: dict[str, Trained | Evaluated] = {}
        order = iter(tasks)
        name = next(order, None)
        for task, (result, address, seconds) in self._finished(tasks):
            self.store.adopt(task.name, address)
            self._seconds[task.name, task.deliver is None] = seconds
            done[task.name] = result
            while name in done:
                yield done.pop(name)
                name = next(order, None)

    def _finished(self, tasks: dict[str, _Task]) -> Iterator[tuple[_Task, _Done]]:
        """Yield tasks as they finish; those of a process that died are run again."""
        left = sorted(tasks.values(), key=self._expected, reverse=True)
        deaths = 0
        while left:
            pending: dict[Future[_Done], _Task] = {}
            try:
                pending |= {self._workers().submit(_visit, task): task for task in left}
                while pending:
                    for future in wait(pending, return_when=FIRST_COMPLETED).done:
                        result = future.result()
                        task = pending.pop(future)
                        left.remove(task)
                        yield task, result
            except BrokenProcessPool:
                self._pool = None
                deaths += 1
                if deaths > RETRIES:
                    raise ProtofedError(
                        f"worker processes died {deaths} times in one round, last with {left[0].name} or another "
                        f"of {len(left)} clients: short of memory? Lower execution.workers, or set "
                        "execution.executor=sequential"
                    ) from None
            finally:
                for future in pending:
                    future.cancel()

    def _expected(self, task: _Task) -> float:
        """Return how long the visit took last time, or what is known of it before the first time."""
        member = self.clients.members[task.name]
        size = len(member.train) if task.deliver is None else len(member.test)
        return self._seconds.get((task.name, task.deliver is None), float(size))

    def _workers(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self.processes, process_context(), begin, self._start)
        return self._pool


def process_context() -> BaseContext:
    """Return how processes are started.

    Torch's threads do not survive a fork of this process. Where the system allows it, processes are forked from one
    that has imported torch and done nothing else, which takes milliseconds instead of seconds.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # torch.optim imports torch._dynamo when the first optimiser is built, which takes longer than torch itself.
    context.set_forkserver_preload(["protofed.training.workers", "torch._dynamo"])
    return context


def shared_folder() -> Path:
    """Return a new folder for clients' files, in the system's place for temporary files (``TMPDIR``)."""
    return Path(tempfile.mkdtemp(prefix="protofed-"))


def stay_with_parent() -> None:
    """End this process when its parent ends, however that happens, and leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


# In the worker process.

_Done = tuple[Trained | Evaluated, Address, float]
_bench: tuple[Visitor, Roster, Files]


def begin(build: Workshop, data: PackedData, folder: Path, threads: int) -> None:
    """Set up a worker process."""
    global _bench
    stay_with_parent()
    torch.set_num_threads(threads)
    store = Files(folder, owner=False)
    _bench = (*build(data.unpack(), store), store)


def _visit(task: _Task) -> _Done:
    visitor, roster, store = _bench
    store.addresses[task.name] = task.address
    result: Trained | Evaluated
    with roster.visit(task.name, keep=task.deliver is not False) as client:
        if task.deliver is None:
            result = visitor.train(client, task.message, task.round)
        else:
            result = visitor.evaluate(client, task.message, task.round, deliver=task.deliver)
    return result, store.addresses[task.name], result.seconds
