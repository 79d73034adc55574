"""The worth of joining to each site: a closed form of all samples against that of its own, after one round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofed.config.schema import Recipe, Tree, apply_overrides, load_recipe, resolve
from protofed.errors import ConfigError
from protofed.experiments.comparing import Comparison
from protofed.experiments.loading import load_data
from protofed.models.encoders import EncoderOptions, encoded_width
from protofed.runs.rules import GLOBAL_MODEL, HEAD
from protofed.runs.run import Run
from protofed.storage.files import write_json
from protofed.trained.curves import FAR, SHARES, Curves, curves, missed, multiple
from protofed.trained.metrics import answers
from protofed.trained.paired import Sampled, same_tests, two_level

TOGETHER, ALONE = "fedlda", "local_lda"
FILE = "worth.json"
RULE = HEAD.name
"""Inference rule by which sites are compared: over their own classes, with their own frequencies."""
DIM = 512
"""Most features per sample, unless the recipe says otherwise."""
FEW = 30
"""Test samples below which a difference of a few points is chance."""
OFF = 0.03
"""Largest error of a curve through half of the samples, at all of them, with which it is extrapolated."""
MANY = 200
"""Sites beyond which there are no learning curves, which would take long."""
_SHOWN = 5


@dataclass(frozen=True)
class SiteWorth:
    """The worth of joining to one site.

    Attributes:
        samples: For training.
        tested: Test samples, with the first seed.
        classes: Among its training samples.
        lacks: Classes that only others have training samples of.
        alone: Accuracy on its own test samples with its own samples, mean over seeds.
        together: Accuracy with the samples of all sites.
        gain: ``together - alone`` with the ends of its 95 % interval over test samples and seeds.
        everywhere: Accuracy on the test samples of all sites, alone and together.
        curves: Accuracy against shares of samples, mean over seeds; None beyond :data:`MANY` sites.
        times: Multiple of its samples with which it would be as accurate alone, by its curve; infinite if more
            than :data:`~protofed.trained.curves.FAR`, NaN where no gain is seen, test samples are few or its curve
            is off by more than :data:`OFF`.
    """

    name: str
    samples: int
    tested: int
    classes: int
    lacks: tuple[str, ...]
    alone: float
    together: float
    gain: tuple[float, float, float]
    everywhere: tuple[float, float]
    curves: Curves | None
    times: float
    advice: str


@dataclass(frozen=True)
class Worth:
    """The worth of joining to the sites of a federation.

    Attributes:
        gain: Mean gain over the test samples of all sites, each scored by its own classifier, with the ends of its
            95 % interval, as :attr:`SiteWorth.gain`.
        curves: As :attr:`SiteWorth.curves`, mean over the test samples of all sites.
        times: As :attr:`SiteWorth.times`, of these curves.
        missed: Accuracy at all samples by the curve through a half of them and fewer, minus the true one.
        sent: Bytes that a site sends, mean over sites and seeds.
        seconds: Seconds of the run of all sites in one process, without the features, mean over seeds.
    """

    sites: tuple[SiteWorth, ...]
    gain: tuple[float, float, float]
    curves: Curves | None
    times: float
    missed: float
    seeds: tuple[int, ...]
    sent: float
    seconds: float
    revealed: str
    directory: Path

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; shares are between 0 and 1, and None without test samples."""
        fields = asdict(self, dict_factory=lambda items: {name: _known(value) for name, value in items})
        more = {"shares": list(SHARES), "prediction": self.prediction, "directory": str(self.directory)}
        return {**fields, **more}

    @property
    def page(self) -> Path:
        """Path of the HTML page."""
        return self.directory / "worth.html"

    @property
    def prediction(self) -> str:
        """The learning curve of all sites in one sentence; "" if there is none or no gain is seen."""
        if np.isnan(self.times):
            return ""
        return (
            f"To be as accurate alone, sites would need {_times(self.times)} samples, by a power law that misses "
            f"the accuracy with all samples by {100 * self.missed:+.1f} points if it is fitted to half of them."
        )


def recipe_of(source: Recipe) -> Tree:
    """Return the recipe to measure: a folder of data, or a recipe."""
    if not isinstance(source, Mapping):
        path = Path(source).expanduser()
        if path.is_dir():
            return {"recipe": "worth", "data": {"source": "path", "path": str(path.resolve())}}
        if path.name != str(source) and path.suffix != ".toml":
            raise ConfigError(
                f"{source}: no such folder: name a folder of data, or a recipe (protofed list recipes)"
            )
    return {name: value for name, value in load_recipe(source).items() if name not in ("compare", "methods")}


def overrides_of(tree: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides that make a recipe one of the closed form, unless it or the user says otherwise."""
    chosen = {"evaluation.on": "union", "rounds": 1, "method.name": TOGETHER, **given}
    named = given.keys() & {"encoder.name", "model.name", "model.members"}
    if not tree.get("encoder", {}).get("name") and not named:
        chosen["encoder.name"] = "auto"
    experiment = resolve(apply_overrides(tree, chosen))
    encoder = experiment.encoder
    if encoder.name and not encoder.dim:
        data = load_data(replace(experiment, encoder=EncoderOptions()))
        if encoded_width(encoder, data.input_shape, data.table.texts if data.table else ()) > DIM:
            chosen["encoder.dim"] = DIM
    return chosen


def measure(comparison: Comparison[Any], runs: Sequence[Run]) -> Worth:
    """Return the worth of joining, by :data:`TOGETHER` and :data:`ALONE`, and write it beside the runs."""
    of = {name: {r.seed: r for r in runs if r.method == name and r.finished} for name in (TOGETHER, ALONE)}
    seeds = tuple(sorted(of[TOGETHER].keys() & of[ALONE].keys()))
    if not seeds:
        raise ConfigError(
            f"{comparison.directory}: needs finished runs of {TOGETHER} and {ALONE} with the same seed"
        )
    hits = {name: [_hits(of[name][seed]) for seed in seeds] for name in of}
    everywhere = {name: [_everywhere(of[name][seed]) for seed in seeds] for name in of}
    first = of[TOGETHER][seeds[0]]
    held = np.array([client.train for client in first.clients])
    drawn = [_curves(of[TOGETHER][seed]) for seed in seeds]
    together = [of[TOGETHER][seed] for seed in seeds]
    same = same_tests(together)
    sites: list[SiteWorth] = []
    every: list[list[NDArray[np.float64]]] = []
    for place, client in enumerate(first.clients):
        both = [(t[client.name], a[client.name]) for t, a in zip(hits[TOGETHER], hits[ALONE], strict=True)]
        every.append([t - a for t, a in both])
        gain = interval(every[-1], same)
        own = held[place] > 0
        lacks = tuple(first.class_names[k] for k in np.flatnonzero(~own & (held.sum(0) > 0)))
        wide = (_mean([e[place] for e in everywhere[ALONE]]), _mean([e[place] for e in everywhere[TOGETHER]]))
        tested = len(both[0][0])
        curve = _averaged([d[place] for d in drawn], [len(t) > 0 for t, _ in both]) if all(drawn) else None
        times = _needed(curve, gain) if sum(len(t) for t, _ in both) >= FEW else float("nan")
        sites.append(
            SiteWorth(
                client.name,
                int(held[place].sum()),
                tested,
                int(own.sum()),
                lacks,
                _mean([float(a.mean()) for _, a in both if len(a)]),
                _mean([float(t.mean()) for t, _ in both if len(t)]),
                gain,
                wide,
                curve,
                times,
                advice(gain, tested, lacks, wide, times),
            )
        )
    gain = interval([np.concatenate(parts) for parts in zip(*every, strict=True)], same)
    tests = [len(d) for differences in zip(*every, strict=True) for d in differences]
    curve = _averaged([c for d in drawn for c in d], tests) if all(drawn) else None
    worth = Worth(
        tuple(sites),
        gain,
        curve,
        _needed(curve, gain),
        missed(SHARES, curve.alone) if curve else float("nan"),
        seeds,
        _mean([sum(r.bytes["up"] for r in run.rounds) / len(run.clients) for run in together]),
        _mean([sum(r.seconds["total"] for r in run.rounds) for run in together]),
        revealed(held),
        comparison.directory,
    )
    write_json(comparison.directory / FILE, worth.to_dict())
    return worth


def interval(
    differences: Sequence[NDArray[np.float64]], same: bool = False, level: float = 0.95
) -> tuple[float, float, float]:
    """Return a mean difference and its interval over test samples and seeds.

    Args:
        differences: ``(n,)`` differences of hits (-1, 0, 1) for the test samples of each seed; may be empty.
    """
    known = [Sampled.difference(len(d), float(d.sum()), float(np.abs(d).sum())) for d in differences if len(d)]
    if not known:
        return (float("nan"), float("nan"), float("nan"))
    mean, low, high = two_level(known, level, same=same)
    return mean / 100, max(low / 100, -1.0), min(high / 100, 1.0)


def advice(
    gain: tuple[float, float, float],
    tested: int,
    lacks: Sequence[str],
    everywhere: tuple[float, float],
    times: float = float("nan"),
) -> str:
    """Return a recommendation in one sentence.

    Args:
        times: Multiple of its samples that the gain is worth, if known.
    """
    mean, low, high = (100 * value for value in gain)
    more = f"{100 * (everywhere[1] - everywhere[0]):+.0f} points on the samples of all sites"
    few = ", ".join(lacks[:_SHOWN]) + ", …" * (len(lacks) > _SHOWN)
    if not tested:
        return "Set test samples aside: without any, nothing can be said."
    if low > 0:
        worth = "" if np.isnan(times) else f", for which you would need {_times(times)} samples alone"
        return f"Join: {mean:+.1f} points on your own test samples{worth}."
    if high < 0:
        return f"Stay alone, unless you expect other classes: joining costs {-mean:.1f} points on your own samples."
    if lacks:
        return f"Join if you expect {few}: {more}; for your own classes no gain is seen."
    if tested < FEW:
        return f"Not decided: {tested} test samples are too few to see a gain."
    return f"No gain is seen for your own samples, and {more}."


def revealed(held: NDArray[np.int64]) -> str:
    """Return in one sentence what a site's sums reveal, given ``(M, K)`` training samples."""
    single = int(((held > 0) & (held <= 3)).sum())
    told = "each site's class means, numbers of samples and second moment of its features, once"
    return f"Revealed: {told}; {single} class means are of one to three samples, and nearly samples themselves."


def _curves(run: Run) -> list[Curves]:
    """Return the learning curves of all sites; none of many sites."""
    if len(run.clients) > MANY:
        return []
    experiment = resolve(run.config)
    return curves(load_data(experiment), experiment.method_options, run.seed)


def _averaged(drawn: Sequence[Curves], weights: Sequence[int]) -> Curves | None:
    """Return the weighted mean of some curves; None if all weights are 0."""
    chosen = np.array(weights) > 0
    if not chosen.any():
        return None
    values = np.average(np.array(drawn)[chosen], axis=0, weights=np.array(weights)[chosen])
    return Curves(*(tuple(map(float, line)) for line in values))


def _needed(curve: Curves | None, gain: tuple[float, float, float]) -> float:
    """Return the multiple of samples that a gain is worth; NaN if none is seen, or the curve does not tell."""
    told = curve and gain[1] > 0 and abs(missed(SHARES, curve.alone)) <= OFF
    return multiple(curve.alone, curve.together[-1]) if curve and told else float("nan")


def _times(times: float) -> str:
    return f"more than {FAR:.0f} times as many" if np.isinf(times) else f"perhaps {times:.2g} times as many"


def _hits(run: Run) -> dict[str, NDArray[np.float64]]:
    """Return for each client which of its test samples are classified rightly, ``(n,)`` of 0 and 1."""
    return {name: own.right.astype(np.float64) for name, own in answers(run, RULE).items()}


def _everywhere(run: Run) -> list[float]:
    """Return each client's accuracy on the test samples of all, by the rule on all classes if there is one."""
    union = run.rounds[-1].union
    if union is None:
        raise ConfigError(f"{run.directory}: has no scores on all test samples: set evaluation.on=union")
    rule = next(rule for rule in (GLOBAL_MODEL.name, RULE) if rule in union.clients)
    return [float("nan") if value is None else value for value in union.clients[rule]]


def _known(value: Any) -> Any:
    """Return a value with None in place of NaN and infinity, which JSON does not have."""
    if isinstance(value, Curves):
        return {name: _known(line) for name, line in value._asdict().items()}
    if isinstance(value, tuple):
        return [_known(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else float("nan")
