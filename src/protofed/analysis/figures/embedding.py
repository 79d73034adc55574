"""Test features and prototypes in one picture."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from protofed.analysis.figures.base import figure, panels, title_runs, write_title
from protofed.analysis.figures.classes import GLOBAL, LOCAL, SAMPLE, class_legend, class_styles, dots
from protofed.analysis.figures.geometry import final_prototypes
from protofed.errors import ConfigError, DataError
from protofed.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from torch import Tensor


KINDS: dict[str, dict[str, Any]] = {"test sample": SAMPLE, "local prototype": LOCAL, "global prototype": GLOBAL}
"""Label → look of its points; see :class:`Points`."""


class Points(NamedTuple):
    """Rows in the feature space of one run."""

    at: NDArray[Any]  #: ``(n, d)``
    labels: NDArray[Any]
    kinds: NDArray[Any]  #: Places in ``KINDS``: 0 a test sample, 1 a local prototype, 2 a global one


def points(run: Run, names: list[str], samples: int, seed: int, trust_code: bool = False) -> Points:
    """Return test features and local prototypes of some clients, and the global prototypes as clients use them."""
    import torch

    from protofed.analysis.restore import restore_features, restore_global

    if samples < 1:
        raise ConfigError(f"samples must be at least 1, not {samples}")
    features = restore_features(run, names, max(1, samples // max(1, len(names))), seed, trust_code)
    parts: list[tuple[Tensor, Tensor, int]] = [(c.features, c.labels, 0) for c in features]
    for name in names:
        own = final_prototypes(run, f"local.{name}")
        if own is not None:
            parts.append((*own.to_send(), 1))
    together = restore_global(run, final_prototypes(run, "global"))
    if together is not None:
        parts.append((*together.to_send(), 2))
    widths = {rows.shape[1] for rows, _, _ in parts if len(rows)}
    if len(widths) > 1:
        raise DataError(f"{run.directory}: clients differ in d ({', '.join(map(str, sorted(widths)))})")
    parts = [part for part in parts if len(part[0])]
    if not any(kind == 0 for _, _, kind in parts):
        raise DataError(f"{run.directory}: the clients shown have no test samples")
    at = torch.cat([rows.double() for rows, _, _ in parts])
    labels = torch.cat([labels for _, labels, _ in parts])
    kinds = torch.cat([torch.full((len(rows),), kind) for rows, _, kind in parts])
    # What has diverged has no place in a picture.
    known = at.isfinite().all(1)
    if not bool(known[kinds == 0].any()):
        raise DataError(f"{run.directory}: no test sample has finite features: the models have diverged")
    return Points(at[known].numpy(), labels[known].numpy(), kinds[known].numpy())


def choose_clients(run: Run, clients: int, seed: int) -> list[str]:
    """Draw clients that have test samples; return their names in the fixed order."""
    import numpy as np

    tested = [c.name for c in run.clients if sum(c.test)]
    if clients < 1:
        raise ConfigError(f"clients must be at least 1, not {clients}")
    if len(tested) <= clients:
        return tested
    order = np.random.default_rng(seed).permutation(len(tested))[:clients]
    return [tested[i] for i in sorted(order)]


def draw_points(ax: Axes, at: NDArray[Any], points: Points, K: int) -> None:
    """Draw, at ``(n, 2)`` places, test samples small, local prototypes larger, and global ones large, outlined."""
    # Few points may be larger.
    larger = 1.4 if (points.kinds == 0).sum() < 600 else 1.0
    for j, style in enumerate(class_styles(K)):
        for kind, look in enumerate(KINDS.values()):
            here = (points.labels == j) & (points.kinds == kind)
            if here.any():
                size = look["ms"] * (1.0 if kind else larger)
                edge = look.get("mec", "none")
                dots(ax, at[here], style, size=size, alpha=1.0 if kind else 0.55, edge=edge)


def points_legend(fig: Figure, ax: Axes, runs: list[Run], sets: Collection[Points]) -> None:
    """Add a legend of the classes and the kinds of points that occur."""
    names = max((run.class_names for run in runs), key=len)
    classes = sorted({int(j) for shown in sets for j in shown.labels})
    kinds = {label: KINDS[label] for i, label in enumerate(KINDS) if any((p.kinds == i).any() for p in sets)}
    class_legend(fig, ax, names, classes, kinds)


@figure("tsne")
def tsne(runs: list[Run], clients: int = 5, samples: int = 1000, seed: int = 0, trust_code: bool = False) -> Figure:
    """Test features of some clients with local and global prototypes in one t-SNE embedding per run.

    Options:
        clients: how many clients, drawn with the seed
        samples: at most so many test samples of all of them
        seed: decides on clients, samples and the embedding
        trust_code: import the code that a run's configuration names, if it names any
    """
    shown = {
        title: (run, points(run, choose_clients(run, clients, seed), samples, seed, trust_code))
        for title, run in title_runs(runs).items()
    }
    single = len(shown) == 1
    fig, axes = panels(len(shown), *((6.0, 5.0) if single else (4.0, 3.6)), columns=2 if len(shown) == 4 else 3)
    for ax, (title, (run, points_of_run)) in zip(axes, shown.items(), strict=True):
        draw_points(ax, _embed(run, points_of_run.at, seed), points_of_run, len(run.class_names))
        ax.set_xticks([])
        ax.set_yticks([])
        ax.spines[:].set_visible(True)
        ax.spines[:].set_color("#C9CFD6")
        ax.margins(0.04)
        if not single:
            write_title(ax, title)
    points_legend(fig, axes[0], runs, [p for _, p in shown.values()])
    return fig


def _embed(run: Run, at: NDArray[Any], seed: int) -> NDArray[Any]:
    """Return ``(n, 2)`` places; the same for the same points."""
    import numpy as np
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    # To unit size: what matters is which points are near each other, and large γ must not overflow.
    at = (at - at.mean(0)) / (np.abs(at - at.mean(0)).max() or 1.0)
    if len(np.unique(at, axis=0)) < 4:
        raise DataError(f"{run.directory}: fewer than 4 different points to embed")
    model = TSNE(
        perplexity=min(30.0, (len(at) - 1) / 3),
        init="pca" if at.shape[1] > 1 else "random",
        random_state=seed,
        learning_rate="auto",
    )
    # Several threads add up in an order of their own, and t-SNE magnifies the last digit.
    with threadpool_limits(1):
        places: NDArray[Any] = model.fit_transform(at.astype(np.float32))
    return places
