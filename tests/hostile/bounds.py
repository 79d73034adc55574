"""Whatever a hostile file does, it may take little time and little memory."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from protofed.errors import ProtofedError

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def _kilobytes(name: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])


@contextmanager
def hasty(seconds: int) -> Iterator[None]:
    """Fail if the block takes longer; blocks do not nest."""

    def too_late(*_: object) -> None:
        raise AssertionError(f"took more than {seconds} s")

    handler = signal.signal(signal.SIGALRM, too_late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)


@contextmanager
def frugal(megabytes: float) -> Iterator[None]:
    """Fail if memory rises by more at its peak (where the system tells)."""
    measured = STATUS.exists() and RESET.exists()
    if measured:
        RESET.write_text("5")  # the peak starts anew
        before = _kilobytes("VmRSS")
    yield
    if measured:
        peak = (_kilobytes("VmHWM") - before) / 1000
        assert peak < megabytes, f"took {peak:.0f} MB at its peak"


@contextmanager
def bounded(seconds: int = 30, megabytes: float = 400.0) -> Iterator[None]:
    """Fail if the block takes longer, or more memory."""
    with hasty(seconds), frugal(megabytes):
        yield


def refused(call: Callable[[], object], kind: type[ProtofedError] = ProtofedError) -> str:
    """Return the one line with which a call is refused."""
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert message
    assert message.isprintable(), message
    assert len(message) < 2000, len(message)
    return message
