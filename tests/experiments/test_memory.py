"""Memory of a process and of those that it has started."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from protofed.experiments.memory import TreeMemory, tree_bytes

CHILD = "held = bytearray(150_000_000); print(len(held), flush=True); input()"


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_processes_that_were_started_count():
    before = tree_bytes()
    with TreeMemory() as memory:
        child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        together = tree_bytes()
        time.sleep(2 * TreeMemory.INTERVAL)
        child.communicate(b"\n")
    assert 100e6 < tree_bytes() < together - 120e6
    assert memory.peak > before + 120e6
    assert tree_bytes(child.pid) == 0
