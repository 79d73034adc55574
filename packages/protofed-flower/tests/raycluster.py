"""A Ray cluster of two machines on one: each sees a disk of its own where the other has the run's files."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import psutil

from deployment import BIN, free_port, until

STORE = 100 * 2**20
"""Bytes of each machine's object store, about the least that Ray takes."""


def own_disks() -> bool:
    """Return whether this system lets a process have mounts of its own."""
    return (
        shutil.which("unshare") is not None
        and not subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode
    )


class RayCluster:
    """Two Ray nodes with one core each; the block's end kills what still runs.

    Args:
        private: A folder that is empty on the second machine, and not shared with it.
    """

    def __init__(self, private: Path) -> None:
        self.private = private
        self.port = free_port()
        # Sockets are in it, whose paths must be short.
        self.temporary = Path(tempfile.mkdtemp(prefix="rc"))
        self.machines: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "RAY_raylet_start_wait_time_s": "240",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "RAY_ADDRESS": f"127.0.0.1:{self.port}",
            "RAY_USAGE_STATS_ENABLED": "0",
            "FLWR_HOME": str(self.temporary / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
        }

    def __enter__(self) -> RayCluster:
        common = f"--num-cpus=1 --object-store-memory={STORE} --node-ip-address=127.0.0.1 --block"
        hidden = f"mount --make-rprivate / && mount -t tmpfs none {self.private}"
        place = f"--port={self.port} --temp-dir={self.temporary}"
        self._start(f"ray start --head {place} --include-dashboard=false {common}")
        self._wait(1)
        self._start(f"{hidden} && exec ray start --address=127.0.0.1:{self.port} {common}", "unshare", "--mount")
        self._wait(2)
        return self

    def __exit__(self, *_: object) -> None:
        for number in range(len(self.machines)):
            self.kill(number)
        shutil.rmtree(self.temporary, ignore_errors=True)

    def kill(self, number: int) -> None:
        """Kill -9 a machine with all that runs on it."""
        machine = self.machines[number]
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(machine.pid).children(recursive=True)
        for process in [machine, *family]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        machine.wait()

    def visiting(self, number: int) -> bool:
        """Return whether a client is visited on a machine right now."""
        family = psutil.Process(self.machines[number].pid).children(recursive=True)
        return any("ClientAppActor.run" in process.name() for process in family)

    def _start(self, command: str, *before: str) -> None:
        with (self.temporary / "log").open("ab") as log:
            self.machines.append(
                subprocess.Popen(
                    [*before, "sh", "-c", command],
                    env={k: v for k, v in self.environment.items() if k != "RAY_ADDRESS"},
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _wait(self, number: int) -> None:
        def there() -> bool:
            assert self.machines[-1].poll() is None, (self.temporary / "log").read_text()
            return (self.temporary / "log").read_text().count("Ray runtime started") >= number

        until(there, 240, f"{number} machines")
