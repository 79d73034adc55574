"""Numbers as text: one way to write them in tables, figures, pages and on the command line."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence


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
    return "–" if number is None else f"{_scale(number, ('', 'k', 'M', 'G', 'T', 'P'))}B"


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


def sides(shape: Sequence[int]) -> str:
    """Return a sample's shape.

    Example:
        >>> sides((1, 28, 28)), sides(())
        ('1×28×28', 'one number')
    """
    return "×".join(map(str, shape)) or "one number"


def few(texts: Sequence[str], most: int = 5, between: str = ", ") -> str:
    """Return the first of some texts, and how many more there are.

    Example:
        >>> few(["north", "south", "west", "east"], 2), few(["a", "b", "c"], 2, "; ")
        ('north, south and 2 more', 'a; b; and 1 more')
    """
    rest = len(texts) - most
    return between.join(texts[:most]) + (f"{between.rstrip(', ')} and {rest:,} more" if rest > 0 else "")


def plural(count: int, noun: str) -> str:
    """Return a count with its noun.

    Example:
        >>> plural(1, "class"), plural(1200, "class")
        ('1 class', '1,200 classes')
    """
    return f"{number(count)} {noun if count == 1 else noun + ('es' if noun.endswith('s') else 's')}"


def mean_std(values: Sequence[float | None], write: Callable[[float], str] = percent) -> str:
    """Return the mean of ``values``, without None, and the sample standard deviation if there are several.

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


def _scale(value: float, prefixes: Sequence[str]) -> str:
    """Return ``value`` with three significant digits, a space and a prefix for its power of 1000."""
    power = 0
    # 999.5 would be rounded up to 1000.
    while value >= 999.5 and power < len(prefixes) - 1:
        value, power = value / 1000, power + 1
    if power == 0:
        return f"{value:.0f} "
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {prefixes[power]}"
