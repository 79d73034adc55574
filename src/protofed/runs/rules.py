"""Rules of inference as tables and figures show them: declared by a method, and written into its runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from protofed.untrusted import limits
from protofed.untrusted.decoding import Count, line

if TYPE_CHECKING:
    Text = str
else:
    Text = line(limits.REASON)

MOST_RULES = 64  #: Rules of one method
COLOURS = ("blue", "vermillion", "green", "purple", "orange", "sky", "grey", "black")


@dataclass(frozen=True)
class Rule:
    """A way to classify."""

    name: Text  #: Key of its scores
    title: Text  #: Heading in reports and figures
    text: Text = "a rule of the method's own"  #: Predicted class of a sample, as a clause
    short: Text = ""  #: Heading of a narrow column; ``""`` for the name
    colour: Text = ""  #: One of :data:`COLOURS`; ``""`` for any that is free
    place: Count = 100  #: Tables show rules in ascending order of it
    #: A client whose samples are all of one class can recognise the others by it: its network has learned of all
    #: classes from other clients, and the client's own frequencies play no part
    open: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the rule for JSON."""
        return asdict(self)


HEAD = Rule("head", "Classifier head", "the class with the largest output of the client's own model", "", "blue", 0)
GLOBAL_MODEL = Rule(
    "global_model",
    "Global model",
    "the class with the largest output of the server's model, for all or for the client's group",
    short="model",
    colour="sky",
    place=10,
    open=True,
)
LOCAL = Rule(
    "local",
    "Own prototypes",
    "the class whose prototype, made from the client's own data, is nearest",
    colour="green",
    place=30,
)
GLOBAL = Rule(
    "global",
    "Global prototypes",
    "the class whose global prototype is nearest, among all classes",
    colour="vermillion",
    place=40,
)
GLOBAL_OWN = Rule(
    "global_own",
    "Global, own classes",
    "the nearest global prototype among the classes the client trains on, an easier question",
    short="own",
    colour="orange",
    place=50,
)
ALL_CLASSES = Rule(
    "all_classes",
    "Classes alike",
    "as the head, without the frequencies of the client's classes",
    short="all",
    colour="black",
    place=90,
)
GLOBAL_PRIOR = Rule(
    "global_prior",
    "Global model with prior",
    "the server's model, weighed with the frequencies of the client's classes",
    short="prior",
    colour="grey",
    place=20,
)
ETF = Rule(
    "etf",
    "ETF",
    "the class whose fixed direction (simplex equiangular tight frame) is closest to the features",
    colour="purple",
    place=60,
)
EXPERT = Rule(
    "expert",
    "Expert",
    "the client's own model, among the classes it trains on, weighed with their frequencies",
    colour="purple",
    place=70,
)
BEACON = Rule(
    "beacon",
    "Beacon with prior",
    "the shared tiny network, weighed with the frequencies of the client's classes",
    colour="grey",
    place=80,
)
NEAREST = Rule("nearest", "nearest", "the class whose mean, over the samples of all clients, is nearest")
_KNOWN = (HEAD, GLOBAL_MODEL, LOCAL, GLOBAL, GLOBAL_OWN, ALL_CLASSES, GLOBAL_PRIOR, ETF, EXPERT, BEACON, NEAREST)
KNOWN_RULES = {rule.name: rule for rule in _KNOWN}
"""Rules in runs of version 0.2 and before, which do not describe them."""


def find_rule(name: str) -> Rule:
    """Return the rule that a run without descriptions calls ``name``."""
    return KNOWN_RULES.get(name) or Rule(name, name.replace("_", " "))


def in_order(rules: Iterable[Rule]) -> dict[str, Rule]:
    """Return the rules of several methods by name, in the order of tables."""
    found = {rule.name: rule for rule in rules}
    return dict(sorted(found.items(), key=lambda item: (item[1].place, item[0])))


def main_rule(names: Iterable[str], wanted: str = "") -> str:
    """Return the rule of headline numbers.

    That is the wanted one if the method has it, and else the nearest global prototype, or without one whichever of
    head and global model the method names first.

    Args:
        wanted: ``evaluation.rule``; ``""`` for the method's own.

    Example:
        >>> main_rule(["head", "local", "global"]), main_rule(["global_model", "head"])
        ('global', 'global_model')
        >>> main_rule(["head", "local", "global"], "local"), main_rule(["global_model", "head"], "local")
        ('local', 'global_model')
    """
    found = list(names)
    models = (name for name in found if name in (HEAD.name, GLOBAL_MODEL.name))
    usual = next(models, next(iter(found), HEAD.name))
    return next((name for name in (wanted, GLOBAL.name) if name in found), usual)


def prototype_rule(names: Iterable[str]) -> str:
    """Return the rule of the nearest prototype, the global one if the method has it; "" if it has none."""
    return next((rule.name for rule in (GLOBAL, LOCAL) if rule.name in list(names)), "")
