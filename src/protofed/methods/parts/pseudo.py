"""Pseudo-features: draws from the mixtures of all classes, which are sent as flat lists of components.

A list has for every component of every class its ``classes``, ``weights``, ``means`` and ``stds``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from protofed.methods.given import Batch, Local, Tensors
from protofed.prototypes.mixtures import Mixture, choose, fit_mixtures, fuse, gaussian, place, sample, shares, stack
from protofed.wire.schema import Field, Payload, Schema

VARIANCE_FLOOR = 1e-6
LEAST_STD = 0.5 * VARIANCE_FLOOR**0.5  #: On the wire; half of what clients fit, for rounding on the way
MOST_COMPONENTS = 2**20  #: In a message, however many clients there are


def schema(num_classes: int, d: int, most: int, **more: Field) -> Schema:
    """Return the schema of a list of at most so many components; 0 for as many as a message may have."""
    fields = {
        "classes": Field(("c",), "label", parameter=False, unique=False),
        "weights": Field(("c",), minimum=0.0),
        "means": Field(("c", "d")),
        "stds": Field(("c", "d"), minimum=LEAST_STD),
        **more,
    }
    return Schema(fields, num_classes, {"d": d}, {"c": min(most or MOST_COMPONENTS, MOST_COMPONENTS)})


def fit_local(local: Local, num_classes: int, components: int) -> Payload:
    """Return a list with a mixture of the features of each of a client's classes."""
    features, labels = local.features()
    mixtures = fit_mixtures(
        features,
        labels,
        num_classes,
        components,
        generator=local.generator("mixtures"),
        variance_floor=VARIANCE_FLOOR,
    )
    classes, places = (mixtures.weights > 0).nonzero(as_tuple=True)
    return {"classes": classes, **{n: part[classes, places] for n, part in mixtures._asdict().items()}}


def join_lists(lists: Iterable[Payload]) -> Tensors:
    """Return one list of all components; {} without any."""
    reported = [found for found in lists if len(found["classes"])]
    return {name: torch.cat([found[name] for found in reported]) for name in (reported or [{}])[0]}


def none(d: int, dtype: torch.dtype) -> Tensors:
    """Return a list without components."""
    reals = {"weights": torch.zeros(0, dtype=dtype), "means": torch.zeros(0, d, dtype=dtype)}
    return {"classes": torch.zeros(0, dtype=torch.int64), **reals, "stds": torch.zeros(0, d, dtype=dtype)}


def by_class(components: Tensors) -> dict[int, Mixture]:
    """Return the mixture of each class in a list; weights that are all 0 describe none."""
    if "means" not in components:
        return {}
    classes = components["classes"]
    mixtures = {
        int(label): Mixture(*(components[name][classes == label] for name in ("weights", "means", "stds")))
        for label in classes.unique()
    }
    return {label: mixture for label, mixture in mixtures.items() if bool((mixture.weights > 0).any())}


def _order_components(components: Tensors) -> dict[int, Mixture]:
    """Return the mixture of each class, its components in an order that does not depend on rounding.

    Rounding may decide which of two components of equal weight the server sends first, but not the draws.
    """
    found = {}
    for label, mixture in by_class(components).items():
        order = mixture.means.sum(-1).argsort()
        found[label] = Mixture(*(part[order] for part in mixture))
    return found


def fuse_components(held: Tensors, reported: Tensors, threshold: float) -> Tensors:
    """Return a list in which reported components, fused by class (Algorithm 1), replace those held.

    Without any, it is ``held`` itself.
    """
    if not reported:
        return held
    mixtures = by_class(held)
    for label, mixture in by_class(reported).items():
        mixtures[label] = fuse(mixture.weights, mixture.means, mixture.stds.square(), threshold)
    if not mixtures:
        return held
    labels = sorted(mixtures)
    classes = torch.cat([torch.full((len(mixtures[label].weights),), label) for label in labels])
    parts = {name: torch.cat([getattr(mixtures[n], name) for n in labels]) for name in Mixture._fields}
    return {"classes": classes, **parts}


def table(components: Tensors, K: int, d: int, dtype: torch.dtype) -> Tensors:
    """Return the mixtures of all K classes side by side, for a loss to draw from.

    Returns:
        ``known`` ``(K,)`` bool, the classes that have a mixture; of its c components at most the cumulative
        ``shares`` ``(K, c)``, ``means`` ``(K, c, d)`` and ``stds`` ``(K, c, d)``.
    """
    mixtures, zeros = _order_components(components), torch.zeros(1, d, dtype=dtype)
    if components:
        zeros = zeros.to(components["means"])
    nothing = Mixture(zeros.new_ones(1), zeros, zeros)
    all_classes = stack([mixtures.get(label, nothing) for label in range(K)])
    return {
        "known": torch.tensor([label in mixtures for label in range(K)]),
        "shares": shares(all_classes.weights).to(zeros),
        "means": all_classes.means,
        "stds": all_classes.stds,
    }


def draw_batch(received: Tensors, noise: Callable[[tuple[int, ...], Tensor], Tensor], r: int) -> Batch:
    """Draw r pseudo-features per class from a :func:`table`; without a mixture they are padding."""
    means = received["means"]
    K, _, d = means.shape
    chosen = choose(received["shares"], noise((K, r), means))
    features = place(means, received["stds"], chosen, gaussian(noise((K, r, d), means)))
    labels = torch.arange(K, device=features.device).repeat_interleave(r)
    return Batch(features.flatten(0, 1), labels, received["known"][labels].to(features.dtype))


def draw_once(local: Local, r: int, d: int) -> tuple[Tensor, Tensor]:
    """Draw r pseudo-features per class from a received list, and their labels."""
    like = next(local.model.parameters())
    x, y = [torch.zeros(0, d).to(like)], [torch.zeros(0, dtype=torch.int64, device=like.device)]
    for label, mixture in _order_components(local.received).items():
        x.append(sample(mixture, r, local.generator(f"pseudo-features {label}")).to(like))
        y.append(torch.full((r,), label, device=like.device))
    return torch.cat(x), torch.cat(y)
