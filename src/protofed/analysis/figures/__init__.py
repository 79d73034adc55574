"""Figures of runs, by name.

Every figure is a function ``(runs, **options)`` that returns a Matplotlib figure; a new one is a function decorated
with ``@figure("name")`` in a module imported here.

Example:
    >>> sorted(figures)[:3]
    ['accuracy_bytes', 'accuracy_rounds', 'accuracy_rules']
"""

from protofed.analysis.figures import (  # noqa: F401  (each registers its figures)
    clients,
    confusion,
    curves,
    embedding,
    geometry,
    heatmap,
    plane,
    sensitivity,
    sites,
)
from protofed.analysis.figures.base import figure, figures
from protofed.analysis.figures.clients import draw_split
from protofed.analysis.figures.options import draw_figure, figure_rows
from protofed.analysis.figures.saving import inline_svg, save_figure

__all__ = ["draw_figure", "draw_split", "figure", "figure_rows", "figures", "inline_svg", "save_figure"]
