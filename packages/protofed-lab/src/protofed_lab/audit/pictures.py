"""Inputs made from uploads by optimisation, beside the training samples that they resemble most."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.compute.seeding import generator
from protofed.engine import Samples
from protofed.models import SplitModel
from protofed.visits.batches import normalise
from protofed_lab.audit.attacks import INFORMED, SERVER, network, public, strangers
from protofed_lab.audit.findings import Finding, Reconstruction
from protofed_lab.audit.measures import similarity
from protofed_lab.audit.seen import Seen, Sender

QUESTION = "What do a class's samples look like?"
MEASURE = "SSIM with the nearest training sample"
STEPS = 100
RATE = 0.03
CLIENTS, EACH = 3, 3  #: Clients that are attacked, those with the most samples; and classes of each, the largest
SMOOTH = 0.05  #: Weight of the total variation


def reconstruct(
    seen: Seen, shadow: Seen, class_names: Sequence[str], seed: int
) -> tuple[list[Finding], list[Reconstruction]]:
    """Make typical inputs of clients' largest classes from their uploads (Fredrikson et al. 2015).

    Args:
        seed: Of the optimisation's start.

    Returns:
        Findings through a stranger's model and through the sender's, and the pictures of the latter, if any.
    """
    unknown = strangers(seen, shadow)
    targets = sorted((s for s in seen.senders if s.name in unknown), key=lambda s: -len(s.train))[:CLIENTS]
    found: list[Finding] = []
    pictures: list[Reconstruction] = []
    for observer in (SERVER, INFORMED):
        made = []
        for sender in targets:
            stranger = sender.model if observer == INFORMED else unknown[sender.name]
            model, whole = network(sender, stranger)
            labels = sender.train.counts(seen.num_classes).argsort(descending=True, stable=True)[:EACH]
            labels = labels[sender.train.counts(seen.num_classes)[labels] > 0]
            goal = None if whole else _goal(sender, labels, model)
            if (not whole and goal is None) or (whole and observer == INFORMED):  # the upload is the model
                continue
            known = public(shadow, sender.name)
            images = optimise(model, labels, goal, known, generator(seed, "audit", sender.name))
            made += _judge(sender, labels, images, known, class_names)
        if made:
            pictures = made
            gains = [p.similarity - p.baseline for p in made]
            error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else None
            near, guess = (statistics.fmean(getattr(p, n) for p in made) for n in ("similarity", "baseline"))
            note = f"{len(made)} classes of {len(targets)} clients; the guess is the mean of public samples"
            key = "reconstruction" if observer == SERVER else "reconstruction_informed"
            found.append(Finding(QUESTION, observer, MEASURE, near, guess, error, note, key))
    if not found:
        nothing = "the upload holds no vectors that a model yields, and not a whole model"
        found.append(Finding(QUESTION, SERVER, MEASURE, None, note=nothing, key="reconstruction"))
    return found, pictures


def _goal(sender: Sender, labels: Tensor, model: SplitModel) -> tuple[str, Tensor] | None:
    """Return the model's output that an upload describes, and its ``(n, width)`` values of some classes."""
    for rows in sender.rows:
        kind = {model.feature_dim: "features", model.num_classes: "logits"}.get(rows.values.shape[1])
        if kind:
            mean = [rows.values[rows.classes == label].mean(0) for label in labels.tolist()]
            return kind, torch.stack(mean).nan_to_num()
    return None


def _mean(public: Samples, label: int, dtype: torch.dtype) -> Tensor:
    """Return the mean of the public samples of a class, or of all where there are none."""
    alike = public.x[public.y == label]
    return normalise(alike if len(alike) else public.x, dtype).mean(0)


def optimise(
    model: SplitModel, labels: Tensor, goal: tuple[str, Tensor] | None, public: Samples, random: torch.Generator
) -> Tensor:
    """Return ``(n, *input_shape)`` inputs with the outputs of an upload, starting from public class means.

    Args:
        labels: ``(n,)`` classes to make.
        goal: Output of the network and ``(n, width)`` values that it should have, up to their length; None to make
            the class as certain as possible.
        public: Tell the range of inputs.
    """
    dtype = next(model.parameters()).dtype
    known = normalise(public.x[:512], dtype)
    low, high = float(known.min()), float(known.max())
    start = torch.stack([_mean(public, label, dtype) for label in labels.tolist()])
    noise = 0.1 * torch.randn(start.shape, generator=random)
    free = (((start - low) / (high - low)).clamp(0.02, 0.98).logit() + noise.to(dtype)).requires_grad_(True)
    optimizer = torch.optim.Adam([free], lr=RATE)
    for _ in range(STEPS):
        x = low + (high - low) * torch.sigmoid(free)
        output = model(x)
        if goal is None:
            loss = F.cross_entropy(output.logits, labels, reduction="sum")
        else:
            kind, wanted = goal
            reached = getattr(output, kind) * (wanted != 0)  # of entries that are never sent, nothing is known
            loss = (1 - torch.cosine_similarity(reached, wanted, dim=1)).sum()
        if x.dim() == 4:
            rough = (x.diff(dim=2).abs().mean((1, 2, 3)) + x.diff(dim=3).abs().mean((1, 2, 3))).sum()
            loss = loss + SMOOTH * rough
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return (low + (high - low) * torch.sigmoid(free)).detach()


def _judge(
    sender: Sender, labels: Tensor, images: Tensor, public: Samples, class_names: Sequence[str]
) -> list[Reconstruction]:
    known = normalise(public.x, images.dtype)
    low, high = known.min(), known.max()

    def shown(x: Tensor) -> Tensor:
        return ((x - low) / (high - low).clamp(min=1e-9)).clamp(0, 1)

    result = []
    for label, image in zip(labels.tolist(), images, strict=True):
        own = shown(normalise(sender.train.x[sender.train.y == label], images.dtype))
        guess = shown(_mean(public, label, images.dtype))
        found = shown(image)
        near, near_guess = (similarity(t.expand_as(own), own) for t in (found, guess))
        nearest, name = own[int(near.argmax())], str(class_names[label])
        reached = float(near.max()), float(near_guess.max())
        result.append(Reconstruction(sender.name, name, found, nearest, guess, *reached))
    return result
