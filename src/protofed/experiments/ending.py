"""The end of a run beside its weights, so that its models can be used and it can go on.

``federation.json`` describes the models as data (:func:`describe_models`). ``end.json`` and the clients'
``state.safetensors`` hold what a checkpoint would: the server's record, and the clients' state.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, TypedDict

import torch
from msgspec import Struct
from torch import Tensor

from protofed import data
from protofed.compute.imports import importing_only
from protofed.config.architectures import Architecture, ClassSize, ClientCount, FederationSummary
from protofed.config.remote import code_of
from protofed.config.schema import Experiment, Tree, resolve
from protofed.errors import CheckpointError, DataError, writing
from protofed.methods.contract import Tensors
from protofed.rounds import checkpoint
from protofed.rounds.checkpoint import newest_checkpoint
from protofed.rounds.loop import Federation
from protofed.rounds.state import StoredState, fitting
from protofed.runs.border import Border
from protofed.runs.run import Run
from protofed.samples import Encoding, FederatedData
from protofed.storage.files import open_tensors, read_json, read_tensors, remove_partial, write_json, write_text
from protofed.storage.snapshots import Snapshot, flatten, unflatten, write_tensors
from protofed.untrusted import claims
from protofed.untrusted.decoding import Shape, Side, decode
from protofed.untrusted.reading import parse_json
from protofed.visits.client import Member

VERSION = 1  #: Number of the format of ``end.json``
END = "end.json"
_FROM_SERVER = "protofed.from_server"


def describe_models(
    experiment: Experiment, federated: FederatedData, architectures: Sequence[Architecture] = ()
) -> Tree:
    """Describe architectures, assigned by default, and preprocessing of models for ``federation.json``."""
    architectures = architectures or FederationSummary.of(experiment, federated).architectures
    given = data.normalisation(experiment.transforms)
    kinds = zip(federated.clients, architectures, strict=True)
    return {
        "inputs": "uint8" if federated.eight_bit else "float32",
        "scaled_to": [-1, 1] if federated.eight_bit else None,
        "normalisation": None if given is None else {"mean": list(given[0]), "std": list(given[1])},
        "map": experiment.model.map,
        "clients": {c.name: {**vars(a), "options": dict(a.options)} for c, a in kinds},
    }


@dataclass(frozen=True)
class ModelsDescription:
    """A description from :func:`describe_models`."""

    eight_bit: bool
    input_shape: tuple[int, ...]
    architectures: dict[str, Architecture]
    #: What the node of a network was told about all clients; else empty
    told: Mapping[str, Any] = field(default_factory=dict)
    encoding: Encoding | None = None

    @classmethod
    def read(cls, path: Path) -> ModelsDescription:
        """Return the description in a ``federation.json``."""
        tree = read_json(path)
        if "models" not in tree:
            network = tree.get("network")
            raise CheckpointError(
                f"{path.parent}: the models are at the nodes of the network, where protofed predict, export and "
                f"metrics take STATE-DIR/CLIENT/{claims.clean(network['run'], 64)} in place of this folder"
                if isinstance(network, dict) and "run" in network
                else f"{path}: does not describe the models (an older version ran them)"
            )
        found = decode(tree, _Described, f"{path}")
        models = found.models
        told: Mapping[str, Any] = found.network or {}
        return cls(models.inputs == "uint8", found.input_shape, models.clients, told, found.encoder)


class Network(TypedDict):
    """Facts of :class:`FederationSummary` about all clients, which a folder of one client cannot tell."""

    feature_dim: Side
    class_size: ClassSize
    clients: ClientCount


class _Models(Struct):
    inputs: Literal["uint8", "float32"]
    clients: dict[str, Architecture]


class _Described(Struct):
    models: _Models
    input_shape: Shape
    network: Network | None = None
    encoder: Encoding | None = None


def write_client(folder: Path, client: Member, snapshot: Snapshot, server: Tensors) -> None:
    """Store a client at the end of a run: its model, and what it keeps and received beside that."""
    write_tensors(client_model(folder, client.name), snapshot.model, {"architecture": client.architecture})
    known = {n: (t, server[n].cpu()) for n, t in snapshot.received.items() if n in server}
    same = sorted(n for n, (t, its) in known.items() if t.dtype == its.dtype and torch.equal(t, its))
    kept = {n: t for n, t in snapshot.received.items() if n not in same}
    tensors = flatten(snapshot._replace(model={}, received=kept))
    write_tensors(client_state(folder, client.name), tensors, {_FROM_SERVER: json.dumps(same)})


def write_end(folder: Path, federation: Federation) -> None:
    """Store what a finished run needs to go on, beside its clients.

    Of clients at the nodes of a network, these are the names of the states with which they ended.
    """
    clients = federation.executor.clients
    record = {"version": VERSION, **federation.state.to_dict(clients)}
    if clients.rests_here:
        del record["generations"]
    write_json(folder / END, record)


def restore_end(folder: Path, federation: Federation) -> bool:
    """Give a federation the state with which a run ended, if it did, and return whether it did."""
    path = folder / END
    if not path.is_file():
        return False
    clients = federation.executor.clients
    state = StoredState.read(path, VERSION).of(clients, path)
    server = read_server(folder)
    state.tensors = fitting(server, federation.server, folder / "server.safetensors")
    for name in clients if clients.rests_here else ():
        where = client_model(folder, name)
        snapshot = read_client(folder, name, server)._replace(model=read_tensors(where))
        clients.restore(name, snapshot, where)
    vars(federation.state).update(vars(state))
    return True


def read_generations(folder: Path) -> dict[str, str]:
    """Return the names of the final states of a network's clients; empty for a local run."""
    return StoredState.read(folder / END, VERSION).generations


def forgotten(folder: Path) -> dict[str, str]:
    """Return the date on which each client was taken out of a run, by name."""
    newest = None if (folder / "summary.json").is_file() else newest_checkpoint(folder / "checkpoint")
    if newest:
        return StoredState.read(newest / "state.json", checkpoint.VERSION).forgotten
    path = folder / END
    return StoredState.read(path, VERSION).forgotten if path.is_file() else {}


def without(experiment: Experiment, gone: Collection[str]) -> Experiment:
    """Return an experiment without forgotten clients in ``robust.admitted``, which must exist."""
    admitted = {name: most for name, most in experiment.robust.admitted.items() if name not in gone}
    return replace(experiment, robust=replace(experiment.robust, admitted=admitted))


def list_left_out(gone: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the entries of ``federation.json`` for clients that were taken out, with the date for each."""
    return [{"client": name, "reason": f"forgotten on {date}"} for name, date in gone.items()]


def wipe(folder: Path) -> None:
    """Remove everything about forgotten clients, except their names, from a run that begins again without them.

    Nothing happens to any other run; what an interruption leaves is removed the next time.
    """
    newest = newest_checkpoint(folder / "checkpoint")
    if newest is None or not newest.name.endswith("-000000") or (folder / "summary.json").is_file():
        return
    gone = forgotten(folder)
    with writing(folder):
        for each in filter(Path.exists, (folder / "clients", folder / "tensorboard")):
            shutil.rmtree(each)
        for name in _FOLLOWS:
            (folder / name).unlink(missing_ok=True)
        remove_partial(folder)
    write_text(folder / "rounds.jsonl", "")
    if (path := folder / "federation.json").is_file():
        write_json(path, without_clients(read_json(path), gone))
    for application in entry_points(group="protofed.forgetting"):
        with writing(folder):
            application.load()(folder, gone)


_FOLLOWS = ("server.safetensors", "prototypes.safetensors", END, "metrics.json", "report.html")
"""Files derived from the rounds of a run, except those of clients and applications."""


def without_clients(tree: Tree, gone: Mapping[str, str]) -> Tree:
    """Return a description of clients without some of them."""

    def rest(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: value for name, value in part.items() if name not in gone}
        entries = part if isinstance(part, list) else []
        return [e for e in entries if not isinstance(e, dict) or str(e.get("name", e.get("client"))) not in gone]

    kept = {
        name: rest(part) if name in ("clients", "sizes", "keys", "anew") else part for name, part in tree.items()
    }
    if isinstance(models := tree.get("models"), dict):
        kept["models"] = {**models, "clients": rest(models.get("clients"))}
    told = list_left_out(gone)
    if isinstance(before := rest(tree.get("left_out", [])), dict):
        return {**kept, "left_out": before | {each["client"]: each["reason"] for each in told}}
    return {**kept, "left_out": before + told, "notes": []}  # notes may name clients; they are made anew


def client_model(folder: Path, client: str) -> Path:
    """Return the file of a client's weights."""
    return folder / "clients" / client / "model.safetensors"


def client_state(folder: Path, client: str) -> Path:
    """Return the file of a client's state."""
    return folder / "clients" / client / "state.safetensors"


def read_server(folder: Path, names: Sequence[str] | None = None) -> dict[str, Tensor]:
    """Return all or some of the server's tensors in a run directory; none if the method's server keeps nothing."""
    path = folder / "server.safetensors"
    return read_tensors(path, names) if Border(folder).signature(path) else {}


def read_client(folder: Path, client: str, server: dict[str, Tensor]) -> Snapshot:
    """Return a client at the end of a run, without its model; it may have received ``server`` as it is."""
    path = client_state(folder, client)
    if Border(folder).signature(path) is None:
        raise CheckpointError(f"{path}: missing: the run has not finished, or an older version ran it")
    try:
        with open_tensors(path) as file:
            same = parse_json((file.metadata() or {}).get(_FROM_SERVER, "[]"))
            snapshot = unflatten({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
            received = {name: server[name] for name in decode(same, list[str], "from_server", ValueError)}
    except KeyError as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from None
    return snapshot._replace(received=snapshot.received | received)


@contextmanager
def open_run(run: Run, trust_code: bool) -> Iterator[Experiment]:
    """Resolve the experiment of a run, which may be somebody else's, for all that is done with it in the block.

    Args:
        trust_code: Import the code that the run's files name; otherwise nothing in the block imports any.

    Raises:
        DataError: If a file of the run names code that is not trusted.
    """
    if trust_code:
        yield resolve(run.config)
        return
    described = run.directory / "federation.json"
    models = {"models": read_json(described).get("models")} if described.is_file() else {}
    if code := [*code_of(run.config), *code_of(models)]:
        raise DataError(
            f"{run.directory}: names code of its own ({code[0]}): pass trust_code=True (--trust-code) if you trust "
            "this folder"
        )
    with importing_only(()):
        yield resolve(run.config)
