"""What fits with what: options that exclude each other, whatever the method and the data.

Each method declares what it allows in its :class:`~protofed.methods.traits.Traits`. The documentation's page of
options prints :func:`table`. Experiments carry no type here, because their module imports this one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from protofed.errors import ConfigError

_PRIVACY = ("none", "client", "sample")


class Exclusion(NamedTuple):
    """Values of two options that cannot be used together."""

    option: str
    fitting: tuple[Any, ...]  #: The values of ``option`` that go with everything
    other: str
    #: The values of ``other`` with which no further value goes; empty means all but 0, "" and False
    excluded: tuple[Any, ...]
    reason: str
    remedy: str

    def applies(self, experiment: Any) -> bool:
        """Return whether an experiment uses both."""
        other = _value(experiment, self.other)
        excluded = other in self.excluded if self.excluded else bool(other)
        return excluded and _value(experiment, self.option) not in self.fitting


EXCLUSIONS = (
    Exclusion(
        *("robust.rule", ("none",), "secure.aggregation", ()),
        "rules compare single uploads, which secure sums hide",
        "set robust.rule=none or secure.aggregation=false",
    ),
    Exclusion(
        *("robust.rule", ("none", "clip"), "privacy.mode", ("client",)),
        "the rule lets one client change what others contribute, which the noise does not cover",
        "set robust.rule=none; privacy.clip limits every client",
    ),
    Exclusion(
        *("stages", ((),), "privacy.mode", ("client",)),
        "a stage might mix the uploads of several clients",
        "leave one of them out",
    ),
    Exclusion(
        *("participation.sampling", ("uniform", "poisson"), "privacy.mode", ("client",)),
        "the draw shows numbers of samples",
        "set participation.sampling=uniform or poisson",
    ),
    Exclusion(
        *("model.start", ("",), "privacy.mode", _PRIVACY[1:]),
        "the run that it names has an ε of its own",
        "begin with initial weights",
    ),
    Exclusion(
        *("data.validation_fraction", (0,), "privacy.mode", ("sample",)),
        "one sample changes which others are held out",
        "give clients validation samples of their own (validation.csv, .parquet or .npz)",
    ),
    Exclusion(
        *("data.train_samples", (0,), "privacy.mode", ("sample",)),
        "one sample changes which others are chosen",
        "choose them beforehand",
    ),
    *(
        Exclusion(
            *(option, (usual,), "privacy.mode", ("sample",)), "DP-SGD draws its batches", f"leave {option} out"
        )
        for option, usual in (("training.shuffle", True), ("training.drop_last", False))
    ),
)


def check_fit(experiment: Any) -> None:
    """Raise ConfigError if an experiment uses options that exclude each other."""
    for each in EXCLUSIONS:
        if each.applies(experiment):
            pair = [f"{name}={_format_value(_value(experiment, name))}" for name in (each.option, each.other)]
            raise ConfigError(f"{' does not go with '.join(pair)}: {each.reason}: {each.remedy}")


def table() -> str:
    """Return a Markdown table of the exclusions and their reasons."""
    lines = ["| option | does not go with | because |", "|---|---|---|"]
    for each in EXCLUSIONS:
        fitting = " or ".join(f"`{_format_value(value)}`" for value in each.fitting if value != ())
        other = f"{each.other}={' or '.join(each.excluded)}" if each.excluded else each.other
        option = f"`{each.option}`, unless it is {fitting}" if fitting else f"`{each.option}`"
        lines.append(f"| {option} | `{other}` | {each.reason} |")
    return "\n".join(lines)


def _value(experiment: Any, name: str) -> Any:
    section, _, option = name.partition(".")
    value = getattr(experiment, section)
    return getattr(value, option) if option else value


def _format_value(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else f"{value}" or "''"
