"""Show that a change of structure changes no number: ``python tools/parity.py DIRECTORY [--methods NAME...]``.

Runs two rounds of quickstart and fed-mnist7k by every method on every executor into DIRECTORY, and prints one line
per run: the hash of all its tensors and records, without what depends on the clock. Run it before and after.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import protofed
from protofed.errors import ProtofedError
from protofed.methods import methods

EXECUTORS = ("sequential", "workers", "fused")
VOLATILE = ("seconds", "environment", "peak_memory_bytes", "protofed")
"""Parts of the name of a field that depends on the machine or the clock."""


def without(value: Any) -> Any:
    """Return a record without volatile fields."""
    if isinstance(value, dict):
        return {n: without(v) for n, v in value.items() if not any(part in n for part in VOLATILE)}
    return [without(v) for v in value] if isinstance(value, list) else value


def digest(run: Path) -> str:
    """Return the hash of a run's tensors and records."""
    total = hashlib.sha256()
    for path in sorted(run.rglob("*")):
        if path.suffix == ".safetensors":
            for name, tensor in sorted(load_file(path).items()):
                total.update(f"{path.relative_to(run)} {name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                total.update(tensor.contiguous().reshape(-1).view(dtype=torch.uint8).numpy().tobytes())
        elif path.name in ("rounds.jsonl", "summary.json", "federation.json"):
            lines = path.read_text(encoding="utf-8").splitlines() if path.suffix == ".jsonl" else [path.read_text()]
            for line in lines:
                total.update(json.dumps(without(json.loads(line)), sort_keys=True).encode())
    return total.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--methods", nargs="*", default=sorted(methods()))
    parser.add_argument("--recipes", nargs="*", default=["quickstart", "fed-mnist7k"])
    parser.add_argument("--executors", nargs="*", default=list(EXECUTORS))
    asked = parser.parse_args()
    for recipe in asked.recipes:
        for method in asked.methods:
            for executor in asked.executors:
                place = asked.directory / f"{recipe}-{method}-{executor}"
                options = {"method.name": method, "rounds": 2, "execution.executor": executor}
                try:
                    run = protofed.run(recipe, options, out=place)
                    print(recipe, method, executor, digest(run.directory), flush=True)
                except ProtofedError as error:
                    print(recipe, method, executor, error, flush=True)


if __name__ == "__main__":
    main()
