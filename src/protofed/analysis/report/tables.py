"""The tables of the report, as plain cells: the template decides how they look."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from protofed.analysis.metrics import writer
from protofed.analysis.report import facts
from protofed.analysis.report.facts import bytes_per_round
from protofed.analysis.table import TextCell, TextTable
from protofed.runs.description import ClientDescription
from protofed.runs.findings import Findings
from protofed.runs.metrics import HEADLINES
from protofed.runs.run import Run, rule_of, select_finished
from protofed.text import duration, mean_std, number, percent, size


class OutcomeColumn(NamedTuple):
    """A column of :class:`~protofed.runs.summary.RuleOutcome` in tables."""

    group: str
    heading: str
    name: str
    spread: str = ""  #: Attribute with the standard deviation over clients, which is written below
    mean: str = ""  #: Attribute with the mean over clients, which is written before the spread, if any

    def cell(self, runs: Sequence[Run], rule: str) -> TextCell:
        """Return the mean over runs, with the standard deviation over several."""
        values = accuracies(runs, rule, self.name)
        if self.name == CONVERGED:
            some = f"{len(values)} of {len(runs)} runs" if 0 < len(values) < len(runs) else ""
            return TextCell(mean_std(values, number), some)
        if self.spread and values:
            spread = f"± {100 * statistics.fmean(accuracies(runs, rule, self.spread)):.1f}"
            mean = percent(statistics.fmean(accuracies(runs, rule, self.mean))) if self.mean else ""
            return TextCell(mean_std(values), f"{mean.removesuffix('%')} {spread}".strip())
        rounds = accuracies(runs, rule, f"{self.name}_round") if self.name in WITH_ROUND else []
        return TextCell(mean_std(values), f"round {', '.join(map(str, rounds))}" if rounds else "")


CONVERGED = "rounds_to_convergence"
WITH_ROUND = ("best", "best_validated")  #: Attributes of accuracies that come with their round


def outcome_columns(runs: Sequence[Run]) -> list[OutcomeColumn]:
    """Return the columns on accuracy that some of the runs can fill."""
    outcomes = [outcome for run in runs for outcome in run.outcome.accuracy.values()]
    other = facts.everybody(runs).capitalize()
    columns = [
        OutcomeColumn("Of all test samples", "Final", "final"),
        OutcomeColumn("Of all test samples", "Best validated", "best_validated"),
        OutcomeColumn("Of all test samples", "Best", "best"),
        OutcomeColumn("Mean over clients", "Final", "client_mean", "client_std"),
        OutcomeColumn("Mean over clients", "Best round", "best_client_mean", "best_client_std"),
        OutcomeColumn(other, "All classes", "union"),
        OutcomeColumn(other, "Unseen classes", "unseen"),
        OutcomeColumn("", "Newcomers", "newcomers"),
        OutcomeColumn("", "Converged at round", CONVERGED),
    ]
    always = ("final", "best", "client_mean", "best_client_mean", CONVERGED)
    return [c for c in columns if c.name in always or any(getattr(o, c.name) is not None for o in outcomes)]


def groups_of(columns: Sequence[OutcomeColumn]) -> list[tuple[str, int]]:
    """Return the headings above columns, each with the number of columns it spans."""
    return [(name, len(list(own))) for name, own in itertools.groupby(column.group for column in columns)]


def rules(runs: Sequence[Run]) -> TextTable:
    """Return one row per inference rule of one method."""
    chosen = select_finished(runs)
    columns = outcome_columns(chosen)
    table = TextTable(["A sample is given …", *(column.heading for column in columns)])
    table.groups = [("", 1), *groups_of(columns)]
    for rule in dict.fromkeys(rule for run in chosen for rule in run.rules):
        main = rule == rule_of(chosen)
        described = chosen[0].rule(rule)
        title = TextCell(described.title + (" (main rule)" if main else ""), described.text, main)
        table.add(title, *(column.cell(chosen, rule) for column in columns))
    return table


def clients(run: Run) -> TextTable:
    """Return one row per client: model, data, and final accuracy by every rule."""
    table = TextTable(["Client", "Architecture", "Parameters", "d", "Training", "Test", "Classes"], text_columns=2)
    table.groups = [("", 2), ("Model", 2), ("Samples", 2), ("", 1)]
    if run.rules:
        table.head += [run.rule(rule).title for rule in run.rules]
        table.groups.append(("Final accuracy", len(run.rules)))
    if run.measured:
        table.head += HEADLINES.values()
        table.groups.append((f"Metrics by {run.rule(run.measured.rule).title.lower()}", len(HEADLINES)))
    added = any(client.extras for client in run.clients)
    if added:
        table.head.insert(3, "Added by the method")
        table.groups[1] = ("Model", 3)
    scores = [run.client_accuracies(rule) for rule in run.rules]
    for i, client in enumerate(run.clients):
        held = sum(1 for n in client.train if n)
        table.add(
            client.name,
            client.architecture,
            number(client.parameters),
            *([", ".join(f"{name} {number(n)}" for name, n in client.extras.items()) or "–"] if added else []),
            number(client.d),
            _samples(client, client.train),
            _samples(client, client.test),
            f"{held} of {len(run.class_names)}",
            *(percent(values[i] if i < len(values) else None) for values in scores),
            *_client_metrics(run, client.name),
        )
    return table


def _client_metrics(run: Run, client: str) -> list[TextCell]:
    """Return the metrics of a client, and why one is not defined."""
    if run.measured is None:
        return []
    own = run.measured.clients[client]
    return [TextCell(writer(name)(getattr(own, name)), (own.undefined or {}).get(name, "")) for name in HEADLINES]


def _samples(client: ClientDescription, per_class: Sequence[int]) -> str:
    """Return the number of a client's samples, as far as it is stated."""
    told = number(sum(per_class))
    return {"none": "withheld", "coarse": f"≤ {told}"}.get(client.counts, told)


def communication(runs: Sequence[Run]) -> TextTable:
    """Return the traffic up, down and in both directions: parameters as papers count them, and real bytes."""
    chosen = select_finished(runs)
    heads = ("Parameters per round", "Over all rounds", "Bytes per round", "Bytes per client and round")
    table = TextTable(["Direction", *heads, "Bytes in total"])
    rows = {"Up, clients to server": ("up",), "Down, server to clients": ("down",), "Both": ("up", "down")}

    def mean(ways: tuple[str, ...], of: Callable[[Run, str], float]) -> float:
        return statistics.fmean(sum(of(run, way) for way in ways) for run in chosen)

    for name, ways in rows.items():
        table.add(
            name,
            number(round(mean(ways, lambda run, way: run.outcome.communication.parameters_per_round[way]))),
            number(round(mean(ways, lambda run, way: run.outcome.communication.parameters_over_all_rounds[way]))),
            size(mean(ways, bytes_per_round)),
            size(mean(ways, _bytes_per_client)),
            size(mean(ways, lambda run, way: run.outcome.communication.bytes_total[way])),
        )
    return table


def geometry(run: Run) -> TextTable | None:
    """Return distances, angles and lengths of the global prototypes; None if there are none."""
    from protofed.analysis.figures.geometry import final_prototypes
    from protofed.prototypes.geometry import summary

    table_and_present = final_prototypes(run, "global")
    values = summary(*table_and_present) if table_and_present else {}
    if not values.get("classes"):
        return None
    table = TextTable(["Between the prototypes of two classes", "Smallest", "Mean", "Largest"])
    for name, title, unit in (("distance", "Euclidean distance", ""), ("angle", "Angle", "°")):
        table.add(title, *(f"{values[f'{name}_{which}']:.3g}{unit}" for which in ("min", "mean", "max")))
    table.add(
        TextCell("Normalised margin", "distance to the nearest other class, divided by the largest"),
        f"{values['margin_min']:.2f}",
        f"{values['margin_mean']:.2f}",
        "1.00",
    )
    table.add("Length of a prototype", "", f"{values['norm_mean']:.3g}", "")
    return table


def list_refusals(runs: Sequence[Run]) -> TextTable | None:
    """Return the uploads that broke their schema; None if there were none."""
    return _incidents(runs, "refused", ("client", "field", "reason"))


def missing(runs: Sequence[Run]) -> TextTable | None:
    """Return the clients of a network that gave no result, and why; None if there were none."""
    return _incidents(runs, "missing", ("client", "phase", "reason"))


def list_left_out(runs: Sequence[Run]) -> TextTable | None:
    """Return the clients of a network that did not fit the others, and why; None if all did."""
    table = TextTable(["Client", "Reason", "Seed"], text_columns=2)
    for row in dict.fromkeys((*entry, str(run.seed)) for run in runs for entry in run.federation.left_out.items()):
        table.add(*row)
    return table if table.rows else None


def without_effect(runs: Sequence[Run]) -> TextTable | None:
    """Return the rounds after which the server kept its state, and why; None if there were none."""
    rounds: dict[tuple[str, ...], list[int]] = {}
    for run in runs:
        for record in run.rounds:
            if record.robust.kept:
                rounds.setdefault((record.robust.kept, str(run.seed)), []).append(record.round)
    return _count_events(["Reason", "Seed"], 1, rounds)


STEPS = 20  #: Rounds, besides the first and the last, that the table of the cost of privacy has at most


def privacy(run: Run) -> TextTable | None:
    """Return the cost of differential privacy after each round, of many rounds after some; None without noise."""
    spent = [(record.round, record.privacy) for record in run.rounds if record.privacy and record.privacy.noise]
    if not spent:
        return None
    table = TextTable(["After round", "ε", "Noisy sums", *["Noisy statistics"] * (spent[-1][1].means > 0)])
    step = -(-len(spent) // STEPS)
    for place, (round_number, cost) in enumerate(spent, start=1):
        if place == 1 or place % step == 0 or place == len(spent):
            more = [number(cost.means)] if spent[-1][1].means else []
            table.add(number(round_number), f"{cost.epsilon:.3g}", number(cost.releases), *more)
    return table


def _incidents(runs: Sequence[Run], kind: str, fields: tuple[str, ...]) -> TextTable | None:
    """Count the incidents of a kind, with one row for equal incidents of a client."""
    rounds: dict[tuple[str, ...], list[int]] = {}
    for run in runs:
        for record in run.rounds:
            for incident in getattr(record, kind):
                key = (*(getattr(incident, name) for name in fields), str(run.seed))
                rounds.setdefault(key, []).append(record.round)
    return _count_events([*(name.capitalize() for name in fields), "Seed"], len(fields), rounds)


def _count_events(
    columns: list[str], text_columns: int, rounds: Mapping[tuple[str, ...], list[int]]
) -> TextTable | None:
    """Count events and list their rounds, the most frequent first; None without any."""
    if not rounds:
        return None
    table = TextTable([*columns, "Times", "Rounds"], text_columns=text_columns)
    for key, when in sorted(rounds.items(), key=lambda item: -len(item[1])):
        table.add(*key, str(len(when)), str(when[0]) if when[0] == when[-1] else f"{when[0]} to {when[-1]}")
    return table


NAMED = 20
"""Clients to which the same was done in the same rounds and that have rows of their own; more share one."""


def robust(runs: Sequence[Run]) -> TextTable | None:
    """Return the interventions of the robust rule, by client; None without any.

    Classes that one client alone reported stand in a row of their own: nothing protects them.
    """
    interventions: dict[tuple[str, str], list[int]] = {}
    for record in (record for run in runs for record in run.rounds):
        for client, what in _interventions(record.robust):
            interventions.setdefault((client, what), []).append(record.round)
    table = TextTable(["Client", "What was done", "Rounds", "First", "Last"], text_columns=2)
    alike: dict[tuple[str, ...], list[str]] = {}
    for (client, what), when in sorted(interventions.items(), key=lambda item: (item[0][1], -len(item[1]))):
        alike.setdefault((what, str(len(when)), str(min(when)), str(max(when))), []).append(client)
    for cells, clients in alike.items():
        many = len(clients) > NAMED
        for client in [f"{clients[0]}, {clients[1]} and {len(clients) - 2:,} others"] if many else clients:
            table.add(client, *cells)
    return table if table.rows else None


def _interventions(findings: Findings) -> Iterator[tuple[str, str]]:
    """Yield client and intervention of one round's record."""
    for client in findings.left_out:
        yield client, "its upload was left out"
    for client in findings.clipped:
        yield client, "vectors were shortened"
    for client, names in findings.capped.items():
        yield client, f"{', '.join(names)} reduced to what it may weigh"
    for client in findings.out_of_proportion:
        yield client, "vectors many times as long as the median reached the server"
    for label in findings.alone:
        yield "", f"class {label} was reported by one client alone and cannot be protected"


def environment(runs: Sequence[Run]) -> TextTable | None:
    """Return where the first finished run was computed; None if none has finished."""
    run = next((run for run in runs if run.summary), None)
    if run is None or run.summary is None:
        return None
    table = TextTable(["Environment", ""], text_columns=2)
    if run.summary.protofed:
        table.add("protofed", run.summary.protofed)
    for name, value in run.summary.environment.items():
        table.add(name, str(value))
    if run.summary.peak_memory_bytes:
        table.add("peak memory", size(run.summary.peak_memory_bytes))
    for name in ("training", "aggregation", "evaluation"):
        table.add(f"time in {name}", duration(run.outcome.seconds[name]))
    return table


def accuracies(runs: Sequence[Run], rule: str, name: str) -> list[Any]:
    """Return one figure of :class:`~protofed.runs.summary.RuleOutcome` for every run that has it."""
    outcomes = [run.outcome.accuracy[rule] for run in runs if rule in run.outcome.accuracy]
    return [value for outcome in outcomes if (value := outcome.figure(name)) is not None]


def _bytes_per_client(run: Run, way: str) -> float:
    """Return the mean bytes of a client in a round that sent any; all participants count."""
    sent = [r.bytes[way] / len(r.participants) for r in run.rounds if r.bytes[way] and r.participants]
    return statistics.fmean(sent) if sent else 0.0
