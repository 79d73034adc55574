"""The setup of a demonstration: plain values that travel between the page and the process that learns."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

Side = Literal["left", "right"]
SIDES: tuple[Side, Side] = ("left", "right")
ROUNDS = 300  #: Rounds after which a demonstration stops by itself
LETTERS = "ABCDEFGHIJ"
MAX_CLIENTS = len(LETTERS)


@dataclass(frozen=True)
class Chosen:
    """A method, or one of :data:`VARIANTS`, and its options that differ from the usual ones."""

    method: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the method in the library."""
        return VARIANTS.get(self.method, self.method)


@dataclass(frozen=True)
class Setup:
    """A demonstration; the default is the one of the document this page comes from."""

    left: Chosen = field(default_factory=lambda: usual("fedproto"))
    right: Chosen = field(default_factory=lambda: usual("fedtgp"))
    digits: tuple[int, ...] = (0, 1, 2, 3)
    clients: int = 2
    #: ``paired``: half of the clients have three quarters of the one half of the classes, and the rest of the
    #: other; ``apart``: half of the clients have the one half of the classes, and the rest the other;
    #: ``dirichlet``: shares drawn from Dir(alpha)
    skew: Literal["paired", "apart", "dirichlet"] = "paired"
    alpha: float = 0.3
    d: int = 2
    #: ``same``: every client 784→64→16→d; ``mixed``: four architectures in turn
    models: Literal["same", "mixed"] = "same"
    seed: int = 0  #: Of initial weights, shares and order of samples

    def chosen(self, side: Side) -> Chosen:
        """Return the method on ``side``, with its options."""
        return self.left if side == "left" else self.right

    def with_chosen(self, side: Side, chosen: Chosen) -> Setup:
        """Return the same setup with another method on ``side``."""
        return replace(self, left=chosen) if side == "left" else replace(self, right=chosen)

    def client_names(self) -> list[str]:
        """Return the clients' names."""
        return [f"Client {letter}" for letter in LETTERS[: self.clients]]


USUAL: dict[str, dict[str, Any]] = {
    "fedpcl": {"projection_dim": 0},
    "fedproto": {"lambda": 1.0},
    "fedtgp": {"lambda": 1.0, "loss": "hinge", "margin": 0.8},
    "fedtgp_softmax": {"lambda": 1.0, "loss": "softmax"},
    "protonorm": {"lambda": 1.0, "gamma": 3.0},
    "fixed_etf": {"lambda": 1.0, "gamma": 3.0},
    "tinyproto": {"lambda": 1.0, "gamma": 1.0, "s": 1},
}
"""Options with which methods start here: one λ for all, and a γ that features of two dimensions can follow."""
VARIANTS = {"fedtgp_softmax": "fedtgp"}
"""Choices beside the library's methods: a method with an option that cannot change while it runs."""


def usual(method: str) -> Chosen:
    """Return ``method`` with the options it starts with here."""
    return Chosen(method, dict(USUAL.get(method, {})))
