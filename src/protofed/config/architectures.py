"""The architecture of each client's model, and the facts about all clients that each needs in order to begin."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from msgspec import Meta

from protofed import methods, models
from protofed.config.schema import Experiment, ModelOptions
from protofed.data import Table
from protofed.errors import ConfigError, refusal, unknown_name
from protofed.options import build_options
from protofed.runs.description import ArchitectureName
from protofed.samples import ClientData, Encoding, FederatedData
from protofed.stages.robust.vectors import limit_counts
from protofed.untrusted import claims, limits
from protofed.untrusted.decoding import ClassNames, Identifier, Shape, Side, within

ClientCount = Annotated[int, within(least=0, most=limits.CLIENTS)]
ClassSize = Annotated[float, within(above=-1, most=float(limits.CLIENTS) * limits.CLAIMED_SAMPLES)]
MOST_OPTIONS = 64  #: Maximum number of options of an architecture
MOST_KINDS = 1024  #: Maximum number of kinds of models that a simulation computes in bfloat16


@dataclass(frozen=True)
class Architecture:
    """The specification of a client's model."""

    name: ArchitectureName  #: :data:`~protofed.untrusted.claims.PRIVATE` for a model that only its node can build
    options: Annotated[Mapping[Identifier, Any], Meta(max_length=MOST_OPTIONS)]
    d: Side

    def __str__(self) -> str:
        options = ", ".join(f"{k}={v}" for k, v in self.options.items())
        return f"{self.name}({options})" if options else self.name

    @property
    def kind(self) -> str:
        """The kind of model: architectures of one kind have the same modules and shapes."""
        return f"{self}, d={self.d}"


@dataclass(frozen=True)
class FederationSummary:
    """Facts about the federation that each client needs to begin."""

    classes: ClassNames
    architectures: tuple[Architecture, ...]
    feature_dim: Side  #: ``d`` of all clients; of the first one if they differ
    class_size: ClassSize  #: Mean training samples per class, over classes that have any
    clients: ClientCount
    template: Architecture | None = None  #: Its initial weights open the first round; None for the first client's
    #: Kinds of models computed in bfloat16, in a simulation over a network
    bfloat16: Annotated[tuple[str, ...], Meta(max_length=MOST_KINDS)] = ()
    input_shape: Shape = ()
    table: Table | None = None
    encoding: Encoding | None = None
    place: ClientCount = 0  #: Of the one client to whom this is told, without architectures; see architecture_of

    @classmethod
    def of(cls, experiment: Experiment, federated: FederatedData) -> FederationSummary:
        """Summarise a federation."""
        architectures = [architecture_of(experiment, federated, c, n) for n, c in enumerate(federated.clients)]
        _check_same(experiment, federated, architectures)
        stated = {c.name: c.train.counts(federated.num_classes).cpu() for c in federated.clients}
        withheld = [c.name for c in federated.clients if not c.train.exact]
        counts = torch.stack([*limit_counts(stated, experiment.robust, withheld).values()]).sum(0)
        present = counts[counts > 0]
        # The mean over classes that are present tells which are: noise could not hide it.
        hidden = experiment.privacy.mode == "client" or not len(present)
        size = 0.0 if hidden else float(present.double().mean())
        return cls(
            federated.class_names,
            tuple(architectures),
            architectures[0].d,
            size,
            len(architectures),
            input_shape=federated.input_shape,
            table=federated.table,
            encoding=federated.encoding,
        )

    def of_client(self, place: int) -> FederationSummary:
        """Return the summary for one client, which finds its architecture in the plan; the server opens round 1."""
        return replace(self, architectures=(), template=None, place=place)

    def without(self, experiment: Experiment, own: Collection[int]) -> FederationSummary:
        """Return the summary with a template that no client chose for itself, if clients may differ."""
        if one_architecture(experiment):
            return self  # all clients have the same architecture
        assigned = [a for number, a in enumerate(self.architectures) if number not in own]
        return replace(self, template=(assigned or _fit_group(experiment, self.table))[0])


def turns(experiment: Experiment) -> list[Architecture]:
    """Return the architectures that clients without a choice of their own are assigned in turn."""
    return _group(experiment.model, _all_shared(experiment))


def _all_shared(experiment: Experiment) -> bool:
    return bool(one_architecture(experiment) and experiment.model.shared)


def common_architecture(experiment: Experiment) -> Architecture:
    """Return the architecture of shared networks: ``model.shared``, or the first client's."""
    return _group(experiment.model, bool(experiment.model.shared))[0]


def _group(model: ModelOptions, shared: bool) -> list[Architecture]:
    """Return the architectures of ``model.shared``, or those of ``model.members`` or ``model.name``."""
    code = is_code(model.name) and not model.members
    own = {
        n: v for n, v in model.options.items() if isinstance(v, Mapping) and n in models.architectures and not code
    }
    common = {} if shared else {n: v for n, v in model.options.items() if n not in own}
    members = [(str(m["name"]), {n: v for n, v in m.items() if n != "name"}) for m in model.members]
    if shared or not members:
        members = models.members(model.shared if shared else model.name)
    result = [Architecture(name, {**options, **common, **own.get(name, {})}, model.d) for name, options in members]
    for architecture in result:
        if not is_code(architecture.name):  # the options of code are known only to itself
            kind = models.architectures.get(architecture.name).Options
            build_options(kind, architecture.options, architecture.name)
    names = [name for name, _ in members]
    if not shared and (unused := own.keys() - {*names, model.shared}):
        raise ConfigError(unknown_name("architecture in model.options", min(unused), names))
    return result


def traits_of(experiment: Experiment) -> methods.Traits:
    """Return the traits of the experiment's method."""
    return methods.get(experiment.method).traits(experiment.method_options)


def common_features(experiment: Experiment) -> bool:
    """Return whether features of all clients must mean the same although the method shares no weights."""
    return one_architecture(experiment) and traits_of(experiment).exchanges == "prototypes"


def check_alike(experiment: Experiment, own: bool = False) -> None:
    """Refuse secure sums over clients that a server can make unlike, since it could read one of them in the sum.

    Args:
        own: The client chooses its architecture itself, so that a server does not.
    """
    if not experiment.secure.aggregation:
        return
    if not own and len({a.kind for a in turns(experiment)}) > 1:
        raise refusal(
            "secure",
            "model.name",
            "secure.aggregation needs one architecture for all clients, since the sum of one alone among others "
            "would be its own: choose one in model.name, or set model.shared",
        )


def why_one(experiment: Experiment) -> str:
    """Return the end of a sentence: why a method needs one architecture, and the remedy."""
    if common_features(experiment):
        return "adds up features and needs one architecture: set encoder.name, e.g. auto, or model.shared"
    return "shares weights and needs one architecture: set model.shared"


def one_architecture(experiment: Experiment) -> bool:
    """Return whether the method needs all clients to have one architecture."""
    return traits_of(experiment).alike == "architecture"


def architecture_of(
    experiment: Experiment, federated: FederatedData, client: ClientData, place: int
) -> Architecture:
    """Return a client's architecture: its own choice, or the next one of the group."""
    shared, group = _all_shared(experiment), _fit_group(experiment, federated.table)
    architecture = group[place % len(group)]
    chosen = None if shared else client.settings.get("model")
    if chosen == claims.PRIVATE:
        architecture = Architecture(chosen, {}, 0)
    elif chosen:
        check_trusted(experiment, client.name, chosen)
        own = Architecture(*models.members(chosen)[0], 0)
        architecture = fit_to_columns(experiment, own, federated.table)
    width = own_width(experiment, architecture.name, federated.input_shape)
    return replace(architecture, d=client.settings.get("d", width))


def places(experiment: Experiment) -> int:
    """Return the period with which architectures are assigned to clients."""
    return len(turns(experiment))


def own_width(experiment: Experiment, name: str, shape: tuple[int, ...]) -> int:
    """Return the feature dimension of a client's own network."""
    return math.prod(shape) if name == "identity" else experiment.model.d


def is_code(name: str) -> bool:
    """Return whether a model's name is of the form ``package.module:callable``."""
    return ":" in name


def recipe_names(experiment: Experiment, name: str) -> bool:
    """Return whether the experiment itself names a model."""
    model = experiment.model
    return name in (model.name, model.shared, *(member["name"] for member in model.members))


def check_trusted(experiment: Experiment, client: str, name: str) -> None:
    """Check that a model named by a ``client.toml`` is not untrusted code."""
    if is_code(name) and not recipe_names(experiment, name) and not experiment.data.trust_code:
        raise ConfigError(
            f"{client}: its client.toml names code, model = {name!r}: name an architecture there, or set "
            "data.trust_code=true to import and run it"
        )


def counts_needed(experiment: Experiment) -> str:
    """Return why clients have to disclose their numbers of samples, or "" if they need not."""
    traits = traits_of(experiment)
    if experiment.privacy.mode == "sample":
        return "ε follows from the number of training samples: choose counts=exact (no numbers per class are told)"
    if traits.counts == "always":
        return f"{experiment.method} needs numbers of samples: choose counts=exact"
    if (rule := experiment.robust.rule) != "none" and traits.counts == "for robust rules":
        why = f"robust.rule={rule} has to divide the sums of {experiment.method}"
        return f"{why}: choose counts=exact or robust.rule=none"
    if experiment.participation.sampling == "samples":
        return "participation.sampling=samples draws clients by numbers of samples: choose counts=exact"
    return ""


def why_rounds_matter(experiment: Experiment) -> str:
    """Return why the planned number of rounds affects every round of an experiment; "" if it does not."""
    if experiment.training.schedule == "cosine":
        return "training.schedule=cosine spreads over all rounds"
    if experiment.participation.newcomers:
        return "participation.newcomers join in the last rounds"
    if experiment.privacy.mode != "none" and experiment.privacy.noise is None:
        return "the noise that privacy.epsilon needs depends on their number"
    planned = traits_of(experiment).rounds == "planned"
    return f"what {experiment.method} does in a round depends on their number" if planned else ""


def _fit_group(experiment: Experiment, table: Table | None) -> list[Architecture]:
    """Return the recipe's architectures, fitted to the columns of a table."""
    model, shared = experiment.model, _all_shared(experiment)
    chosen = f"model.shared={model.shared}" if shared else "" if model.members else f"model.name={model.name}"
    return [fit_to_columns(experiment, architecture, table, chosen) for architecture in turns(experiment)]


def fit_to_columns(
    experiment: Experiment, architecture: Architecture, table: Table | None, chosen: str = ""
) -> Architecture:
    """Return an architecture with its inputs of tokens, as the columns of a table have them.

    Args:
        chosen: The option that chose it, perhaps as one of a group; "" for the name of the architecture.

    Raises:
        ConfigError: If it takes no texts and the samples are, or the reverse, or images and they are of texts.
    """
    if is_code(architecture.name) or architecture.name == claims.PRIVATE:
        return architecture
    encoder, known = experiment.encoder, models.architectures.get(architecture.name)
    columns = None if encoder.name else table
    texts = columns.texts if columns is not None else ()
    option, chosen = chosen.partition("=")[0] or "model.name", chosen or f"model {architecture.name}"
    text4 = "" if option == "model.shared" else "text4, "  # a group is not one architecture
    if texts and not hasattr(known.Options, "tokens"):
        raise ConfigError(
            f"{chosen} takes numbers, and the samples are texts as tokens: choose {option}={text4}text_cnn, "
            "text_bag, text_gru or text_transformer, or data.text_as=vectors"
        )
    if known.images and columns is not None and any(c.kind == "text" for c in columns.columns):
        raise ConfigError(
            f"{chosen} takes images, and the samples are texts as vectors: choose {option}=mlp, or set "
            f"data.text_as=tokens and choose {option}={text4}text_cnn, …"
        )
    if not texts and issubclass(known.Options, models.TextOptions):
        raise ConfigError(
            f"{chosen} takes texts, but the samples are not texts: name their column, data.text=COLUMN, and set "
            "data.text_as=tokens"
        )
    places = tuple(number for text in texts for number in text)
    return replace(architecture, options={**architecture.options, "tokens": places}) if texts else architecture


def _check_same(experiment: Experiment, federated: FederatedData, architectures: list[Architecture]) -> None:
    """Reject clients that differ in a property that the method requires them to share."""
    kind, same = methods.get(experiment.method), one_architecture(experiment)
    names = [c.name for c in federated.clients]
    first = architectures[0]
    own = "model.start" if experiment.model.start else "model.init=own" if experiment.model.init == "own" else ""
    if own and first.name != "identity" and common_features(experiment):
        raise ConfigError(
            f"{kind.name} adds up features, which mean nothing to others if each client has weights of its own "
            f"({own}): leave that out, or set encoder.name, e.g. auto"
        )
    for index, architecture in enumerate(architectures):
        if same and architecture != first:
            why, _, remedy = why_one(experiment).partition(": ")
            raise ConfigError(
                f"{kind.name} {why}, but {names[0]} has {first} (d={first.d}) and {names[index]} has "
                f"{architecture} (d={architecture.d}): {remedy}"
            )
        if traits_of(experiment).alike == "features" and architecture.d != first.d:
            raise ConfigError(
                f"{kind.name} exchanges features and needs one d, but {names[0]} has d={first.d} and "
                f"{names[index]} has d={architecture.d}: give all clients the same d"
            )
