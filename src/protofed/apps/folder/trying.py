"""An answer for a folder: each site alone against all together, by closed forms, networks and scikit-learn."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofed.api import compare
from protofed.apps.folder.recipe import write
from protofed.config.schema import Experiment, load_recipe, resolve
from protofed.errors import DataError
from protofed.experiments.loading import load_data
from protofed.experiments.rundir import place_for
from protofed.experiments.running import Progress
from protofed.models.encoders import EncoderOptions
from protofed.samples import ClientData, FederatedData
from protofed.storage.files import write_json
from protofed.text import size
from protofed.trained.metrics import answers
from protofed.trained.paired import Sampled, same_tests, two_level
from protofed.trained.run import TrainedRun
from protofed.trained.worth import interval

COMPARED = 4
"""Methods of the recipe that are compared: the closed form and its twin that sends nothing come first."""
WIDEST = 512
"""Most inputs with which gradient boosting is tried."""
TUNED = 2_000_000
"""Most numbers of all samples together for which the strength of logistic regression is chosen."""
FEWEST = 20
"""Least samples of a class for that; of fewer, folds choose by chance."""
STRENGTHS = (0.01, 0.1, 1.0, 10.0)
Hits = dict[str, list[NDArray[np.float64]]]
"""Which test samples of each site are classified rightly, ``(n,)`` of 0 and 1, for each seed."""


@dataclass(frozen=True)
class Arm:
    """One way of learning.

    Attributes:
        together: Whether it learns from the samples of all sites.
        federated: Whether nothing but messages leaves a site; otherwise its samples would.
    """

    name: str
    together: bool
    federated: bool
    hits: Hits
    same: bool = False

    def mean(self, site: str = "") -> tuple[float, float, float]:
        """Return the accuracy on the test samples of a site, or of all, with its 95 % interval."""
        seeds = [own for parts in _by_seed(self.hits, site) if len(own := np.concatenate(parts))]
        mean, low, high = two_level([Sampled.share(float(own.mean()), len(own)) for own in seeds], same=self.same)
        return mean / 100, max(low / 100, 0.0), min(high / 100, 1.0)

    @property
    def title(self) -> str:
        """The arm in words."""
        where = ("together" if self.federated else "pooled") if self.together else "alone"
        return f"{self.name}, {where}"


@dataclass(frozen=True)
class FolderTrial:
    """What each site reaches alone and together.

    Attributes:
        sites: Names of the sites that have test samples and more than one class.
        arms: The ways of learning; the first is the closed form together, the second its twin alone.
        sent: Bytes that a site sends for the closed form.
    """

    sites: tuple[str, ...]
    left_out: tuple[str, ...]
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    sent: float
    directory: Path

    @property
    def page(self) -> Path:
        """Path of the HTML page."""
        return self.directory / "try.html"

    def gain(self, site: str = "", level: float = 0.95) -> tuple[float, float, float]:
        """Return what the closed form gains over its twin, on the test samples of a site or of all."""
        return difference(self.arms[0], self.arms[1], site, level)

    @property
    def verdict(self) -> str:
        """The answer in one or two sentences."""
        gains = {site: self.gain(site, 1 - 0.05 / len(self.sites)) for site in self.sites}
        helped = [site for site, (_, low, _) in gains.items() if low > 0]
        hurt = [site for site, (_, _, high) in gains.items() if high < 0]
        mean, low, high = self.gain()
        points = f"{100 * mean:+.1f} points on average ({100 * low:+.1f} … {100 * high:+.1f})"
        how = f"with {self.arms[0].name} in one round of {size(round(self.sent))} per site"
        if low > 0:
            whom = f"{len(helped)} of {len(self.sites)} sites" if helped else "the sites as a whole"
            text = f"Federating helps {whom}: {points} {how}, against the same classifier of a site's own samples"
        elif high < 0:
            text = f"Federating does not help: {points} {how}"
        else:
            text = f"No gain from federating is seen: {points} {how}"
        if helped and low <= 0:
            text += f"; {', '.join(helped[:4])} gain{'s' * (len(helped) == 1)}"
        if hurt:
            text += f"; {', '.join(hurt[:4])} lose{'s' * (len(hurt) == 1)}"
        apart = (
            f" Not judged, for want of classes or test samples: {', '.join(self.left_out[:4])}."
            if self.left_out
            else ""
        )
        return f"{text}. {self._rivals()}{apart}"

    def _rivals(self) -> str:
        """Return how the best way alone compares, chosen with the test samples' help, which favours it."""
        alone = max((arm for arm in self.arms if not arm.together), key=lambda arm: arm.mean()[0])
        pooled = [arm for arm in self.arms if arm.together and not arm.federated]
        own = self.arms[0]
        told = f"{own.name} reaches {_percent(own)}, the best way alone ({alone.name}) {_percent(alone)}"
        if pooled:
            best = max(pooled, key=lambda arm: arm.mean()[0])
            told += f", {best.name} of pooled samples {_percent(best)}"
        return told + "."

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; shares are between 0 and 1."""
        rows = [
            {"arm": arm.title, "all": arm.mean(), "sites": {site: arm.mean(site) for site in self.sites}}
            for arm in self.arms
        ]
        return {"verdict": self.verdict, "seeds": list(self.seeds), "gain": self.gain(), "arms": rows}


def _by_seed(hits: Hits, site: str) -> list[list[NDArray[np.float64]]]:
    chosen = [hits[site]] if site else list(hits.values())
    return [list(parts) for parts in zip(*chosen, strict=True)]


def difference(arm: Arm, other: Arm, site: str = "", level: float = 0.95) -> tuple[float, float, float]:
    """Return how much more often an arm is right than another, with an interval over test samples and seeds.

    Args:
        site: A site whose test samples count; "" for those of all.
    """
    pairs = zip(_by_seed(arm.hits, site), _by_seed(other.hits, site), strict=True)
    return interval([np.concatenate(own) - np.concatenate(theirs) for own, theirs in pairs], arm.same, level)


def _percent(arm: Arm) -> str:
    return f"{100 * arm.mean()[0]:.1f} %"


def tried(
    text: str, seeds: Sequence[int], out: Path | None, progress: Progress | None = None, jobs: int = 1
) -> FolderTrial:
    """Return what each site reaches alone and together.

    Args:
        text: A recipe of :mod:`protofed.apps.folder.recipe`.
        out: Directory of the runs, beside which the recipe is written; None for a new one below ``runs/``. What was
            stopped there goes on.

    Raises:
        ProtofedError: As :func:`protofed.compare`; DataError if there is nothing to compare.
    """
    directory = place_for(out, "try", resume=True)
    recipe = directory.parent / f"{directory.name}.toml"
    begun = (directory / "comparison.json").is_file()
    left = begun and not (directory / "try.json").exists() and recipe.is_file()
    if out is None and not (left and recipe.read_text("utf-8").endswith(text)):
        directory, begun = place_for(None, "try", resume=False), False
        recipe = directory.parent / f"{directory.name}.toml"
    write(recipe, text, ())
    tree = load_recipe(recipe)
    names = tree["compare"]["methods"][:COMPARED]
    plain = resolve({**tree, "encoder": {}})
    held = [_numbers(replace(plain, seed=seed)).clients for seed in seeds]
    single = {c.name for clients in held for c in clients if len(c.train.y.unique()) < 2 or not len(c.test)}
    kept = tuple(c.name for c in held[0] if c.name not in single)
    if not kept:
        raise DataError("no site has test samples and more than one class: nothing can be compared")
    runs = compare(recipe, names, list(seeds), out=directory, resume=begun, progress=progress, jobs=jobs).runs
    sent = [float(np.mean([_sent(run) for run in runs[name]])) for name in names]
    arms = [Arm(runs[n][0].method, b > 0, b > 0, _answered(runs[n])) for n, b in zip(names, sent, strict=True)]
    for name, make in _estimators(int(np.prod(held[0][0].train.x.shape[1:]))).items():
        arms += [Arm(name, pooled, False, _learnt(make, held, pooled)) for pooled in (False, True)]
    same = same_tests(runs[names[0]])
    arms = [replace(arm, hits={site: arm.hits[site] for site in kept}, same=same) for arm in arms]
    trial = FolderTrial(kept, tuple(sorted(single)), tuple(arms), tuple(seeds), sent[0], directory)
    write_json(directory / "try.json", trial.to_dict())
    return trial


def _numbers(experiment: Experiment) -> FederatedData:
    """Return the samples as numbers from which any classifier can learn: of tokens, hashed counts of words."""
    found = load_data(experiment)
    if found.table is None or not found.table.texts:
        return found
    return load_data(replace(experiment, encoder=EncoderOptions("auto")))


def _sent(run: TrainedRun) -> float:
    """Return the bytes that a client sent, on average."""
    return sum(record.bytes["up"] for record in run.rounds) / len(run.clients)


def _answered(runs: Sequence[TrainedRun]) -> Hits:
    hits: Hits = {}
    for run in runs:
        for name, own in answers(run).items():
            hits.setdefault(name, []).append(own.right.astype(np.float64))
    return hits


Fit = Callable[[NDArray[np.float64], NDArray[np.int64]], Any]
"""Returns an estimator of scikit-learn that has learned from ``(n, F)`` samples and their ``(n,)`` classes."""


def _estimators(width: int) -> dict[str, Fit]:
    """Return scikit-learn's classifiers by name, for samples of so many numbers."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    found: dict[str, Fit] = {"logistic regression": _logistic}
    if width <= WIDEST:
        found["gradient boosting"] = lambda x, y: HistGradientBoostingClassifier(random_state=0).fit(x, y)
    return found


def _logistic(x: NDArray[np.float64], y: NDArray[np.int64]) -> Any:
    """Return logistic regression of standardised samples, its strength chosen by three folds where these can be."""
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    tuned = np.unique(y, return_counts=True)[1].min() >= FEWEST and x.size <= TUNED
    cv = LogisticRegressionCV(Cs=STRENGTHS, cv=3, scoring="neg_log_loss", max_iter=2000)
    model = cv if tuned else LogisticRegression(max_iter=2000)
    return make_pipeline(StandardScaler(), model).fit(x, y)


def _learnt(make: Fit, held: Sequence[Sequence[ClientData]], pooled: bool) -> Hits:
    """Return the right answers of a classifier of scikit-learn, of each site's samples or of all."""
    hits: Hits = {}
    for clients in held:
        everything = [(_flat(c), c.train.y.numpy()) for c in clients if len(c.train)]
        together = _fitted(make, *map(np.concatenate, zip(*everything, strict=True))) if pooled else None
        for client in clients:
            learnt = together or _fitted(make, _flat(client), client.train.y.numpy())
            x, y = _flat(client, test=True), client.test.y.numpy()
            right = (learnt(x) == y) if len(y) else np.zeros(0)
            hits.setdefault(client.name, []).append(right.astype(np.float64))
    return hits


def _flat(client: ClientData, test: bool = False) -> NDArray[np.float64]:
    samples = client.test if test else client.train
    x: NDArray[np.float64] = samples.x.cpu().flatten(1).double().numpy()
    return x / 255 if samples.x.dtype.itemsize == 1 else x


def _fitted(
    make: Fit, x: NDArray[np.float64], y: NDArray[np.int64]
) -> Callable[[NDArray[np.float64]], NDArray[np.int64]]:
    """Return a function that classifies samples; of samples of a single class, it always answers that class."""
    classes = np.unique(y)
    if len(classes) < 2:
        only = classes[0] if len(classes) else -1
        return lambda samples: np.full(len(samples), only)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a limit of iterations was reached
        model = make(x, y)
    return lambda samples: np.asarray(model.predict(samples))
