"""Lines of the charts as plain numbers, and the changes that a browser has yet to be sent."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

from protofed.analysis.figures.lines import read_numbers
from protofed.analysis.style import DASHES, MARKERS, PALETTE, LineStyle, method_styles, rule_colours
from protofed.runs.run import Run, by_label, rule_of, select_finished

Point = list[float]
"""``[x, y]``, or ``[x, y, spread]`` for a mean over several runs."""


@dataclass(frozen=True)
class Look:
    """The look of a line: colour, shape of its marks, and strokes.

    Attributes:
        colour: In :data:`~protofed.analysis.style.PALETTE`; the page knows a shade for each theme.
        mark: For Matplotlib.
        dashes: Strokes and gaps in line widths; empty for a solid line.
        thin: For a single run beside the mean of others.
    """

    colour: int
    mark: str
    dashes: tuple[float, ...] = ()
    thin: bool = False

    @classmethod
    def of(cls, style: LineStyle) -> Look:
        """Return the look of a style of figures."""
        return cls(PALETTE.index(style.colour), style.marker, style.dashes)

    @classmethod
    def number(cls, i: int) -> Look:
        """Return the ``i``-th look, for lines that have none of their own: after all colours come other strokes."""
        return cls(i % len(PALETTE), MARKERS[i % len(MARKERS)], DASHES[i // len(PALETTE) % len(DASHES)])


@dataclass(frozen=True)
class Line:
    """A line of a chart; with ``level``, a horizontal one at this height, without an x-axis."""

    name: str
    look: Look
    points: list[Point] = field(default_factory=list)
    level: float | None = None


Lines = dict[str, Line]
"""Id → line; an id stays the same as long as the line is about the same thing."""


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
    runs: Sequence[Run],
    *,
    rule: str = "",
    over: str = "rounds",
    each: bool = False,
    among: Sequence[Run] = (),
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


def by_rule(run: Run, over: str = "rounds") -> Lines:
    """Return one run's test accuracy in per cent by inference rule, against ``rounds`` or ``bytes`` sent so far."""
    looks = rule_looks(run)
    return {rule: _line(run.rule(rule).title, looks[rule], [run], rule, over) for rule in run.rules}


def rule_looks(run: Run) -> dict[str, Look]:
    """Return the look of each of a run's inference rules."""
    colours = rule_colours(map(run.rule, run.rules))
    looks = zip(colours.items(), itertools.cycle(MARKERS), strict=False)
    return {name: Look(PALETTE.index(colour), marker) for (name, colour), marker in looks}


def losses(run: Run) -> Lines:
    """Return the terms of one run's training loss, and their total, against rounds."""
    terms = list(dict.fromkeys(t for r in run.rounds for t in r.losses))
    parts = [t for t in terms if t != "total"]
    looks = {t: Look.number(i) for i, t in enumerate(parts)} | {"total": Look(len(PALETTE) - 1, "o", (5, 1.6))}
    shown = parts + ["total"] * (len(parts) > 1 and "total" in terms)
    return {t: Line(t.replace("_", " "), looks[t], _recorded(run, "losses", t)) for t in shown}


def measured(run: Run, names: Mapping[str, str]) -> Lines:
    """Return diagnostics of one run against rounds, with titles by dotted name."""
    curves = {
        n: Line(title, Look.number(i), _recorded(run, "diagnostics", n))
        for i, (n, title) in enumerate(names.items())
    }
    return {name: line for name, line in curves.items() if line.points}


def _recorded(run: Run, part: str, name: str) -> list[Point]:
    curve = read_numbers(run, part, name)
    return [[t, float(f"{value:.5g}")] for t, value in curve.items() if math.isfinite(value)]


class Feed:
    """The state of one chart in one browser: only changes are sent.

    Example:
        >>> feed, look = Feed(), Look(0, "o")
        >>> feed.changes({"a": Line("a", look, [[1, 50.0]])})["lines"]["a"]["points"]
        [[1, 50.0]]
        >>> feed.changes({"a": Line("a", look, [[1, 50.0], [2, 60.0]])})
        {'lines': {'a': {'from': 1, 'points': [[2, 60.0]]}}}
        >>> feed.changes({"a": Line("a", look, [[1, 50.0], [2, 60.0]])})
    """

    def __init__(self) -> None:
        self._told: Lines = {}

    def changes(self, lines: Lines) -> dict[str, Any] | None:
        """Return the message that turns what was told into ``lines``; None if there is nothing to tell.

        The message has ``lines``: id → ``from`` (how many points stay) and ``points`` to append, with ``name``,
        ``look`` and ``level`` where they changed; and ``order``, all ids, where lines came, went or moved.
        """
        told: dict[str, Any] = {}
        for key, line in lines.items():
            before = self._told.get(key)
            old = before.points if before else []
            pairs = enumerate(zip(old, line.points, strict=False))
            kept = next((i for i, (b, a) in pairs if b != a), min(len(old), len(line.points)))
            news: dict[str, Any] = {}
            if before is None or len(line.points) != kept or len(before.points) != kept:
                news = {"from": kept, "points": line.points[kept:]}
            if before is None or (before.name, before.look, before.level) != (line.name, line.look, line.level):
                news |= {"name": line.name, "look": vars(line.look), "level": line.level}
            if news:
                told[key] = {"from": kept, "points": []} | news
        message: dict[str, Any] = {"lines": told} if told else {}
        if list(lines) != list(self._told):
            message |= {"lines": told, "order": list(lines)}
        self._told = {key: Line(n.name, n.look, list(n.points), n.level) for key, n in lines.items()}
        return message or None
