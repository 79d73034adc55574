"""The tables of the command line."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from protofed.analysis.exchange import EXCHANGES
from protofed.analysis.metrics import overall_text, spread_text
from protofed.analysis.table import TextTable
from protofed.runs.metrics import HEADLINES
from protofed.runs.records import WAYS
from protofed.runs.rules import Rule, find_rule
from protofed.runs.run import Run, by_label
from protofed.runs.summary import TOLERANCE, Summary, Traffic
from protofed.text import mean_std, number, size

if TYPE_CHECKING:
    from protofed.experiments.tuning import Trial


Groups = Mapping[str, Sequence[Summary]]  #: Summaries of the runs of each method


class _Line(NamedTuple):
    """A line of a method's results: its title, the attribute of a rule's outcome, and its spread."""

    title: str
    figure: str
    spread: str = ""
    always: bool = True


LINES = (
    _Line("final", "final"),
    _Line("  clients", "client_mean", "client_std"),
    _Line("best_validated", "best_validated", always=False),
    _Line("best", "best"),
    _Line("  clients", "best_client_mean", "best_client_std"),
    _Line("converged", "rounds_to_convergence"),
    _Line("union", "union", always=False),
    _Line("unseen", "unseen", always=False),
    _Line("newcomers", "newcomers", always=False),
)
TRIALS = 12  #: Most trials of a search that are shown, the best ones
NOTES = {
    "final": "Weighted by test samples; best is chosen on test data, hence optimistic; clients: mean ± spread over "
    "clients in the same round",
    "best_validated": "best_validated: on test data, in the round that is best on validation data",
    "rounds_to_convergence": f"converged: first round from which on the mean over clients stays within "
    f"{100 * TOLERANCE:g} point of its best",
    "union": "union: final, on all clients' test samples; unseen: on their classes that a client has no samples of",
    "newcomers": "newcomers: final, clients that joined after training, on their own test samples",
}


def summaries_of(runs: Mapping[str, Sequence[Run]]) -> Groups:
    """Return the summaries of finished runs; methods that exchange the same stand together."""
    groups = {name: [run.summary for run in group if run.summary] for name, group in runs.items()}
    places = {kind: place for place, kind in enumerate(EXCHANGES)}
    return dict(sorted(groups.items(), key=lambda item: places.get(item[1][0].exchanges, len(places))))


def results_table(groups: Groups, described: Mapping[str, Rule] | None = None) -> TextTable:
    """Return the accuracies of each method by every rule, mean ± std over its runs."""
    sections = len({group[0].exchanges for group in groups.values()}) > 1
    outcomes = [outcome for group in groups.values() for s in group for outcome in s.outcome.accuracy.values()]
    lines = [line for line in LINES if line.always or any(getattr(o, line.figure) is not None for o in outcomes)]
    names = dict.fromkeys(r for group in groups.values() for s in group for r in s.outcome.accuracy)
    rules = {name: (described or {}).get(name) or find_rule(name) for name in names}
    rounds = max(s.outcome.rounds for group in groups.values() for s in group)
    seeds = max(len(group) for group in groups.values())
    over = f", mean ± std over {seeds} seeds" if seeds > 1 else ""
    legend = "; ".join(f"{rule.short or rule.name} = {rule.text}" for rule in rules.values())
    notes = [legend, *(NOTES[line.figure] for line in lines if line.figure in NOTES), _main_rules(groups)]
    table = TextTable(
        ["method", "round", *(rule.short or rule.name for rule in rules.values())],
        text_columns=2,
        title=f"Test accuracy in %, {rounds} rounds{over}",
        caption="\n".join(f"{note}." for note in notes if note),
        by="exchanges",
    )
    last = ""
    for name, group in groups.items():
        if sections and (what := group[0].exchanges) != last:
            last = table.sections[len(table.rows)] = what
        for i, line in enumerate(lines):
            table.add("" if i else name, line.title, *(_accuracy(group, rule, line) for rule in rules))
    return table


def traffic_table(groups: Groups) -> TextTable:
    """Return each method's traffic, in bytes and in parameters, and its time, mean over its runs."""
    table = TextTable(["method", *("bytes", "parameters per round") * len(WAYS), "time"])
    table.title = "Traffic of all clients together, and time"
    table.caption = "Parameters per round: mean over the rounds in which any were sent / over all rounds."
    table.groups = [("", 1), *((way, 2) for way in WAYS), ("", 1)]
    for name, group in groups.items():
        traffic = [s.outcome.communication for s in group]
        seconds = f"{statistics.fmean(s.outcome.seconds['total'] for s in group):.0f} s"
        table.add(name, *(cell for way in WAYS for cell in _format_traffic(traffic, way)), seconds)
    return table


def metrics_table(runs: Sequence[Run]) -> TextTable:
    """Return the metrics of each method's runs that have some, mean ± std over them."""
    table = TextTable(["method", "rule", *HEADLINES.values()], text_columns=2)
    table.title = "Metrics of the final models; AUROC is an area, the others are in %"
    table.caption = (
        "First line: all test samples together; clients: mean ± spread over those for which the metric is defined."
    )
    for label, group in by_label(run for run in runs if run.measured).items():
        found = [run.measured for run in group if run.measured]
        for first, write in (((label, found[0].rule), overall_text), (("", "  clients"), spread_text)):
            cells = (write(found, name).replace("%", "").replace(" ± ", "±") for name in HEADLINES)
            table.add(*first, *cells)
    return table


def trials_table(trials: Sequence[Trial]) -> TextTable:
    """Return the best trials of a search."""
    ended = {how: sum(trial.ended == how for trial in trials) for how in ("complete", "pruned", "failed")}
    count = ", ".join(f"{number} {how}" for how, number in ended.items() if number)
    table = TextTable(["trial", *(trials[0].values if trials else ()), "validation"])
    table.title = "Best accuracy on validation samples in %, by the main rule"
    table.caption = f"Trials: {count or 'none'}."
    done = [(trial.score, place) for place, trial in enumerate(trials) if trial.score is not None]
    for score, place in sorted(done, key=lambda item: (-item[0], item[1]))[:TRIALS]:
        values = (f"{v:.4g}" if isinstance(v, float) else str(v) for v in trials[place].values.values())
        table.add(str(place), *values, f"{100 * score:.1f}")
    return table


def _main_rules(groups: Groups) -> str:
    """Return the main rule, or the main rules with the methods that have them."""
    methods: dict[str, list[str]] = {}
    for name, group in groups.items():
        methods.setdefault(group[0].main_rule, []).append(name)
    if len(methods) == 1:
        return f"Main rule: {next(iter(methods))}"
    return "Main rules: " + "; ".join(f"{rule} ({', '.join(names)})" for rule, names in methods.items())


def _accuracy(group: Sequence[Summary], rule: str, line: _Line) -> str:
    """Return a line's figure; a dash where the method has no such rule."""
    outcomes = [s.outcome.accuracy[rule] for s in group if rule in s.outcome.accuracy]
    values = [value for o in outcomes if (value := o.figure(line.figure)) is not None]
    if line.figure == "rounds_to_convergence":
        return mean_std(values, number).replace(" ± ", "±")
    if line.spread and values:
        spread = statistics.fmean(getattr(o, line.spread) for o in outcomes)
        return f"{100 * statistics.fmean(values):.1f}±{100 * spread:.1f}"
    return mean_std(values).replace("%", "").replace(" ± ", "±")


def _format_traffic(traffic: Sequence[Traffic], way: str) -> tuple[str, str]:
    """Return bytes, and parameters per sending round / over all rounds."""
    sending = number(round(statistics.fmean(t.parameters_per_round[way] for t in traffic)))
    rounds = number(round(statistics.fmean(t.parameters_over_all_rounds[way] for t in traffic)))
    return size(statistics.fmean(t.bytes_total[way] for t in traffic)), f"{sending} / {rounds}"
