"""The end of a run beside its weights, so that its models can be used and it can go on.

``federation.json`` describes the models as data (:func:`describe_models`). ``end.json`` and the clients'
``state.safetensors`` hold what a checkpoint would: the server's record, and the clients' state.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from protofed import data
from protofed.config.architectures import Architecture, FederationSummary
from protofed.config.schema import Experiment, Tree
from protofed.errors import CheckpointError, writing
from protofed.rounds.checkpoint import newest_checkpoint
from protofed.rounds.loop import Federation
from protofed.rounds.standing import Standing
from protofed.rounds.state import read_forgotten, read_generations
from protofed.runs.border import Border
from protofed.samples import Encoding, FederatedData
from protofed.storage.files import (
    check_format,
    check_tensors,
    read_json,
    read_tensors,
    write_json,
    write_tensors,
    write_text,
)
from protofed.storage.snapshots import Snapshot, flatten, unflatten
from protofed.untrusted import claims, limits
from protofed.untrusted.reading import reason

VERSION = 1
"""Number of the format of ``end.json``."""
END = "end.json"
_FROM_SERVER = "protofed.from_server"
TOLD = ("feature_dim", "class_size", "clients")
"""Facts of :class:`FederationSummary` about all clients, which a folder of one client cannot tell."""


def describe_models(
    experiment: Experiment, federated: FederatedData, architectures: Sequence[Architecture] = ()
) -> Tree:
    """Describe architectures, assigned by default, and preprocessing of models for ``federation.json``."""
    architectures = architectures or FederationSummary.of(experiment, federated).architectures
    samples = next((c.train.x for c in federated.clients if c.train.x.dim() > 1), None)
    given = data.normalisation(experiment.transforms)
    kinds = zip(federated.clients, architectures, strict=True)
    return {
        "inputs": "uint8" if samples is None or samples.dtype == torch.uint8 else "float32",
        "scaled_to": [-1, 1] if samples is None or samples.dtype == torch.uint8 else None,
        "normalisation": None if given is None else {"mean": list(given[0]), "std": list(given[1])},
        "map": experiment.model.map,
        "clients": {c.name: {**vars(a), "options": dict(a.options)} for c, a in kinds},
    }


@dataclass(frozen=True)
class ModelsDescription:
    """A description from :func:`describe_models`.

    Attributes:
        eight_bit: Samples are 8-bit images.
        input_shape: Of one sample.
        told: Facts about all clients for a node of a network, by the names in :data:`TOLD`; else empty.
        encoding: The samples before an encoder, if any.
    """

    eight_bit: bool
    input_shape: tuple[int, ...]
    architectures: dict[str, Architecture]
    told: dict[str, Any] = field(default_factory=dict)
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
        try:
            found = claims.mapping(
                tree["models"], "models", ("inputs", "scaled_to", "normalisation", "map", "clients")
            )
            shape = claims.items(tree.get("input_shape"), "input_shape", limits.INPUT_DIMENSIONS)
            sides = tuple(claims.whole(n, "input_shape", 1, limits.INPUT_SIDE) for n in shape)
            if found["inputs"] not in ("uint8", "float32"):
                raise ValueError("models.inputs: should be uint8 or float32")
            if not isinstance(found["clients"], dict):
                raise ValueError("models.clients: should be a table")
            architectures = {name: _architecture(value, name) for name, value in found["clients"].items()}
            told = _told(tree["network"]) if "network" in tree else {}
            encoding = read_encoding(tree.get("encoder"))
        except ValueError as error:
            raise CheckpointError(f"{path}: {error}") from None
        return cls(found["inputs"] == "uint8", sides, architectures, told, encoding)


def read_encoding(value: object) -> Encoding | None:
    """Return the samples before an encoder, from plain values of another party."""
    if value is None:
        return None
    given = {"parts": [], **value} if isinstance(value, dict) else value  # older runs have no parts
    found = claims.mapping(given, "encoder", Encoding.__dataclass_fields__)
    shape, listed = claims.shape(found["input_shape"]), claims.items(found["parts"], "parts", limits.CLIENTS)
    parts = tuple(claims.whole(part, "parts", 1, limits.INPUT_NUMBERS) for part in listed)
    return Encoding(encoder_key(found["key"]), shape, claims.flag(found["eight_bit"], "eight_bit"), parts)


def encoder_key(value: object) -> str:
    """Return the hash of an encoder that another party states; "" for none."""
    if not isinstance(value, str) or not re.fullmatch("([0-9a-f]{32})?", value):
        raise ValueError("encoder: expected 32 hexadecimal digits")
    return value


def _architecture(value: object, client: str) -> Architecture:
    given = {"turn": 0, **value} if isinstance(value, dict) else value  # older runs have none
    found = claims.mapping(given, f"model of {client}", ("name", "options", "d", "turn"))
    if not isinstance(found["name"], str) or not isinstance(found["options"], dict):
        raise ValueError(f"model of {client}: should have a name and options")
    d, turn = (claims.whole(found[n], n, least, limits.INPUT_SIDE) for n, least in (("d", 1), ("turn", 0)))
    return Architecture(found["name"], found["options"], d, turn)


def _told(value: object) -> dict[str, Any]:
    network = claims.mapping(value, "network", ("run", *TOLD))
    samples = float(limits.CLIENTS) * limits.CLAIMED_SAMPLES
    return {
        "feature_dim": claims.whole(network["feature_dim"], "feature_dim", 1, limits.INPUT_SIDE),
        "class_size": claims.number(network["class_size"], "class_size", -1.0, samples),
        "clients": claims.whole(network["clients"], "clients", 1, limits.CLIENTS),
    }


# The state of a finished run.


def write_end(folder: Path, federation: Federation) -> None:
    """Store what a finished run needs to go on, beside the weights of its models.

    Of clients at the nodes of a network, these are the names of the states with which they ended.

    Args:
        folder: Holds the server's tensors and the models of clients that rest there.
    """
    clients, server = federation.executor.clients, federation.server
    for name in clients if clients.rests_here else ():
        snapshot = clients.snapshot(name)
        same = sorted(n for n, t in snapshot.received.items() if n in server and _equal(t, server[n].cpu()))
        kept = {n: t for n, t in snapshot.received.items() if n not in same}
        tensors = flatten(snapshot._replace(model={}, received=kept))
        write_tensors(client_state(folder, name), tensors, {_FROM_SERVER: json.dumps(same)})
    state = federation.state
    record = {"version": VERSION, "round": state.round, "clients": list(clients)}
    there: Tree = {} if clients.rests_here else {"generations": state.generations}
    there |= {"forgotten": state.forgotten} if state.forgotten else {}
    write_json(folder / END, {**record, "refusals": state.standing.to_dict(), **there})


def _equal(left: Tensor, right: Tensor) -> bool:
    return left.dtype == right.dtype and torch.equal(left, right)


def restore_end(folder: Path, federation: Federation) -> bool:
    """Give a federation the state with which a run ended, if it did, and return whether it did."""
    path = folder / END
    if not path.is_file():
        return False
    record, clients = read_json(path), federation.executor.clients
    if clients.rests_here and "generations" in record:
        raise CheckpointError(f"{folder}: its clients are at the nodes of a network: continue it with flwr run")
    check_format(path, record.get("version"), VERSION)
    if record.get("clients") != list(clients):
        raise CheckpointError(f"{path}: was written for other clients")
    try:
        round = claims.whole(record.get("round"), "round", 1, limits.ROUNDS)
        standing = Standing.of(record.get("refusals"), clients)
        generations = read_generations(record.get("generations", {}), clients)
        gone = read_forgotten(record.get("forgotten", {}))
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None
    server = read_server(folder)
    for name in clients if clients.rests_here else ():
        where = client_model(folder, name)
        snapshot = read_client(folder, name, server)._replace(model=read_tensors(where))
        try:
            clients.restore(name, snapshot)
        except (KeyError, RuntimeError) as error:
            why = str(error).splitlines()[0]
            raise CheckpointError(f"{where}: does not fit the model of {name} ({why})") from None
    state = federation.state
    state.round, state.tensors, state.standing = round, server, standing
    state.generations, state.saved, state.forgotten = generations, dict(generations), gone
    return True


def ended_generations(folder: Path) -> dict[str, str]:
    """Return the names of the states with which the clients of a network ended a run; empty for those of others."""
    record = read_json(folder / END)
    try:
        clients = claims.items(record.get("clients"), "clients", limits.CLIENTS)
        return read_generations(record.get("generations", {}), clients)
    except ValueError as error:
        raise CheckpointError(f"{folder / END}: {error}") from None


def forgotten(folder: Path) -> dict[str, str]:
    """Return the date on which each client was taken out of a run, by name."""
    newest = None if (folder / "summary.json").is_file() else newest_checkpoint(folder / "checkpoint")
    path = newest / "state.json" if newest else folder / END
    try:
        return read_forgotten(read_json(path).get("forgotten", {})) if path.is_file() else {}
    except ValueError as error:
        raise CheckpointError(f"{path}: {claims.clean(error)}") from None


def without(experiment: Experiment, gone: Collection[str]) -> Experiment:
    """Return an experiment without what it says of forgotten clients: those in ``robust.admitted`` must exist."""
    admitted = {name: most for name, most in experiment.robust.admitted.items() if name not in gone}
    return replace(experiment, robust=replace(experiment.robust, admitted=admitted))


def left_out(gone: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the entries of ``federation.json`` for clients that were taken out, with the date for each."""
    return [{"client": name, "reason": f"forgotten on {date}"} for name, date in gone.items()]


def wipe(folder: Path) -> None:
    """Remove all that tells of forgotten clients from a run that begins again without them, save who they were.

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
    write_text(folder / "rounds.jsonl", "")
    for path in (folder / "federation.json", folder / "nodes.json"):
        if path.is_file():
            write_json(path, _wiped(read_json(path), gone))


_FOLLOWS = (
    *("server.safetensors", "prototypes.safetensors", END),
    *("metrics.json", "report.html", "audit.html", "audit.json"),
)
"""Files that follow from the rounds of a run, beside those of its clients."""


def _wiped(tree: Tree, gone: Mapping[str, str]) -> Tree:
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
    told = left_out(gone)
    if isinstance(before := rest(tree.get("left_out", [])), dict):
        return {**kept, "left_out": before | {each["client"]: each["reason"] for each in told}}
    return {**kept, "left_out": before + told, "notes": []}  # notes may name clients; they are made anew


def client_model(folder: Path, client: str) -> Path:
    """Return the file of a client's weights."""
    return folder / "clients" / client / "model.safetensors"


def client_state(folder: Path, client: str) -> Path:
    """Return the file of a client's state."""
    return folder / "clients" / client / "state.safetensors"


def read_server(folder: Path) -> dict[str, Tensor]:
    """Return the server's tensors in a run directory; none if the method's server keeps nothing."""
    path = folder / "server.safetensors"
    return read_tensors(path) if Border(folder).signature(path) else {}


def read_client(folder: Path, client: str, server: dict[str, Tensor]) -> Snapshot:
    """Return a client at the end of a run, without its model; it may have received ``server`` as it is."""
    path = client_state(folder, client)
    if Border(folder).signature(path) is None:
        raise CheckpointError(f"{path}: missing: the run has not finished, or an older version ran it")
    check_tensors(path)
    try:
        with safe_open(path, framework="pt") as file:
            same = json.loads((file.metadata() or {}).get(_FROM_SERVER, "[]"))
            snapshot = unflatten({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        received = {name: server[name] for name in claims.items(same, "from_server", len(server))}
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: cannot be read ({reason(error) if error.args else error})") from None
    return snapshot._replace(received=snapshot.received | received)


def named_code(config: dict[str, Any], architectures: dict[str, Architecture]) -> list[str]:
    """Return the names of code that using a run's models would import."""
    method, model, encoder = (config.get(name, {}) for name in ("method", "model", "encoder"))
    model = model if isinstance(model, dict) else {}
    members = model.get("members")
    members = [m.get("name") for m in members if isinstance(m, dict)] if isinstance(members, list) else []
    encoder = encoder if isinstance(encoder, dict) else {}
    stages = config.get("stages")
    names = [encoder.get("name"), method.get("name"), model.get("name"), model.get("shared"), *members]
    names += stages if isinstance(stages, list) else []
    return [n for n in map(str, [*names, *(a.name for a in architectures.values())]) if ":" in n]
