"""What is fuzzed: name → one call on one mutation. A new reader joins by a row.

A call gets a folder of its own and a random generator, makes one mutation, and reads it; only errors of the kind
that its row names may escape.
"""

from __future__ import annotations

import io
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fuzz.mutations import as_json, changed, mutated
from hostile.images import encoded, png
from hostile.npz import archive, npy
from hostile.parquet import classes, table
from protofed.config.schema import comparison as comparison_of
from protofed.config.schema import load_recipe, recipes, resolve
from protofed.data import DataOptions, load_pool
from protofed.data.images import decode
from protofed.errors import CheckpointError, ConfigError, PayloadError, ProtofedError
from protofed.untrusted.limits import Budget


@dataclass(frozen=True)
class Target:
    """A reader."""

    #: Makes one mutation with the generator, in the folder, and reads it
    call: Callable[[random.Random, Path], object]
    error: type[ProtofedError] = ProtofedError  #: What may escape


# Messages.


@cache
def messages() -> tuple[list[tuple[Any, bytes]], Any]:
    """Return valid messages with their codecs, and their schema."""
    from protofed.wire.codec import codecs, get_codec
    from protofed.wire.compression import COMPRESSIONS
    from protofed.wire.schema import Field, Schema

    fields = {
        "classes": Field(("k",), "label", parameter=False),
        "prototypes": Field(("k", "d")),
        "counts": Field(("k",), "count", parameter=False),
        "scale": Field((), minimum=0.0),
    }
    schema = Schema(fields, 9, sizes={"d": 4}, limits={"k": 9})
    payload = {
        "classes": torch.tensor([0, 3, 8]),
        "prototypes": torch.ones(3, 4),
        "counts": torch.tensor([1, 5, 2**31]),
        "scale": torch.tensor(2.0),
    }
    made = [get_codec(*names) for names in itertools.product(codecs, COMPRESSIONS)]
    return [(codec, codec.encode(payload, schema)) for codec in made], schema


def message(rng: random.Random, _: Path) -> None:
    """A message between server and clients."""
    from protofed.wire.validate import check_structure, check_values

    valid, schema = messages()
    codec, _ = rng.choice(valid)
    payload = codec.decode(mutated([m for _, m in valid], rng), schema)
    check_structure(payload, schema)
    check_values(payload, schema)


# Data files.


def made(write: Callable[[Path], object], folder: Path) -> bytes:
    """Return what a writer writes."""
    write(folder / "seed")
    return (folder / "seed").read_bytes()


@cache
def seeds_of(kind: str, folder: Path) -> list[bytes]:
    """Return valid files of a kind."""
    x, y = npy(np.ones((3, 2))), npy(np.array(["a", "b", "c"]))
    writers: dict[str, list[Callable[[Path], object]]] = {
        "npz": [
            archive(),
            archive(x, y, method=8),
            archive(npy(np.zeros((3, 4, 4), np.uint8)), ids=npy(np.arange(3)), class_names=y),
        ],
        "parquet": [
            table(),
            table(classes(["a", "b", "c"])),
            table(x=[[1.0, 2.0]] * 3),
            table(a=[1.0, 2.0, 3.0], b=[1, 2, 3], label=["a", "b", "c"]),
            lambda path: table()(path, compression="zstd"),
            lambda path: table(x=[[[1]], [[2]], [[3]]])(path, use_dictionary=False, data_page_version="2.0"),
        ],
    }
    return [made(write, folder) for write in writers[kind]]


def data_file(kind: str) -> Callable[[random.Random, Path], None]:
    """Return the call that reads an ``.npz`` or parquet file."""

    def call(rng: random.Random, folder: Path) -> None:
        path = folder / f"file.{kind}"
        path.write_bytes(mutated(seeds_of(kind, folder), rng))
        load_pool(DataOptions(source="path", path=str(path), max_gb=0.1), 0)

    return call


@cache
def images() -> list[bytes]:
    """Return an image of every kind that is read."""
    forms = [encoded(form, (9, 7)) for form in ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")]
    tiff = io.BytesIO()
    from PIL import Image

    Image.new("RGB", (9, 7)).save(tiff, "TIFF", compression="tiff_lzw")
    palette = io.BytesIO()
    Image.new("P", (9, 7)).save(palette, "PNG", transparency=0)
    return [*forms, tiff.getvalue(), palette.getvalue(), png(4, 4, data=bytes(20))]


def image(rng: random.Random, _: Path) -> None:
    """An encoded image."""
    content = mutated(images(), rng)
    decode(lambda row: content, torch.arange(1), lambda row: "image", Budget(0.3), resize=rng.choice((0, 8)))


def recipe(rng: random.Random, folder: Path) -> None:
    """A recipe."""
    path = folder / "mine.toml"
    path.write_bytes(mutated([r.read_bytes() for r in recipes().values()], rng))
    resolve(load_recipe(path))


@cache
def trees() -> list[dict[str, Any]]:
    """Return the recipes as tables, and as the configurations of runs, in which every option is given."""
    given = [load_recipe(name) for name in recipes()]
    return [*given, *(resolve(tree).to_tree() for tree in given)]


def options(rng: random.Random, _: Path) -> None:
    """A recipe as tables."""
    found = changed(rng.choice(trees()), rng)
    tree = found if isinstance(found, dict) else {"method": found}
    for read in rng.sample((resolve, comparison_of), 2):
        read(tree)


def federation_toml(rng: random.Random, folder: Path) -> None:
    """``federation.toml``."""
    from protofed.data.federation import _class_names

    (folder / "federation.toml").write_bytes(mutated([b"classes = ['cat', 'dog']\n", b'classes = ["a"]'], rng))
    _class_names(folder)


# Run directories.


@cache
def run_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a valid run."""
    from rundirs import make_run

    run = make_run(folder / "valid", "protonorm", rounds=3, clients=3, validation=True, on="union", metrics=True)
    return {path.name: path.read_bytes() for path in run.iterdir()}


def run_file(name: str) -> Callable[[random.Random, Path], None]:
    """Return the call that reads a run with one file changed, and shows all that pages show of it."""

    def call(rng: random.Random, folder: Path) -> None:
        import json

        files = run_files(folder)
        content = files[name]
        if name.endswith(".json") and rng.random() < 0.8:
            content = as_json(changed(json.loads(content), rng))
        elif name.endswith(".jsonl") and rng.random() < 0.8:
            rows = [json.loads(line) for line in content.splitlines()]
            rows[rng.randrange(3)] = changed(rows[rng.randrange(3)], rng)
            content = b"".join(as_json(row) + b"\n" for row in rows)
        else:
            content = mutated([content], rng)
        run = folder / "run"
        run.mkdir(exist_ok=True)
        for other, whole in files.items():
            (run / other).write_bytes(content if other == name else whole)
        shown(run)

    return call


def shown(folder: Path) -> None:
    """Follow a run as pages do, then read it as a report does, and compute what either shows."""
    from protofed.analysis import load_run
    from protofed.analysis.report import comparison, facts, metrics, tables
    from protofed.runs.border import Border
    from protofed_lab.viewer import lines, rows
    from protofed_lab.viewer.library import Follower, State

    follower = Follower("run", folder, Border(folder))
    follower.poll()
    run = load_run(folder)
    assert follower.seen.state is not State.DAMAGED, follower.seen.reason
    for part in (facts.cards, tables.clients, tables.geometry, metrics.overall, metrics.by_class):
        part(run)
    lines.accuracy([run], over="bytes")
    for table_of in (tables.rules, tables.communication, tables.list_refusals, tables.missing, tables.environment):
        table_of([run])
    for table_of in (comparison.methods, comparison.rules, comparison.beyond, metrics.methods):
        table_of([run])
    rows.runs({"run": follower.seen})


def comparison(rng: random.Random, folder: Path) -> None:
    """``comparison.json``."""
    from protofed.analysis import load_runs

    seed = {"recipe": "r", "methods": ["a"], "seeds": [0], "runs": [{"method": "a", "seed": 0, "directory": "x"}]}
    (folder / "c").mkdir(exist_ok=True)
    whole = as_json(changed(seed, rng))
    (folder / "c" / "comparison.json").write_bytes(whole if rng.random() < 0.7 else mutated([whole], rng))
    load_runs([folder / "c"])


def tensors(rng: random.Random, folder: Path) -> None:
    """A safetensors file."""
    from protofed.storage.files import read_tensors

    path = folder / "file.safetensors"
    path.write_bytes(mutated([run_files(folder)["prototypes.safetensors"]], rng))
    read_tensors(path)


# What nodes say over Flower.


@cache
def flower() -> list[tuple[str, Callable[[Any], object], dict[str, Any]]]:
    """Return name, reader and a valid message for all that is read from the other side."""
    from protofed.visits.contract import Evaluated, Trained
    from protofed_flower import messages as m

    ann = m.Description("ann", ("cat", "dog"), True, (3, 0), (1, 2), 2, (1, 8, 8), {"epochs": 2, "lr": 0.1}, 0)
    bob = m.Description("bob", ("cat",), False, (4,), (0,), 0, (1, 8, 8))
    trained = Trained("ann", b"PF\x01\x00", {"total": 1.5, "cross_entropy": 1.5}, 3, 0.1)
    evaluated = Evaluated("ann", {"head": 1, "global": 3}, 3, 0.1, ({"head": 2, "global": 0}, 2))
    rules, scored = ("head", "global"), m.Scored(3, 3, 2)
    left = m.VisitOutcome("0" * 8, False, b"PF")
    return [
        ("descriptions", m.read_descriptions, m.description_values([ann, bob])),
        ("trained", lambda values: m.read_trained(values, "ann", scored), m.trained_values(trained)),
        ("evaluated", lambda values: m.read_evaluated(values, "ann", scored, rules), m.evaluated_values(evaluated)),
        ("left", m.VisitOutcome.of, left.to_values()),
        ("job", m.Job.of, m.Job("run", "ann", 1, "{}", "{}", b"PF", True, "").to_values()),
    ]


def values(read: Callable[[Any], object], valid: dict[str, Any]) -> Callable[[random.Random, Path], None]:
    """Return the call that reads changed values."""

    def call(rng: random.Random, _: Path) -> None:
        found = changed(valid, rng)
        if rng.random() < 0.3 and isinstance(found, dict):
            texts = [name for name, value in found.items() if isinstance(value, str)]
            if texts:
                name = rng.choice(texts)
                raw = mutated([found[name].encode("utf-8", "surrogatepass")], rng)
                found[name] = raw.decode(errors=rng.choice(("replace", "surrogateescape")))
        read(found if isinstance(found, dict) else {})

    return call


TARGETS: dict[str, Target] = {
    "message": Target(message, PayloadError),
    "npz": Target(data_file("npz")),
    "parquet": Target(data_file("parquet")),
    "image": Target(image),
    "recipe": Target(recipe),
    "options": Target(options, ConfigError),
    "federation.toml": Target(federation_toml),
    **{
        name: Target(run_file(name), CheckpointError)
        for name in (
            "rounds.jsonl",
            "federation.json",
            "summary.json",
            "metrics.json",
            "config.toml",
            "prototypes.safetensors",
        )
    },
    "comparison.json": Target(comparison, CheckpointError),
    "tensors": Target(tensors, CheckpointError),
    **{f"flower {name}": Target(values(read, valid), PayloadError) for name, read, valid in flower()},
}
