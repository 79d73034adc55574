"""Figures of runs, by name.

Every figure is a function ``(runs, **options)`` that returns a Matplotlib figure; a new one is a function decorated
with ``@figure("name")`` in a module imported here.

Example:
    >>> sorted(figures)[:3]
    ['accuracy_bytes', 'accuracy_rounds', 'accuracy_rules']
"""

from protofed.analysis.figures import clients, curves, geometry
from protofed.analysis.figures.base import figure, figures, inline_svg, save_figure
from protofed.analysis.figures.clients import draw_split

__all__ = ["clients", "curves", "draw_split", "figure", "figures", "geometry", "inline_svg", "save_figure"]
