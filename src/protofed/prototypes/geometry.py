"""Distances, angles and margins between prototypes, for the diagnostics of a round."""

from __future__ import annotations

import torch
from torch import Tensor

from protofed.errors import ConfigError


def require_vectors(name: str, tensor: Tensor) -> None:
    """Require a ``(rows, d)`` matrix of finite floating-point rows, ``d > 0``; ``name`` is for the ConfigError."""
    if tensor.dim() != 2 or tensor.shape[1] == 0 or not tensor.is_floating_point():
        raise ConfigError(
            f"{name}: expected a floating-point matrix (rows, d), got {tensor.dtype} of shape {tuple(tensor.shape)}"
        )
    if not bool(tensor.isfinite().all()):
        rows = int((~tensor.isfinite()).any(1).sum())
        raise ConfigError(f"{name}: {rows} of {len(tensor)} rows hold NaN or infinite values; leave them out")


def working(tensor: Tensor) -> Tensor:
    """Return ``tensor`` in a dtype that is accurate enough for sums of products: float64 as it is, else float32."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def exact(tensor: Tensor) -> Tensor:
    """Return ``tensor`` detached and in float64, on its device or, where that has no float64 (MPS), on the CPU."""
    return tensor.detach().to("cpu" if tensor.device.type == "mps" else tensor.device, torch.float64)


def unit_vectors(vectors: Tensor) -> Tensor:
    """Return the rows of ``(K, d)`` scaled to length 1, however small or large they are; zero rows stay zero."""
    # Dividing by the largest entry first keeps tiny and huge rows from under- or overflowing when squared.
    vectors = vectors / _or_one(vectors.abs().amax(1, keepdim=True))
    return vectors / _or_one(vectors.norm(dim=1, keepdim=True))


def pairwise_distances(prototypes: Tensor, others: Tensor | None = None) -> Tensor:
    """Return the ``(K, L)`` Euclidean distances between the rows of one matrix and those of another, or its own.

    Distances come from differences, not from ``‖a‖² + ‖b‖² − 2ab``, so near-equal rows keep their digits.
    Differentiable, with gradient 0 (not NaN) between equal rows.
    """
    left = working(prototypes)
    right = left if others is None else working(others)
    return torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")


def pairwise_cosines(prototypes: Tensor) -> Tensor:
    """Return the ``(K, K)`` cosines between the rows of ``(K, d)``; a zero row has cosine 0 with every row."""
    units = unit_vectors(working(prototypes))
    return (units @ units.T).clamp(-1.0, 1.0)


def margins(prototypes: Tensor, present: Tensor | None = None) -> Tensor:
    """Return each class's distance to the nearest other one (ProtoNorm Sec. 6.1); 0 for absent classes."""
    distances = pairwise_distances(prototypes)
    if present is not None:
        absent = ~present
        distances = distances.masked_fill(absent.unsqueeze(0) | absent.unsqueeze(1), torch.inf)
    return _nearest(distances)


def normalise_margins(prototypes: Tensor, present: Tensor | None = None) -> Tensor:
    """Return :func:`margins` divided by the largest of them (ProtoNorm Fig. 5), all 0 if all margins are."""
    values = margins(prototypes, present)
    return values / _or_one(values.amax()) if len(values) else values


def summary(prototypes: Tensor, present: Tensor | None = None) -> dict[str, float]:
    """Return the geometry of the ``present`` rows of one set of prototypes as plain numbers.

    Angles are in degrees, margins normalised. Always finite: with fewer than two classes all figures of pairs are
    0.
    """
    kept = prototypes.detach() if present is None else prototypes.detach()[present]
    require_vectors("prototypes", kept)
    kept = exact(kept)
    first, second = torch.triu_indices(len(kept), len(kept), offset=1, device=kept.device)
    distances = pairwise_distances(kept)
    angles = torch.rad2deg(torch.arccos(pairwise_cosines(kept)))
    nearest = _nearest(distances)
    largest = float(nearest.max()) if len(kept) else 0.0

    def spread(name: str, values: Tensor) -> dict[str, float]:
        if not values.numel():
            return {f"{name}_min": 0.0, f"{name}_mean": 0.0, f"{name}_max": 0.0}
        low, high = values.aminmax()
        return {f"{name}_min": float(low), f"{name}_mean": float(values.mean()), f"{name}_max": float(high)}

    return {
        "classes": float(len(kept)),
        **spread("distance", distances[first, second]),
        **spread("angle", angles[first, second]),
        "margin_min": float(nearest.min()) / largest if largest else 0.0,
        "margin_mean": float(nearest.mean()) / largest if largest else 0.0,
        "norm_mean": float(kept.norm(dim=1).mean()) if len(kept) else 0.0,
    }


def _or_one(scale: Tensor) -> Tensor:
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def _nearest(distances: Tensor) -> Tensor:
    """Return each row's smallest entry off the diagonal; 0 where there is none or it is infinite."""
    if not len(distances):
        return distances.new_zeros(0)
    itself = torch.eye(len(distances), dtype=torch.bool, device=distances.device)
    nearest = distances.masked_fill(itself, torch.inf).amin(1)
    return nearest.masked_fill(nearest.isinf(), 0.0)
