"""What visits need, built from a configuration: the method, one model per architecture, the clients.

Worker processes build the same from the same configuration; only the process that leads fills the store.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from protofed import claims, methods, models
from protofed.errors import ConfigError, ModelError
from protofed.experiments.config import Experiment
from protofed.methods import Method, Task
from protofed.samples import FederatedData, Samples
from protofed.seeding import derive, seeded
from protofed.training import LocalTrainer, Member, Parked, Roster, Store
from protofed.wire import get_codec

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.float32, "fp64": torch.float64}
"""Of weights, features and prototypes."""
LAYOUTS = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}


@dataclass(frozen=True)
class Architecture:
    """What a client's model is, before it is built; only its node builds :data:`~protofed.claims.PRIVATE`."""

    name: str
    options: Mapping[str, Any]
    d: int

    def __str__(self) -> str:
        options = ", ".join(f"{k}={v}" for k, v in self.options.items())
        return f"{self.name}({options})" if options else self.name

    @property
    def kind(self) -> str:
        """Architectures of one kind have the same modules and shapes."""
        return f"{self}, d={self.d}"


@dataclass(frozen=True)
class Census:
    """What has to be known of all clients before any of them can begin.

    Attributes:
        architectures: One per client.
        feature_dim: ``d`` where all clients have the same, else that of the first.
        class_size: Mean number of training samples over all classes that anyone has.
        clients: How many there are.
        template: Whose initial weights open the first round; None for the first client's.
    """

    architectures: tuple[Architecture, ...]
    feature_dim: int
    class_size: float
    clients: int
    template: Architecture | None = None

    def without(self, experiment: Experiment, own: Collection[int]) -> Census:
        """Return the census with a template that none of the clients number ``own`` chose, if the method allows."""
        if one_architecture(experiment):
            return self  # all have the same
        rest = [a for number, a in enumerate(self.architectures) if number not in own]
        name, options = models.assign(group_of(experiment), 1)[0]
        given = Architecture(name, {**options, **experiment.model.options}, experiment.model.d)
        return replace(self, template=rest[0] if rest else given)

    @classmethod
    def of(cls, experiment: Experiment, federated: FederatedData) -> Census:
        """Take it of all clients.

        Raises:
            ConfigError: If the method needs clients to share what they do not share.
        """
        chosen = _assign(experiment, federated)
        counts = torch.stack([c.train.counts(federated.num_classes) for c in federated.clients]).sum(0)
        held = counts[counts > 0]
        size = float(held.double().mean()) if len(held) else 0.0
        return cls(tuple(chosen), chosen[0].d, size, len(chosen))


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


def device_count(experiment: Experiment) -> int:
    """Return on how many devices clients that step together are spread.

    Raises:
        ConfigError: If more GPUs are asked for than there are.
    """
    wanted = experiment.execution.devices
    if device_of(experiment).type != "cuda":
        return max(1, wanted)
    visible = torch.cuda.device_count()
    if wanted > visible:
        raise ConfigError(f"execution.devices={wanted}, but torch sees {visible} GPU{'s' * (visible > 1)}")
    return wanted or visible


def place(experiment: Experiment, federated: FederatedData, device: torch.device | None = None) -> FederatedData:
    """Return the samples on the device, images in the layout of the models."""
    device = device or device_of(experiment)
    layout = LAYOUTS[experiment.execution.memory_format]

    def put(samples: Samples) -> Samples:
        x = samples.x.to(device)
        # Rows taken from a tensor keep its layout, so batches come in the layout of the whole.
        return Samples(x.to(memory_format=layout) if x.dim() == 4 else x, samples.y.to(device))

    return federated.map(put)


def open_workshop(
    experiment: Experiment,
    federated: FederatedData,
    store: Store,
    bfloat16: Collection[str] = (),
    device: torch.device | None = None,
    census: Census | None = None,
    absent: Collection[str] = (),
) -> tuple[LocalTrainer, Roster]:
    """Return what takes clients through their visits, and the clients, who rest in ``store``.

    Args:
        experiment: What to run.
        federated: The clients' data, as :func:`place` returns them.
        store: Holds the clients' weights, or will be filled by :func:`fill`.
        bfloat16: Kinds whose layers are computed in bfloat16.
        device: Where the models are; by default the experiment's device.
        census: What is known of all clients, with the architectures of these, if ``federated`` has some only.
        absent: Clients whose models are not built here.

    Raises:
        ProtofedError: For anything that does not fit, before any training.
    """
    device = device or device_of(experiment)
    kind = methods.get(experiment.method)
    census = census or Census.of(experiment, federated)
    chosen = census.architectures
    method = kind(experiment.method_options, _task(experiment, federated, census))
    if experiment.execution.precision == "tf32":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
    members: list[Member] = []
    working: dict[str, models.SplitModel] = {}
    for client, architecture in zip(federated.clients, chosen, strict=True):
        try:
            plan = experiment.training.plan(client.settings)
            if client.name not in absent and architecture.kind not in working:
                model = _client_model(experiment, federated, method, architecture, "shared", device)
                working[architecture.kind] = model
        except (ModelError, ConfigError) as error:
            raise type(error)(f"{client.name}: {error}") from None
        if architecture.kind in working:
            working[architecture.kind].in_bfloat16 = architecture.kind in bfloat16
        splits = client.train, client.test, client.validation
        members.append(Member(client.name, *splits, plan, str(architecture), architecture.kind))
    codec = get_codec(experiment.wire.codec, experiment.wire.compression)
    trainer = LocalTrainer(method, codec, experiment.seed)
    return trainer, Roster(members, working, store)


def fill(
    experiment: Experiment, federated: FederatedData, method: Method, roster: Roster, census: Census | None = None
) -> None:
    """Give every client its initial weights and state."""
    chosen = (census or Census.of(experiment, federated)).architectures
    first: dict[str, str] = {}
    for client, architecture in zip(federated.clients, chosen, strict=True):
        state = method.client_state(client.train.counts(federated.num_classes).cpu())
        if experiment.model.init == "own":
            model = _client_model(experiment, federated, method, architecture, client.name, torch.device("cpu"))
            roster.store.write(client.name, Parked(model.state_dict(), state, {}))
        elif architecture.kind in first:
            roster.store.share(client.name, first[architecture.kind], state)
        else:
            first[architecture.kind] = client.name
            model = roster.models[architecture.kind]
            roster.store.write(client.name, Parked(model.state_dict(), state, {}))


def group_of(experiment: Experiment) -> str:
    """Return the architecture or group of architectures of the clients that do not choose for themselves."""
    return (one_architecture(experiment) and experiment.model.shared) or experiment.model.name


def one_architecture(experiment: Experiment) -> bool:
    """Whether the method needs all clients to have one architecture."""
    return methods.get(experiment.method).needs_same_architecture(experiment.method_options)


def _assign(experiment: Experiment, federated: FederatedData) -> list[Architecture]:
    """Return each client's architecture, checked against what the method needs."""
    model = experiment.model
    shared = one_architecture(experiment) and model.shared
    assigned = models.assign(group_of(experiment), len(federated.clients))
    chosen = []
    for client, (name, options) in zip(federated.clients, assigned, strict=True):
        own = None if shared else client.settings.get("model")
        if own == claims.PRIVATE:
            name, options = own, {}
        elif own:
            check_trusted(experiment, client.name, own)
            name, options = models.assign(own, 1)[0]
        extra = {} if own or shared else model.options
        chosen.append(Architecture(name, {**options, **extra}, client.settings.get("d", model.d)))
    _check_same(experiment, federated, chosen)
    return chosen


def is_code(name: str) -> bool:
    """Whether a model's name is ``package.module:callable``."""
    return ":" in name


def recipe_names(experiment: Experiment, name: str) -> bool:
    """Whether the experiment itself, and not a client, names this model."""
    return name in (experiment.model.name, experiment.model.shared)


def check_trusted(experiment: Experiment, client: str, name: str) -> None:
    """Refuse to import what a ``client.toml`` names, unless the user trusts the folder.

    Raises:
        ConfigError: If ``name`` is code, and neither the experiment names it nor ``data.trust_code`` is set.
    """
    if is_code(name) and not recipe_names(experiment, name) and not experiment.data.trust_code:
        raise ConfigError(
            f"{client}: its client.toml names code, model = {name!r}: name an architecture there, or set "
            "data.trust_code=true to import and run it"
        )


def counts_needed(experiment: Experiment) -> str:
    """Return why clients have to tell their numbers of samples; empty if they need not."""
    kind = methods.get(experiment.method)
    if kind.needs_counts(experiment.method_options):
        return f"{experiment.method} needs numbers of samples: choose counts=exact"
    if (rule := experiment.robust.rule) != "none" and kind.sends_sums(experiment.method_options):
        why = f"robust.rule={rule} has to divide the sums of {experiment.method}"
        return f"{why}: choose counts=exact or robust.rule=none"
    if experiment.participation.sampling == "samples":
        return "participation.sampling=samples draws clients by numbers of samples: choose counts=exact"
    return ""


def _check_same(experiment: Experiment, federated: FederatedData, chosen: list[Architecture]) -> None:
    """Refuse a federation whose clients differ in what the method needs them to share."""
    kind, same = methods.get(experiment.method), one_architecture(experiment)
    names = [c.name for c in federated.clients]
    for index, architecture in enumerate(chosen):
        if same and architecture != chosen[0]:
            raise ConfigError(
                f"{kind.name} shares weights and needs one architecture, but {names[0]} has {chosen[0]} (d="
                f"{chosen[0].d}) and {names[index]} has {architecture} (d={architecture.d}): set model.shared"
            )
        if kind.same_feature_dim and architecture.d != chosen[0].d:
            raise ConfigError(
                f"{kind.name} exchanges features and needs one d, but {names[0]} has d={chosen[0].d} and "
                f"{names[index]} has d={architecture.d}: give all clients the same d"
            )


def _task(experiment: Experiment, federated: FederatedData, census: Census) -> Task:
    return Task(
        num_classes=federated.num_classes,
        feature_dim=census.feature_dim,
        rounds=experiment.rounds,
        seed=experiment.seed,
        class_size=census.class_size,
        clients=census.clients,
        template=partial(build_model, experiment, federated, census.template or census.architectures[0], "shared"),
        auxiliary=partial(_auxiliary, experiment, federated),
        dtype=DTYPES[experiment.execution.precision],
    )


def _auxiliary(
    experiment: Experiment, federated: FederatedData, name: str, options: Mapping[str, Any], d: int | None
) -> models.SplitModel:
    """Return a network that all parties share: it follows from the configuration alone (see methods.Build)."""
    model = experiment.model
    default, own = models.assign(model.shared or model.name, 1)[0]
    own |= {} if model.shared else model.options
    architecture = Architecture(name or default, {**({} if name else own), **options}, d or model.d)
    return build_model(experiment, federated, architecture, "auxiliary")


def build_model(
    experiment: Experiment, federated: FederatedData, architecture: Architecture, scope: str
) -> models.SplitModel:
    """Return a model in the experiment's precision; ``scope`` decides its initial weights."""
    model = models.build(
        architecture.name,
        input_shape=federated.input_shape,
        num_classes=federated.num_classes,
        d=architecture.d,
        map=experiment.model.map,
        options=dict(architecture.options),
        seed=derive(experiment.seed, "model", scope),
    )
    return model.to(DTYPES[experiment.execution.precision])


def _client_model(
    experiment: Experiment,
    federated: FederatedData,
    method: Method,
    architecture: Architecture,
    scope: str,
    device: torch.device,
) -> models.SplitModel:
    """Return a model as clients train it: with the method's own networks, on the device, in its layout."""
    model = build_model(experiment, federated, architecture, scope)
    with seeded(experiment.seed, "extend", scope):
        method.extend(model)
    execution = experiment.execution
    layout = LAYOUTS[execution.memory_format]
    model = model.to(device=device, dtype=DTYPES[execution.precision]).to(memory_format=layout)
    models.key_noise(model)
    if execution.convolutions == "auto" and device.type == "cpu" and layout is torch.channels_last:
        models.reduce_convolutions(model)
    return model
