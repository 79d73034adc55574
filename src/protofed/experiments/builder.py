"""Construction of the method, the models and the clients from a configuration.

Worker processes build the same parts from the same configuration; only the main process fills the store.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from protofed import data, methods, models
from protofed.compute.seeding import derive, generator, seeded
from protofed.config.architectures import (
    Architecture,
    FederationSummary,
    common_architecture,
    fit_to_columns,
    is_code,
)
from protofed.config.coverage import check_method, check_steps
from protofed.config.schema import Experiment
from protofed.data.options import memory_gb
from protofed.errors import ConfigError, ModelError, refusal
from protofed.experiments.hardware import DTYPES, Hardware
from protofed.methods import Method, Task
from protofed.samples import FederatedData
from protofed.stages.privacy import protect_plan
from protofed.stages.privacy.samples import multiplier
from protofed.storage.snapshots import Snapshot
from protofed.untrusted import claims
from protofed.visits.client import LocalPlan, Member
from protofed.visits.private import COUNTS, private_counts
from protofed.visits.roster import Roster, Store
from protofed.visits.visit import LocalTrainer
from protofed.wire.codec import get_codec

COPIES = 6
"""Copies of a model while it is trained: first weights, weights, gradients, two of an optimiser, an upload."""
SMALL = 1024  #: Number among an architecture's options up to which its size is not looked at


class Builder:
    """Builds the parts of a federation.

    Args:
        federated: On the device (:meth:`Hardware.place`).
        summary: Holds the architectures of those in ``federated``; computed by default.
        absent: Clients whose models are not built.
        pretrained: Read files of initial weights; not necessary where trained ones replace them.
        secret: Draw random numbers that protect samples from the operating system, as at a node.

    Attributes:
        models: One working model per kind, on the device.
    """

    def __init__(
        self,
        experiment: Experiment,
        federated: FederatedData,
        hardware: Hardware,
        summary: FederationSummary | None = None,
        absent: Collection[str] = (),
        pretrained: bool = True,
        secret: bool = False,
        draws: int | None = None,
    ) -> None:
        self.pretrained = pretrained
        self.experiment = experiment
        self.federated = federated
        self.hardware = hardware
        self.method_class = methods.get(experiment.method)
        check_steps(experiment, federated.table.raw if federated.table else ())
        self.summary = summary or FederationSummary.of(experiment, federated)
        if experiment.execution.precision == "tf32":
            torch.set_float32_matmul_precision("high")
            torch.backends.cudnn.allow_tf32 = True
        self.method: Method = self.method_class(experiment.method_options, self._task())
        check_method(experiment, self.method)
        experiment.transforms.check(federated.input_shape)
        self.trainer = LocalTrainer(
            self.method,
            get_codec(experiment.wire.codec, experiment.wire.compression),
            experiment.seed if draws is None else draws,
            data.augmentation(experiment.transforms),
            experiment.evaluation.on,
            experiment.evaluation.on_every,
            experiment.rounds,
            secret,
        )
        self.members: list[Member] = []
        self.models: dict[str, models.SplitModel] = {}
        plans: dict[str, LocalPlan] = {}
        for client, architecture in zip(federated.clients, self.summary.architectures, strict=True):
            try:
                if (plan := plans.get(asked := repr(client.settings))) is None:
                    least = max(experiment.privacy.least_samples, client.settings.get("least_samples", 0))
                    plan = plans[asked] = replace(experiment.training.plan(client.settings), least_samples=least)
                if client.name not in absent and architecture.kind not in self.models:
                    self.models[architecture.kind] = self._client_model(architecture, "shared", hardware.device)
                if experiment.privacy.mode == "sample" and self.method.upload_schema is not None:
                    secure = experiment.secure.aggregation
                    plan = protect_plan(experiment.privacy, self.method, plan, len(client.train), secure=secure)
            except (ModelError, ConfigError) as error:
                raise type(error)(f"{client.name}: {error}") from None
            self.members.append(Member(client, plan, str(architecture), architecture.kind))

    def roster(self, store: Store | None) -> Roster:
        """Return the clients, stored in ``store``, or at their nodes if it is None."""
        return Roster(self.members, self.models, store)

    def fill(self, roster: Roster) -> None:
        """Store the initial weights and state of every client."""
        first: dict[str, str] = {}
        for member, architecture in zip(self.members, self.summary.architectures, strict=True):
            client, state = member.data, self._state(member)
            if self.experiment.model.init == "own":
                model = self._client_model(architecture, client.name, torch.device("cpu"))
                roster.store.write(client.name, Snapshot(model.state_dict(), state, {}))
            elif architecture.kind in first:
                roster.store.share(client.name, first[architecture.kind], state)
            else:
                first[architecture.kind] = client.name
                model = self.models[architecture.kind]
                roster.store.write(client.name, Snapshot(model.state_dict(), state, {}))

    def _state(self, member: Member) -> dict[str, torch.Tensor]:
        """Return a client's first state; numbers of samples on which messages may depend are noisy if protected."""
        counts, private = member.train.counts(self.federated.num_classes).cpu(), member.plan.private
        told = counts
        if private is not None and not self.method.protection.dp_statistics:
            private = replace(private, secret=self.trainer.secret)
            told = private_counts(counts, private, generator(self.trainer.seed, COUNTS, member.name))
        kept = self.method.client_state(counts)
        state = self.method.client_state(told) | {name: kept[name] for name in self.method.protection.local_only}
        return state if told is counts else {**state, COUNTS: told}

    def _task(self) -> Task:
        summary, federated = self.summary, self.federated
        template = summary.template or summary.architectures[0]
        noise, e = None, self.experiment
        if e.privacy.mode == "sample" and self.method_class.traits(e.method_options).protection.dp_statistics:
            honest = e.secure.least(summary.clients) - e.privacy.colluders if e.secure.aggregation else 1
            noise = multiplier(e.privacy) / math.sqrt(max(1, honest))
        return Task(
            num_classes=federated.num_classes,
            feature_dim=summary.feature_dim,
            rounds=self.experiment.rounds,
            seed=self.experiment.seed,
            class_size=summary.class_size,
            clients=summary.clients,
            template=partial(self._model, template, "shared"),  # a part of trained clients, which are pickled
            sizes=self._sizes,
            auxiliary=self._auxiliary,
            dtype=self.hardware.dtype,
            input_shape=federated.input_shape,
            classes=federated.class_names,
            noise=noise,
            summed=e.secure.aggregation,
            views=federated.table.views if federated.table else 1,
        )

    def _sizes(self) -> list[int]:
        every = (self.summary.template, *self.summary.architectures)
        known = [a for a in every if a is not None and a.name != claims.PRIVATE]
        built = (self._model(a, "shared") for a in {a.kind: a for a in known}.values())
        return [sum(p.numel() for p in model.parameters()) for model in built]

    def _auxiliary(self, name: str, options: Mapping[str, Any], d: int | None) -> models.SplitModel:
        """Build a network that all parties share, from the configuration alone (see methods.Build)."""
        default = Architecture(name, {}, 0) if name else common_architecture(self.experiment)
        architecture = replace(default, options={**default.options, **options}, d=d or self.experiment.model.d)
        architecture = fit_to_columns(self.experiment, architecture, self.federated.table)
        return self._model(architecture, "auxiliary")

    def _model(self, architecture: Architecture, scope: str) -> models.SplitModel:
        return build_model(self.experiment, self.federated, architecture, scope, pretrained=self.pretrained)

    def _is_protected(self, name: str) -> bool:
        """Return whether a weight of the clients' models is trained by DP-SGD in some round."""
        phases = (phase for r in range(1, self.experiment.rounds + 1) for phase in self.method.round(r).phases)
        return any(u.trainable(name) for phase in phases if not phase.local_only for u in phase.updates)

    def _client_model(self, architecture: Architecture, scope: str, device: torch.device) -> models.SplitModel:
        """Return a model as clients train it: with the method's networks, on the device, in the right layout."""
        model = self._model(architecture, scope)
        if self.experiment.privacy.mode == "sample" and self.method.upload_schema is not None:
            models.check_single_samples(model, self._is_protected)
        with seeded(self.experiment.seed, "extend", scope):
            self.method.extend(model)
        layout = self.hardware.layout
        model = model.to(device=device, dtype=self.hardware.dtype).to(memory_format=layout)
        models.key_noise(model)
        if device.type == "cpu" and layout is torch.channels_last:
            models.reduce_convolutions(model)
        return model


def build_model(
    experiment: Experiment,
    federated: FederatedData,
    architecture: Architecture,
    scope: str,
    pretrained: bool = True,
) -> models.SplitModel:
    """Build a model in the experiment's precision.

    Args:
        scope: Determines the random weights together with the seed.
    """
    model = models.build(
        architecture.name,
        input_shape=federated.input_shape,
        num_classes=federated.num_classes,
        d=architecture.d,
        mapping=experiment.model.map,
        options=dict(architecture.options),
        seed=derive(experiment.seed, "model", scope),
        weights_dir=experiment.execution.weights_dir,
        pretrained=pretrained,
        centred=federated.eight_bit,
    )
    if experiment.model.norm == "group":
        models.group_norm(model)
    if (given := data.normalisation(experiment.transforms)) is not None:
        if model.normalises:
            raise ConfigError(
                f"{architecture} normalises its images itself, by its options mean and std or as its weights "
                "require: leave out transforms.mean and transforms.std"
            )
        model.scale = models.Preparation(models.Normalisation(*given), centred=federated.eight_bit)
    return model.to(DTYPES[experiment.execution.precision])


def check_memory(experiment: Experiment, federated: FederatedData, architecture: Architecture) -> None:
    """Refuse a model that a server has made too large to be trained here, before any memory is taken."""
    numbers = (number for value in architecture.options.values() for number in _numbers(value))
    if is_code(architecture.name) or max(numbers, default=0) <= SMALL:
        return
    with torch.device("meta"):
        size = models.parameter_bytes(build_model(experiment, federated, architecture, "shared", pretrained=False))
    if COPIES * size > 1e9 * memory_gb():
        told = f"{architecture.name}: a model of {size / 1e9:.3g} GB does not fit in memory {COPIES} times"
        raise refusal("model", "model.options", told)


def _numbers(value: Any) -> list[int]:
    items = value if isinstance(value, (list, tuple)) else [value]
    return [item for item in items if isinstance(item, int)]
