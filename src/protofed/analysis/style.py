"""One look for all figures."""

from __future__ import annotations

import itertools
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from protofed.runs import COLOURS, Rule

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
    """The look of one method in every figure.

    Attributes:
        colour: Hexadecimal.
        marker: For Matplotlib.
        dashes: Lengths of strokes and gaps in line widths; empty for a solid line.
    """

    colour: str
    marker: str
    dashes: tuple[float, ...] = ()

    def line(self) -> dict[str, Any]:
        """Return keyword arguments for ``Axes.plot``."""
        return {"color": self.colour, "marker": self.marker, "linestyle": (0, self.dashes) if self.dashes else "-"}


# Of more methods than colours some share one: not those that send nothing, whose strokes some charts make equal.
_KNOWN = {
    "fedproto": LineStyle(BLUE, "o"),
    "protonorm": LineStyle(VERMILLION, "D"),
    "fedtgp": LineStyle(GREEN, "s"),
    "tinyproto": LineStyle(ORANGE, "^"),
    "gfpl": LineStyle(PURPLE, "v"),
    "fedavg": LineStyle(SKY, "P"),
    "local": LineStyle(GREY, "X", DASHES[1]),
    "fixedetf": LineStyle(SKY, "p", DASHES[2]),
    "locallda": LineStyle(BLACK, "<", DASHES[3]),
    "fedlda": LineStyle(BLACK, "h"),
    "beacon": LineStyle(PURPLE, ">", DASHES[1]),
}
_SLOTS = [
    [
        LineStyle(colour, MARKERS[(i + 3 * j + shift) % len(MARKERS)], dashes)
        for j, dashes in enumerate(DASHES)
        for i, colour in enumerate(PALETTE)
    ]
    for shift in range(len(MARKERS))
]
"""Every colour with every kind of strokes, first with one marker each, then with the others in turn."""


def method_styles(labels: Iterable[str]) -> dict[str, LineStyle]:
    """Return a style per label: the same for a method in every figure, and no two alike within one figure.

    Well-known methods have a style of their own, which the first of their variants (``fedlda-fixed``) has without
    them. Any other takes a slot that follows from its name, or the next free one: of another colour or other
    strokes, and with more than 32 labels of another marker.
    """
    names = list(dict.fromkeys(labels))
    styles = {n: _KNOWN[_plain(n)] for n in names if _plain(n) in _KNOWN}
    taken = {(s.colour, s.dashes) for s in styles.values()}
    used = set(styles.values())
    for name in sorted(n for n in names if n not in styles):
        start = zlib.crc32(_plain(name).encode())
        first, *others = ([part[(start + i) % len(part)] for i in range(len(part))] for part in _SLOTS)
        own = _KNOWN.get(_plain(name.partition("-")[0]))
        free = [s for s in ([own] if own else []) + first if (s.colour, s.dashes) not in taken]
        free = free or [s for part in others for s in part if s not in used]
        styles[name] = (free or first)[0]
        taken.add((styles[name].colour, styles[name].dashes))
        used.add(styles[name])
    return {name: styles[name] for name in names}


def colours(names: Sequence[str]) -> dict[str, str]:
    """Return a colour per name, in the palette's order."""
    return {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)}


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def rule_colours(rules: Iterable[Rule]) -> dict[str, str]:
    """Return a colour per rule by its name: its own, or the next that no other of them has."""
    found = {rule.name: PALETTE[COLOURS.index(rule.colour)] if rule.colour else "" for rule in rules}
    free = itertools.chain((c for c in PALETTE if c not in found.values()), itertools.cycle(PALETTE))
    return {name: colour or next(free) for name, colour in found.items()}
