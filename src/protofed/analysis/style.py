"""One look for all figures."""

from __future__ import annotations

import hashlib
import itertools
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from protofed.runs.rules import COLOURS, Rule

# Okabe and Ito's palette, which colour-blind readers can tell apart. Its yellow is too faint for lines on white:
# grey takes its place.
BLACK, GREY = "#000000", "#7A7A7A"
ORANGE, SKY, GREEN, BLUE = "#E69F00", "#56B4E9", "#009E73", "#0072B2"
VERMILLION, PURPLE = "#D55E00", "#CC79A7"
PALETTE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, GREY, BLACK)
MARKERS = ("o", "^", "s", "D", "v", "P", "X", "<", ">", "p", "h")
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.6), (1.2, 1.4), (6, 1.6, 1.2, 1.6))

INK, FAINT = "#24292F", "#E3E6EA"
THEME: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.5,
    "axes.labelsize": 9.5,
    "axes.titlesize": 9.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.edgecolor": "#8A929B",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "xtick.color": "#8A929B",
    "ytick.color": "#8A929B",
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.7,
    "lines.markersize": 4.5,
    "lines.markeredgewidth": 0.0,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "figure.facecolor": "white",
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "svg.fonttype": "path",
    "svg.hashsalt": "protofed",
    "text.parse_math": False,
}


@contextmanager
def theme() -> Iterator[None]:
    """Make or save figures in the theme."""
    import matplotlib

    with matplotlib.rc_context(THEME), warnings.catch_warnings():  # type: ignore[arg-type]
        # Names may be of any script; a box stands for what the font lacks, and the tables have it.
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        yield


@dataclass(frozen=True)
class LineStyle:
    """The look of one method in every figure."""

    colour: str
    marker: str
    dashes: tuple[float, ...] = ()  #: Lengths of strokes and gaps in line widths; empty for a solid line

    def line(self) -> dict[str, Any]:
        """Return keyword arguments for ``Axes.plot``."""
        return {"color": self.colour, "marker": self.marker, "linestyle": (0, self.dashes) if self.dashes else "-"}


_SLOTS = [
    LineStyle(colour, MARKERS[(i + 3 * j + shift) % len(MARKERS)], dashes)
    for shift in range(len(MARKERS))
    for j, dashes in enumerate(DASHES)
    for i, colour in enumerate(PALETTE)
]
"""Styles in order of preference: all colours, then with other strokes, then with other markers."""
_SALT = 30146  #: Gives the methods that are compared most often colours of their own


def method_styles(labels: Iterable[str]) -> dict[str, LineStyle]:
    """Return a style per label: the same for a method wherever it is free, and no two alike within one figure.

    The first word of a label decides on its colour; variants (``fedlda-fixed``) begin with their method's.
    """
    names, n = list(dict.fromkeys(labels)), len(PALETTE)
    styles: dict[str, LineStyle] = {}
    for name in sorted(names):
        word = re.sub(r"[^a-z0-9]", "", re.split(r"[-, ]", name.lower())[0])
        first = hashlib.sha256(f"{_SALT}{word}".encode()).digest()[0] % n
        turned = (_SLOTS[i - i % n + (i + first) % n] for i in range(len(_SLOTS)))
        styles[name] = next((slot for slot in turned if slot not in styles.values()), _SLOTS[first])
    return {name: styles[name] for name in names}


def rule_colours(rules: Iterable[Rule]) -> dict[str, str]:
    """Return a colour per rule by its name: its own, or the next that no other of them has."""
    found = {rule.name: PALETTE[COLOURS.index(rule.colour)] if rule.colour else "" for rule in rules}
    free = itertools.chain((c for c in PALETTE if c not in found.values()), itertools.cycle(PALETTE))
    return {name: colour or next(free) for name, colour in found.items()}
