"""Runner of HtFLlib (github.com/TsingZ0/HtFLlib), a public library of the same methods, on our federation.

No part of HtFLlib is shipped: the user provides a checkout. Files are written to a temporary folder only.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from protofed.config.schema import Experiment
from protofed.errors import ConfigError, unknown_name
from protofed.experiments.hardware import Hardware
from protofed.samples import FederatedData, Samples
from protofed.visits.batches import normalise

NEEDED = ("system/main.py", "system/flcore/servers/serverproto.py", "system/flcore/trainmodel/models.py")
PEER = "HtFLlib"
ALGORITHMS = {
    "fedproto": "FedProto",
    "fedtgp": "FedTGP",
    "lg_fedavg": "LG-FedAvg",
    "fml": "FML",
    "fedmrl": "FedMRL",
    "fedl2g": "FedL2G-logit",
}
OPTIONS = {
    "fedproto": {"lambda_": "-lam"},
    "fedtgp": {"lambda_": "-lam", "server_epochs": "-se", "margin_cap": "-mart"},
    "lg_fedavg": {},
    "fml": {"alpha": "-al", "beta": "-bt"},
    "fedmrl": {"auxiliary_d": "-sfd"},
    "fedl2g": {"server_lr": "-slr", "warm_up": "-wu"},
}
WIDE = f"{Path(__file__).with_name('wide.py')}:cnn2"
AS_PEER: dict[str, dict[str, Any]] = {
    "fedproto": {"method.prototypes": "during"},
    "fml": {"method.preset": "htfl"},
    "lg_fedavg": {"method.weighting": "uniform"},
    "fedmrl": {"method.weighting": "uniform", "method.auxiliary_d": 128, "method.auxiliary": WIDE},
    "fedl2g": {"method.server_lr": 0.1, "method.warm_up": 0, "method.study": 16, "method.quiz": 16},
}
"""Options with which our methods do what the peer's do. Its FedProto collects prototypes during training; its
FedTGP in a pass afterwards, as ours does. Its FedMRL never keeps a trained projector. Its FedL2G needs
two whole batches of samples of every client: one, held out, for the quiz, and one to study."""
PACKAGES = {"fedl2g": "higher"}  #: Packages that the peer needs for a method
HELD_OUT = ("fedl2g",)  #: Methods whose peer does not train on a client's first batch
DATASET = "federation"
FAMILY = "HtFE-img-2"  #: A model family that its main.py knows; the models it stands for are replaced
SCRIPT = Path(__file__).with_name("htfllib_main.py")

_ROUND = re.compile(r"^-{25}(?:-{25}| time cost -{25}) ([\d.eE+-]+)$", re.MULTILINE)
_ACCURACY = re.compile(r"^Averaged Test Accuracy: ([\d.]+)$", re.MULTILINE)


def _light4(shape: tuple[int, ...]) -> list[str]:
    return [
        "resnet8(num_classes=args.num_classes)",
        "torchvision.models.mobilenet_v2(num_classes=args.num_classes)",
        "torchvision.models.shufflenet_v2_x1_0(num_classes=args.num_classes)",
        "torchvision.models.efficientnet_b0(num_classes=args.num_classes)",
    ]


def _cnn2(shape: tuple[int, ...]) -> list[str]:
    height, width = (((side - 4) // 2 - 4) // 2 for side in shape[1:])
    flat = 64 * height * width
    return [f"FedAvgCNN(in_features={shape[0]}, num_classes=args.num_classes, dim={flat})"]


MODELS: dict[str, Callable[[tuple[int, ...]], list[str]]] = {"light4": _light4, "cnn2": _cnn2}
"""Our model names → expressions that its main.py evaluates; clients get them in turn, as with our groups."""


@dataclass(frozen=True)
class Peer:
    """A checkout of HtFLlib, and an empty folder for its files."""

    checkout: Path
    folder: Path

    def write(self, federated: FederatedData) -> None:
        """Write every client's samples, normalised as for our engine, in the format of its data loader."""
        for number, client in enumerate(federated.clients):
            for part in ("train", "test"):
                path = self.folder / "dataset" / DATASET / part / f"{number}.npz"
                path.parent.mkdir(parents=True, exist_ok=True)
                samples: Samples = getattr(client, part)
                x = normalise(samples.x, torch.float32).contiguous().cpu()
                # HtFLlib itself writes compressed files; uncompressed ones are read faster.
                np.savez(path, data=np.array({"x": x.numpy(), "y": samples.y.cpu().numpy()}, dtype=object))
        # The working directory of main.py, which reads ../dataset and writes to sibling folders.
        (self.folder / "system").mkdir()

    def run(
        self, experiment: Experiment, federated: FederatedData, *, rounds: int, threads: int
    ) -> tuple[list[float], list[float]]:
        """Run one round more than ``rounds``; the first one also warms up.

        Returns:
            Seconds of each round, and the fraction of correct test samples at the start of each.
        """
        models = json.dumps(MODELS[experiment.model.name](federated.input_shape))
        source = str(self.checkout.resolve() / "system")
        command = [sys.executable, str(SCRIPT), source, str(threads), models]
        result = subprocess.run(
            [*command, *_arguments(experiment, federated, rounds)],
            cwd=self.folder / "system",
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
        seconds = [float(number) for number in _ROUND.findall(result.stdout)]
        if result.returncode or len(seconds) != rounds + 1:
            last = (result.stderr.strip().splitlines() or ["it printed no error"])[-1]
            raise ConfigError(
                f"--peer {self.checkout}: main.py ended with status {result.returncode} after {len(seconds)} of "
                f"{rounds + 1} rounds: {last}"
            )
        return seconds, [float(number) for number in _ACCURACY.findall(result.stdout)]


def steps_per_round(experiment: Experiment, federated: FederatedData) -> dict[str, int]:
    """Return the number of optimiser steps per round; the peer drops the last partial batch of each epoch."""
    plans = [(len(c.train), experiment.training.plan(c.settings)) for c in federated.clients]
    return {
        PEER: sum((n // plan.batch_size - (experiment.method in HELD_OUT)) * plan.epochs for n, plan in plans),
        "protofed": sum(-(-n // plan.batch_size) * plan.epochs for n, plan in plans),
    }


def check_checkout(path: Path) -> None:
    """Raise ConfigError unless ``path`` is a checkout of HtFLlib."""
    for name in NEEDED:
        if not (path / name).is_file():
            raise ConfigError(
                f"--peer {path}: not a checkout of HtFLlib ({name} is missing): give the folder of a clone of "
                "github.com/TsingZ0/HtFLlib"
            )


def check_experiment(experiment: Experiment) -> None:
    """Raise ConfigError if HtFLlib does not support the options of ``experiment``."""
    if experiment.method not in ALGORITHMS:
        raise ConfigError(unknown_name("method of the peer", experiment.method, ALGORITHMS))
    package = PACKAGES.get(experiment.method, "")
    if package and find_spec(package) is None:
        raise ConfigError(
            f"{experiment.method}: the peer needs the package {package}: uv pip install {package}, or choose "
            "other --cases"
        )
    if experiment.model.name not in MODELS:
        raise ConfigError(unknown_name("model of the peer", experiment.model.name, MODELS))
    same: dict[str, tuple[Any, Any]] = {
        "training.optimizer": (experiment.training.optimizer, "SGD"),
        "training.momentum": (experiment.training.momentum, 0.0),
        "training.weight_decay": (experiment.training.weight_decay, 0.0),
        "training.options": (experiment.training.options, {}),
        "model.options": (experiment.model.options, {}),
        "model.members": (experiment.model.members, ()),
        "model.map": (experiment.model.map, "pool"),
    }
    if experiment.model.name == "cnn2":
        same["model.d"] = (experiment.model.d, 512)
    for name, (given, needed) in same.items():
        if given != needed:
            raise ConfigError(f"{name}={given}: the peer supports only {needed}: leave it out")


def check_data(experiment: Experiment, federated: FederatedData) -> None:
    """Raise ConfigError if clients have their own settings, or HtFLlib does not support the shape of samples."""
    for client in federated.clients:
        if client.settings:
            raise ConfigError(
                f"{client.name} has its own settings, but the peer uses the same settings for all clients"
            )
    if len(federated.input_shape) != 3 or (experiment.model.name == "light4" and federated.input_shape[0] != 3):
        shape = "×".join(map(str, federated.input_shape))
        raise ConfigError(f"the peer's {experiment.model.name} takes images of 3 channels, not samples of {shape}")


def _arguments(experiment: Experiment, federated: FederatedData, rounds: int) -> list[str]:
    """Return the arguments of main.py, which runs one round more than ``-gr``."""
    arguments = {
        "-dev": Hardware.of(experiment.execution).device.type,
        "-data": DATASET,
        "-m": FAMILY,
        "-algo": ALGORITHMS[experiment.method],
        "-ncl": federated.num_classes,
        "-nc": len(federated.clients),
        "-lbs": experiment.training.batch_size,
        "-lr": experiment.training.lr,
        "-ls": experiment.training.epochs,
        "-fd": experiment.model.d,
        "-gr": rounds,
        "-eg": 1,
    }
    for option, name in OPTIONS[experiment.method].items():
        arguments[name] = getattr(experiment.method_options, option)
    return [str(part) for pair in arguments.items() for part in pair]
