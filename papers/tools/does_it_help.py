"""Pages of studies, and overview and figure of docs/does-it-help.md: ``papers/tools/does_it_help.py [--check]``.

They are made of the CSV files of studies, which ``--save FILE COMPARISON…`` writes of directories of ``protofed
compare``; ``studies.toml`` there says what each is of. Every arm is scored by a rule fixed beforehand, and compared
with the best control that computes as much with the same loss.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

from protofed.config.schema import load_recipe
from protofed.runs.loading import load_runs
from protofed.runs.run import Run
from protofed.runs.summary import RuleOutcome
from protofed.trained.paired import difference, relation
from rows import fill, markdown, read_rows, update, write_rows

DOCS = Path(__file__).parents[2] / "docs"
STUDY = Path(__file__).parents[1] / "studies"
TUNED = STUDY / "tuning/tried.csv"
"""What was tried on validation samples, one line for every setting of an arm in a study."""
OWN_RULE = "head"
OWN_RULES = (OWN_RULE, "global")  #: Rule of a client's own classes: its own learned answer, which all arms have
OPEN_RULES = ("shared_head", "global_model", "global", "head")
"""Rules of the union and of unseen classes, the first that an arm has: what was shared answers, without priors."""
GROUPS = {
    "one network, cross-entropy": ("local", "fixed_etf"),
    "one network, balanced softmax": ("local-balanced", "fixed_etf-balanced"),
    "two networks": ("unshared",),
    "one shared network": (),
    "fixed features": ("local_lda", "local_ncm"),
}
"""What a client computes, with the arms that send nothing."""
ONE, BALANCED, TWO, SHARED, FIXED = GROUPS
USUAL = "local_lda"  #: What is best of all that sends nothing, nearly everywhere
UNLIKE = {ONE: (BALANCED, "other loss"), SHARED: (TWO, "other networks")}
"""Whose controls stand in where a group's were not run."""
PLAIN = {"unshared": "other loss"}
"""Of arms of two networks with plain softmax, where that control has a balanced one."""
CONFOUNDED = {"protonorm": {"fixed_etf": "γ 100 against 10"}, "fml-tiny": PLAIN, "fedkd-tiny": PLAIN}
"""Arms of studies that differ from a control in more than an exchange, and in what."""


@dataclass(frozen=True)
class Scores:
    """Accuracy of one run by one rule, in fractions; None where it was not measured."""

    final: float | None
    validated: float | None
    best: float | None
    union: float | None
    unseen: float | None
    newcomers: float | None

    @classmethod
    def of(cls, outcome: RuleOutcome) -> Scores:
        """Return the scores of a rule's outcome."""
        beyond = (outcome.union, outcome.unseen, outcome.newcomers)
        return cls(outcome.final, outcome.best_validated, outcome.best, *(b.final if b else None for b in beyond))


@dataclass(frozen=True)
class Measured:
    """What the tables say of one run."""

    rules: Mapping[str, Scores]  #: Scores by rule
    bytes: float  #: Bytes of all messages in a round, in both directions, as a mean over all rounds
    seconds: float  #: Training and aggregation of the median round: on a busy machine single ones take much longer

    @classmethod
    def of(cls, run: Run) -> Measured:
        """Return what the tables say of a finished run."""
        return cls(
            {rule: Scores.of(run.outcome.accuracy[rule]) for rule in run.rules},
            run.outcome.communication.sent / run.last_round,
            statistics.median(r.seconds["training"] + r.seconds["aggregation"] for r in run.rounds),
        )


Figure = Callable[[Scores], float | None]
final: Figure = attrgetter("final")
union: Figure = attrgetter("union")
unseen: Figure = attrgetter("unseen")
newcomers: Figure = attrgetter("newcomers")


class Arm:
    """The finished runs of one arm, by seed.

    Attributes:
        unlike: In what it differs from a control in more than an exchange, by the control's name.
    """

    def __init__(
        self, label: str, runs: Mapping[int, Measured], unlike: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.label = label
        self.unlike = unlike
        self.runs = {seed: runs[seed] for seed in sorted(runs)}

    @property
    def plain(self) -> str:
        """Its name without where its features come from."""
        return self.label.removesuffix("-fixed")

    @property
    def group(self) -> str:
        """What its clients compute."""
        if own := [group for group, controls in GROUPS.items() if self.plain in controls]:
            return own[0]  # sends nothing
        if self.label in ("fedavg-tiny", "fedlc-tiny", "fedetf", "fpl", "fedproc", "fedplvm", "moon"):
            return SHARED
        if self.label.startswith("beacon") or self.label.endswith("-tiny"):
            return TWO
        if self.label.partition("-")[0] in ("fedlda", "fedncm", "fed3r", "fedcof", "fedpft", "fedpcl"):
            return FIXED
        return BALANCED if self.label.endswith("-balanced") else ONE

    def values(self, figure: Figure, seeds: Sequence[int] = ()) -> list[float]:
        """Return a figure in percent by its rule, one value per seed that has it."""
        rules = next(iter(self.runs.values())).rules
        rule = next(r for r in (OPEN_RULES if figure in (union, unseen) else OWN_RULES) if r in rules)
        found = [figure(self.runs[seed].rules[rule]) for seed in seeds or self.runs]
        return [100 * value for value in found if value is not None]

    @property
    def bytes(self) -> float:
        """Mean over seeds, per round."""
        return statistics.fmean(run.bytes for run in self.runs.values())

    @property
    def seconds(self) -> float:
        """Mean over seeds, per round."""
        return statistics.fmean(run.seconds for run in self.runs.values())


def arms_of(places: Sequence[Path]) -> list[Arm]:
    """Return the arms of all runs there, by the names of their directories, ordered as in the recipe scarce."""
    found: dict[str, dict[int, Measured]] = {}
    for place in places:
        for label, seed, run in read(place) if place.suffix == ".csv" else finished(place):
            found.setdefault(label, {})[seed] = run
    order: list[str] = load_recipe("scarce")["compare"]["methods"]
    labels = sorted(found, key=lambda label: (order.index(label) if label in order else len(order), label))
    return [Arm(label, found[label], CONFOUNDED.get(label, {})) for label in labels]


def finished(directory: Path) -> Iterator[tuple[str, int, Measured]]:
    """Yield arm, seed and figures of every finished run of a comparison."""
    for path in sorted(directory.glob("*-seed*/summary.json")):
        for run in load_runs([path.parent]):
            if run.finished:
                yield path.parent.name.rpartition("-seed")[0], run.seed, Measured.of(run)


COLUMNS = ("arm", "seed", "bytes", "seconds", "rule", *(field.name for field in fields(Scores)))


def save(arms: Sequence[Arm], path: Path) -> None:
    """Write one line per run and rule: accuracies in fractions, bytes and seconds a round."""
    runs = ((arm.label, seed, run) for arm in arms for seed, run in arm.runs.items())
    write_rows(path, COLUMNS, ({"arm": a, "seed": seed, **line} for a, seed, run in runs for line in written(run)))


def written(run: Measured) -> Iterator[dict[str, Any]]:
    """Yield the figures of a run by each rule, as files have them."""
    for rule, scores in run.rules.items():
        yield {"bytes": run.bytes, "seconds": round(run.seconds, 3), "rule": rule, **asdict(scores)}


def measured(lines: Iterable[Mapping[str, str]], *names: str) -> dict[tuple[str, ...], Measured]:
    """Return the figures of every run in the lines of a file, by what they have under the names given."""
    runs: dict[tuple[str, ...], tuple[dict[str, Scores], float, float]] = {}
    for line in lines:
        place = tuple(line[name] for name in names)
        rules, _, _ = runs.setdefault(place, ({}, float(line["bytes"]), float(line["seconds"])))
        values = (line[field.name] for field in fields(Scores))
        rules[line["rule"]] = Scores(*(float(value) if value else None for value in values))
    return {place: Measured(*figures) for place, figures in runs.items()}


def read(path: Path) -> Iterator[tuple[str, int, Measured]]:
    """Yield arm, seed and figures of every run of a file that :func:`save` wrote."""
    for (label, seed), run in measured(read_rows(path), "arm", "seed").items():
        yield label, int(seed), run


def studies() -> dict[str, dict[str, str]]:
    """Return title, text and command of every study, in the order of the pages."""
    return tomllib.loads((STUDY / "studies.toml").read_text(encoding="utf-8"))


def study(name: str) -> list[Arm]:
    """Return the arms of a study; closed forms train nothing, so those of the same recipe are the same.

    One whose arms are tuned also has the controls as they are without: values chosen elsewhere can make them worse.
    """
    known, plain = studies(), name.removesuffix("-fair")
    closed = known[name].get("closed")
    arms = arms_of([STUDY / f"{name}.csv", *([STUDY / "closed" / f"{closed}.csv"] if closed else [])])
    untuned = arms_of([STUDY / f"{plain}.csv"]) if plain != name and plain in known else []
    return arms + [Arm(f"untuned-{arm.label}", arm.runs) for arm in untuned if arm.label in GROUPS[BALANCED]]


def own(arms: Sequence[Arm]) -> Figure:
    """Return the figure that a study is about: of the clients that joined later, if all arms have it."""
    return newcomers if all(arm.values(newcomers) for arm in arms) else final


def control_of(arm: Arm, arms: Sequence[Arm]) -> tuple[Arm | None, str]:
    """Return the best arm that sends nothing and is like another, and in what it is not like it, if so."""
    figure = own(arms)
    for group, unlike in ((arm.group, ""), UNLIKE.get(arm.group, ("", ""))):
        controls = [other for other in arms if other.plain in GROUPS.get(group, ())]
        if controls:
            best = max(controls, key=lambda other: statistics.fmean(other.values(figure)))
            return best, unlike or arm.unlike.get(best.label, "")
    return None, ""


def best_alone(arms: Sequence[Arm]) -> Arm:
    """Return the best arm that sends nothing, whatever its clients compute."""
    figure = own(arms)
    return max((a for a in arms if not a.bytes), key=lambda arm: statistics.fmean(arm.values(figure)))


def apart(one: Arm, other: Arm, figure: Figure) -> list[float]:
    """Return the differences between two arms, by seed."""
    seeds = [seed for seed in one.runs if seed in other.runs]
    return [a - b for a, b in zip(one.values(figure, seeds), other.values(figure, seeds), strict=True)]


def against(one: Arm, other: Arm, figure: Figure = final) -> str:
    """Return the difference between two arms, with its interval."""
    differences = apart(one, other, figure)
    return difference(differences, [0.0] * len(differences)).text()


def spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation."""
    if not values:
        return "–"
    return f"{statistics.fmean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def table(arms: Sequence[Arm], reference: str = "") -> str:
    """Return one study as a Markdown table, by what clients compute.

    Args:
        reference: Arm with which every other one is compared, too.
    """
    rival = next((arm for arm in arms if arm.label == reference), None)
    beside = [f"against `{reference}`"] if rival else []
    figures = ("union", "unseen", "kB a round", "s a round")
    names = ("arm", "seeds", "own, %", "against", "points", "verdict", *beside, *figures)
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    figure = own(arms)
    for group in GROUPS:
        members = [arm for arm in arms if arm.group == group]
        lines += [f"| **{group}** |{' |' * (len(names) - 1)}"] if members else []
        for arm in members:
            control, unlike = control_of(arm, arms)
            cells = ["", "", ""]
            if control is arm:
                cells[0] = "the control"
            elif control is not None:
                name = f"`{control.label}`" + (f" ({unlike})" if unlike else "")
                cells = [name, against(arm, control, figure), relation(apart(arm, control, figure))]
            beyond = [spread(arm.values(f)) for f in (union, unseen)]
            head = [arm.label, str(len(arm.runs)), spread(arm.values(figure))]
            if rival:
                cells.append("" if arm is rival else against(arm, rival, figure))
            tail = [f"{arm.bytes / 1000:,.0f}", f"{arm.seconds:.2f}"]
            lines.append(f"| {' | '.join([*head, *cells, *beyond, *tail])} |")
    return "\n".join(lines)


def chosen(name: str) -> list[str]:
    """Return as a table what validation samples chose for the arms of a study; nothing if it is not tuned."""
    rows = [row for row in read_rows(TUNED) if row["study"] == name]
    if not rows:
        return []
    names = ("arm", "lr", "λ", "γ", "validation, %", "values tried", "their range, %")
    lines = []
    for row in rows:
        if row["chosen"]:
            tried = [100 * float(other["validation"]) for other in rows if other["arm"] == row["arm"]]
            values = (row[key] or "–" for key in ("training.lr", "method.lambda", "method.gamma"))
            counted = (f"{100 * float(row['validation']):.1f}", str(len(tried)))
            lines.append((row["arm"], *values, *counted, f"{min(tried):.1f} … {max(tried):.1f}"))
    return ["Chosen on validation samples by `papers/tools/fair.py`, mean of three seeds:", markdown(names, lines)]


def page(name: str, about: Mapping[str, str]) -> str:
    """Return the page of a study."""
    parts = [
        f"# {about['title']}: `{name}`",
        f"{about['text']} [Measurement](../../docs/does-it-help.md#measurement). Made by "
        f"`papers/tools/does_it_help.py` of `papers/studies/{name}.csv`.",
        *([CLOSED_FORMS] if "closed" in about else []),
        table(study(name)),
        *chosen(name),
        f"```console\n{about['command']}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def overview() -> str:
    """Return one line per study as a Markdown table: what exchanges against the best control like it.

    A study that has a ``-fair`` twin is left out.
    """
    names = ("setting", "seeds", "FedProto", "`beacon`", "`fedlda`", "`beacon`, of any kind", "unseen")
    lines = []
    known = studies()
    for name in known:
        if f"{name}-fair" in known:
            continue
        found = {arm.label.removesuffix("-balanced" if name.endswith("-fair") else ""): arm for arm in study(name)}
        arms, figure = list(found.values()), own(list(found.values()))
        cells: list[str] = []
        for label in ("fedproto", "beacon", "fedlda"):
            control, unlike = control_of(found[label], arms) if label in found else (None, "")
            if control is None:
                cells.append("–")
                continue
            word = relation(apart(found[label], control, figure))
            cells.append(
                f"{against(found[label], control, figure)} **{word}**" + (f" ({unlike})" if unlike else "")
            )
        if "beacon" in found:
            best = best_alone(arms)
            word = relation(apart(found["beacon"], best, figure))
            named = "" if best.label == USUAL else f" (`{best.label}`)"
            cells.append(f"{against(found['beacon'], best, figure)} **{word}**{named}")
        else:
            cells.append("–")
        values = [found[label].values(unseen) if label in found else [] for label in ("beacon", "fedlda")]
        beyond = [f"{statistics.fmean(own):.0f}" if own else "–" for own in values]
        if set(cells) != {"–"}:
            seeds = len(next(iter(found.values())).runs)
            lines.append([f"[{name}](../papers/studies/{name}.md)", str(seeds), *cells, ", ".join(beyond)])
    return markdown(names, lines)


CLOSED_FORMS = (
    "Closed forms need one round, whose bytes are all that they send; their features are those of "
    "`encoder.name=auto encoder.dim=512`."
)
DRAWN = "scarce-fair"
"""Study of the picture: all arms tuned by one rule, heads trained by one loss, messages in one codec."""
PICTURE = DOCS / "figures/does-it-help.png"
NOTHING = 1.5e4  #: Where the picture shows arms that send nothing, in bytes of a run


def drawn_arms() -> list[Arm]:
    """Return the arms of the picture, those that send nothing first."""
    tuned = [arm for arm in study(DRAWN) if not arm.label.startswith("untuned-")]
    return sorted(tuned, key=lambda arm: arm.bytes > 0)


def points(arms: Sequence[Arm]) -> list[tuple[str, float, float, float]]:
    """Return label, bytes of a run, and accuracy on own and on unseen classes in percent, of every arm."""
    rounds: int = load_recipe("scarce")["rounds"]
    found = []
    for arm in arms:
        sent = arm.bytes * (1 if arm.group == FIXED else rounds)
        own, new = (statistics.fmean(arm.values(score)) for score in (final, unseen))
        found.append((arm.label.removesuffix("-balanced"), sent, own, new))
    return found


def picture(arms: Sequence[Arm], path: Path) -> None:
    """Draw accuracy on own and on unseen classes against bytes, one point per arm; the file has the numbers."""
    import matplotlib.pyplot as plt

    looks = _looks(arms)
    figure, axes = plt.subplots(1, 2, figsize=(6.5, 4.1), sharex=True, layout="constrained")
    for axis, place, title in (axes[0], 0, "own classes"), (axes[1], 1, "classes never seen"):
        for (label, sent, *values), (colour, marker) in zip(points(arms), looks, strict=True):
            axis.plot(max(sent, NOTHING), values[place], marker, color=colour, markersize=8, alpha=0.9, label=label)
        axis.set_xscale("log")
        axis.set_xlim(NOTHING / 1.6, 8e7)
        axis.set_xticks([NOTHING, 1e5, 1e6, 1e7], ["nothing", "100 kB", "1 MB", "10 MB"])
        axis.minorticks_off()
        axis.set_title(f"Accuracy on {title}, %", fontsize=10)
        axis.set_xlabel("sent in the whole run, all clients")
        axis.grid(alpha=0.3)
    plt.rcParams |= {"legend.frameon": False, "legend.columnspacing": 1, "legend.handletextpad": 0}
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    figure.savefig(path, dpi=200, metadata={"Description": described(arms)})
    plt.close(figure)


def described(arms: Sequence[Arm]) -> str:
    """Return the numbers of the picture, which it carries as its description."""
    return "; ".join(f"{label} {sent:.0f} B {own:.1f} {new:.1f}" for label, sent, own, new in points(arms))


def drawn(path: Path) -> str:
    """Return the description in a picture, or nothing."""
    from PIL import Image

    if not path.is_file():
        return ""
    with Image.open(path) as image:
        return str(image.info.get("Description", ""))


COLOURS = {ONE: "#0072B2", BALANCED: "#0072B2", TWO: "#D55E00", SHARED: "#E69F00", FIXED: "#009E73"}
"""Colour of the arms that exchange, by what their clients compute."""


def _looks(arms: Sequence[Arm]) -> list[tuple[str, str]]:
    """Return colour and marker of each arm of the picture."""
    found: list[tuple[str, str]] = []
    for arm in arms:
        colour = COLOURS[arm.group] if arm.bytes else "#777777"
        found.append((colour, "os^DvPX*"[sum(other == colour for other, _ in found) % 8]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("comparisons", nargs="*", type=Path, help="directories or files to print as one table")
    parser.add_argument("--save", type=Path, help="write the figures of the comparisons' runs to this CSV file")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is out of date")
    given = parser.parse_args()
    if given.comparisons:
        arms = arms_of(given.comparisons)
        print(table(arms))
        if given.save:
            save(arms, given.save)
        return
    made = {STUDY / f"{name}.md": page(name, about) for name, about in studies().items()}
    main_page = DOCS / "does-it-help.md"
    made[main_page] = fill(main_page.read_text(encoding="utf-8"), "overview", overview())
    update(made, given.check)
    arms = drawn_arms()
    if drawn(PICTURE) != described(arms):
        if given.check:
            sys.exit(f"{PICTURE} is out of date: run python papers/tools/does_it_help.py")
        picture(arms, PICTURE)


if __name__ == "__main__":
    main()
