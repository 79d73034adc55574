"""One look for all figures, and one way to write numbers."""

from __future__ import annotations

import statistics
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

# Okabe and Ito's palette, which colour-blind readers can tell apart. Its yellow is too faint for lines on white:
# grey takes its place.
BLACK, GREY = "#000000", "#7A7A7A"
ORANGE, SKY, GREEN, BLUE = "#E69F00", "#56B4E9", "#009E73", "#0072B2"
VERMILLION, PURPLE = "#D55E00", "#CC79A7"
PALETTE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, GREY, BLACK)
MARKERS = ("o", "^", "s", "D", "v", "P", "X", "<", ">", "p", "h")
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.6), (1.2, 1.4), (6, 1.6, 1.2, 1.6))

RULE_COLOURS = {
    "head": BLUE,
    "global_model": SKY,
    "local": GREEN,
    "global": VERMILLION,
    "global_own": ORANGE,
    "etf": PURPLE,
}
RULE_TITLES = {
    "head": "Classifier head",
    "global_model": "Global model",
    "local": "Own prototypes",
    "global": "Global prototypes",
    "global_own": "Global, own classes",
    "etf": "ETF",
}

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
    """How one method looks in every figure.

    Attributes:
        colour: Hexadecimal.
        marker: A Matplotlib marker.
        dashes: Lengths of strokes and gaps in line widths; empty for a solid line.
    """

    colour: str
    marker: str
    dashes: tuple[float, ...] = ()

    def line(self) -> dict[str, Any]:
        """Return keyword arguments for ``Axes.plot``."""
        return {"color": self.colour, "marker": self.marker, "linestyle": (0, self.dashes) if self.dashes else "-"}


_KNOWN = {
    "fedproto": LineStyle(BLUE, "o"),
    "protonorm": LineStyle(VERMILLION, "D"),
    "fedtgp": LineStyle(GREEN, "s"),
    "tinyproto": LineStyle(ORANGE, "^"),
    "gfpl": LineStyle(PURPLE, "v"),
    "fedavg": LineStyle(SKY, "P"),
    "local": LineStyle(GREY, "X", DASHES[1]),
    "fixedetf": LineStyle(BLACK, "p", DASHES[2]),
}
_SLOTS = [
    LineStyle(colour, MARKERS[(i + 3 * j) % len(MARKERS)], dashes)
    for j, dashes in enumerate(DASHES)
    for i, colour in enumerate(PALETTE)
]


def method_styles(labels: Iterable[str]) -> dict[str, LineStyle]:
    """Return a style per label: the same for a method in every figure, and no two alike within one figure.

    Well-known methods have a style of their own. Any other takes a slot that follows from its name, or the next
    free one.
    """
    names = list(dict.fromkeys(labels))
    styles = {n: _KNOWN[_plain(n)] for n in names if _plain(n) in _KNOWN}
    used = {(s.colour, s.dashes) for s in styles.values()}
    for name in sorted(n for n in names if n not in styles):
        start = zlib.crc32(_plain(name).encode())
        turn = [_SLOTS[(start + i) % len(_SLOTS)] for i in range(len(_SLOTS))]
        styles[name] = next((s for s in turn if (s.colour, s.dashes) not in used), turn[0])
        used.add((styles[name].colour, styles[name].dashes))
    return {name: styles[name] for name in names}


def colours(names: Sequence[str]) -> dict[str, str]:
    """Return a colour per name, in the palette's order."""
    return {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)}


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def rule_title(rule: str) -> str:
    """Return what an inference rule is called in figures and tables.

    Example:
        >>> rule_title("global")
        'Global prototypes'
    """
    return RULE_TITLES.get(rule, rule.replace("_", " "))


def percent(fraction: float | None) -> str:
    """Return a fraction as a percentage.

    Example:
        >>> percent(0.7134), percent(None)
        ('71.3%', '–')
    """
    return "–" if fraction is None else f"{100 * fraction:.1f}%"


def size(number: float | None) -> str:
    """Return a number of bytes with an SI unit and three significant digits.

    Example:
        >>> size(999), size(20480), size(1_234_567)
        ('999 B', '20.5 kB', '1.23 MB')
    """
    return "–" if number is None else f"{_scaled(number, ('', 'k', 'M', 'G', 'T', 'P'))}B"


def duration(seconds: float | None) -> str:
    """Return a time span in its two largest units.

    Example:
        >>> duration(0.45), duration(75), duration(7512)
        ('0.45 s', '1 min 15 s', '2 h 05 min')
    """
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds >= 9.995 else f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min"


def number(value: float | None) -> str:
    """Return a count with separated thousands.

    Example:
        >>> number(1234567), number(12.5)
        ('1,234,567', '12.5')
    """
    if value is None:
        return "–"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def mean_std(values: Sequence[float | None], write: Callable[[float], str] = percent) -> str:
    """Return the mean of ``values``, with the sample standard deviation if there are several.

    Example:
        >>> mean_std([0.70, 0.72])
        '71.0 ± 1.4%'
    """
    known = [v for v in values if v is not None]
    if not known:
        return "–"
    mean = write(statistics.fmean(known))
    if len(known) < 2:
        return mean
    digits, unit = (mean[:-1], "%") if mean.endswith("%") else (mean, "")
    return f"{digits} ± {write(statistics.stdev(known)).removesuffix('%')}{unit}"


def _scaled(value: float, prefixes: Sequence[str]) -> str:
    """Return ``value`` with three significant digits, a space and a prefix for its power of 1000."""
    power = 0
    # 999.5 would be rounded up to 1000.
    while value >= 999.5 and power < len(prefixes) - 1:
        value, power = value / 1000, power + 1
    if power == 0:
        return f"{value:.0f} "
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {prefixes[power]}"
