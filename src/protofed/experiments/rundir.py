"""The run directory: all files of a run, readable without this package."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import tomli_w
import torch

from protofed.config.architectures import why_rounds_matter
from protofed.config.schema import Experiment, Tree, defaults, identity
from protofed.errors import CheckpointError, ConfigError, OutputError, writing
from protofed.experiments.ending import END, restore_end, wipe, write_client, write_end
from protofed.methods.contract import Tensors
from protofed.prototypes.means import class_means, class_sums
from protofed.prototypes.table import Prototypes
from protofed.rounds.checkpoint import Saving, load_checkpoint
from protofed.rounds.loop import Federation
from protofed.runs.files import read_federation, read_rounds
from protofed.runs.labels import flat
from protofed.runs.metrics import METRICS
from protofed.runs.records import RoundRecord
from protofed.runs.summary import Summary
from protofed.samples import Encoding
from protofed.storage.files import (
    check_room,
    is_occupied,
    json_text,
    lock,
    read_json,
    remove_partial,
    write_json,
    write_text,
)
from protofed.storage.snapshots import write_tensors
from protofed.untrusted.decoding import decode
from protofed.untrusted.reading import read_toml, reason
from protofed.visits.batches import batches

ENDS = ("rounds", "evaluation.patience")  #: Options that say when a run ends, which may change when it is resumed


class RunDirectory:
    """The files of one run.

    Attributes:
        saving: Writes checkpoints; a run works inside its block.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoint"
        self.saving = Saving(self.checkpoints)
        self._held = False
        self._planned: dict[str, str] = {}

    @property
    def finished(self) -> bool:
        """Return whether the run is complete."""
        return (self.path / "summary.json").is_file()

    def open(self, experiment: Experiment, *, resume: bool) -> None:
        """Claim the directory for an experiment.

        Raises:
            ConfigError: If it contains anything else, or that experiment and ``resume`` is False.
            CheckpointError: If it has finished without a state to go on from, or its configuration cannot be read.
        """
        config = self.path / "config.toml"
        if config.is_file():
            changed = self.differs(experiment)
            if not resume:
                raise ConfigError(
                    f"{self.path} holds {'a ' if self.finished else 'an un'}finished run of this configuration: "
                    "pass --resume to continue it, or choose another --out"
                )
            if self.finished:
                if changed and not (self.path / END).is_file():
                    raise CheckpointError(
                        f"{self.path}: has no end.json: an older version ran it and kept no state to go on from: "
                        "start a new run with another --out"
                    )
                shutil.rmtree(self.checkpoints, ignore_errors=True)  # remnants: end.json is newer
            if changed:
                self._write("config.toml", tomli_w.dumps(experiment.to_tree()))
            wipe(self.path)
            return
        if is_occupied(self.path):
            raise ConfigError(f"{self.path} is not empty and holds no run: choose another --out")
        write_text(config, tomli_w.dumps(experiment.to_tree()))

    def _write(self, name: str, text: str) -> None:
        """Write a file; in a finished run, only once it goes on (:meth:`_go_on`)."""
        if self.finished:
            self._planned[name] = text
        else:
            write_text(self.path / name, text)

    def _go_on(self) -> None:
        """Turn a finished run into an unfinished one, now that there is something to add to it."""
        if not self._planned:
            return
        with writing(self.path):
            for name in ("summary.json", METRICS):  # first the summary, without which the run counts as unfinished
                (self.path / name).unlink(missing_ok=True)
        for name, text in self._planned.items():
            write_text(self.path / name, text)
        self._planned = {}

    @contextmanager
    def claim(self, experiment: Experiment, *, resume: bool) -> Iterator[None]:
        """Open the directory, and keep other processes from running in it until the block ends.

        Raises:
            ProtofedError: As :meth:`open`; OutputError also if another process runs in it.
        """
        new = not self.path.exists()
        if new:
            with writing(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
        with self.alone():
            try:
                self.open(experiment, resume=resume)
            except BaseException:
                if new:
                    with suppress(OSError):  # not empty: another process was faster
                        self.path.rmdir()
                raise
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the directory itself, so that nothing remains if the process is killed."""
        if self._held or not self.path.is_dir():
            yield
            return
        with writing(self.path):
            folder = os.open(self.path, os.O_RDONLY)
        try:
            free = True
            with suppress(OSError):  # a file system without locks, where no other process gets one either
                free = lock(folder)
            if not free:
                raise OutputError(
                    f"{self.path}: another process runs in it: wait until it ends, or choose another --out"
                )
            self._held = True
            yield
        finally:
            self._held = False
            os.close(folder)

    @property
    def in_use(self) -> bool:
        """Return whether a process runs in the directory; True where that cannot be told."""
        try:
            handle = os.open(self.path, os.O_RDONLY)
        except OSError:
            return True
        try:
            return not lock(handle)
        except OSError:  # a file system without locks
            return True
        finally:
            os.close(handle)

    def differs(self, experiment: Experiment) -> bool:
        """Return whether an experiment is that of this directory with more rounds, or another point to stop.

        Raises:
            ConfigError: For another experiment, naming an option that differs, or if what was done depends on the
                number of rounds.
        """
        config = self.path / "config.toml"
        try:
            kept = _options(identity(read_toml(config)))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{config}: {reason(error)}") from None
        wanted = _options(experiment.identity())
        # Options that did not exist when the directory was written had no effect, as their defaults have none.
        plain = _options(defaults(experiment.method, experiment.partition))
        kept |= {name: value for name, value in plain.items() if name in wanted and name not in kept}
        differing = sorted(k for k in wanted.keys() | kept.keys() if wanted.get(k) != kept.get(k))
        if "rounds" in differing and set(differing) <= set(ENDS):
            self._check_longer(kept.get("rounds"), experiment)
        if not set(differing) <= set(ENDS):
            # Another method or partition has other options too, so its name is reported first.
            name = min((n for n in differing if n not in ENDS), key=lambda n: not n.endswith(".name"))
            raise ConfigError(
                f"{self.path} holds a run with another configuration ({name} is {kept.get(name)!r} there and "
                f"{wanted.get(name)!r} here): choose another --out"
            )
        return bool(differing)

    def _check_longer(self, before: Any, experiment: Experiment) -> None:
        """Reject another number of rounds if it would have changed the rounds done."""
        done = len(self.rounds())
        if experiment.rounds < done:
            raise ConfigError(f"{self.path} holds {done} rounds: rounds={experiment.rounds} is fewer")
        if done and (why := why_rounds_matter(experiment)):
            raise ConfigError(
                f"{self.path}: rounds cannot change from {before} to {experiment.rounds}, because {why}: choose "
                f"another --out, perhaps with --from {self.path}"
            )

    def check_room(self, federation: Federation, every: int) -> None:
        """Check before training that there is room for checkpoints and for the final models."""
        clients = federation.executor.clients
        if not clients.rests_here:
            return
        safe = bool(every) or (self.path / END).is_file()
        copies = 1 + safe - self.checkpoints.is_dir()  # the new one is written before the old one goes
        check_room(
            self.path,
            max(0, copies) * clients.size,
            f"checkpoints and models of {len(clients)} clients",
            "choose another --out, checkpoint.every=0, fewer clients or a smaller model",
        )

    def check_data(self, description: Tree) -> None:
        """Check that samples and the features that they become are those with which the run began, if it has begun.

        Raises:
            CheckpointError: If the encoder or a client's number of training samples of a class is another one. Of
                samples at the nodes of a network, nodes see to that.
        """
        path = self.path / "federation.json"
        if not path.is_file():
            return
        kind: Any = Encoding | None
        before, now = (decode(t.get("encoder"), kind, f"{path}: encoder") for t in (read_json(path), description))
        if (before and before.key) != (now and now.key):
            raise CheckpointError(
                f"{self.path}: its encoder has other weights now than when the run began: restore them, or choose "
                "another --out"
            )
        begun = read_federation(path)
        then = {client.name: client.train for client in begun.clients}
        here = {client["name"]: client["train"] for client in description["clients"]}
        same = all(then.get(name) == counts for name, counts in here.items())
        if begun.tests and not same:  # samples are on this machine; a client that is gone has been forgotten
            raise CheckpointError(
                f"{self.path}: its clients have other samples now than when the run began: restore them, or choose "
                "another --out"
            )

    def restore(self, federation: Federation) -> list[RoundRecord]:
        """Restore ``federation`` from the last checkpoint, if any, and return the rounds recorded up to it.

        Rounds recorded after the checkpoint, which will be run again, and partially written files are removed.
        """
        rounds: list[RoundRecord] = []
        clients = federation.executor.clients
        finished = self.finished and restore_end(self.path, federation)  # a checkpoint beside it is a remnant
        if (
            finished
            or load_checkpoint(self.checkpoints, federation.state, clients)
            or restore_end(self.path, federation)
        ):
            if not clients.rests_here and federation.round and not federation.state.generations:
                raise CheckpointError(
                    f"{self.path}: its clients are in this directory, not at the nodes of a network: continue it "
                    "with protofed run --resume"
                )
            rounds = self.rounds()[: federation.round]
            if len(rounds) < federation.round:
                raise CheckpointError(f"{self.path / 'rounds.jsonl'}: lacks rounds before the checkpoint")
        remove_partial(self.path)
        federation.keep(self.path, rounds)
        self._write("rounds.jsonl", "".join(_line(record.to_dict()) for record in rounds))
        return rounds

    def rounds(self) -> list[RoundRecord]:
        """Return the recorded rounds, without a last line that was cut off by a crash."""
        path = self.path / "rounds.jsonl"
        return read_rounds(path) if path.exists() else []

    def add_round(self, record: RoundRecord, federation: Federation, every: int) -> None:
        """Record a round and, if one is due, write a checkpoint."""
        path = self.path / "rounds.jsonl"
        self._check_present()
        self._go_on()
        with writing(path), path.open("a") as file:
            file.write(_line(record.to_dict()))
        if every and federation.round % every == 0 and federation.round < federation.rounds:
            self.saving.save(federation.state, federation.executor.clients)

    def _check_present(self) -> None:
        """Refuse to continue in a directory that was removed or moved."""
        if not (self.path / "config.toml").is_file():
            raise OutputError(
                f"{self.path}: is gone; if it was moved, continue with the same command, --resume and its new --out"
            )

    def bfloat16(self) -> list[str] | None:
        """Return the kinds of models that the run computes in bfloat16, or None if it has not begun."""
        path = self.path / "federation.json"
        if not path.is_file():
            return None
        return read_federation(path).bfloat16

    def write_federation(self, description: Tree) -> None:
        """Write the description of the federation."""
        self._write("federation.json", json_text(description))

    def rewrite(self, experiment: Experiment, description: Tree, rounds: Sequence[RoundRecord]) -> None:
        """Write all but models and summary at once, after a node's client was scored again."""
        write_text(self.path / "config.toml", tomli_w.dumps(experiment.to_tree()))
        write_text(self.path / "federation.json", json_text(description))
        write_text(self.path / "rounds.jsonl", "".join(_line(record.to_dict()) for record in rounds))
        with writing(self.path):
            (self.path / METRICS).unlink(missing_ok=True)  # of the models before

    def finish(self, federation: Federation, summary: Summary) -> None:
        """Write models, prototypes, the server's state and finally the summary; remove the checkpoint."""
        self._check_present()
        self._go_on()
        clients = federation.executor.clients
        if (self.path / END).is_file() and not self.checkpoints.is_dir():
            self.saving.save(federation.state, clients)  # there is always a state to go on from
        self.saving.wait()
        with writing(self.path):
            (self.path / END).unlink(missing_ok=True)  # until the new weights are complete
        prototypes = _prototypes("global", federation.server)
        for name in clients if clients.rests_here else ():
            snapshot = clients.snapshot(name)
            write_client(self.path, clients[name], snapshot, federation.server)
            own = _prototypes(f"local.{name}", snapshot.state)
            prototypes |= own or _class_means(federation, name, snapshot.model)
        write_tensors(self.path / "prototypes.safetensors", prototypes)
        if federation.server:
            write_tensors(self.path / "server.safetensors", federation.server)
        write_end(self.path, federation)
        write_json(self.path / "summary.json", summary.to_dict())
        shutil.rmtree(self.checkpoints, ignore_errors=True)


def _prototypes(whose: str, state: Tensors) -> Tensors:
    """Return the prototypes in a state, named ``WHOSE.…``; none if there are none."""
    return {f"{whose}.{n}": t for n, t in Prototypes.of(state).tensors().items()} if "prototypes" in state else {}


@torch.no_grad()
def _class_means(federation: Federation, name: str, weights: Tensors) -> Tensors:
    """Return the class means of a client's final features, by which runs of all methods can be compared."""
    train, K = federation.executor.clients[name].train, federation.method.task.num_classes
    if not len(train):
        return {}
    model = federation.executor.clients.working_model(name, weights)
    model.eval()
    parts = [class_sums(model(batch.x).features, batch.y, K) for batch in batches(train, model)]
    means = class_means(sum(s for s, _ in parts), sum(c for _, c in parts))  # type: ignore[arg-type]
    return _prototypes(f"local.{name}", means.tensors())


def directory_for(out: str | Path | None, experiment: Experiment, *, resume: bool) -> Path:
    """Return the run directory of an experiment: ``out``, or a directory below ``runs`` named after it."""
    method = experiment.method.rpartition(":")[2]
    return place_for(out, f"{experiment.recipe}-{method}", resume=resume, experiment=experiment)


def place_for(out: str | Path | None, name: str, *, resume: bool, experiment: Experiment | None = None) -> Path:
    """Return ``out``, or ``runs/NAME`` with a number appended if it exists.

    Args:
        resume: Return the newest existing directory, if there is one.
        experiment: To which a directory to resume must belong; None for any.
    """
    if out is not None:
        return Path(out)
    base = Path("runs") / name
    if resume:
        for path in _existing(base):
            with suppress(ConfigError):
                if experiment is not None:
                    RunDirectory(path).differs(experiment)
                return path
    number, path = 1, base
    while path.exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


def _existing(base: Path) -> Sequence[Path]:
    """Return those of ``base``, ``base-2``, … that exist, newest first."""
    numbered = [p for p in base.parent.glob(f"{base.name}-*") if p.name.removeprefix(f"{base.name}-").isdecimal()]
    numbered.sort(key=lambda p: int(p.name.rpartition("-")[2]), reverse=True)
    return [*numbered, *([base] if base.is_dir() else [])]


def _options(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options by dotted name, with the types that TOML returns."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in flat(tree).items()}


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, allow_nan=False) + "\n"
