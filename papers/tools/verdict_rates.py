"""How often the rules of verdicts are right and wrong, simulated: ``papers/tools/verdict_rates.py [--check]``.

Writes the tables of reproduction/README.md: 2,000 simulated claims and numbers for every row. All methods of a
claim share the luck of a seed's split, 5 points; each has noise of its own, so that a contrast varies by half a
point over seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from protofed.trained.paired import interval
from protofed_papers.verdicts import Contrast, judge, number_verdict
from rows import fill, markdown, update

PAGE = Path(__file__).parents[1] / "reproduction/README.md"
DRAWS = 2000
CELLS = 3
SPREAD = 0.5  #: Standard deviation over seeds of a contrast, in points
WORDS = ("reproduced", "contradicted", "equal")


def claims(seeds: int, leads: Sequence[float], draws: int = DRAWS, spread: float = SPREAD) -> list[str]:
    """Return verdicts on simulated claims that a method is above others.

    Args:
        leads: What the method is truly above each other one, in points.
    """
    rng = np.random.default_rng([seeds, len(leads)])
    shape = (draws, seeds, CELLS)
    luck = rng.normal(0, 5, (draws, seeds, 1))
    noise = spread * (CELLS / 2) ** 0.5
    own = 80 + luck + rng.normal(0, noise, shape)
    others = [80 + luck - lead + rng.normal(0, noise, shape) for lead in leads]
    return [
        judge([_comparison(own[draw] - other[draw]) for other in others]).verdict  # as paired by the claims' cells
        for draw in range(draws)
    ]


def _comparison(differences: np.ndarray) -> Contrast:
    return Contrast("", [dict(enumerate(cell)) for cell in differences.T.tolist()])


def numbers(seeds: int, off: float, draws: int = DRAWS, spread: float = SPREAD) -> list[str]:
    """Return verdicts on simulated accuracies.

    Args:
        off: Difference of the true accuracy to the printed one, in points.
    """
    rng = np.random.default_rng(seeds)
    return [number_verdict("90", values) for values in rng.normal(90 + off, spread, (draws, seeds)).tolist()]


def coverage(seeds: int, draws: int = DRAWS) -> float:
    """Return how often the interval of a contrast over cells contains the true difference."""
    rng = np.random.default_rng(seeds)
    values = rng.normal(0.7, SPREAD * CELLS**0.5, (draws, seeds, CELLS))
    found = [interval(_comparison(value).differences) for value in values]
    return sum(own.low <= 0.7 <= own.high for own in found) / draws


def lines() -> Iterator[str]:
    """Yield both tables."""
    shares = ", ".join(f"{100 * coverage(seeds):.1f} % with {seeds} seeds" for seeds in (3, 5))
    yield f"The 95 % interval of a contrast over {CELLS} cells contains the true difference in {shares}."
    yield ""
    heads = ["0", "+1", "+2", "+4", "+4, over one −4"]
    rows = []
    for seeds in (3, 5):
        for rivals in (1, 4, 9):
            leads = [[lead] * rivals for lead in (0.0, 1.0, 2.0, 4.0)] + [[4.0] * (rivals - 1) + [-4.0]]
            cells = [" / ".join(_share(claims(seeds, lead), word) for word in WORDS) for lead in leads]
            rows.append([str(seeds), str(rivals), *cells])
    yield markdown(["seeds", "rivals", *(f"true lead {head}" for head in heads)], rows)
    yield ""
    offsets = (0.0, 0.5, 1.0, 2.0, 4.0)
    rows = []
    for seeds in (3, 5):
        cells = [" / ".join(_share(numbers(seeds, off), word) for word in ("within", "outside")) for off in offsets]
        rows.append([str(seeds), *cells])
    yield markdown(["seeds", *(f"truly off by {off:g}" for off in offsets)], rows)


def _share(verdicts: Sequence[str], word: str) -> str:
    return f"{100 * verdicts.count(word) / len(verdicts):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    page = fill(PAGE.read_text(encoding="utf-8"), "rates", "\n".join(lines()))
    update({PAGE: page}, parser.parse_args().check)


if __name__ == "__main__":
    main()
