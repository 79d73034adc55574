"""Attacks on membership: whether a sample was used for training, by the number of samples of its class.

Several attacks are fitted on a shadow federation; the one that is strongest there is judged on the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.compute.seeding import generator
from protofed.engine import Samples
from protofed.models import SplitModel
from protofed.visits.batches import batches
from protofed_lab.audit.attacks import INFORMED, SERVER, network, public, strangers
from protofed_lab.audit.findings import Finding
from protofed_lab.audit.measures import Logistic, auc, auc_error, caught
from protofed_lab.audit.seen import Rows, Seen, Sender

SIZES = ((1, 3), (4, 10), (11, 30), (31, math.inf))
"""Ranges of the number of samples of a class by which results are told."""
FEW = 30  #: Number of samples on either side below which a range is said to be small
FOLDS = 5
PUBLIC = 2000  #: Most public samples from which the distribution of features is estimated
SHRINKAGE = 0.03  #: Share of a multiple of the identity in the covariance of features
SLACK = 0.02
"""Variance of a prototype, relative to that of a mean, that rounding and augmentation add to what is sent."""

Look = Callable[[Sender], SplitModel | None]


@dataclass(frozen=True)
class Observed:
    """An attacker's observations of samples of the clients' classes, with the truth."""

    figures: Tensor  #: ``(n, p)`` figures that may tell training samples from others; see :func:`_figures`
    ratio: Tensor  #: ``(n,)`` logarithms of :func:`likelihood_ratio`; 0 where the upload has no prototype
    member: Tensor  #: ``(n,)`` bool: training samples
    size: Tensor  #: ``(n,)`` training samples of its class at its client
    client: Tensor  #: ``(n,)`` number of its client

    def __getitem__(self, chosen: Tensor) -> Observed:
        return Observed(*(getattr(self, f.name)[chosen] for f in fields(self)))


def membership(seen: Seen, shadow: Seen) -> list[Finding]:
    """Tell training samples from others of the same client and classes."""

    def through(models: dict[str, SplitModel]) -> Look:
        return lambda sender: network(sender, models[sender.name])[0] if sender.name in models else None

    def attacked(look: Look, look_there: Look, *, upload: bool = True) -> tuple[Observed, Observed]:
        return observed(shadow, shadow, look_there, upload=upload), observed(seen, shadow, look, upload=upload)

    own: Look = attrgetter("model")
    unknown = strangers(seen, shadow)
    found = _findings(SERVER, *attacked(through(unknown), through(strangers(shadow, shadow))))
    if any(network(s, unknown[s.name])[1] for s in seen.senders if s.name in unknown):
        return found  # the upload is the model
    alone = {f.key: f.value for f in _findings(INFORMED, *attacked(own, own, upload=False))}
    return [*found, *_findings(INFORMED, *attacked(own, own), alone)]


# What is observed.


def observed(seen: Seen, shadow: Seen, look: Look, *, upload: bool = True) -> Observed:
    """Observe all clients' training samples, and their other samples of the same classes.

    Args:
        look: The network that the attacker looks through; None leaves a client out.
        upload: Compare uploads with samples.
    """
    K = seen.num_classes
    counts = {s.name: s.train.counts(K) for s in seen.senders}
    reporters = sum(((n > 0).long() for n in counts.values()), torch.zeros(K, dtype=torch.int64))
    parts = []
    for number, sender in enumerate(seen.senders):
        model, held, others = look(sender), counts[sender.name], sender.others
        if model is None:
            continue
        known = held[others.y] > 0
        x, y = torch.cat([sender.train.x, others.x[known]]), torch.cat([sender.train.y, others.y[known]])
        member = torch.arange(len(y)) < len(sender.train)
        samples, sent = Samples(x, y), sender.rows if upload else ()
        # In a mean over the clients, a sample weighs as if each of them had as many.
        share = held * reporters if seen.summed else held
        ratio = _ratio(samples, model, sent, share, public(shadow, sender.name, PUBLIC), K)
        figures = _figures(samples, model, sent)
        parts.append(Observed(figures, ratio, member, held[y], torch.full_like(y, number)))
    if not parts:
        nothing = torch.zeros(0)
        return Observed(torch.zeros(0, 2), nothing, nothing > 0, nothing.long(), nothing.long())
    return Observed(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(Observed)))


def outputs(model: SplitModel, samples: Samples) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``(n, d)`` features, ``(n, K)`` logits and ``(n, D)`` normalised inputs of samples, in float64."""
    with torch.no_grad():
        found = [(model(batch.x), batch.x.flatten(1)) for batch in batches(samples, model)]
    parts = ([o.features for o, _ in found], [o.logits for o, _ in found], [x for _, x in found])
    features, logits, raw = (torch.cat(part).double() for part in parts)
    return features, logits, raw


def _view(rows: Rows, features: Tensor, logits: Tensor, raw: Tensor) -> Tensor | None:
    """Return that of the outputs of which vectors of an upload are means; None if it is none of them."""
    values, width = rows.values.double(), rows.values.shape[1]
    if width == features.shape[1]:
        lengths = values.norm(dim=1)
        unit = len(values) > 0 and bool(((lengths - 1).abs() < 1e-3).logical_or(lengths == 0).all())
        return F.normalize(features, dim=1) if unit else features
    if width == logits.shape[1]:
        shares = len(values) > 0 and bool((values >= 0).all() and ((values.sum(1) - 1).abs() < 1e-2).all())
        return logits.softmax(1) if shares else logits
    return raw if width == raw.shape[1] else None


def _figures(samples: Samples, model: SplitModel, sent: tuple[Rows, ...]) -> Tensor:
    """Return figures by which training samples may differ from others.

    They are the negative cross-entropy and the margin of the network, and for each kind of vectors the negative
    distance and the cosine to the nearest one of the sample's class.
    """
    features, logits, raw = outputs(model, samples)
    own = logits.gather(1, samples.y.unsqueeze(1)).squeeze(1)
    rivals = logits.scatter(1, samples.y.unsqueeze(1), -math.inf).amax(1)
    columns = [own - logits.logsumexp(1), own - rivals]
    for rows in sent:
        distance, cosine = torch.zeros(2, len(samples), dtype=torch.float64)
        view = _view(rows, features, logits, raw)
        for label in samples.y.unique().tolist() if view is not None else ():
            mine, near = samples.y == label, rows.values[rows.classes == label].double()
            if len(near) and bool(near.any()):
                assert view is not None
                # Of entries that are never sent, nothing is known.
                x = view[mine].unsqueeze(1) * (near != 0)
                distance[mine] = -(x - near).norm(dim=2).amin(1)
                cosine[mine] = torch.cosine_similarity(x, near.unsqueeze(0), dim=2).amax(1)
        columns += [distance, cosine]
    return torch.stack(columns, 1)


def _ratio(
    samples: Samples, model: SplitModel, sent: tuple[Rows, ...], numbers: Tensor, known: Samples, num_classes: int
) -> Tensor:
    """Return :func:`likelihood_ratio` for the first vectors of an upload that the network yields; else zeros."""
    result = torch.zeros(len(samples), dtype=torch.float64)
    for rows in sent:
        x = _view(rows, *outputs(model, samples))
        if x is None:
            continue
        reference = _view(rows, *outputs(model, known))
        assert reference is not None
        means = reference.mean(0).repeat(num_classes, 1)
        for label in known.y.unique().tolist():
            means[label] = reference[known.y == label].mean(0)
        apart = reference - means[known.y]
        covariance = apart.mT @ apart / len(apart)
        even = torch.eye(len(covariance), dtype=torch.float64) * covariance.diagonal().mean().clamp(min=1e-12)
        covariance = (1 - SHRINKAGE) * covariance + SHRINKAGE * even
        for label in samples.y.unique().tolist():
            mine, near = samples.y == label, rows.values[rows.classes == label].double()
            if len(near) and bool(near.any()):
                if rows.sums:
                    near = near / numbers[label]
                number = max(1.0, float(numbers[label]) / len(near))
                result[mine] = likelihood_ratio(x[mine], near, number, means[label], covariance)
        return result
    return result


def likelihood_ratio(x: Tensor, prototypes: Tensor, number: float, mean: Tensor, covariance: Tensor) -> Tensor:
    """Return the ``(m,)`` log-likelihood ratios of a prototype with and without each of ``(m, d)`` samples.

    With features of normal distribution ``N(µ, Σ)``, the mean of n of them has ``N(µ, Σ/n)``, and if one of them is
    x, ``N(µ + (x − µ)/n, (n − 1)/n²·Σ)``: for n = 1 it is x. The ratio of such densities is Homer et al.'s question
    (2008) as Sankararaman et al. (2009) answer it for means of genotypes.

    Args:
        prototypes: ``(r, d)``; entries that are 0 for all were not sent. The most likely counts.
        mean: ``(d,)``, ``µ``.
        covariance: ``(d, d)``, ``Σ``.
    """
    sent = (prototypes != 0).any(0)
    root = torch.linalg.cholesky(covariance[sent][:, sent])
    x, p = (torch.linalg.solve_triangular(root, (t - mean)[:, sent].mT, upper=False).mT for t in (x, prototypes))
    inside, outside = (number - 1) / number**2 + SLACK / number, (1 + SLACK) / number
    apart = torch.cdist(x / number, p).square()
    gain: Tensor = p.square().sum(1) / outside - apart / inside + int(sent.sum()) * math.log(outside / inside)
    return gain.amax(1) / 2


# The attacks.


ATTACKS: dict[str, Callable[[Observed], Tensor] | None] = {
    "logistic regression": lambda o: o.figures,  # Shokri et al. (2017), with one shadow
    "likelihood ratio of the prototype": None,  # which the public samples have calibrated
    "logistic regression with the likelihood ratio": lambda o: torch.column_stack([o.figures, o.ratio.asinh()]),
}
"""Figures of a logistic regression; None for the likelihood ratio itself."""


def fit(name: str, known: Observed) -> Callable[[Observed], Tensor]:
    """Fit an attack where the truth is known; return its scores, which are higher for training samples."""
    figures = ATTACKS[name]
    if figures is None:
        return lambda wanted: wanted.ratio
    fitted = Logistic(figures(known), known.member)
    return lambda wanted: fitted(figures(wanted))


def strongest(known: Observed) -> str:
    """Return the attack with the largest AUC on clients of the shadow federation that it did not see."""
    if not bool(known.ratio.any()):
        return next(iter(ATTACKS))
    clients = known.client.unique()
    order = clients[torch.randperm(len(clients), generator=generator(0, "audit", "folds"))]

    def score(name: str) -> float:
        found = []
        for fold in range(min(FOLDS, len(clients))):
            inside = torch.isin(known.client, order[fold::FOLDS])
            rest, held_out = known[~inside], known[inside]
            if _both_kinds(rest) and _both_kinds(held_out):
                scores = fit(name, rest)(held_out)
                found.append(auc(scores[held_out.member], scores[~held_out.member]))
        return sum(found) / len(found) if found else 0.5

    return max(ATTACKS, key=score)


def _both_kinds(o: Observed) -> bool:
    return bool(o.member.any()) and not bool(o.member.all())


def _findings(
    observer: str, known: Observed, wanted: Observed, alone: dict[str, float | None] | None = None
) -> list[Finding]:
    """Fit the strongest attack where the truth is known, and judge it over all samples and by class size."""
    question = "Was a sample used for training?"
    key = "membership" if observer == SERVER else "membership_informed"
    if not (_both_kinds(known) and _both_kinds(wanted)):
        missing = "a client has no other samples of its classes to compare with"
        return [Finding(question, observer, "AUC", None, 0.5, note=missing, key=key)]
    name = strongest(known)
    scores = fit(name, known)(wanted)
    result = []
    for least, most in ((1, math.inf), *SIZES):
        everything = (least, most) == (1, math.inf)
        span = f"{least} or more" if most == math.inf else f"{least} to {most:.0f}"
        where, suffix = ("", "") if everything else (f", classes of {span} samples", f"_{least}")
        inside = (wanted.size >= least) & (wanted.size <= most)
        members, others = scores[inside & wanted.member], scores[inside & ~wanted.member]
        note = f"{len(members)} training samples, {len(others)} others; {name}"
        few = not everything and min(len(members), len(others)) < FEW
        note += "; too few for a close figure" if few else ""
        if not len(members) or not len(others):
            result.append(Finding(question, observer, f"AUC{where}", None, 0.5, None, note, f"{key}{suffix}"))
            continue
        value, rate = auc(members, others), caught(members, others)
        guess = (alone or {}).get(f"{key}{suffix}")
        # Of fewer than 100 others the threshold is the largest score, which 1 in m + 1 exceeds by chance.
        chance = 1 / (len(others) + 1)
        off = max(0.0099 / len(others), chance**2)
        spread = math.sqrt(max(rate * (1 - rate), 1e-4) / len(members) + off)
        error = auc_error(value, len(members), len(others))
        base, few_alarms = 0.5 if guess is None else guess, f"caught at 1 % false alarms{where}"
        result += [
            Finding(question, observer, f"AUC{where}", value, base, error, note, f"{key}{suffix}"),
            Finding(question, observer, few_alarms, rate, max(0.01, chance), spread, note, f"{key}_tpr{suffix}"),
        ]
    return result
