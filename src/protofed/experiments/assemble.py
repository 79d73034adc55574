"""From a configuration to a federation that is ready to run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch

from protofed import data, methods, models
from protofed.errors import ConfigError, ModelError
from protofed.experiments.config import Experiment, Tree
from protofed.federation import Federation
from protofed.methods import Method, Task
from protofed.options import build_options, plain
from protofed.seeding import derive, seeded
from protofed.training import Client, ClientData, FederatedData, Samples, Sequential, Visitor
from protofed.wire import get_codec

DTYPES = {"fp32": torch.float32, "fp64": torch.float64}
LAYOUTS = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}


@dataclass(frozen=True)
class _Architecture:
    """What a client's model is, before it is built."""

    name: str
    options: Mapping[str, Any]
    d: int

    def __str__(self) -> str:
        options = ", ".join(f"{k}={v}" for k, v in self.options.items())
        return f"{self.name}({options})" if options else self.name


def load_data(experiment: Experiment) -> FederatedData:
    """Return the clients' data; the last one loaded is kept, so that a comparison loads once."""
    key = (plain(experiment.data), experiment.partition, plain(experiment.partition_options), experiment.seed)
    return _load_data(json.dumps(key, sort_keys=True))


@lru_cache(maxsize=2)
def _load_data(key: str) -> FederatedData:
    options, partition, partition_options, seed = json.loads(key)
    kind = data.partitions.get(partition)
    return data.load(
        build_options(data.DataOptions, {k: v for k, v in options.items() if v is not None}, "data"),
        partition,
        build_options(kind.Options, partition_options, "partition"),
        seed,
    )


def device_of(experiment: Experiment) -> torch.device:
    """Return the device to run on.

    Raises:
        ConfigError: If a GPU is asked for and there is none.
    """
    wanted = experiment.execution.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("execution.device=cuda, but torch sees no GPU: use cpu or auto")
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(wanted)


def assemble(experiment: Experiment, federated: FederatedData | None = None) -> tuple[Federation, FederatedData]:
    """Build the method, the clients and the engine.

    Args:
        experiment: What to run.
        federated: The clients' data; by default what the experiment's ``data`` and ``partition`` sections say.

    Raises:
        ProtofedError: For anything that does not fit, before any training.
    """
    if experiment.execution.threads:
        torch.set_num_threads(experiment.execution.threads)
    federated = federated or load_data(experiment)
    kind = methods.get(experiment.method)
    chosen = _architectures(experiment, federated, kind)
    method = kind(experiment.method_options, _task(experiment, federated, kind, chosen))
    clients = {
        c.name: _client(experiment, federated, method, c, architecture)
        for c, architecture in zip(federated.clients, chosen, strict=True)
    }
    codec = get_codec(experiment.wire.codec)
    executor = Sequential(Visitor(method, codec, experiment.seed), clients)
    federation = Federation(
        method,
        codec,
        executor,
        experiment.rounds,
        experiment.seed,
        experiment.participation,
        experiment.evaluation,
    )
    return federation, federated


def describe_clients(federation: Federation, federated: FederatedData) -> Tree:
    """Return what is known of the clients before training, for ``federation.json``."""
    K = federated.num_classes
    clients = federation.executor.clients
    return {
        "class_names": list(federated.class_names),
        "input_shape": list(federated.input_shape),
        "clients": [
            {
                "name": c.name,
                "architecture": clients[c.name].architecture,
                "parameters": models.parameter_count(clients[c.name].model),
                "d": clients[c.name].model.feature_dim,
                "train": c.train.counts(K).tolist(),
                "test": c.test.counts(K).tolist(),
            }
            for c in federated.clients
        ],
    }


def _architectures(experiment: Experiment, federated: FederatedData, kind: type[Method]) -> list[_Architecture]:
    """Return each client's architecture, checked against what the method needs."""
    model = experiment.model
    shared = kind.same_architecture and model.shared
    assigned = models.assign(shared or model.name, len(federated.clients))
    chosen = []
    for client, (name, options) in zip(federated.clients, assigned, strict=True):
        own = None if shared else client.settings.get("model")
        name, options = models.assign(own, 1)[0] if own else (name, options)
        extra = {} if own or shared else model.options
        chosen.append(_Architecture(name, {**options, **extra}, client.settings.get("d", model.d)))
    _check_same(experiment, federated, kind, chosen)
    return chosen


def _check_same(
    experiment: Experiment, federated: FederatedData, kind: type[Method], chosen: list[_Architecture]
) -> None:
    """Refuse a federation whose clients differ in what the method needs them to share."""
    names = [c.name for c in federated.clients]
    for index, architecture in enumerate(chosen):
        if kind.same_architecture and architecture != chosen[0]:
            raise ConfigError(
                f"{kind.name} shares weights and needs one architecture, but {names[0]} has {chosen[0]} (d="
                f"{chosen[0].d}) and {names[index]} has {architecture} (d={architecture.d}): set model.shared"
            )
        if kind.same_feature_dim and architecture.d != chosen[0].d:
            raise ConfigError(
                f"{kind.name} exchanges features and needs one d, but {names[0]} has d={chosen[0].d} and "
                f"{names[index]} has d={architecture.d}: give all clients the same d"
            )


def _task(
    experiment: Experiment, federated: FederatedData, kind: type[Method], chosen: list[_Architecture]
) -> Task:
    counts = torch.stack([c.train.counts(federated.num_classes) for c in federated.clients]).sum(0)
    held = counts[counts > 0]
    template = None
    if kind.same_architecture:
        template = partial(_build, experiment, federated.input_shape, federated.num_classes, chosen[0], "shared")
    return Task(
        num_classes=federated.num_classes,
        feature_dim=chosen[0].d,
        rounds=experiment.rounds,
        seed=experiment.seed,
        class_size=float(held.double().mean()) if len(held) else 0.0,
        template=template,
        dtype=DTYPES[experiment.execution.precision],
    )


def _build(
    experiment: Experiment, shape: tuple[int, ...], K: int, architecture: _Architecture, scope: str
) -> models.SplitModel:
    """Return a model in the experiment's precision; ``scope`` decides its initial weights."""
    model = models.build(
        architecture.name,
        input_shape=shape,
        num_classes=K,
        d=architecture.d,
        map=experiment.model.map,
        options=dict(architecture.options),
        seed=derive(experiment.seed, "model", scope),
    )
    return model.to(DTYPES[experiment.execution.precision])


def _client(
    experiment: Experiment,
    federated: FederatedData,
    method: Method,
    own: ClientData,
    architecture: _Architecture,
) -> Client:
    scope = own.name if experiment.model.init == "own" else "shared"
    try:
        model = _build(experiment, federated.input_shape, federated.num_classes, architecture, scope)
        plan = experiment.training.plan(own.settings)
    except (ModelError, ConfigError) as error:
        raise type(error)(f"{own.name}: {error}") from None
    with seeded(experiment.seed, "extend", scope):
        method.extend(model)
    execution = experiment.execution
    device, layout = device_of(experiment), LAYOUTS[execution.memory_format]
    model = model.to(device=device, dtype=DTYPES[execution.precision]).to(memory_format=layout)
    if execution.convolutions == "auto" and device.type == "cpu" and layout is torch.channels_last:
        models.reduce_convolutions(model)
    state = method.client_state(own.train.counts(federated.num_classes))

    def put(samples: Samples) -> Samples:
        x = samples.x.to(device)
        # Rows taken from a tensor keep its layout, so batches come in the layout of the whole.
        return Samples(x.to(memory_format=layout) if x.dim() == 4 else x, samples.y.to(device))

    return Client(
        own.name,
        put(own.train),
        put(own.test),
        put(own.validation) if own.validation is not None else None,
        model,
        {name: tensor.to(device) for name, tensor in state.items()},
        plan,
        str(architecture),
    )
