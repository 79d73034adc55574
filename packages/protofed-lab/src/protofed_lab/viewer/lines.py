"""Lines of the charts as plain numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

from protofed.analysis.style import MARKERS, PALETTE, LineStyle, method_styles
from protofed.runs.run import Run, by_label, rule_of, select_finished

Point = list[float]  #: ``[x, y]``, or ``[x, y, spread]`` for a mean over several runs


@dataclass(frozen=True)
class Look:
    """The look of a line: colour, shape of its marks, and strokes."""

    colour: int  #: In :data:`~protofed.analysis.style.PALETTE`; the page knows a shade for each theme
    mark: str  #: For Matplotlib
    dashes: tuple[float, ...] = ()  #: Strokes and gaps in line widths; empty for a solid line
    thin: bool = False  #: For a single run beside the mean of others

    @classmethod
    def of(cls, style: LineStyle) -> Look:
        """Return the look of a style of figures."""
        return cls(PALETTE.index(style.colour), style.marker, style.dashes)


@dataclass(frozen=True)
class Line:
    """A line of a chart; with ``level``, a horizontal one at this height, without an x-axis."""

    name: str
    look: Look
    points: list[Point] = field(default_factory=list)
    level: float | None = None


Lines = dict[str, Line]  #: Id → line; an id stays the same as long as the line is about the same thing


def looks(runs: Iterable[Run]) -> dict[Path, Look]:
    """Return each run's look, by its directory: in its label's colour and strokes, with a mark of its own."""
    found: dict[Path, Look] = {}
    groups = by_label(runs)
    styles = method_styles(groups)
    for label, group in groups.items():
        first = MARKERS.index(styles[label].marker)
        for i, run in enumerate(group):
            found[run.directory] = replace(Look.of(styles[label]), mark=MARKERS[(first + i) % len(MARKERS)])
    return found


def accuracy(
    runs: Sequence[Run], *, rule: str = "", over: str = "rounds", each: bool = False, among: Sequence[Run] = ()
) -> Lines:
    """Return test accuracy in per cent against rounds, or against bytes sent so far by all parties.

    Runs of one label are averaged with their sample standard deviation. Those of them that have not finished, where
    others have, are drawn for themselves: a mean must not mix late and early rounds.

    Args:
        rule: Each method's main rule if ``""``.
        over: ``rounds`` or ``bytes``.
        each: Draw runs singly.
        among: Further runs from which these are to be told apart.
    """
    found, means = looks(among or runs), method_styles(run.label for run in among or runs)
    lines: Lines = {}
    for label, group in by_label(r for r in runs if r.evaluations).items():
        chosen = rule or rule_of(group)
        scored = [run for run in group if chosen in run.rules]
        together = [] if each else select_finished(scored)
        if together:
            lines[f"mean {label}"] = _line(label, Look.of(means[label]), together, chosen, over)
        for run in scored:
            if run not in together:
                name = f"{label}, seed {run.seed}" if len(group) > 1 else label
                look = replace(found[run.directory], thin=len(group) > 1)
                lines[f"run {_text(run.directory)}"] = _line(name, look, [run], chosen, over)
    return _told_apart(lines)


def alike(drawn: int) -> str:
    """Return the remark that lines share colours, if there are more than colours."""
    return "colours repeat: strokes and marks tell lines apart" if drawn > len(PALETTE) else ""


def _told_apart(lines: Lines) -> Lines:
    """Add the folder to names that occur twice."""
    times = Counter(line.name for line in lines.values())
    return {
        key: replace(line, name=f"{line.name} ({PurePath(key).name})") if times[line.name] > 1 else line
        for key, line in lines.items()
    }


def _text(path: Path) -> str:
    """Return a path in letters that can be sent."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def _line(name: str, look: Look, runs: Sequence[Run], rule: str, over: str) -> Line:
    curves = [run.accuracy(rule) for run in runs]
    rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
    heights = [_height([100 * curve[t] for curve in curves]) for t in rounds]
    if over == "rounds":
        return Line(name, look, [[t, *height] for t, height in zip(rounds, heights, strict=True)])
    sent = [run.sent() for run in runs]
    reached = [sum(s[t] for s in sent) / len(sent) for t in rounds]
    if heights and not reached[-1]:
        yet = "" if all(run.finished for run in runs) else " yet"
        return Line(f"{name}: no traffic{yet}", look, level=heights[-1][0])
    points = [[round(at), *height] for at, height in zip(reached, heights, strict=True) if at]
    return Line(name, look, points)


def _height(values: Sequence[float]) -> Point:
    """Return the mean, and the sample standard deviation if there are several; plain sums, since pages wait."""
    mean = sum(values) / len(values)
    if len(values) == 1:
        return [round(mean, 2)]
    return [round(mean, 2), round(math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)), 2)]
