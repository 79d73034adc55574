"""Models of a run, their features, and its prototypes as clients use them.

Models are rebuilt from the run's configuration, so its data must be at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from protofed.errors import CheckpointError, ConfigError, DataError
from protofed.runs.border import Border
from protofed.runs.run import Run

if TYPE_CHECKING:
    from torch import Tensor

    from protofed.config.schema import Experiment
    from protofed.methods import Method
    from protofed.models import SplitModel
    from protofed.prototypes.table import Prototypes
    from protofed.visits.client import Member


@dataclass(frozen=True)
class ClientFeatures:
    """Features of a client's test samples, by its final model."""

    name: str
    features: Tensor  #: ``(n, d)``, from eval mode on the CPU
    labels: Tensor  #: ``(n,)`` int64


def restore_features(
    run: Run, clients: Sequence[str] | None = None, most: int | None = None, seed: int = 0, trust_code: bool = False
) -> list[ClientFeatures]:
    """Return the features of test samples, from the models the run ended with.

    Raises:
        DataError: If the run has left no models, or its data are missing or not those it was run on.
    """
    from protofed.experiments.ending import open_run

    if not (run.directory / "clients").is_dir():
        raise DataError(f"{run.directory}: no models to take features from: the run has not finished")
    with open_run(run, trust_code) as experiment:
        return _restore_features(run, experiment, clients, most, seed)


def _restore_features(
    run: Run, experiment: Experiment, clients: Sequence[str] | None, most: int | None, seed: int
) -> list[ClientFeatures]:
    from protofed.experiments.assemble import assemble
    from protofed.experiments.ending import client_model, forgotten, without
    from protofed.experiments.loading import load_data
    from protofed.storage.files import read_tensors

    # On a CPU the picture does not depend on the machine's accelerator.
    experiment = replace(
        experiment, execution=replace(experiment.execution, device="cpu", threads=0, executor="sequential")
    )
    gone = forgotten(run.directory)
    data = load_data(experiment).without(gone)
    federation, federated = assemble(without(experiment, gone), data, pretrained=False)
    roster = federation.executor.clients
    now = {c.name: c.test.counts(federated.num_classes).tolist() for c in federated.clients}
    for described in run.clients:
        if now.get(described.name) != described.test:
            raise DataError(f"{run.directory}: {described.name} has other test samples now than in the run")
    features = []
    for name in clients if clients is not None else list(roster):
        path = client_model(run.directory, name)
        model = roster.model(name)
        try:
            Border(run.directory).signature(path)
            model.load_state_dict(read_tensors(path))
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise CheckpointError(f"{path}: does not fit the model of {name} ({reason})") from None
        features.append(_features(roster[name], model, most, seed))
    return features


def prototypes(run: Run, whose: str) -> dict[str, Tensor]:
    """Return tensors of ``prototypes.safetensors``; none where the run has left no such file.

    Args:
        whose: ``global``, or ``local.`` and a client's name.
    """
    from protofed.storage.files import read_tensors

    path = run.directory / "prototypes.safetensors"
    if not Border(run.directory).signature(path):
        return {}
    prefix = f"{whose}."
    found = read_tensors(path, [f"{prefix}{name}" for name in ("prototypes", "present")])
    return {name.removeprefix(prefix): tensor for name, tensor in found.items()}


def _features(client: Member, model: SplitModel, most: int | None, seed: int) -> ClientFeatures:
    import torch

    from protofed.compute.seeding import generator
    from protofed.visits.batches import batches

    samples = client.test
    if most is not None and len(samples) > most:
        order = torch.randperm(len(samples), generator=generator(seed, "test features", client.name))
        rows = order[:most].sort().values
        samples = samples.at(rows)
    model.eval()
    with torch.no_grad():
        parts = [model(batch.x).features for batch in batches(samples, model)]
    empty = torch.zeros(0, model.feature_dim)
    return ClientFeatures(client.name, torch.cat(parts) if parts else empty, samples.y)


def restore_global(run: Run, server: Prototypes | None) -> Prototypes | None:
    """Return the global prototypes as clients use them: what the method makes of the server's broadcast.

    They differ from the ``server``'s by ProtoNorm's γ or TinyProto's masks, and FixedETF has them without any
    server. Of a user's own method the server's are returned as they are.
    """
    import torch
    from torch import nn

    from protofed.compute.seeding import seeded
    from protofed.methods import Local
    from protofed.models import SplitModel
    from protofed.prototypes.table import Prototypes

    method = _method(run)
    if method is None or (server is None and method.declared.exchanges != "nothing"):
        return server
    counts = torch.tensor(run.clients[0].train)
    K, d = method.task.num_classes, method.task.feature_dim
    with seeded(run.seed, "prototypes as used"):
        model = SplitModel(nn.Identity(), nn.Linear(d, K))
        method.extend(model)
    state, message = method.client_state(counts), None
    nothing = torch.zeros(0, d), torch.zeros(0, dtype=torch.int64)
    local = Local("", run.last_round + 1, model, counts, state, {}, lambda: nothing, run.seed)
    if server is not None:
        tensors = method.server_state() | server.tensors()
        message = method.broadcast(tensors, run.last_round + 1)
    received = method.receive(local, message)
    if "prototypes" not in received or "present" not in received or not bool(received["present"].any()):
        return server
    return Prototypes.of(received)


def restore_local(run: Run, own: Mapping[str, Prototypes]) -> dict[str, Prototypes]:
    """Return clients' prototypes by name, the entries that TinyProto does not send set to 0; others as they are."""
    from protofed.methods.parts.nearest import as_sent

    method = _method(run)
    return dict(own) if method is None else as_sent(method, own)


def _method(run: Run) -> Method | None:
    """Return the run's method; None for one that is not built in, or that needs the models as well."""
    import torch

    from protofed.methods import Task, methods
    from protofed.options import build_options

    if run.method not in methods():
        return None
    kind = methods().get(run.method)
    if kind.traits(kind.Options()).exchanges not in ("nothing", "prototypes"):
        return None
    per_class = [sum(column) for column in zip(*(c.train for c in run.clients), strict=True)]
    held = [n for n in per_class if n]
    task = Task(
        num_classes=len(run.class_names),
        feature_dim=run.clients[0].d,
        rounds=run.planned_rounds,
        seed=run.seed,
        class_size=sum(held) / len(held) if held else 0.0,
        dtype=torch.float64 if run.config.get("execution", {}).get("precision") == "fp64" else torch.float32,
        classes=tuple(run.class_names),
    )
    options = {name: value for name, value in run.config["method"].items() if name != "name"}
    try:
        built = build_options(kind.Options, options, "method")
        traits = kind.traits(built)
        return None if traits.alike == "architecture" or traits.personal else kind(built, task)
    except ConfigError as error:
        raise DataError(f"{run.directory / 'config.toml'}: {error}") from None
