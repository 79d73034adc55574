"""The typed configuration of an experiment, and its resolution from recipes and overrides."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from importlib import resources
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from protofed import data, methods
from protofed.config.fitting import check_fit
from protofed.data import DataOptions, ShiftOptions, TransformOptions
from protofed.errors import ConfigError, unknown_name
from protofed.models.encoders import EncoderOptions
from protofed.options import Options, Range, build_options, named, option, option_fields, plain, remote
from protofed.rounds.options import EvaluationOptions, ParticipationOptions
from protofed.runs.labels import flat
from protofed.stages.attack import AttackOptions
from protofed.stages.privacy import PrivacyOptions
from protofed.stages.robust import RobustOptions
from protofed.stages.secure.options import SecureOptions
from protofed.untrusted import limits
from protofed.untrusted.reading import parse_toml, read_toml, reason
from protofed.visits.client import LocalPlan, Schedule

Tree = dict[str, Any]
Recipe = str | Path | Mapping[str, Any]  #: Name of a built-in recipe, path of a TOML file, or its content


@dataclass(frozen=True)
class ModelOptions(Options):
    """The models of the clients."""

    name: str = named(
        "cnn2", "architecture, group of architectures, package.module:callable or file.py:callable", of="models"
    )
    d: int = remote(512, "prototype dimension d", least=1, most=limits.INPUT_SIDE)
    map: Literal["pool", "linear"] = remote(
        "pool", "map from a backbone's features to d: pooling, or a learned linear map"
    )
    init: Literal["same", "own"] = remote(
        "same",
        "initial weights: the same for all clients of one architecture, as in HtFLlib; or each client's own, as in "
        "the code of FedProto, TinyProto and ProtoNorm",
    )
    start: str = option(
        "",
        "directory of a finished run from whose clients those of the same names start ('' = from initial weights)",
    )
    norm: Literal["batch", "group"] = remote(
        "batch",
        "normalisation of architectures with BatchNorm: as they have it, or GroupNorm (privacy.mode=sample)",
    )
    shared: str = named(
        "", "architecture for methods that need the same one for all clients ('' = model.name)", of="models"
    )
    options: dict[str, Any] = named(
        {},
        "options of the architecture, or of all in a group; model.options.NAME.… for the architecture NAME only",
        of="models",
    )
    members: tuple[dict[str, Any], ...] = named(
        (),
        "your own group instead of model.name: a table for each architecture with its name and options",
        of="models",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for member in self.members:
            if not isinstance(member.get("name"), str):
                raise ValueError(
                    f'members: each needs the name of an architecture, e.g. {{ name = "cnn2" }}: {member}'
                )


@dataclass(frozen=True)
class TrainingOptions(Options):
    """Local training of the clients."""

    epochs: int = remote(1, "local epochs E per round", least=1)
    batch_size: int = remote(32, "batch size B; the last batch may be smaller", least=1)
    shuffle: bool = remote(True, "draw a new order of samples in every epoch (false: as stored)")
    drop_last: bool = remote(
        False,
        "drop an epoch's last batch if it is smaller than B and not the only one; class means drop the last "
        "samples, too",
    )
    optimizer: str = named("SGD", "name of an optimiser in torch.optim", of="optimizers")
    lr: float = remote(0.01, "learning rate", least=0)
    momentum: float = remote(0.0, "momentum, if the optimiser has it", least=0)
    weight_decay: float = remote(0.0, "weight decay", least=0)
    options: dict[str, Any] = remote({}, "further arguments of the optimiser")
    clip: float = remote(
        0.0,
        "largest Euclidean norm of each network's gradient (0 = no limit); a method's own limit also applies",
        least=0,
    )
    class_weights: Literal["none", "balanced"] = remote(
        "none",
        "factor of the cross-entropy of a client's samples: 1 | n / (K' n_c) for class c, of which it has n_c of "
        "its n samples in K' classes, so that rare classes count as much as frequent ones",
    )
    schedule: Literal["constant", "step", "exponential", "cosine"] = remote(
        "constant",
        "factor of every learning rate of local training in round t of R: 1 | decay^⌊(t-1)/decay_every⌋ | "
        "decay^(t-1) | (1 + cos(π(t-1)/R))/2",
    )
    decay: float = remote(0.99, "factor of the schedules step and exponential", above=0, most=1)
    decay_every: int = remote(10, "rounds between two decays of the schedule step", least=1)

    def plan(self, settings: Mapping[str, Any]) -> LocalPlan:
        """Return a client's plan, with the epochs, batch_size and lr of its own ``settings`` if given."""
        arguments: Tree = {"lr": settings.get("lr", self.lr), **self.options}
        for name in ("momentum", "weight_decay"):
            if getattr(self, name):
                arguments[name] = getattr(self, name)
        return LocalPlan(
            settings.get("epochs", self.epochs),
            settings.get("batch_size", self.batch_size),
            self.optimizer,
            arguments,
            self.clip or None,
            Schedule(self.schedule, self.decay, self.decay_every),
            class_weights=self.class_weights == "balanced",
            shuffle=self.shuffle,
            drop_last=self.drop_last,
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.plan({})  # refuses options that torch.optim does not accept


@dataclass(frozen=True)
class WireOptions(Options):
    """The encoding of messages."""

    codec: str = named(
        "float32",
        "codec of real numbers: float32, float64; float16 (error at most 0.05 %) or int8 (at most 0.4 % of a row's "
        "largest) for smaller messages",
        of="codecs",
    )
    compression: Literal["none", "zstd"] = remote("none", "lossless compression of messages, where it helps")


def check_device(name: str, what: str) -> None:
    """Check the form of a device's name; ``what`` names the option in the message."""
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", name):
        raise ConfigError(f"{what} must be auto, cpu, cuda, cuda:NUMBER or mps, not {name!r}")


@dataclass(frozen=True)
class ExecutionOptions(Options):
    """The execution of the computation, which affects results only by rounding."""

    device: str = option("auto", "auto (a GPU of CUDA if there is one), cpu, cuda, one GPU such as cuda:1, or mps")
    precision: Literal["fp32", "tf32", "bf16", "fp64"] = remote(
        "fp32",
        "precision of models and training; bf16: bfloat16 layers for those architectures that a short measurement "
        "shows to be faster with them; tf32: matrix products of a GPU",
    )
    executor: Literal["auto", "sequential", "workers", "fused"] = option(
        "auto",
        "one client after the other, side by side in processes, or all of one architecture in one step; "
        "auto: fused on a GPU, workers for longer runs on a CPU",
    )
    workers: int = option(0, "processes of the executor workers (0 = one per core)", least=0)
    threads: int = option(0, "CPU threads of each process (0 = the cores divided among the processes)", least=0)
    memory_budget: float = option(
        0.0, "GB that clients stepping together may use with fused (0 = 4, or 70 % of a GPU's free memory)", least=0
    )
    clients_in: Literal["auto", "memory", "disk"] = option(
        "auto", "where clients' models are stored between visits (auto: on disk above 1 GiB, and with workers)"
    )
    weights_dir: str = option(
        "", "folder in which files of initial weights are found by their name ('' = where the models' options say)"
    )
    convolutions: Literal["auto", "torch"] = option(
        "auto",
        "auto: images channels last, and on a CPU convolutions on small maps as matrix products where faster; "
        "torch: both as PyTorch does by default",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_device(self.device, "execution.device")
        if self.device == "mps" and self.precision == "fp64":
            raise ConfigError("execution.precision=fp64, but mps has no such numbers: use execution.device=cpu")


@dataclass(frozen=True)
class CheckpointOptions(Options):
    """Checkpoints, from which a run can be resumed."""

    every: int = option(1, "rounds between checkpoints (0 = none)", least=0)


@dataclass(frozen=True)
class CompareOptions(Options):
    """The runs of `protofed compare`."""

    methods: tuple[str, ...] = option((), "methods to compare, or all")
    seeds: tuple[int, ...] = option((), "seeds to repeat with (none = the experiment's seed)")
    axes: dict[str, Any] = option(
        {}, "axes of named overrides, e.g. compare.axes.rule.clip: every method runs with every combination"
    )

    def combinations(self) -> dict[tuple[str, ...], Tree]:
        """Return the overrides of every combination of values, by the names of the values along the axes."""
        for axis, values in self.axes.items():
            wrong = not isinstance(values, Mapping) or not all(isinstance(v, Mapping) for v in values.values())
            if wrong or not values:
                raise ConfigError(
                    f"compare.axes.{axis} must be a table of named overrides, e.g. {axis}.large = "
                    f'{{ "model.d" = 512 }}, not {values!r}'
                )
        chosen = itertools.product(*(values.items() for values in self.axes.values()))
        return {
            tuple(name for name, _ in values): {k: v for _, overrides in values for k, v in overrides.items()}
            for values in chosen
        }


SCALARS = {"recipe": "", "seed": 0, "rounds": 10, "stages": ()}
COMPONENTS = ("method", "partition")
USUAL = "usual_rounds"
"""Key that marks the rounds of a built-in recipe as a default, which methods that need fewer may lower."""
_OF_SAMPLES = ("name", "members", "options", "shared")  #: Keys of a model that depend on the kind of samples
NO_ENCODER = "none"
"""Name of no encoder: a closed form then has the features of a network, trained elsewhere or not at all."""
ENCODED_DIM = 128  #: Numbers per sample of the encoder of closed forms by default
ENCODED_MODEL = "identity"  #: Architecture by default where an encoder makes vectors of the samples
PARTITION = "dirichlet"  #: Name of the partition by default
OPTIONS_OF: dict[str, tuple[Any, tuple[str, ...] | None]] = {
    "partition.name": (PARTITION, None),
    "data.source": (DataOptions().source, ("options", "path")),
    "model.name": (ModelOptions().name, ("options", "members", "shared")),
    "model.members": ((), ("options", "shared")),
    "encoder.name": (EncoderOptions().name, ("options", "weights")),
}
"""Default of each option that names a component, and the keys that belong to it; None: the rest of its section."""


@dataclass(frozen=True)
class Experiment:
    """One method on one federation with one seed: everything that determines the outcome."""

    recipe: str
    seed: int
    rounds: int
    stages: tuple[str, ...]
    method: str
    method_options: Any
    partition: str
    partition_options: Any
    data: DataOptions
    model: ModelOptions
    training: TrainingOptions
    shift: ShiftOptions
    transforms: TransformOptions
    encoder: EncoderOptions
    participation: ParticipationOptions
    evaluation: EvaluationOptions
    wire: WireOptions
    robust: RobustOptions
    attack: AttackOptions
    privacy: PrivacyOptions
    secure: SecureOptions
    execution: ExecutionOptions
    checkpoint: CheckpointOptions

    def to_tree(self) -> Tree:
        """Return the fully resolved configuration as plain tables, which form a recipe of the same experiment."""
        tree: Tree = {name: getattr(self, name) for name in SCALARS}
        for name in COMPONENTS:
            tree[name] = {"name": getattr(self, name), **plain(getattr(self, f"{name}_options"))}
        for f in fields(self):
            if f.name in SECTIONS:
                tree[f.name] = plain(getattr(self, f.name))
        if not self.encoder.name and methods.get(self.method).traits(self.method_options).rounds == "one":
            tree["encoder"]["name"] = NO_ENCODER
        return without_none(tree)

    def identity(self) -> Tree:
        """Return the part of :meth:`to_tree` that determines results (see :func:`identity`)."""
        return identity(self.to_tree())

    @cached_property
    def key(self) -> str:
        """A hash of everything that determines a run's result, 16 hexadecimal digits.

        Equal configurations have equal keys on every machine: where the data lie and how they are computed is left
        out. So are options with their default values: a new option that changes nothing by default changes no key.
        """
        plain = defaults(self.method, self.partition)
        own = {n: v for n, v in flat(self.identity()).items() if n not in plain or v != plain[n]}
        names = {"method.name": self.method, "partition.name": self.partition}
        text = json.dumps({**own, **names}, sort_keys=True, default=list)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


SECTIONS: dict[str, type] = {
    name: kind
    for name, kind in {**get_type_hints(Experiment), "compare": CompareOptions}.items()
    if isinstance(kind, type) and issubclass(kind, Options)
}


def identity(tree: Mapping[str, Any]) -> Tree:
    """Return a configuration without options that leave results unchanged: name, place of the data, speed.

    Metrics follow from the results, now or later.
    """
    kept = {k: v for k, v in tree.items() if k not in ("recipe", "execution", "checkpoint")}
    for section, without in _WITHOUT_EFFECT.items():
        if isinstance(table := kept.get(section), Mapping):
            kept[section] = {k: v for k, v in table.items() if k not in without}
    return kept


_WITHOUT_EFFECT = {"data": ("data_dir", "max_gb"), "evaluation": ("metrics",)}


@cache
def _collections() -> tuple[Path, ...]:
    """Return the folders with ``recipes/`` and ``variants.toml`` of all installed distributions.

    Partitions and data sets of their own are registered by a package's function ``register``.
    """
    others = [entry.load() for entry in entry_points(group="protofed.recipes")]
    for package in others:
        getattr(package, "register", lambda: None)()
    return tuple(Path(str(resources.files(package))) for package in ("protofed.config", *others))


def recipes() -> dict[str, Path]:
    """Return all installed recipes by name."""
    found = {path.stem: path for folder in _collections() for path in (folder / "recipes").glob("*.toml")}
    return dict(sorted(found.items()))


def load_recipe(recipe: Recipe) -> Tree:
    """Return the tables of a built-in recipe, of a TOML file, or those that are given."""
    if isinstance(recipe, Mapping):
        return {"recipe": "given", **_copy(recipe)}
    path = Path(recipe)
    usual = path.suffix != ".toml"
    if usual:
        builtin = recipes()
        if str(recipe) not in builtin and path.is_dir():
            raise ConfigError(f"{recipe}: a folder, and no recipe: protofed try {recipe}")
        if str(recipe) not in builtin:
            raise ConfigError(
                unknown_name("recipe", str(recipe), builtin)
                + ", or a path ending in .toml; those of papers and studies come with a checkout: uv run protofed"
            )
        path = builtin[str(recipe)]
    try:
        tree = read_toml(path)
    except OSError as error:
        raise ConfigError(f"recipe {path}: cannot be read ({reason(error)})") from None
    except ValueError as error:
        raise ConfigError(f"recipe {path}: {error}") from None
    tree.setdefault("recipe", path.stem)
    return {**tree, USUAL: True} if usual else tree


def parse_overrides(items: Iterable[str]) -> Tree:
    """Return ``["method.lambda=10", …]`` as ``{"method.lambda": 10, …}``; values are TOML, else text."""
    overrides: Tree = {}
    for item in items:
        name, separator, text = item.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"override {item!r} must read NAME=VALUE, e.g. method.lambda=10")
        try:
            overrides[name.strip()] = parse_toml(f"x = {text}")["x"]
        except ValueError:
            overrides[name.strip()] = text.strip()
    return overrides


def apply_overrides(tree: Mapping[str, Any], overrides: Mapping[str, Any]) -> Tree:
    """Return a copy of ``tree`` with options set by dotted name.

    Naming another partition, data source or model drops what ``tree`` says about its own: the options, the
    data's path, and a model's members and shared part.
    Naming an encoder drops the model and the transforms, which are for other samples.
    """
    result = _copy(tree)
    if "rounds" in overrides:
        result.pop(USUAL, None)
    for name, (default, dropped) in OPTIONS_OF.items():
        section, key = name.split(".")
        table = result.get(section)
        if name not in overrides or not isinstance(table, dict):
            continue
        # Members take precedence over a name, so that even the same name is another model.
        if table.get(key, default) != overrides[name] or (key == "name" and table.get("members")):
            result[section] = {} if dropped is None else {k: v for k, v in table.items() if k not in dropped}
    encoder = table if isinstance(table := result.get("encoder"), dict) else {}
    named = overrides.get("encoder.name")
    other = named not in (None, "", NO_ENCODER, encoder.get("name"))
    if other and not {"model.name", "model.members"} & overrides.keys():
        result = _for_vectors(result)
    for dotted, value in overrides.items():
        *path, last = dotted.split(".")
        table = result
        for step in path:
            table = table.setdefault(step, {})
            if not isinstance(table, dict):
                raise ConfigError(f"option {dotted!r}: {step!r} is not a table")
        table[last] = _copy(value) if isinstance(value, Mapping) else value
    return result


def resolve(tree: Mapping[str, Any], *, method: str | None = None, seed: int | None = None) -> Experiment:
    """Return the experiment that ``tree`` describes.

    Args:
        method: In place of ``method.name``, a method or variant (see :func:`variant`); options in ``[method]``
            that it does not have are then ignored.
    """
    check_names(tree)
    tree, method = variant(tree, method)
    scalars = {n: tree.get(n, default) for n, default in SCALARS.items()}
    if seed is not None:
        scalars["seed"] = seed
    check_number("seed", scalars["seed"])
    check_number("rounds", scalars["rounds"])
    scalars["stages"] = texts("stages", scalars["stages"])
    if not isinstance(scalars["recipe"], str) or {"/", "\\", "\0"} & set(scalars["recipe"]):
        raise ConfigError(f"recipe must be a name that folders can have, not {scalars['recipe']!r}")
    method_name, method_options = _method(tree, method)
    traits = methods.get(method_name).traits(method_options)
    tree = _choose_encoder(tree, traits)
    sections: Tree = {
        n: build_options(cls, _drop_gone(_table(tree, n), n, n), n) for n, cls in SECTIONS.items() if n != "compare"
    }
    encoder, named = sections["encoder"], {"name", "members"} & _table(tree, "model").keys()
    if encoder.name and not named:
        sections["model"] = replace(sections["model"], name=ENCODED_MODEL)
    if traits.rounds == "one" and ("rounds" not in tree or tree.get(USUAL)):
        scalars["rounds"] = 1
    if sections["data"].standardise in ("federated", "chosen"):
        both = getattr(method_options, "chooses", False) and encoder.name and sections["privacy"].mode == "none"
        sections["data"] = replace(sections["data"], standardise="chosen" if both else "federated")
    once = traits.rounds == "one" and scalars["rounds"] == 1 and traits.exchanges != "nothing"
    if once and sections["evaluation"].at == "trained":
        raise ConfigError(
            f"evaluation.at=trained scores the one round of {method_name} before its answer has reached the "
            "clients: set evaluation.at=broadcast"
        )
    partition = _drop_gone(_table(tree, "partition"), "partition", "partition")
    partition_name = _name(partition, "partition", PARTITION)
    kind = data.partitions.get(partition_name)
    experiment = Experiment(
        **scalars,
        **sections,
        method=method_name,
        method_options=method_options,
        partition=partition_name,
        partition_options=build_options(kind.Options, partition, "partition"),
    )
    if traits.exchanges != "nothing":
        check_fit(experiment)
    return experiment


def _choose_encoder(tree: Mapping[str, Any], traits: methods.Traits) -> Mapping[str, Any]:
    """Return a recipe with the encoder that a closed form has unless the recipe names one, or :data:`NO_ENCODER`.

    Model and transforms of the recipe, which are for its samples as they are, are then left out.
    """
    own = _table(tree, "encoder")
    if own.get("name") == NO_ENCODER:
        return {**tree, "encoder": {**own, "name": ""}}
    if own.get("name") or traits.rounds != "one":
        return tree
    return {**_for_vectors(tree), "encoder": {**own, "name": "auto", "dim": own.get("dim") or ENCODED_DIM}}


def _for_vectors(tree: Mapping[str, Any]) -> Tree:
    """Return a recipe without a model and transforms of samples that are no vectors."""
    kept = {name: table for name, table in tree.items() if name != "transforms"}
    if isinstance(model := tree.get("model"), dict):
        kept["model"] = {k: v for k, v in model.items() if k not in _OF_SAMPLES}
    return kept


def texts(name: str, value: Any) -> tuple[str, ...]:
    """Return a list of names."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) and ":" in item for item in value):
        raise ConfigError(f'{name} must be a list of FILE.py:CLASS, e.g. ["my_stage.py:MyStage"], not {value!r}')
    return tuple(value)


_RANGES = {"seed": (0, limits.SEED), "rounds": (1, limits.ROUNDS)}


def check_number(name: str, value: Any) -> None:
    """Reject a seed or a number of rounds that a run's files cannot hold."""
    least, most = _RANGES[name]
    if type(value) is not int or not least <= value <= most:
        raise ConfigError(f"{name} must be an integer {Range(least, most=most)}, not {value!r}")


@cache
def defaults(method: str, partition: str) -> dict[str, Any]:
    """Return all options that determine results, by dotted name, of a method and a partition without an encoder."""
    tree = {"method": {"name": method}, "partition": {"name": partition}, "encoder": {"name": NO_ENCODER}}
    return flat(resolve(tree).identity())


def variant(tree: Mapping[str, Any], name: str | None) -> tuple[Mapping[str, Any], str | None]:
    """Return the recipe and the method that a name stands for.

    A variant is a partial recipe with a ``method.name``, such as a baseline with an optimiser of its own, which
    comparisons list beside the methods: one of :func:`variants`, or ``[variants.NAME]`` of the recipe. Its values
    win over all others.
    """
    chosen = _table(tree, "method").get("name") if name is None else name
    known = _variants_of(tree)
    if not isinstance(chosen, str) or chosen not in known:
        if isinstance(chosen, str) and ":" not in chosen and chosen not in methods.methods():
            raise ConfigError(unknown_name("method or variant", chosen, [*methods.methods(), *known]))
        return tree, name
    own = _as_table(known[chosen], f"variants.{chosen}")
    return apply_overrides(tree, flat(own)), _table(own, "method")["name"]


@cache
def variants() -> Tree:
    """Return all installed variants by name."""
    return {k: v for folder in _collections() for k, v in read_toml(folder / "variants.toml").items()}


def _variants_of(tree: Mapping[str, Any]) -> Tree:
    """Return the built-in variants and those of a recipe, which replace them, by name."""
    return {**variants(), **_table(tree, "variants")}


def check_names(tree: Mapping[str, Any]) -> None:
    """Check the top-level names of ``tree``, the options in ``[methods]`` and the names of variants."""
    valid = [*SCALARS, *SECTIONS, *COMPONENTS, "methods", "variants", "summary"]
    for name in tree:
        if name not in (*valid, USUAL):
            raise ConfigError(unknown_name("option", name, valid))
    for name, options in _table(tree, "methods").items():
        where = f"methods.{name}"
        build_options(methods.get(name).Options, _drop_gone(_as_table(options, where), name, where), where)
    for name, own in _table(tree, "variants").items():
        where, parts = f"variants.{name}", ["rounds", *SECTIONS, *COMPONENTS]
        for part in _as_table(own, where):
            if part not in parts:
                raise ConfigError(unknown_name(f"option of {where}", part, parts))
        base = _table(own, "method").get("name")
        if not isinstance(base, str) or name in methods.methods() or base in _variants_of(tree):
            raise ConfigError(f"{where} must name its method, as {where}.method.name=…, and have a name of its own")
        methods.get(base)


def _method(tree: Mapping[str, Any], chosen: str | None) -> tuple[str, Any]:
    """Return the method's name and options: those in ``[methods.NAME]``, overridden by those in ``[method]``."""
    common = _table(tree, "method")
    name = _name(common, "method", "fedproto")
    if chosen is not None:
        known = option_fields(methods.get(chosen).Options)
        common = {n: v for n, v in common.items() if n in known}
        name = chosen
    specific = _as_table(_table(tree, "methods").get(name, {}), f"methods.{name}")
    return name, build_options(
        methods.get(name).Options, _drop_gone({**specific, **common}, name, "method"), "method"
    )


@cache
def _gone() -> Tree:
    return read_toml(Path(__file__).with_name("gone.toml"))


def _drop_gone(options: Tree, of: str, where: str) -> Tree:
    """Drop removed options without effect; raise ConfigError with the alternative for others."""
    gone = _gone().get(of, {})
    for name in options.keys() & gone.keys():
        if options[name] not in gone[name]["without_effect"]:
            raise ConfigError(f"{where}.{name} was removed: {gone[name]['instead']}")
    return {name: value for name, value in options.items() if name not in gone}


def comparison(tree: Mapping[str, Any]) -> CompareOptions:
    """Return the ``compare`` section of a recipe."""
    check_names(tree)
    options = build_options(CompareOptions, _table(tree, "compare"), "compare")
    if compares_all(tree):
        options = replace(options, methods=tuple(every_method()))
    varied = {option for overrides in options.combinations().values() for option in overrides}
    for name in options.methods:
        fixed = flat(_table(tree, "variants").get(name) or variants().get(name) or {})
        if clash := sorted(varied & fixed.keys()):
            raise ConfigError(f"the variant {name!r} fixes {clash[0]}, which an axis of the comparison varies")
    given = [*(f"method.{n}" for n in _table(tree, "method") if n != "name"), *varied]
    check_method_options(given, [variant(tree, name)[1] or name for name in options.methods])
    return options


def compares_all(tree: Mapping[str, Any]) -> bool:
    """Return whether a recipe compares all built-in methods."""
    return _table(tree, "compare").get("methods") in ("all", ["all"], ("all",))


def names_method(tree: Mapping[str, Any]) -> bool:
    """Return whether a recipe names a method."""
    return "name" in _table(tree, "method")


def check_method_options(given: Iterable[str], chosen: Collection[str]) -> None:
    """Reject an option ``method.…`` that none of the chosen methods has."""
    known = {option for name in chosen for option in option_fields(methods.get(name).Options)}
    for name in given:
        section, _, option = name.partition(".")
        if chosen and section == "method" and option.partition(".")[0] not in known:
            raise ConfigError(unknown_name("option of method", option, {*known, "name"}))


def every_method() -> list[str]:
    """Return the names of all built-in methods, those that send least first."""
    order = get_args(methods.Exchange)
    kinds = {name: methods.get(name) for name in methods.methods()}
    exchanges = {name: kind.traits(kind.Options()).exchanges for name, kind in kinds.items()}
    return sorted(kinds, key=lambda name: (order.index(exchanges[name]), name))


def _name(section: Tree, where: str, default: str) -> str:
    """Take the name of a component out of its section."""
    name = section.pop("name", default)
    if not isinstance(name, str):
        raise ConfigError(f"{where}.name must be text, not {name!r}")
    return name


def _table(tree: Mapping[str, Any], name: str) -> Tree:
    return _as_table(tree.get(name, {}), name)


def _as_table(value: Any, name: str) -> Tree:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be a table of options, e.g. {name}.name=…, not {value!r}")
    return dict(value)


def _copy(tree: Mapping[str, Any]) -> Tree:
    return {k: _copy(v) if isinstance(v, Mapping) else v for k, v in tree.items()}


def without_none(tree: Tree) -> Tree:
    """Drop None, which TOML cannot express and which is the default of the options dropped."""
    return {k: without_none(v) if isinstance(v, dict) else v for k, v in tree.items() if v is not None}
