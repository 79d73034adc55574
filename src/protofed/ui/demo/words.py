"""Texts of the page: names, explanations, and titles of options."""

from __future__ import annotations

from dataclasses import dataclass

TITLES = {
    "fedproto": "FedProto",
    "fedtgp": "FedTGP",
    "fedtgp_softmax": "FedTGP, softmax",
    "protonorm": "ProtoNorm",
    "tinyproto": "TinyProto",
    "gfpl": "GFPL",
    "fixed_etf": "Fixed ETF",
    "local": "Local",
    "fedavg": "FedAvg",
    "beacon": "Beacon",
}
DOES = {
    "fedproto": "averages class prototypes",
    "fedtgp": "trains global prototypes",
    "fedtgp_softmax": "trains global prototypes",
    "protonorm": "spreads prototypes evenly",
    "tinyproto": "sends sparse prototypes",
    "gfpl": "exchanges Gaussian mixtures",
    "fixed_etf": "aims at fixed directions",
    "local": "lets every client learn alone",
    "fedavg": "averages all weights",
    "beacon": "shares a tiny network",
}
WATCH = {
    "fedproto": "every circle is the average of the clients' markers of that digit, wherever that is.",
    "fedtgp": "the server moves the circles apart until every pair keeps its margin; the dots follow.",
    "fedtgp_softmax": "the paper's own objective: a network on the server makes the prototypes and keeps learning "
    "from round to round; its margin follows the clients' prototypes.",
    "protonorm": "the rays open until their angles are equal, and γ makes them long: the dots are drawn far out.",
    "tinyproto": "every digit keeps s of the d numbers of its prototype: with d = 2 and s = 1 all circles lie on "
    "two axes, and digits that share an axis get in each other's way.",
    "gfpl": "circles are the means of Gaussian mixtures. They travel every tenth round only; between those rounds "
    "nothing is sent.",
    "fixed_etf": "the rays never move: they follow from the seed alone, and not a byte is sent. Does exchanging "
    "prototypes do better?",
    "local": "there are no circles. The clients' markers of one digit drift apart, since nobody tells them of each "
    "other.",
    "fedavg": "all clients end a round with the same weights. Look at the bytes.",
    "beacon": "there are no circles: a network of 6,000 weights travels. Divide by halves, each its own digits, "
    "and look at the dots of one client: it answers for digits of which it never saw an image.",
}
DOCUMENT = (
    "<b>Watch the large circles.</b> On the left each is the average of the two clients' markers of that digit, "
    "and circles may end up close together. On the right the server trains them: every pair has to keep a margin, "
    "and pairs that are hard to tell apart a larger one.",
    "<b>Then watch the dots follow.</b> Every client pulls its images towards the circle of their digit. Circles "
    "with room between them make fewer mistakes: that is the gap between the two lines.",
    "<b>Now move the margin</b>, while it runs. At 0 training is averaging, and both sides do the same. Around 0.8 "
    "the digits part. Far above 1 the circles flee faster than the images can follow, and learning breaks down.",
)


@dataclass(frozen=True)
class Knob:
    """An option of a method that acts while it runs."""

    title: str
    low: float
    high: float
    step: float
    help: str


KNOBS = {
    "margin": Knob("Margin", 0, 2, 0.05, "how far circles are pushed apart, in average distances"),
    "lambda": Knob("λ", 0, 5, 0.1, "pull towards the circles"),
    "gamma": Knob("γ", 0, 20, 0.5, "circles made longer"),
    "s": Knob("s", 1, 2, 1, "numbers sent of d"),
}


def title(method: str) -> str:
    """Return what a method is called."""
    return TITLES.get(method, method)


def look_for(left: str, right: str) -> tuple[str, ...]:
    """Return paragraphs (HTML) that say what there is to see.

    Args:
        left: Method on the left.
        right: Method on the right.
    """
    if (left, right) == ("fedproto", "fedtgp"):
        return DOCUMENT
    told = []
    for where, method in (("Left", left), ("Right", right)):
        text = WATCH.get(method, "watch where the circles settle among the dots of their digit.")
        told.append(f"<b>{where}, {title(method)}:</b> {text}")
    if left == right:
        told.append("One method on both sides: change an option on one of them, and compare.")
    return tuple(told)
