"""A federation on loopback: SuperLink, SuperNodes and runs, each a process that can be killed."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import psutil

from protofed_flower.app import create_app
from protofed_flower.keys import create_keys

BIN = Path(sys.executable).parent
CONNECTION = "trial"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def until(true: Callable[[], bool], seconds: float, what: str, pause: float = 0.1) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds:g} s")
        time.sleep(pause)


def write_trial(root: Path) -> Path:
    """Write the data of three hospitals, as docs/deployment.md does; return their folder."""
    text = (Path(__file__).parents[1] / "docs" / "deployment.md").read_text()
    script = text.partition("python - <<'END'\n")[2].partition("END\n")[0]
    root.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-c", script], cwd=root, check=True)
    return root / "trial" / "data"


class Programs:
    """Programs that are started and killed; the block's end kills whatever still runs.

    Args:
        root: Programs run here, and their logs go here.
        home: Flower's files, for the commands of ``flwr``.
    """

    def __init__(self, root: Path, home: Path) -> None:
        self.root = root
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("FLWR_")},
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.processes):
            self.kill(name)

    def start(self, name: str, command: str) -> None:
        with (self.root / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                shlex.split(command),
                cwd=self.root,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_for_link(self, port: int) -> None:
        """Wait until the program ``link`` listens."""

        def listens() -> bool:
            assert self.processes["link"].poll() is None, self.log("link")
            with socket.socket() as s:
                return s.connect_ex(("127.0.0.1", port)) == 0

        until(listens, 90, "SuperLink")

    def kill(self, name: str) -> None:
        """Kill -9 a program and all that it started."""
        process = self.processes.pop(name)
        try:
            family = psutil.Process(process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            family = []
        for child in [process, *family]:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        process.wait()

    def kill_server_app(self) -> None:
        """Kill -9 the process that runs the ServerApp."""
        found = self.server_apps()
        assert found, self.descendants("link")
        for process in found:
            process.send_signal(signal.SIGKILL)

    def server_apps(self) -> list[psutil.Process]:
        """Return the processes that run a ServerApp."""
        found = []
        for process in self.descendants("link"):
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [process] if any("flwr-serverapp" in word for word in process.cmdline()) else []
        return found

    def descendants(self, name: str) -> list[psutil.Process]:
        return psutil.Process(self.processes[name].pid).children(recursive=True)

    def log(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text(errors="replace")

    def ended(self, name: str, seconds: float = 120) -> int:
        """Wait for a program's end; return its status."""
        return self.processes[name].wait(seconds)

    def flwr(self, command: str) -> str:
        """Run a command of Flower's; return what it prints."""
        done = subprocess.run(
            [str(BIN / "flwr"), *shlex.split(command)], env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"flwr {command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def newest(self, what: str = "run-id") -> str:
        """Return something of the newest run."""
        runs = json.loads(self.flwr(f"list {CONNECTION} --format json"))["runs"]
        return str(max(runs, key=lambda run: run["pending-at"])[what])

    def finish(self, seconds: float = 900) -> None:
        """Wait until the newest run is complete."""
        state = self.end(seconds)
        assert state == "finished:completed", f"{state}\n{self.flwr(f'log {self.newest()} {CONNECTION} --show')}"

    def end(self, seconds: float = 900) -> str:
        """Wait for the end of the newest run; return how it ended."""
        state = ""

        def finished() -> bool:
            nonlocal state
            if self.server_apps():  # asking starts a process that imports Flower
                return False
            state = self.newest("status")
            return state.startswith("finished")

        until(finished, seconds, "end of the run", pause=1.0)
        return state


class Deployment(Programs):
    """A deployment as ``docs/deployment.md`` makes it.

    Args:
        root: Keys, logs, states and Flower's own files go here.
        data: One folder per node.
    """

    def __init__(self, root: Path, data: list[Path]) -> None:
        super().__init__(root, root / "flower")
        self.data = data
        self.keys = root / "keys"
        create_keys(self.keys, len(data), clients=[folder.name for folder in data])
        create_app(root / "app")
        self.port = free_port()
        self.environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"
        (root / "flower").mkdir()
        (root / "flower" / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "127.0.0.1:{self.port}"\nroot-certificates = "{self.keys / "ca.crt"}"\n'
        )

    def link(self) -> None:
        """Start the SuperLink; wait until it listens."""
        keys = self.keys
        self.start(
            "link",
            f"flower-superlink --host 127.0.0.1 --port {self.port} --ssl-ca-certfile {keys}/ca.crt "
            f"--ssl-certfile {keys}/server.pem --ssl-keyfile {keys}/server.key --enable-supernode-auth "
            f"--disable-runtime-dependency-installation --database {self.root}/flower/state.db",
        )
        self.wait_for_link(self.port)

    def register(self) -> None:
        """Let all nodes in."""
        for number in range(len(self.data)):
            self.flwr(f"supernode register {self.keys}/node{number + 1}.pub")

    def node(
        self,
        number: int,
        *,
        name: str = "",
        key: Path | None = None,
        client: str = "",
        secure: bool = False,
    ) -> None:
        """Start a SuperNode, by default ``node1`` and so on with its own key; with a roster for ``secure``."""
        own = f"node{number + 1}"
        folder = self.data[number]
        config = f'client-dir="{folder}" state-dir="{self.root / "state" / folder.name}" least-samples=0'
        config += f' client="{client}"' if client else ""
        if secure:
            config += f' roster="{self.keys}/roster.json" authority="{self.keys}/ca.crt" key="{self.keys / own}"'
        self.start(
            name or own,
            f"protofed deploy node --superlink 127.0.0.1:{self.port} "
            f"--root-certificates {self.keys / 'ca.crt'} "
            f"--auth-supernode-private-key {key or self.keys / own} --port {free_port()} "
            f"--node-config {shlex.quote(config)}",
        )

    def up(self, *, secure: bool = False) -> None:
        """Start everything."""
        self.link()
        self.register()
        for number in range(len(self.data)):
            self.node(number, secure=secure)

    def begin(self, recipe: Path, out: Path, *, resume: bool = False, clients: int = 0, more: str = "") -> None:
        """Submit a run and go on."""
        where = "resume" if resume else "out"
        config = f'recipe="{recipe}" overrides="" clients={clients or len(self.data)} {where}="{out}" {more}'
        self.flwr(f"run {self.root / 'app'} {CONNECTION} -c {shlex.quote(config)}")


def rounds_of(out: Path) -> list[dict[str, object]]:
    """Return the records written so far."""
    path = out / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
