"""Tables and pictures of docs/does-it-help.md: ``python tools/does_it_help.py COMPARISON… [--picture FILE]``.

Each comparison is a directory of ``protofed compare`` or a CSV file that ``--save`` wrote of one, or several with a
comma between them, for arms or seeds that were run separately. Every arm is scored by the rule that suits the
question best in the mean over seeds, the same favour for all: so a gain cannot come from the choice of a rule.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from operator import attrgetter
from pathlib import Path

from protofed.analysis.paired import Interval, difference
from protofed.experiments.config import load_recipe
from protofed.runs import RuleOutcome, RunData, load_runs

CONTROLS = ("local", "local-balanced", "fixed_etf", "fixed_etf-balanced", "unshared")
"""Arms that send nothing, each trained as the others."""
HEADINGS = (
    "arm",
    "seeds",
    "own: final",
    "validated",
    "best",
    "rule",
    "head",
    "union",
    "unseen",
    "rule",
    "own, against the best control",
    "kB a round",
    "s a round",
)


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
    """What the tables say of one run.

    Attributes:
        rules: Scores by rule.
        bytes: Bytes of all messages in a round, in both directions, as a mean over all rounds.
        seconds: Training and aggregation of the median round: on a busy machine single ones take much longer.
        run: The run itself, if its directory is there.
    """

    rules: Mapping[str, Scores]
    bytes: float
    seconds: float
    run: RunData | None = None

    @classmethod
    def of(cls, run: RunData) -> Measured:
        """Return what the tables say of a finished run."""
        return cls(
            {rule: Scores.of(run.outcome.accuracy[rule]) for rule in run.rules},
            run.outcome.communication.sent / run.last_round,
            statistics.median(r.seconds["training"] + r.seconds["aggregation"] for r in run.rounds),
            run,
        )


Figure = Callable[[Scores], float | None]


class Arm:
    """The finished runs of one arm, by seed."""

    def __init__(self, label: str, runs: Mapping[int, Measured]) -> None:
        self.label = label
        self.runs = {seed: runs[seed] for seed in sorted(runs)}

    def values(self, rule: str, figure: Figure, seeds: Sequence[int] = ()) -> list[float]:
        """Return a figure in percent by ``rule``, one value per seed that has it."""
        found = [figure(self.runs[seed].rules[rule]) for seed in seeds or self.runs]
        return [100 * value for value in found if value is not None]

    def best_rule(self, figure: Figure) -> str:
        """Return the rule with the highest mean of a figure; ``""`` if no run has it."""
        rules = next(iter(self.runs.values())).rules
        means = {rule: statistics.fmean(v) for rule in rules if (v := self.values(rule, figure))}
        return max(means, key=means.__getitem__) if means else ""

    @property
    def bytes(self) -> float:
        """Mean over seeds, per round."""
        return statistics.fmean(run.bytes for run in self.runs.values())

    @property
    def seconds(self) -> float:
        """Mean over seeds, per round."""
        return statistics.fmean(run.seconds for run in self.runs.values())


final: Figure = attrgetter("final")
validated: Figure = attrgetter("validated")
best: Figure = attrgetter("best")
union: Figure = attrgetter("union")
unseen: Figure = attrgetter("unseen")
newcomers: Figure = attrgetter("newcomers")


def spread(values: Sequence[float]) -> str:
    if not values:
        return "–"
    return f"{statistics.fmean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def shown(interval: Interval) -> str:
    return f"**{interval.text()}**" if interval.sign > 0 else interval.text()


def arms_of(places: Sequence[Path]) -> list[Arm]:
    """Return the arms of all runs there, by the names of their directories, ordered as in the recipe scarce."""
    found: dict[str, dict[int, Measured]] = {}
    for place in places:
        for label, seed, run in read(place) if place.suffix == ".csv" else finished(place):
            found.setdefault(label, {})[seed] = run
    order: list[str] = load_recipe("scarce")["compare"]["methods"]
    labels = sorted(found, key=lambda label: (order.index(label) if label in order else len(order), label))
    return [Arm(label, found[label]) for label in labels]


def finished(directory: Path) -> Iterator[tuple[str, int, Measured]]:
    """Yield arm, seed and figures of every finished run of a comparison."""
    for path in sorted(directory.glob("*-seed*/summary.json")):
        for run in load_runs([path.parent]):
            if run.finished:
                yield path.parent.name.rpartition("-seed")[0], run.seed, Measured.of(run)


COLUMNS = ("arm", "seed", "bytes", "seconds", "rule", *(field.name for field in fields(Scores)))


def save(arms: Sequence[Arm], path: Path) -> None:
    """Write one line per run and rule: accuracies in fractions, bytes and seconds a round."""
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        out.writeheader()
        for arm in arms:
            for seed, run in arm.runs.items():
                common = {"arm": arm.label, "seed": seed, "bytes": run.bytes, "seconds": round(run.seconds, 3)}
                out.writerows({**common, "rule": rule, **asdict(scores)} for rule, scores in run.rules.items())


def read(path: Path) -> Iterator[tuple[str, int, Measured]]:
    """Yield arm, seed and figures of every run of a file that :func:`save` wrote."""
    runs: dict[tuple[str, int], tuple[dict[str, Scores], float, float]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            rules, _, _ = runs.setdefault(
                (row["arm"], int(row["seed"])), ({}, float(row["bytes"]), float(row["seconds"]))
            )
            values = (row[field.name] for field in fields(Scores))
            rules[row["rule"]] = Scores(*(float(value) if value else None for value in values))
    for (label, seed), figures in runs.items():
        yield label, seed, Measured(*figures)


def best_control(arms: Sequence[Arm], figure: Figure = final) -> Arm | None:
    """Return the arm without messages that is best by a figure: own classes after the last round."""
    controls = [arm for arm in arms if arm.label in CONTROLS and arm.best_rule(figure)]

    def own(arm: Arm) -> float:
        return statistics.fmean(arm.values(arm.best_rule(figure), figure))

    return max(controls, key=own) if controls else None


def against(arm: Arm, control: Arm | None, figure: Figure = final) -> str:
    """Return the paired difference to the best control, with its interval."""
    if control is None or arm is control:
        return "the best control" if control else ""
    seeds = [seed for seed in arm.runs if seed in control.runs]
    ours = arm.values(arm.best_rule(figure), figure, seeds)
    theirs = control.values(control.best_rule(figure), figure, seeds)
    return shown(difference(ours, theirs)) if seeds else ""


def table_of_newcomers(arms: Sequence[Arm]) -> str:
    """Return the accuracy of clients that joined after training as a Markdown table."""
    control = best_control(arms, newcomers)
    lines = ["| arm | seeds | newcomers | rule | against the best control |", "|---|---|---|---|---|"]
    for arm in arms:
        rule = arm.best_rule(newcomers)
        cells = [arm.label, str(len(arm.runs)), spread(arm.values(rule, newcomers)), rule]
        lines.append("| " + " | ".join([*cells, against(arm, control, newcomers)]) + " |")
    return "\n".join(lines)


def table(arms: Sequence[Arm]) -> str:
    """Return one comparison as a Markdown table."""
    control = best_control(arms)
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    for arm in arms:
        own, other = arm.best_rule(final), arm.best_rule(union)
        cells = [
            arm.label,
            str(len(arm.runs)),
            *(spread(arm.values(own, figure)) for figure in (final, validated, best)),
            own,
            spread(arm.values("head", final)),
            *(spread(arm.values(other, figure)) if other else "–" for figure in (union, unseen)),
            other or "–",
            against(arm, control),
            f"{arm.bytes / 1000:,.0f}",
            f"{arm.seconds:.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


OVERVIEW = ("fedproto", "fedavg-tiny", "beacon")


def overview(comparisons: Sequence[tuple[str, Sequence[Arm]]]) -> str:
    """Return one line per comparison as a Markdown table: what exchanges against the best control."""
    names = (
        "setting",
        "seeds",
        "best control",
        "its own",
        "FedProto",
        "`fedavg-tiny`",
        "`beacon`",
        "`beacon`, unseen",
    )
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    for name, arms in comparisons:
        found = {arm.label: arm for arm in arms}
        control = best_control(arms)
        if control is None:
            continue
        cells = [name, str(len(control.runs)), f"`{control.label}`"]
        cells.append(spread(control.values(control.best_rule(final), final)))
        cells += [against(found[label], control) if label in found else "–" for label in OVERVIEW]
        rule = found["beacon"].best_rule(union) if "beacon" in found else ""
        cells.append(spread(found["beacon"].values(rule, unseen)) or "–" if rule else "–")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


LEFT_OUT = ("beacon-etf", "beacon-learned")
"""Arms that lie on others in the pictures."""
NOTHING = 1e4
"""Where the picture shows arms that send nothing, in bytes a round."""


def picture(arms: Sequence[Arm], path: Path) -> None:
    """Draw accuracy on own and on unseen classes against bytes, one point per arm."""
    import matplotlib.pyplot as plt

    arms = [arm for arm in arms if arm.label not in LEFT_OUT]
    looks = _looks([arm.label for arm in arms])
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4), sharex=True, layout="constrained")
    sides = (axes[0], final, final, "own classes"), (axes[1], unseen, union, "classes never seen")
    for axis, score, chosen, title in sides:
        for arm in arms:
            if rule := arm.best_rule(chosen):  # as in the table
                colour, marker = looks[arm.label]
                value, sent = statistics.fmean(arm.values(rule, score)), max(arm.bytes, NOTHING)
                axis.plot(sent, value, marker, color=colour, markersize=8, alpha=0.9, label=arm.label)
        axis.set_xscale("log")
        axis.set_xlim(NOTHING / 1.6, 4e6)
        axis.set_xticks([NOTHING, 1e5, 1e6], ["nothing", "100 kB", "1 MB"])
        axis.minorticks_off()
        axis.set_title(f"Accuracy on {title}, %")
        axis.set_xlabel("sent in a round, by and to all 20 clients")
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def course(arms: Sequence[Arm], path: Path) -> None:
    """Draw accuracy on own classes against seconds and against bytes, one line per arm, means over seeds."""
    import matplotlib.pyplot as plt

    arms = [arm for arm in arms if arm.label not in LEFT_OUT]
    looks = _looks([arm.label for arm in arms])
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4), sharey=True, layout="constrained")
    for arm in arms:
        rounds, sent, values = _course(arm)
        colour, marker = looks[arm.label]
        look = {"color": colour, "marker": marker, "markersize": 5, "alpha": 0.9, "label": arm.label}
        axes[0].plot([arm.seconds * round for round in rounds], values, **look)
        silent = sent.count(0)
        if silent < len(sent):
            axes[1].plot(sent[silent:], values[silent:], **look)
    axes[0].set_xlabel("seconds of training and aggregation")
    axes[1].set_xlabel("bytes sent (arms that send)")
    for axis in axes:
        axis.set_xscale("log")
        axis.xaxis.set_minor_formatter("")
        axis.grid(alpha=0.3)
    axes[0].set_xticks([3, 10, 30], ["3", "10", "30"])
    axes[1].set_xticks([3e5, 1e6, 1e7, 3e7], ["300 kB", "1 MB", "10 MB", "30 MB"])
    axes[0].set_ylabel("accuracy on own classes, %")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _course(arm: Arm) -> tuple[list[int], list[float], list[float]]:
    """Return the evaluated rounds, the bytes sent so far, and the accuracy in percent, as means over seeds."""
    rule = arm.best_rule(final)
    found: dict[int, list[tuple[float, float]]] = {}
    for measured in arm.runs.values():
        sent = 0.0
        for r in measured.run.rounds if measured.run else ():
            sent += sum(r.bytes.values())
            if r.accuracy is not None:
                found.setdefault(r.round, []).append((sent, 100 * r.accuracy.weighted[rule]))
    means = [[statistics.fmean(part) for part in zip(*points, strict=True)] for points in found.values()]
    return list(found), [sent for sent, _ in means], [value for _, value in means]


def _looks(labels: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return colour and marker of each arm: a colour for controls, beacon, other small networks, and prototypes."""
    found: dict[str, tuple[str, str]] = {}
    for label in labels:
        family = "beacon" if label.startswith("beacon") else label.rpartition("-")[2]
        colour = {"beacon": "#D55E00", "tiny": "#E69F00"}.get(family, "#0072B2")
        colour = "#777777" if label in CONTROLS else colour
        taken = sum(other == colour for other, _ in found.values())
        found[label] = colour, "os^DvPX*"[taken % 8]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("comparisons", nargs="+")
    parser.add_argument("--picture", type=Path, help="draw the first comparison here, against bytes a round")
    parser.add_argument("--course", type=Path, help="draw it here round by round, against seconds and bytes")
    parser.add_argument(
        "--save", type=Path, help="write the figures of the first comparison's runs to this CSV file"
    )
    parser.add_argument("--overview", action="store_true", help="print one line for each comparison instead")
    given = parser.parse_args()
    if given.overview:
        named = [[Path(part) for part in name.split(",")] for name in given.comparisons]
        print(overview([(paths[0].stem, arms_of(paths)) for paths in named]))
        return
    for number, comparison in enumerate(given.comparisons):
        places = [Path(name) for name in comparison.split(",")]
        arms = arms_of(places)
        print(f"\n{places[0].stem}\n\n{table(arms)}")
        if any(arm.best_rule(newcomers) for arm in arms):
            print(f"\n{table_of_newcomers(arms)}")
        if number == 0 and given.save:
            save(arms, given.save)
        if number == 0 and given.picture:
            picture(arms, given.picture)
        if number == 0 and given.course:
            course(arms, given.course)


if __name__ == "__main__":
    main()
