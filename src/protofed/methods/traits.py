"""A method's declaration: its traits, among them the rules by which it classifies.

The rules here are those of several methods; any other stands in its method's file, or with
them in :mod:`~protofed.runs.rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from protofed.errors import ConfigError
from protofed.runs.rules import ALL_CLASSES, GLOBAL, GLOBAL_MODEL, GLOBAL_OWN, HEAD, LOCAL, Rule

__all__ = ["ALL_CLASSES", "GLOBAL", "GLOBAL_MODEL", "GLOBAL_OWN", "HEAD", "LOCAL", "Exchange"]
__all__ += ["Protection", "Traits"]

Exchange = Literal["nothing", "prototypes", "logits", "part of the weights", "all weights"]


@dataclass(frozen=True, kw_only=True)
class Protection:
    """What protects a method's clients, and what cannot."""

    #: Why client-level DP cannot be applied, as a clause: what the server takes of uploads besides means in which
    #: all clients may weigh the same, and sums of fields that are sums over samples. ``""`` if it can be applied,
    #: None if that is not declared
    dp_obstacle: str | None = None
    #: Factors of the statistics in the one vector that an upload consists of, to which sample-level DP adds noise;
    #: empty if uploads are something else, or change from round to round
    dp_statistics: Mapping[str, float] = field(default_factory=dict)
    #: Names in :meth:`Method.client_state` of tensors on which nothing that is sent may depend: they are for
    #: predictions and for phases that stay on the client
    local_only: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Facts about a method that follow from its options alone."""

    exchanges: Exchange = "nothing"  #: The kind of messages, in words
    #: Numbers that one client sends in a round that communicates, as papers count them: a formula with its classes
    #: ``K_i``, all classes ``K``, ``d``, the model ``|w|``, its extractor ``|θ|`` and head ``|φ|``
    up: str = "0"
    down: str = "0"  #: As ``up``, for one client's receipts
    #: Keys of :meth:`Method.scores`. The first gives the headline numbers, unless there is ``global``, the nearest
    #: global prototype
    rules: tuple[Rule, ...] = (HEAD,)
    #: What all clients must have alike: the length of features, or the whole architecture
    alike: Literal["nothing", "features", "architecture"] = "nothing"
    #: When clients must disclose their numbers of samples, in uploads or before the first round
    counts: Literal["never", "for robust rules", "always"] = "never"
    #: What the server needs: ``sums`` of uploads; every ``single`` upload; or these, to send each client a
    #: ``personal`` message
    aggregation: Literal["sums", "single", "personal"] = "single"
    #: ``one`` if more would change nothing; ``planned`` if a round depends on how many are planned, so that a run
    #: cannot be extended
    rounds: Literal["any", "one", "planned"] = "any"
    protection: Protection = Protection()  #: What protects clients

    @property
    def personal(self) -> bool:
        """Return whether clients are sent different messages."""
        return self.aggregation == "personal"

    def protecting(self, **changes: Any) -> Traits:
        """Return these traits with changes to their protection."""
        return replace(self, protection=replace(self.protection, **changes))


def check_hooks(method: type) -> None:
    """Reject hooks that were removed, which would have no effect."""
    for kind in method.__mro__:
        removed = sorted(_REMOVED & vars(kind).keys())
        if removed and not kind.__module__.startswith("protofed.methods."):
            raise ConfigError(
                f"{kind.__name__}.{removed[0]} is of protofed 0.2, whose methods declared other things: "
                "`protofed new method` shows what a method declares"
            )


_REMOVED = {
    *("exchanges", "up", "down", "class_sets", "same_architecture", "same_feature_dim", "sums_only"),
    *("personal_broadcast", "needs_counts", "needs_same_architecture", "sends_sums", "rounds_needed"),
    *("depends_on_rounds", "unclippable", "release", "rules", "open_rule", "predict", "phases"),
    *("communicates", "everyone", "statistics_from", "statistics_by_batch", "epoch_end", "weighted_by"),
    *("kept_state", "check_clients"),
}
"""Hooks of version 0.2."""
