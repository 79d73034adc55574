"""The recipe for a folder: what its data need, a model for their kind, and the methods worth comparing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from protofed.apps.folder.finding import Finding, combined
from protofed.config.schema import apply_overrides
from protofed.storage.files import write_text

NAME = "protofed.toml"
_TRAINING = {"batch_size": 16, "lr": 0.05}
_KINDS: dict[str, dict[str, Any]] = {
    "table": {"model": {"name": "mlp4", "shared": "mlp", "d": 32}, "gamma": 10.0, "fedtgp": 0.5},
    "vector": {"model": {"name": "mlp4", "shared": "mlp", "d": 64}, "gamma": 35.0, "fedtgp": 1.0},
    "series": {"model": {"name": "series4", "shared": "cnn1d", "d": 32}, "gamma": 10.0, "fedtgp": 1.0},
    "image": {"model": {"name": "small4", "shared": "cnn2", "d": 64}, "gamma": 35.0, "fedtgp": 1.0},
}
"""Architectures of each kind of samples, and what suits their length: γ of fixed targets and FedTGP's λ."""
_COMMENTS = {
    "rounds": "rounds of training; the closed form needs one",
    "[data]": "what `protofed init` found is settled here",
    "[model]": "four architectures, dealt to the sites in turn; `shared` is that of methods which need one for all",
    "[training]": "",
    "[robust]": "as in a deployment",
    "[evaluation]": "scores on the test samples of all sites, and sensitivity, specificity and calibration",
    "[variants.fedlda-fixed]": "the closed form of all samples, in one round, and its twin of a site's own samples",
    "[compare]": "the first two send nothing; `protofed run` compares all of them",
}


def tree_of(kind: str, findings: Sequence[Finding], source: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe that runs.

    Args:
        kind: ``table``, ``vector``, ``series`` or ``image``.
        findings: What was found and is settled.
        source: Options by which the data are found, by dotted name.
    """
    chosen = _KINDS[kind]
    training: dict[str, Any] = {"batch_size": 16, "lr": 0.05}
    if kind == "series":
        training = {"batch_size": 8, "epochs": 2, "optimizer": "Adam", "lr": 0.005}
    if kind == "table":
        training["class_weights"] = "balanced"
    tree: dict[str, Any] = {
        "summary": "written by protofed init",
        "rounds": 20,
        "data": {},
        "model": chosen["model"],
        "training": training,
        "robust": {"rule": "clip"},
        "evaluation": {"on": "union", "metrics": True},
        "methods": {
            "protonorm": {"gamma": chosen["gamma"]},
            "fixed_etf": {"gamma": chosen["gamma"]},
            "fedtgp": {"lambda": chosen["fedtgp"]},
        },
        "variants": {
            f"{name}-fixed": {"rounds": 1, "method": {"name": name}, "encoder": {"name": "auto", "dim": 128}}
            for name in ("fedlda", "local_lda")
        },
        "compare": {"methods": ["local", "local_lda-fixed", "fedlda-fixed", "beacon", "fedavg", "fedproto"]},
    }
    return apply_overrides(tree, {**source, **combined(findings)})


def write(path: Path, tree: Mapping[str, Any], findings: Sequence[Finding], refused: Sequence[Finding]) -> None:
    """Write a recipe with comments.

    Args:
        findings: Those that are settled in it.
        refused: Those whose proposal was not taken.

    Raises:
        OutputError: If the file cannot be written.
    """
    lines = [
        "# Written by `protofed init`; it runs as it is: protofed run " + path.name,
        "# Every option: protofed list options",
        *(f"# {line}" for finding in findings if (line := _told(finding))),
        *(f"# not taken: {line}" for finding in refused if (line := _told(finding))),
        "",
    ]
    for line in tomli_w.dumps(dict(tree)).splitlines():
        comment = _COMMENTS.get(line.split(" = ")[0], "")
        lines += [f"# {comment}", line] if comment else [line]
    write_text(path, "\n".join(lines) + "\n")


def _told(finding: Finding) -> str:
    where = ": ".join(part for part in (finding.site, finding.column) if part)
    text = f"{where}: {finding.found}" if where else finding.found
    return text + (f" → {finding.proposal}" if finding.proposal else "")
