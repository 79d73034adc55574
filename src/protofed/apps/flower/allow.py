"""What a node's operator allows runs to do: the table ``[allow]`` of ``node.toml``. All else is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from protofed.config.architectures import is_code
from protofed.config.schema import Experiment
from protofed.errors import ConfigError
from protofed.runs.labels import flat
from protofed.untrusted import claims, limits
from protofed.untrusted.decoding import Line, decoded

SENT = "sent"
"""Name of the note that counts the bytes of a client's uploads in a run."""
Names = Annotated[tuple[Line, ...], Meta(max_length=1000)]


@dataclass(frozen=True)
class Allowed:
    """What runs may do at a node; everything that is not named here is refused.

    Attributes:
        methods: By name.
        models: Architectures by name; a node's own, which its ``client.toml`` names, needs no permission.
        encoders: By name.
        codecs: By name.
        rounds: Largest number planned; None for any.
        bytes: Largest sum of a client's uploads in a run, before masks of secure aggregation; None for any.
        options: Values allowed of further options, by dotted name.
    """

    methods: Names
    models: Names = ()
    encoders: Names = ()
    codecs: Names = ("float32",)
    rounds: Annotated[int, Meta(ge=1, le=limits.ROUNDS)] | None = None
    bytes: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    options: dict[str, list[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Allowed | None:
        """Return what a node's settings allow, or None if they have no such table, which allows everything."""
        if "allow" not in settings:
            return None
        found = decoded(settings["allow"], cls, "node.toml: [allow]", ConfigError, exact=True)
        if not found.methods:
            raise ConfigError('node.toml: [allow] allows nothing: name methods, e.g. methods = ["fedproto"]')
        return found

    def check_names(self, tree: Mapping[str, Any]) -> None:
        """Refuse a configuration that names code or a method that is not allowed, before any code is imported."""
        method, model, stages = (tree.get(name) for name in ("method", "model", "stages"))
        _one_of("method.name", method.get("name") if isinstance(method, dict) else None, self.methods, "methods")
        if isinstance(model, dict):
            members = model["members"] if isinstance(model.get("members"), (list, tuple)) else ()
            named = [
                model.get("name"),
                model.get("shared"),
                *(m.get("name") for m in members if isinstance(m, dict)),
            ]
            for name in named:
                if isinstance(name, str) and is_code(name):
                    _one_of("model.name", name, self.models, "models")
        if stages and "stages" not in self.options:
            raise ConfigError(_refusal("stages", stages, "none of a file", "options"))

    def check(self, experiment: Experiment) -> None:
        """Refuse a run that does something else, before anything is told about the data."""
        tree = experiment.to_tree()
        self.check_names(tree)
        _one_of("wire.codec", experiment.wire.codec, self.codecs, "codecs")
        if experiment.encoder.name:
            _one_of("encoder.name", experiment.encoder.name, self.encoders, "encoders")
        if self.rounds is not None and experiment.rounds > self.rounds:
            raise ConfigError(_refusal("rounds", experiment.rounds, f"at most {self.rounds}", "rounds"))
        found = flat(tree)
        for name, values in self.options.items():
            value = found.get(name)
            if (list(value) if isinstance(value, tuple) else value) not in values:
                raise ConfigError(_refusal(name, value, " or ".join(map(str, values)), f'options."{name}"'))

    def check_model(self, name: str) -> None:
        """Refuse to build an architecture that is not allowed."""
        _one_of("model.name", name, self.models, "models")

    def count(self, notes: dict[str, Any], client: str, upload: int) -> None:
        """Count an upload of so many bytes; refuse to send it if they are too many."""
        sent = notes.get(SENT, [0])[0] + upload
        if self.bytes is not None and sent > self.bytes:
            raise ConfigError(
                f"{client}: the uploads of this run would be {sent} bytes, but this node allows {self.bytes} "
                "(allow.bytes in its node.toml)"
            )
        notes[SENT] = [sent]


def _one_of(option: str, value: object, allowed: Sequence[str], setting: str) -> None:
    if value not in allowed:
        raise ConfigError(_refusal(option, value, ", ".join(allowed) or "none", setting))


def _refusal(option: str, value: object, allowed: str, setting: str) -> str:
    shown = claims.clean(value, 60)
    return f"{option}={shown}, but this node allows {allowed} (allow.{setting} in its node.toml)"
