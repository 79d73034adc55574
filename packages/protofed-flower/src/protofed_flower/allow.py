"""What a node's operator allows runs to do: the table ``[allow]`` of ``node.toml``. All else is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from protofed.config.remote import list_names
from protofed.engine import Experiment
from protofed.errors import ConfigError, RefusalError, refusal
from protofed.runs.labels import flat
from protofed.untrusted import claims, limits
from protofed.untrusted.decoding import Line, decode, within

SENT = "sent"  #: Name of the note that counts the bytes of a client's uploads in a run
LISTS = ("methods", "models", "encoders", "codecs")
"""Kinds of names of which all are refused but those that are listed."""
Names = Annotated[tuple[Line, ...], Meta(max_length=1000)]


@dataclass(frozen=True)
class Allowed:
    """What runs may do at a node; everything that is not named here is refused.

    Code is allowed by its name, ``package.module:attribute`` or ``file.py:attribute``, in the list of its kind.
    """

    methods: Names  #: By name
    models: Names = ()  #: Architectures by name; a node's own, which its ``client.toml`` names, needs no permission
    encoders: Names = ()  #: By name
    codecs: Names = ("float32",)  #: By name
    stages: Names = ()  #: Code of stages, which clients are trained with
    #: Largest number planned; None for any
    rounds: Annotated[int, within(least=1, most=limits.ROUNDS)] | None = None
    #: Largest sum of a client's uploads in a run, before masks of secure aggregation; None for any
    bytes: Annotated[int, within(least=1, most=2**53)] | None = None
    #: Values allowed of further options, by dotted name
    options: dict[str, list[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Allowed | None:
        """Return what a node's settings allow, or None if they have no such table, which allows all but code."""
        if "allow" not in settings:
            return None
        found = decode(settings["allow"], cls, "node.toml: [allow]", ConfigError, exact=True)
        if not found.methods:
            raise ConfigError('node.toml: [allow] allows nothing: name methods, e.g. methods = ["fedproto"]')
        return found

    def permits(self, kind: str, name: str) -> bool:
        """Return whether a list holds a name; there are none of optimisers and of words that name nothing."""
        return name in getattr(self, kind, ())

    @property
    def code(self) -> list[str]:
        """Names of code that may be imported."""
        every = (*self.methods, *self.models, *self.encoders, *self.stages)
        return [name for name in every if claims.is_code(name)]

    def check(self, experiment: Experiment) -> None:
        """Refuse a run that does something else, before anything is told about the data."""
        for option, kind, name in list_names(experiment):
            if kind in LISTS and not self.permits(kind, name):
                raise _refusal(option, name, ", ".join(getattr(self, kind)) or "none", kind)
        if self.rounds is not None and experiment.rounds > self.rounds:
            raise _refusal("rounds", experiment.rounds, f"at most {self.rounds}", "rounds")
        found = flat(experiment.to_tree())
        for name, values in self.options.items():
            value = found.get(name)
            if (list(value) if isinstance(value, tuple) else value) not in values:
                raise _refusal(name, value, " or ".join(map(str, values)), f'options."{name}"')

    def count(self, notes: dict[str, Any], client: str, upload: int) -> None:
        """Count an upload of so many bytes; refuse to send it if they are too many."""
        sent = notes.get(SENT, [0])[0] + upload
        if self.bytes is not None and sent > self.bytes:
            raise refusal(
                "bytes",
                text=f"{client}: the uploads of this run would be {sent} bytes, but this node allows {self.bytes} "
                "(allow.bytes in its node.toml)",
            )
        notes[SENT] = [sent]


def check_model(name: str, models: Sequence[str] | None) -> None:
    """Refuse to build an architecture that is not allowed; None allows all."""
    if models is not None and name not in models:
        raise _refusal("model.name", name, ", ".join(models) or "none", "models")


def _refusal(option: str, value: object, allowed: str, setting: str) -> RefusalError:
    shown = claims.clean(value, 60)
    told = f"{option}={shown}, but this node allows {allowed} (allow.{setting} in its node.toml)"
    return refusal("not allowed", option, told)
