"""The run directory: everything a run leaves behind, readable without this package."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
import torch
from torch import Tensor

from protofed.analysis._files import read_rounds
from protofed.errors import CheckpointError, ConfigError, OutputError, writing
from protofed.experiments.config import Experiment, Tree
from protofed.federation import Federation, RoundRecord, load_checkpoint, save_checkpoint
from protofed.federation.files import read_json, remove_partial, write_json, write_tensors, write_text
from protofed.prototypes.means import class_means, class_sums
from protofed.prototypes.table import Prototypes
from protofed.reading import read_toml, reason
from protofed.training.batches import batches
from protofed.training.client import Client


class RunDirectory:
    """One run's files.

    Attributes:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoint"

    @property
    def finished(self) -> bool:
        """Whether the run is complete."""
        return (self.path / "summary.json").is_file()

    def open(self, experiment: Experiment, *, resume: bool) -> None:
        """Claim the folder for ``experiment``.

        Raises:
            ConfigError: If it holds another experiment, or the same one and ``resume`` is False.
        """
        config = self.path / "config.toml"
        if config.is_file():
            self._check_same(config, experiment)
            if not resume:
                state = "finished" if self.finished else "unfinished"
                raise ConfigError(
                    f"{self.path} holds a{'n' * (not self.finished)} {state} run of this configuration: "
                    "pass --resume to continue it, or choose another --out"
                )
            return
        if self.path.is_dir() and any(self.path.iterdir()):
            raise ConfigError(f"{self.path} is not empty and holds no run: choose another --out")
        write_text(config, tomli_w.dumps(experiment.to_tree()))

    def _check_same(self, config: Path, experiment: Experiment) -> None:
        """Refuse a folder with another configuration, naming the first option that differs."""
        try:
            found = _flat(read_toml(config))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{config}: {reason(error)}") from None
        wanted = _flat(experiment.identity())
        kept = {k: v for k, v in found.items() if k.split(".")[0] not in ("recipe", "execution", "checkpoint")}
        differing = sorted(k for k in wanted.keys() | kept.keys() if wanted.get(k) != kept.get(k))
        if differing:
            # Another method or partition brings other options with it: its name says it all.
            name = min(differing, key=lambda n: not n.endswith(".name"))
            raise ConfigError(
                f"{self.path} holds a run with another configuration ({name} is {kept.get(name)!r} there and "
                f"{wanted.get(name)!r} here): choose another --out"
            )

    # Rounds and checkpoints.

    def restore(self, federation: Federation) -> list[dict[str, Any]]:
        """Bring ``federation`` to the last checkpoint; return the rounds recorded up to it.

        Rounds recorded after the checkpoint are dropped: they will be run again. So is what was half-written.
        """
        remove_partial(self.path)
        restored = load_checkpoint(self.checkpoints, federation.executor.clients)
        rounds: list[dict[str, Any]] = []
        if restored is not None:
            round, server = restored
            rounds = self.rounds()[:round]
            if len(rounds) < round:
                raise CheckpointError(f"{self.path / 'rounds.jsonl'}: lacks rounds before the checkpoint")
            federation.resume(round, server, rounds)
        write_text(self.path / "rounds.jsonl", "".join(json.dumps(r, allow_nan=False) + "\n" for r in rounds))
        return rounds

    def rounds(self) -> list[dict[str, Any]]:
        """Return the recorded rounds; a last line cut off by a crash is left out.

        Raises:
            CheckpointError: If the file is damaged.
        """
        path = self.path / "rounds.jsonl"
        return read_rounds(path) if path.exists() else []

    def add_round(self, record: RoundRecord, federation: Federation, every: int) -> dict[str, Any]:
        """Append a round and, when due, a checkpoint.

        Raises:
            OutputError: If the system refuses, or the folder is gone.
        """
        line = record.to_dict()
        path = self.path / "rounds.jsonl"
        self._check_present()
        with writing(path), path.open("a") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
        if every and federation.round % every == 0 and federation.round < federation.rounds:
            save_checkpoint(self.checkpoints, federation.round, federation.server, federation.executor.clients)
        return line

    def _check_present(self) -> None:
        """Refuse to go on in a folder that is gone, or was moved, rather than make a part of it anew."""
        if not (self.path / "config.toml").is_file():
            raise OutputError(
                f"{self.path}: is gone; if it was moved, the same command with --resume and --out continues there"
            )

    def bfloat16(self) -> list[str] | None:
        """Return for which models the run began in bfloat16; None if it has not begun."""
        path = self.path / "federation.json"
        if not path.is_file():
            return None
        found = read_json(path).get("bfloat16", [])
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise CheckpointError(f"{path}: bfloat16 should list names of models")
        return found

    # The end.

    def write_federation(self, description: Tree) -> None:
        """Write what is known before training."""
        write_json(self.path / "federation.json", description)

    def finish(self, federation: Federation, summary: Mapping[str, Any]) -> None:
        """Write models, prototypes, the server's state and, last, the summary; remove checkpoints.

        Raises:
            OutputError: If the system refuses, or the folder is gone.
        """
        self._check_present()
        clients = federation.executor.clients
        for name in clients.here:
            metadata = {"architecture": clients.members[name].architecture}  # one: safetensors shuffles several
            write_tensors(self.path / "clients" / name / "model.safetensors", clients.parked(name).model, metadata)
        write_tensors(self.path / "prototypes.safetensors", final_prototypes(federation))
        if federation.server:
            write_tensors(self.path / "server.safetensors", federation.server)
        write_json(self.path / "summary.json", dict(summary))
        shutil.rmtree(self.checkpoints, ignore_errors=True)

    def summary(self) -> dict[str, Any]:
        """Return the summary of a finished run."""
        summary: dict[str, Any] = read_json(self.path / "summary.json")
        return summary


def final_prototypes(federation: Federation) -> dict[str, Tensor]:
    """Return global prototypes, if the method has any, and every client's own.

    A method that keeps no prototypes at its clients is given class means of the final features, so that runs can be
    compared.
    """
    tensors: dict[str, Tensor] = {}
    if "prototypes" in federation.server:
        tensors |= {f"global.{n}": t for n, t in Prototypes.of(federation.server).tensors().items()}
    clients = federation.executor.clients
    for name in clients.here:
        state = clients.parked(name).state
        if "prototypes" in state:
            own = Prototypes.of(state)
        elif len(clients.members[name].train):
            own = _class_means(clients.fetch(name), federation.method.task.num_classes)
        else:
            continue
        tensors |= {f"local.{name}.{n}": t for n, t in own.tensors().items()}
    return tensors


@torch.no_grad()
def _class_means(client: Client, num_classes: int) -> Prototypes:
    client.model.eval()
    parts = [
        class_sums(client.model(batch.x).features, batch.y, num_classes)
        for batch in batches(client.train, client.model)
    ]
    return class_means(sum(s for s, _ in parts), sum(c for _, c in parts))  # type: ignore[arg-type]


def directory_for(out: str | Path | None, experiment: Experiment, *, resume: bool) -> Path:
    """Return where to run an experiment: ``out``, or a directory below ``runs`` named after it."""
    method = experiment.method.rpartition(":")[2]
    return place_for(out, f"{experiment.recipe}-{method}", resume=resume, experiment=experiment)


def place_for(out: str | Path | None, name: str, *, resume: bool, experiment: Experiment | None = None) -> Path:
    """Return ``out``, or ``runs/NAME``, numbered where taken.

    To resume, that is the newest of those there are, or the newest that belongs to ``experiment``.
    """
    if out is not None:
        return Path(out)
    base = Path("runs") / name
    if resume:
        for path in _existing(base):
            if experiment is None or _resumable(path, experiment):
                return path
    return _free(base)


def _free(base: Path) -> Path:
    """Return ``base``, or ``base-2``, ``base-3``, …: the first that does not exist."""
    number, path = 1, base
    while path.exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


def _existing(base: Path) -> Sequence[Path]:
    """Return ``base``, ``base-2``, … as far as they exist, newest first."""
    numbered = [p for p in base.parent.glob(f"{base.name}-*") if p.name.removeprefix(f"{base.name}-").isdigit()]
    numbered.sort(key=lambda p: int(p.name.rpartition("-")[2]), reverse=True)
    return [*numbered, *([base] if base.is_dir() else [])]


def _resumable(path: Path, experiment: Experiment) -> bool:
    try:
        RunDirectory(path).open(experiment, resume=True)
    except ConfigError:
        return False
    return True


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = list(value) if isinstance(value, tuple) else value
    return flat
