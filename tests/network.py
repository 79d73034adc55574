"""A network without sockets: Flower's messages and this project's apps, in one process."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load_file

from protofed import __version__
from protofed.config.architectures import FederationSummary
from protofed.data import DataOptions
from protofed.experiments import Experiment
from protofed.experiments.encoding import encode
from protofed.experiments.rundir import RunDirectory
from protofed.experiments.running import run_experiment
from protofed.options import plain
from protofed.samples import FederatedData
from protofed.trained.metrics import measure
from protofed.trained.run import TrainedRun
from protofed.visits.contract import Trained
from protofed_flower.client_app import app
from protofed_flower.messages import Job
from protofed_flower.node import Node, _build, _company
from protofed_flower.nodes import RECORD
from protofed_flower.server_app import Gathering, serve
from protofed_flower.sources import plan_text
from protofed_flower.summary import client_summaries
from support import K, experiment, ordinary

Tamper = Callable[[int, Message, Message], Message | None]


class FakeGrid:
    """Delivers messages to ClientApps in this process.

    Args:
        nodes: Node configurations by number.
        tamper: May replace a reply, given the node and the message, or lose it (None).
        keys: Public keys of nodes, in PEM.
    """

    def __init__(
        self, nodes: dict[int, dict[str, Any]], tamper: Tamper | None = None, keys: dict[int, bytes] | None = None
    ) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        self.nodes = nodes
        self.keys = keys or {}
        self.tamper = tamper or (lambda node, message, reply: reply)
        self.app = app
        self.numbers = itertools.count()
        self.waiting: dict[str, Message] = {}
        self.states: dict[int, RecordDict] = {}

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def get_nodes(self) -> list[NodeInfo]:
        """Nodes show the key that ``keys`` has for them, if any."""
        return [NodeInfo(node_id=node, public_key=self.keys.get(node, b"")) for node in self.nodes]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            number = f"m{next(self.numbers)}"
            message.metadata.__dict__["_message_id"] = number
            self.waiting[number] = message
            ids.append(number)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = []
        for number in message_ids:
            message = self.waiting.pop(number, None)
            if message is None:
                continue
            node = message.metadata.dst_node_id
            context = Context(1, node, self.nodes[node], self.states.setdefault(node, RecordDict()), {})
            reply = self.tamper(node, message, self.app(message, context))
            if reply is not None:
                replies.append(reply)
        return replies[::-1]  # answers come in no particular order


def dying(when: Callable[[int, Message], bool]) -> Tamper:
    """Return what kills the server, once: at the first answer of a node to a message for which ``when`` holds."""
    died = False

    def tamper(node: int, message: Message, reply: Message) -> Message:
        nonlocal died
        if when(node, message) and not died:
            died = True
            raise KeyboardInterrupt
        return reply

    return tamper


def forget() -> None:
    """Lose what a process remembers, as a restart does."""
    _build.cache_clear()
    _company.cache_clear()


def killed(step: int, below: Path, act: Callable[[], object]) -> bool:
    """Do something in a process that dies before a change below a folder; return whether it came so far."""
    child = os.fork()
    if not child:
        count = 0

        def watch(event: str, arguments: tuple) -> None:
            nonlocal count
            changes = event in ("os.rename", "os.remove", "os.symlink", "os.link", "os.mkdir", "os.rmdir")
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if (changes or writes) and str(arguments[0]).startswith(str(below)):
                count += 1
                if count == step:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        try:
            act()
        except BaseException:
            os._exit(3)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def write_folders(root: Path, federated: FederatedData) -> Path:
    """Write a federation folder with numbered classes."""
    for client in federated.clients:
        folder = root / "clients" / client.name
        folder.mkdir(parents=True)
        for split in ("train", "test", "validation"):
            if (samples := getattr(client, split)) is not None:
                np.savez(folder / f"{split}.npz", x=samples.x.numpy(), y=samples.y.numpy())
        settings = "".join(f"{k} = {v!r}\n".replace("'", '"') for k, v in client.settings.items())
        if settings:
            (folder / "client.toml").write_text(settings)
    return root


def nodes_of(root: Path, state: Path) -> dict[int, dict[str, Any]]:
    """Return one node per client folder, numbered from 101."""
    folders = sorted((root / "clients").iterdir())
    return {
        101 + i: {"client-dir": str(folder), "state-dir": str(state / folder.name), "least-samples": 0}
        for i, folder in enumerate(folders)
    }


READING = ("source", "path", "data_dir", "clients", "samples", "classes", "columns")
"""Options of data that are no matter of a node's own file, or that a server may set."""


def reading_of(chosen: Experiment) -> dict[str, Any]:
    """Return the ``data`` table of a node that reads its samples as a recipe does."""
    tree, usual = plain(chosen.data), plain(DataOptions())
    return {n: v for n, v in tree.items() if n not in READING and v is not None and v != usual[n]}


def read_as(node: dict[str, Any], chosen: Experiment) -> dict[str, Any]:
    """Return a node whose own file reads its samples as a recipe does, and lets names out."""
    return {"data": reading_of(chosen), "names": True, **node}


def own_run(state: Path, name: str) -> Path:
    """Return the only run directory of a client's node."""
    (found,) = (state / name / name).iterdir()
    return found


def contents(*folders: Path) -> dict[Path, bytes]:
    """Return the content of every file below some folders."""
    return {path: path.read_bytes() for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()}


def enrolled(nodes: dict[int, dict[str, Any]], folder: Path, **settings: int) -> dict[int, dict[str, Any]]:
    """Give nodes what they need for secure aggregation: keys, and a roster that an authority signed."""
    from protofed_flower.keys import create_keys

    create_keys(folder, len(nodes), clients=[Path(node["client-dir"]).name for node in nodes.values()])
    files = {"roster": str(folder / "roster.json"), "authority": str(folder / "ca.crt")}
    return {
        number: {**node, **files, "key": str(folder / f"node{place}"), **settings}
        for place, (number, node) in enumerate(nodes.items(), start=1)
    }


def wanted(method: str, root: Path, **overrides: Any) -> Experiment:
    """Return a tiny experiment on the folder."""
    declared = {"data__classes": K} if "privacy__mode" in overrides else {}
    place = {"data__source": "path", "data__path": str(root), "execution__threads": 1, "rounds": 3}
    return experiment(method, **place | declared | overrides)


def apart(method: str, root: Path, **overrides: Any) -> Experiment:
    """Return a tiny experiment whose messages ask for scores or for training, but never for both."""
    return wanted(method, root, participation__combine=False, **overrides)


def locally(chosen: Experiment, out: Path) -> TrainedRun:
    """Run on the local engine."""
    return TrainedRun.of(run_experiment(chosen, out, measure=measure))


def over(
    grid: FakeGrid,
    chosen: Experiment,
    out: Path,
    *,
    resume: bool = False,
    clients: int = 0,
    simulated: bool = False,
    **gather: Any,
) -> TrainedRun:
    """Run over a network."""
    for number, node in grid.nodes.items():
        if "client-dir" in node:
            grid.nodes[number] = read_as(node, chosen)
    gathering = Gathering(clients or len(grid.nodes), wait_s=0.0, **gather)
    files = RunDirectory(out)
    run = serve(grid, chosen, files, gathering, resume=resume, simulated=simulated, measure=measure)  # type: ignore[arg-type]
    return TrainedRun.of(run)


def assert_nodes_agree(chosen: Experiment, root: Path, folder: Path, *, simulated: bool) -> None:
    """Check that nodes, simulated or not, give the numbers of the local engine and leave the same server."""
    forget()
    local = locally(chosen, folder / "local")
    nodes = nodes_of(root, folder / "state")
    if ":" in chosen.method:  # code is at a node only what its own file names
        allow = {"methods": [chosen.method], "models": [chosen.model.name]}
        nodes = {number: {**node, "allow": allow} for number, node in nodes.items()}
    if simulated:
        nodes = {number: {"partition-id": i, "num-partitions": len(nodes)} for i, number in enumerate(nodes)}
    remote = over(FakeGrid(nodes), chosen, folder / "remote", simulated=simulated)
    assert numbers(remote) == numbers(local)
    for path in (folder / "local").glob("server*.safetensors"):
        assert (folder / "remote" / path.name).read_bytes() == path.read_bytes()


def numbers(run, *more: str) -> list[dict]:
    """Return what of the rounds must not depend on the engine, and what else is named."""
    names = ("round", "participants", "accuracy", "losses", "bytes", "parameters", "diagnostics", "refused", *more)
    return [{n: getattr(r, n) for n in names} for r in run.rounds]


def same_prototypes(a: Path, b: Path) -> None:
    expected, found = (load_file(path / "prototypes.safetensors") for path in (a, b))
    for name in expected.keys() & found.keys():
        torch.testing.assert_close(found[name], expected[name], rtol=1e-6, atol=1e-7)
    assert {n for n in expected if n.startswith("global.")} <= found.keys()


def training(message: Message) -> bool:
    return message.metadata.message_type == "train"


def round_of(message: Message) -> int:
    return int(message.content[RECORD]["round"])


def elsewhere(node: int, message: Message, reply: Message) -> Message:
    """The next visit happens in a process that has seen none."""
    forget()
    return reply


def reply_with(to: Message, values: Mapping[str, Any]) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord({"version": __version__, **values})}), reply_to=to)


def job_of(root: Path, method: str = "fedproto", **options: Any) -> Job:
    """Return the first round of ``ann``, one of the ordinary clients."""
    chosen = wanted(method, root, **options)
    federated = encode(ordinary(), chosen.encoder, chosen.execution.weights_dir)
    summary = client_summaries(chosen, FederationSummary.of(chosen, federated))[0]
    return Job("run", "ann", 1, plan_text(chosen), summary)


def train(node: Node, job: Job) -> Trained:
    return node.train(job)[0]
