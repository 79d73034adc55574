"""Tables of closed forms in the documentation: ``papers/tools/closed_forms.py [DIRECTORY…]``.

Each directory is saved as studies/closed/NAME.csv by its name: a recipe's, of its closed forms, or ``first``, of
``protofed compare quickstart evaluation.on=union``. The tables are made of what is saved.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parent))

from does_it_help import Arm, arms_of, final, save, spread, union, unseen
from rows import markdown

from protofed.text import size
from protofed.trained.paired import difference

SAVED = Path(__file__).resolve().parents[1] / "studies/closed"
RECIPES = (
    *("quickstart", "scarce", "fed-mnist7k-tuned", "hospital-tables", "sensors", "cifar10-scarce"),
    *("domains", "concept", "quantity"),
)
FIRST = "first"
HEADINGS = (
    "recipe",
    "`fedlda`: own",
    "union",
    "unseen",
    "`local_lda`: own",
    "gain",
    "`fedncm`: own",
    "union",
    "`local_ncm`: own",
    "gain",
    "bytes a round",
)


def row(recipe: str, arms: dict[str, Arm]) -> list[str]:
    """Return the figures of one recipe: own classes by ``head``, all others by ``global_model``."""

    def gain(one: str, other: str) -> str:
        found = difference(arms[one].values(final), arms[other].values(final))
        return f"**{found.text()}**" if found.sign > 0 else found.text()

    def wide(name: str) -> list[str]:
        return [spread(arms[name].values(figure)) for figure in (union, unseen)]

    own = {name: spread(arm.values(final)) for name, arm in arms.items()}
    first = [own["fedlda"], *wide("fedlda"), own["local_lda"], gain("fedlda", "local_lda")]
    second = [own["fedncm"], wide("fedncm")[0], own["local_ncm"], gain("fedncm", "local_ncm")]
    return [
        f"`{recipe}`",
        *first,
        *second,
        f"{size(round(arms['fedlda'].bytes))}, {size(round(arms['fedncm'].bytes))}",
    ]


def saved(name: str) -> dict[str, Arm]:
    """Return the arms of a saved comparison by name."""
    return {arm.label: arm for arm in arms_of([SAVED / f"{name}.csv"])}


def table() -> str:
    """Return the table of the closed forms."""
    return markdown(HEADINGS, (row(recipe, saved(recipe)) for recipe in RECIPES))


def first() -> str:
    """Return the table of the methods of ``protofed run``: own classes by ``head``, others by a rule on all."""
    arms = saved(FIRST).values()
    rows = []
    for arm in sorted(arms, key=lambda arm: -fmean(arm.values(final))):
        rounds = 1 if arm.label.endswith("-fixed") else 30
        sent = size(round(arm.bytes * rounds)) if arm.bytes else "nothing"
        rows.append([f"`{arm.label}`", spread(arm.values(final)), spread(arm.values(unseen)), sent])
    return markdown(("method", "own classes, %", "classes never seen, %", "sent in all"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directories", nargs="*", type=Path)
    for directory in parser.parse_args().directories:
        save(arms_of([directory]), SAVED / f"{directory.name}.csv")
    print(table(), first(), sep="\n\n")


if __name__ == "__main__":
    main()
