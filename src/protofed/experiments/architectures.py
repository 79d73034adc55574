"""The architecture of each client's model, and the facts about all clients that each needs in order to begin."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from protofed import claims, methods, models
from protofed.errors import ConfigError
from protofed.experiments.config import Experiment
from protofed.samples import FederatedData


@dataclass(frozen=True)
class Architecture:
    """The specification of a client's model.

    Attributes:
        name: Name of the architecture; :data:`~protofed.claims.PRIVATE` for a model that only its node can build.
        options: Options of the architecture.
        d: Length of the features.
    """

    name: str
    options: Mapping[str, Any]
    d: int

    def __str__(self) -> str:
        options = ", ".join(f"{k}={v}" for k, v in self.options.items())
        return f"{self.name}({options})" if options else self.name

    @property
    def kind(self) -> str:
        """The kind of model: architectures of one kind have the same modules and shapes."""
        return f"{self}, d={self.d}"


@dataclass(frozen=True)
class FederationSummary:
    """Facts about all clients that each of them needs in order to begin.

    Attributes:
        classes: Names of all classes, in order.
        architectures: Architecture of each client.
        feature_dim: Length of the features ``d`` of all clients; of the first one if they differ.
        class_size: Mean number of training samples per class, over the classes that have any.
        clients: Number of clients.
        template: Architecture whose initial weights open the first round; None for the first client's.
        bfloat16: Kinds of models that are computed in bfloat16, in a simulation over a network.
    """

    classes: tuple[str, ...]
    architectures: tuple[Architecture, ...]
    feature_dim: int
    class_size: float
    clients: int
    template: Architecture | None = None
    bfloat16: tuple[str, ...] = ()

    @classmethod
    def of(cls, experiment: Experiment, federated: FederatedData) -> FederationSummary:
        """Summarise a federation.

        Args:
            experiment: The experiment.
            federated: The data of all clients.

        Raises:
            ConfigError: If clients differ in a property that the method requires them to share.
        """
        architectures = _assign(experiment, federated)
        counts = torch.stack([c.train.counts(federated.num_classes) for c in federated.clients]).sum(0)
        present = counts[counts > 0]
        size = float(present.double().mean()) if len(present) else 0.0
        return cls(federated.class_names, tuple(architectures), architectures[0].d, size, len(architectures))

    def of_client(self, number: int) -> FederationSummary:
        """Return the summary for one client, with its own architecture alone."""
        return replace(self, architectures=(self.architectures[number],), template=None)

    def without(self, experiment: Experiment, own: Collection[int]) -> FederationSummary:
        """Return the summary with a template that no client chose for itself, if clients may differ.

        Args:
            experiment: The experiment.
            own: Indices of the clients that chose their architectures themselves.
        """
        if one_architecture(experiment):
            return self  # all clients have the same architecture
        assigned = [a for number, a in enumerate(self.architectures) if number not in own]
        name, options = models.assign(group_of(experiment), 1)[0]
        default = Architecture(name, {**options, **experiment.model.options}, experiment.model.d)
        return replace(self, template=assigned[0] if assigned else default)


def group_of(experiment: Experiment) -> str:
    """Return the architecture or group of architectures of the clients that do not choose for themselves."""
    return (one_architecture(experiment) and experiment.model.shared) or experiment.model.name


def one_architecture(experiment: Experiment) -> bool:
    """Return whether the method needs all clients to have one architecture."""
    return methods.get(experiment.method).needs_same_architecture(experiment.method_options)


def _assign(experiment: Experiment, federated: FederatedData) -> list[Architecture]:
    """Return each client's architecture, checked against the requirements of the method."""
    model = experiment.model
    shared = one_architecture(experiment) and model.shared
    assigned = models.assign(group_of(experiment), len(federated.clients))
    architectures = []
    for client, (name, options) in zip(federated.clients, assigned, strict=True):
        chosen = None if shared else client.settings.get("model")
        if chosen == claims.PRIVATE:
            name, options = chosen, {}
        elif chosen:
            check_trusted(experiment, client.name, chosen)
            name, options = models.assign(chosen, 1)[0]
        extra = {} if chosen or shared else model.options
        architectures.append(Architecture(name, {**options, **extra}, client.settings.get("d", model.d)))
    _check_same(experiment, federated, architectures)
    return architectures


def is_code(name: str) -> bool:
    """Return whether a model's name is of the form ``package.module:callable``."""
    return ":" in name


def recipe_names(experiment: Experiment, name: str) -> bool:
    """Return whether the experiment itself names a model.

    Args:
        experiment: The experiment.
        name: Name of the model.
    """
    return name in (experiment.model.name, experiment.model.shared)


def check_trusted(experiment: Experiment, client: str, name: str) -> None:
    """Check that a model named by a ``client.toml`` is not untrusted code.

    Args:
        experiment: The experiment.
        client: Name of the client.
        name: Name of the model.

    Raises:
        ConfigError: If ``name`` is code, the experiment does not name it, and ``data.trust_code`` is not set.
    """
    if is_code(name) and not recipe_names(experiment, name) and not experiment.data.trust_code:
        raise ConfigError(
            f"{client}: its client.toml names code, model = {name!r}: name an architecture there, or set "
            "data.trust_code=true to import and run it"
        )


def counts_needed(experiment: Experiment) -> str:
    """Return why clients have to disclose their numbers of samples, or "" if they need not."""
    kind = methods.get(experiment.method)
    if kind.needs_counts(experiment.method_options):
        return f"{experiment.method} needs numbers of samples: choose counts=exact"
    if (rule := experiment.robust.rule) != "none" and kind.sends_sums(experiment.method_options):
        why = f"robust.rule={rule} has to divide the sums of {experiment.method}"
        return f"{why}: choose counts=exact or robust.rule=none"
    if experiment.participation.sampling == "samples":
        return "participation.sampling=samples draws clients by numbers of samples: choose counts=exact"
    return ""


def _check_same(experiment: Experiment, federated: FederatedData, architectures: list[Architecture]) -> None:
    """Refuse a federation whose clients differ in a property that the method requires them to share."""
    kind, same = methods.get(experiment.method), one_architecture(experiment)
    names = [c.name for c in federated.clients]
    first = architectures[0]
    for index, architecture in enumerate(architectures):
        if same and architecture != first:
            raise ConfigError(
                f"{kind.name} shares weights and needs one architecture, but {names[0]} has {first} (d="
                f"{first.d}) and {names[index]} has {architecture} (d={architecture.d}): set model.shared"
            )
        if kind.same_feature_dim and architecture.d != first.d:
            raise ConfigError(
                f"{kind.name} exchanges features and needs one d, but {names[0]} has d={first.d} and "
                f"{names[index]} has d={architecture.d}: give all clients the same d"
            )
