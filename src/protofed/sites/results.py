"""What ``protofed try`` finds out: the answer, what each site gains, and every way of learning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protofed.sites.recipe import Notice
from protofed.text import size
from protofed.trained.paired import Interval, Sampled, two_level

Hits = Mapping[str, Sequence[NDArray[np.float64]]]
"""Which samples of each site are classified rightly, ``(n,)`` of 0 and 1, for each draw of folds or each seed."""
FEW = 30  #: Judged samples below which a difference of a few points is chance
NAMED = 4


class Evidence(NamedTuple):
    """The samples by which a way of learning is judged."""

    folds: int = 0  #: Number of folds of each site that are left out in turn; 0 for one split of each seed
    same: bool = False  #: All seeds have the same test samples

    def values(self, held: Mapping[str, Sequence[NDArray[Any]]], site: str = "") -> list[NDArray[Any]]:
        """Return the values of a site, or of all, for each seed; of draws of folds, the mean for each sample."""
        chosen = [held[site]] if site else list(held.values())
        if self.folds:
            return [np.concatenate([np.mean(draws, axis=0) for draws in chosen])]
        return [np.concatenate(parts) for parts in zip(*chosen, strict=True)]

    def interval(self, found: Sequence[Sampled], least: float, level: float = 0.95) -> Interval:
        """Return the mean over seeds in percent with its interval, between ``least`` and 100.

        Classifiers of two of ``J`` folds share most of their samples: the variance over samples is that of their
        mean over draws of folds, times ``J/(J − 1)`` for what the shared ones do. A correction for a single draw
        (Nadeau and Bengio, "Inference for the Generalization Error", Machine Learning 2003) would double it, and
        makes intervals that hold the truth in more than 99 of 100 cases.
        """
        if not found:
            return Interval(*[float("nan")] * 3)
        factor = self.folds / (self.folds - 1) if self.folds else 1.0
        wider = [each._replace(variance=each.variance * factor) for each in found]
        mean, low, high = two_level(wider, level, same=self.same)
        return Interval(mean, max(low, least), min(high, 100.0))


@dataclass(frozen=True)
class Arm:
    """One way of learning."""

    name: str
    together: bool  #: Whether it learns from the samples of all sites
    federated: bool  #: Whether nothing but messages leaves a site; otherwise its samples would
    hits: Hits
    classes: Mapping[str, Sequence[NDArray[np.int64]]]  #: Of the samples of ``hits``
    base: Hits  #: Right answers of the closed form together for the same samples
    evidence: Evidence
    trained: bool = False  #: Whether it is a network, judged by the split of each seed

    @property
    def title(self) -> str:
        """The arm in words."""
        where = ("together" if self.federated else "pooled") if self.together else "alone"
        return f"{self.name}, {where}"

    def accuracy(self, site: str = "") -> Interval:
        """Return the accuracy in percent on the samples of a site, or of all."""
        return self._share(self.evidence.values(self.hits, site))

    def recall(self, label: int) -> Interval:
        """Return the share of the samples of a class that are given it, in percent."""
        pairs = zip(self.evidence.values(self.hits), self.evidence.values(self.classes), strict=True)
        return self._share([own[classes == label] for own, classes in pairs])

    def behind(self) -> Interval:
        """Return how many points more the closed form reaches on the same samples."""
        return difference(self.base, self.hits, self.evidence)

    def _share(self, found: Sequence[NDArray[np.float64]]) -> Interval:
        shares = [Sampled.share(float(own.mean()), len(own)) for own in found if len(own)]
        return self.evidence.interval(shares, 0.0)


def difference(hits: Hits, others: Hits, evidence: Evidence, site: str = "", level: float = 0.95) -> Interval:
    """Return how many points more often samples of a site, or of all, are right, paired, with an interval."""
    pairs = zip(evidence.values(hits, site), evidence.values(others, site), strict=True)
    parts = [own - theirs for own, theirs in pairs if len(own)]
    found = [Sampled.difference(len(d), float(d.sum()), float((d * d).sum())) for d in parts]
    return evidence.interval(found, -100.0, level)


@dataclass(frozen=True)
class SiteAnswer:
    """What federating gives a site."""

    name: str
    samples: int
    judged: int  #: Number of samples by which it is judged
    classes: int  #: Number of those that it has samples of
    lacks: tuple[str, ...]  #: Classes that only others have samples of
    alone: Interval  #: Accuracy in percent with its own samples
    together: Interval
    gain: Interval  #: Points that it gains together
    unseen: float  #: Accuracy in percent on samples of the classes that it lacks; NaN without any

    @property
    def advice(self) -> str:
        """A recommendation in one sentence."""
        few = ", ".join(self.lacks[:NAMED]) + (", …" if len(self.lacks) > NAMED else "")
        if self.gain.sign > 0:
            return f"Join: {self.gain.mean:+.1f} points on your own classes."
        if self.gain.sign < 0:
            loss = f"joining costs {-self.gain.mean:.1f} points on your own classes"
            return f"Stay alone, unless you expect other classes: {loss}."
        if self.lacks and not np.isnan(self.unseen):
            return f"Join if you expect {few}: {self.unseen:.1f} % are right; for your own classes no gain is seen."
        if self.judged < FEW:
            return f"Not decided: {self.judged} samples are too few to see a gain."
        return "No gain is seen for your own classes."


@dataclass(frozen=True)
class TryResult:
    """What each site reaches alone and together."""

    sites: tuple[SiteAnswer, ...]  #: Those that have more than one class, and samples by which they can be judged
    left_out: tuple[str, ...]  #: Names of the others
    arms: tuple[Arm, ...]  #: The ways of learning; the first is the closed form together, the second its twin alone
    evidence: Evidence  #: Of these two
    draws: int  #: Of folds
    #: Accuracy in percent on samples of classes that a site lacks, mean over such sites; NaN without any
    unseen: float
    positive: tuple[int, str]  #: Number and name of the class whose recall is shown
    seeds: tuple[int, ...]  #: Of trained networks
    sent: float  #: Bytes of class means and second moment that a site sends, mean over sites
    revealed: str
    directory: Path
    notices: Sequence[Notice] = field(default=())

    @property
    def page(self) -> Path:
        """Path of the HTML page."""
        return self.directory / "try.html"

    def gain(self, site: str = "", level: float = 0.95) -> Interval:
        """Return the points that the closed form gains over its twin, on the samples of a site or of all."""
        return difference(self.arms[0].hits, self.arms[1].hits, self.evidence, site, level)

    @property
    def verdict(self) -> str:
        """The answer."""
        return " ".join(self.sentences)

    @property
    def sentences(self) -> list[str]:
        """The answer: the gain on classes that a site has, and on those that it has never seen; then all else."""
        gains = {site.name: self.gain(site.name, 1 - 0.05 / len(self.sites)) for site in self.sites}
        helped, hurt = ([name for name, gain in gains.items() if gain.sign == sign] for sign in (1, -1))
        gain, lacking = self.gain(), not np.isnan(self.unseen)
        points = f"{gain.mean:+.1f} points on average ({gain.low:+.1f} … {gain.high:+.1f})" + (
            " on classes that a site has" if lacking else ""
        )
        how = f"with {self.arms[0].name} in one round of {size(round(self.sent))} per site"
        if gain.sign > 0:
            whom = f"{len(helped)} of {len(self.sites)} sites" if helped else "the sites as a whole"
            text = f"Federating helps {whom}: {points} {how}, against the same classifier of a site's own samples"
        elif gain.sign < 0:
            text = f"Federating does not help: {points} {how}"
        else:
            text = f"No gain from federating is seen: {points} {how}"
        if helped and gain.sign <= 0:
            text += f"; {', '.join(helped[:NAMED])} gain{'s' if len(helped) == 1 else ''}"
        if hurt:
            text += f"; {', '.join(hurt[:NAMED])} lose{'s' if len(hurt) == 1 else ''}"
        new = "No site lacks a class that others have."
        if lacking:
            new = (
                f"Of samples of classes that a site has never seen, {self.unseen:.1f} % are right; alone, none is."
            )
        some = ", ".join(self.left_out[:NAMED]) + (", …" if len(self.left_out) > NAMED else "")
        apart = [f"Not judged, for want of classes or samples: {some}."] if self.left_out else []
        return [f"{text}.", new, *self._rivals(), *self._trained(), *apart]

    def _rivals(self) -> list[str]:
        """Return how the best way alone compares, chosen with the judged samples' help, which favours it."""
        own, *others = [arm for arm in self.arms if not arm.trained]
        alone = max((arm for arm in others if not arm.together), key=lambda arm: arm.accuracy().mean)
        pooled = [arm for arm in others if arm.together and not arm.federated]
        told = f"{own.name} reaches {_mean(own)}, the best way alone ({alone.name}) {_mean(alone)}"
        if pooled:
            best = max(pooled, key=lambda arm: arm.accuracy().mean)
            told += f", {best.name} of pooled samples {_mean(best)}"
        return [f"{told}."]

    def _trained(self) -> list[str]:
        """Return how networks compare on the same split, and whether the draw of their weights counts."""
        arms = [arm for arm in self.arms if arm.trained]
        if not arms:
            return []
        parts = [f"{arm.name} {arm.behind().text()}" for arm in arms]
        told = f"On the split that networks are judged by, {self.arms[0].name} gains over {', '.join(parts)} points"
        return [
            f"{told}: one draw of weights, which is not in these intervals." if len(self.seeds) < 2 else f"{told}."
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; accuracies are in percent, and None where they are not known."""
        rows = [
            {
                "arm": arm.title,
                "folds": arm.evidence.folds,
                "all": arm.accuracy(),
                "sites": {site.name: arm.accuracy(site.name) for site in self.sites},
            }
            for arm in self.arms
        ]
        found = {
            "verdict": self.verdict,
            "seeds": self.seeds,
            "gain": self.gain(),
            "unseen": self.unseen,
            "sent": self.sent,
            "revealed": self.revealed,
            "sites": [{**asdict(site), "advice": site.advice} for site in self.sites],
            "arms": rows,
        }
        plain: dict[str, Any] = _replace_nan(found)
        return plain


def _mean(arm: Arm) -> str:
    return f"{arm.accuracy().mean:.1f} %"


def _replace_nan(value: Any) -> Any:
    """Return a value with None in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {name: _replace_nan(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace_nan(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
