"""Texts of the page: names, explanations, and titles of options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from protofed.text import percent, size
from protofed_lab.demo.setup import Setup

METHODS = {
    "fedproto": ("FedProto", "averages class prototypes"),
    "fedtgp": ("FedTGP", "trains global prototypes"),
    "fedtsp": ("FedTSP", "aims at the names of classes"),
    "fedtgp_softmax": ("FedTGP, softmax", "trains global prototypes"),
    "protonorm": ("ProtoNorm", "spreads prototypes evenly"),
    "tinyproto": ("TinyProto", "sends sparse prototypes"),
    "gfpl": ("GFPL", "exchanges Gaussian mixtures"),
    "fixed_etf": ("Fixed ETF", "aims at fixed directions"),
    "local": ("Local", "lets every client learn alone"),
    "fedavg": ("FedAvg", "averages all weights"),
    "beacon": ("Beacon", "shares a tiny network"),
    "alignfed": ("AlignFed", "averages heads over fixed points"),
    "feddistill": ("FedDistill", "averages outputs per digit"),
    "fed3r": ("Fed3R", "solves one ridge regression"),
    "fedcof": ("FedCOF", "guesses spread from means"),
    "fedetf": ("FedETF", "averages towards fixed directions"),
    "fedfa": ("FedFA", "anchors features"),
    "fedgen": ("FedGen", "trains a generator of features"),
    "fedgh": ("FedGH", "trains one head on class means"),
    "fedkd": ("FedKD", "sends a shared small model"),
    "fedl2g": ("FedL2G", "learns vectors that guide"),
    "fedlc": ("FedLC", "averages weights, calibrates"),
    "fedlda": ("FedLDA", "adds up means and spread"),
    "fedmrl": ("FedMRL", "fuses a shared network's features"),
    "fedncm": ("FedNCM", "averages means, trains nothing"),
    "fednh": ("FedNH", "moves a head of prototypes"),
    "fedorgp": ("FedORGP", "trains orthogonal prototypes"),
    "fedpa": ("FedPA", "adds a generator to prototypes"),
    "fedpcl": ("FedPCL", "contrasts with everybody's means"),
    "fedper": ("FedPer", "averages the lower layers"),
    "fedpft": ("FedPFT", "draws from Gaussian mixtures"),
    "fedplvm": ("FedPLVM", "clusters at clients and server"),
    "fedproc": ("FedProc", "averages weights, contrasts"),
    "fedprox": ("FedProx", "averages held-back weights"),
    "moon": ("MOON", "averages weights, contrasts models"),
    "fedrep": ("FedRep", "averages all but the heads"),
    "fedsa": ("FedSA", "pulls to anchors that stay"),
    "fedsaf": ("FedSAF", "matches angles between means"),
    "feduv": ("FedUV", "averages weights, spreads features"),
    "fesem": ("FeSEM", "averages within groups"),
    "fml": ("FML", "teaches by a shared model"),
    "fpl": ("FPL", "contrasts with clusters"),
    "lg_fedavg": ("LG-FedAvg", "averages the heads"),
    "local_lda": ("Local LDA", "measures every client alone"),
    "local_ncm": ("Local NCM", "takes every client's own means"),
}
"""Title of a method, and what it does."""
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
    "fedlda": "nothing is trained. Every client sends the means and the spread of fixed features once, and the "
    "answer is that of all images together. Divide by halves, each its own digits: it stays.",
    "local_lda": "FedLDA's features and rule, and not a byte is sent. Divide by halves, each its own digits, and "
    "put FedLDA on the other side: the gap is what joining is worth.",
    "local": "there are no circles. The clients' markers of one digit drift apart, since nobody tells them of each "
    "other.",
    "fedavg": "all clients end a round with the same weights. Look at the bytes.",
    "beacon": "there are no circles: a network of 6,000 weights travels. Divide by halves, each its own digits, "
    "and look at the dots of one client: it answers for digits of which it never saw an image.",
}
DOCUMENT = (
    "<b>Watch the large circles.</b> On the left each is the average of the {clients} clients' markers of that "
    "digit, and circles may end up close together. On the right the server trains them: every pair has to keep a "
    "margin, and pairs that are hard to tell apart a larger one.",
    "<b>Then watch the dots follow.</b> Every client pulls its images towards the circle of their digit. Circles "
    "with room between them make fewer mistakes: that is the gap between the two lines.",
    "<b>Now move the margin</b>, while it runs. At 0 training is averaging, and both sides do the same. Around 0.8 "
    "the digits part. Far above 1 the circles flee faster than the images can follow, and learning breaks down.",
    "<b>And choose FedLDA</b> on either side: no training, one round.",
)

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
EARLY = 40  #: Rounds in which a low accuracy says nothing yet
LOW = 0.6  #: Accuracy, as a share of the way from guessing to none wrong, below which a side does badly
FEW = 60  #: Training images with which a client does badly even with all digits


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
    """Return the title of a method."""
    return METHODS.get(method, (method,))[0]


def in_rounds(number: int) -> str:
    """Return a small number of rounds in words."""
    return f"{NUMBERS[number]} round{'s' if number > 1 else ''}"


def listed(methods: Mapping[str, int | None]) -> dict[str, str]:
    """Return methods by menu name, with the rounds of those that soon finish."""
    names = sorted(methods, key=lambda method: title(method).casefold())
    return {name: title(name) + (f", {in_rounds(n)}" if (n := methods[name]) else "") for name in names}


def look_for(left: str, right: str, clients: int = 2) -> tuple[str, ...]:
    """Return paragraphs (HTML) that say what there is to see."""
    if (left, right) == ("fedproto", "fedtgp"):
        return tuple(text.format(clients=NUMBERS[clients]) for text in DOCUMENT)
    told = []
    for where, method in (("Left", left), ("Right", right)):
        text = WATCH.get(method, "watch whether the clients' markers of one digit meet, and what is sent for it.")
        told.append(f"<b>{where}, {title(method)}:</b> {text}")
    if left == right:
        told.append("One method on both sides: change an option on one of them, and compare.")
    return tuple(told)


def answered(methods: tuple[str, str], accuracies: tuple[float, float], sent: tuple[int, int]) -> str:
    """Return a sentence that says which side is ahead, by how much and for how many bytes.

    Example:
        >>> answered(("fedproto", "fedtgp"), (0.725, 0.75), (1200, 3400))
        'FedTGP is ahead by 2.5 points, with 3.40 kB sent against 1.20 kB.'
    """
    ahead = int(accuracies[1] > accuracies[0])
    names = [title(method) for method in methods]
    if names[0] == names[1]:
        names = [f"{name}, {side}" for name, side in zip(names, ("left", "right"), strict=True)]
    sizes = f"with {size(sent[ahead])} sent against {size(sent[1 - ahead])}"
    points = 100 * abs(accuracies[1] - accuracies[0])
    if points < 0.05:
        return f"Both sides are level: {percent(accuracies[0])}, {size(sent[0])} and {size(sent[1])} sent."
    return f"{names[ahead]} is ahead by {points:.1f} points, {sizes}."


def why_low(setup: Setup, counts: Sequence[Sequence[int]], accuracies: Sequence[float], round_number: int) -> str:
    """Return a sentence that says why both sides do badly; ``""`` if one does not, or it is too early."""
    K = len(setup.digits)
    if round_number < EARLY or max(accuracies) >= 1 / K + LOW * (1 - 1 / K):
        return ""
    held = sum(sum(n > 0 for n in row) for row in counts) / len(counts)
    least = min(sum(row) for row in counts)
    reasons = []
    if held < K:
        with_alpha = f"with α = {setup.alpha:.2g} " if setup.skew == "dirichlet" else ""
        reasons.append(f"{with_alpha}a client has images of {held:.2g} of the {K} digits on average")
    if least < FEW:
        images = "image" if least == 1 else "images"
        reasons.append(f"among {NUMBERS[setup.clients]} clients the smallest has {least} training {images}")
    if setup.d < K - 2:
        reasons.append(f"{K} digits share {setup.d} dimensions")
    tested = ", and each is tested on all digits" if held < K else ""
    return f"Both sides stay low: {'; '.join(reasons)}{tested}." if reasons else ""
