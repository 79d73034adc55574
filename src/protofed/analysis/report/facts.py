"""Single facts of runs, in words."""

from __future__ import annotations

import json
import re
import shlex
import statistics
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from protofed.analysis.metrics import area
from protofed.errors import ProtofedError
from protofed.runs.files import read_text
from protofed.runs.run import Run, rule_of, select_finished
from protofed.runs.summary import TOLERANCE
from protofed.text import duration, mean_std, number, percent, plural, size

MANY = 500  #: Most clients whose choices are read
tolerance = f"{100 * TOLERANCE:g} percentage point"


class Card(NamedTuple):
    """A headline number."""

    label: str
    value: str
    note: str


def status(run: Run) -> str:
    """Describe the progress of a run."""
    if run.finished:
        early = f" of {run.planned_rounds}, stopped early" if run.last_round < run.planned_rounds else ""
        return f"finished, {plural(run.last_round, 'round')}{early}"
    return f"running or stopped after round {run.last_round} of {run.planned_rounds}"


def choices(run: Run) -> str:
    """Describe the choices of a finished run's clients in sentences; "" if unknown."""
    if not run.finished or len(run.clients) > MANY:
        return ""
    from protofed.experiments.ending import client_state
    from protofed.methods.parts.gaussian import describe_choices
    from protofed.storage.files import read_tensors

    found = {}
    with suppress(ProtofedError):
        for client in run.clients:
            for choice in read_tensors(client_state(run.directory, client.name), ["received.choice"]).values():
                found[client.name] = choice
    return describe_choices(found) if found else ""


def progress(runs: Sequence[Run]) -> str:
    """Describe the progress of several runs."""
    done = sum(run.finished for run in runs)
    if done == len(runs):
        return f"all {done} runs finished"
    return f"{done} of {len(runs)} runs finished; the others are running or were stopped"


def about(run: Run) -> str:
    """Return the method's summary and reference, as far as they are known."""
    from protofed.methods import methods

    known = methods()
    if run.method not in known:
        return ""
    method = known.get(run.method)
    summary = method.summary[:1].upper() + method.summary[1:]
    return f"{summary}. {method.reference}".strip().removesuffix(".") + "."


def say_when_scored(runs: Sequence[Run]) -> str:
    """Return the moment at which clients were scored."""
    moments = {
        "broadcast": "after they received what the server made of the round, before they trained again",
        "trained": "as they stood after training, before they received what the server made of the round",
    }
    used = {str(run.config.get("evaluation", {}).get("at", "broadcast")) for run in runs}
    return f"Clients are scored {moments.get(used.pop(), 'at another moment')}." if len(used) == 1 else ""


def architectures(run: Run) -> str:
    """Return the clients' architectures in a few words."""
    names = list(dict.fromkeys(c.architecture for c in run.clients))
    return f"all {names[0]}" if len(names) == 1 else f"{len(names)} architectures"


def parameters(run: Run) -> str:
    """Return the number of parameters of the clients' models, or the smallest and the largest."""
    sizes = sorted({c.parameters for c in run.clients})
    return f"{'–'.join(number(size) for size in dict.fromkeys((sizes[0], sizes[-1])))} parameters" if sizes else ""


def same_split(runs: Sequence[Run]) -> bool:
    """Return whether all runs of a comparison have clients with the same numbers of samples."""
    counts = [[c.train for c in run.clients] for run in runs if run.seed == runs[0].seed]
    return all(c == counts[0] for c in counts)


def cards(run: Run) -> list[Card]:
    """Return the headline numbers of one run."""
    sent, seconds = run.outcome.communication.sent, run.outcome.seconds
    per_round = [size(bytes_per_round(run, way)) for way in ("up", "down")]
    memory = run.summary.peak_memory_bytes if run.summary else None
    return [
        *_accuracy_cards(run),
        *_privacy_cards(run),
        Card("Sent per round", f"↑ {per_round[0]}\n↓ {per_round[1]}", "by all clients, and to them")
        if sent
        else Card("Sent per round", "nothing", "every client trains alone"),
        Card("Sent in total", size(sent), f"in {plural(len(run.rounds), 'round')}, both directions"),
        Card(
            "Time",
            duration(seconds["total"]),
            f"{duration(seconds['total'] / max(1, len(run.rounds)))} per round"
            + (f", {size(memory)} of memory" if memory else ""),
        ),
        Card("Clients", number(len(run.clients)), f"{architectures(run)}, {plural(len(run.class_names), 'class')}"),
    ]


def _privacy_cards(run: Run) -> list[Card]:
    """Return the cost of differential privacy; empty without it."""
    spent = next((r.privacy for r in reversed(run.rounds) if r.privacy), None)
    if spent is None:
        return []
    hidden = {"client": "hides single clients", "sample": "hides single samples of a client"}[spent.mode]
    epsilon = f"ε = {spent.epsilon:.3g}" if spent.noise else "ε = ∞"
    return [Card("Privacy", epsilon, f"at δ = {spent.delta:g}, {hidden}; noise {spent.noise:.3g} times the norm")]


def _accuracy_cards(run: Run) -> list[Card]:
    if not run.evaluations:
        return [Card("Accuracy", "–", "no round has been evaluated yet")]
    rule = run.main_rule
    accuracy = run.outcome.accuracy[rule]
    last = f"round {run.last_evaluation}, by {run.rule(rule).title.lower()}"
    cards = [
        Card("Final accuracy", percent(accuracy.final), last),
        Card("Best accuracy", percent(accuracy.best), f"round {accuracy.best_round}, chosen on test data"),
    ]
    if accuracy.best_validated is not None:
        note = f"round {accuracy.best_validated_round}, chosen on validation data"
        cards.insert(1, Card("Best validated", percent(accuracy.best_validated), note))
    if run.measured is not None:
        own = run.measured.overall
        note = f"macro F1 {percent(own.macro_f1)}, AUROC {area(own.auroc)}"
        cards.append(Card("Balanced accuracy", percent(own.balanced_accuracy), note))
    if accuracy.union is not None:
        unseen = accuracy.unseen.final if accuracy.unseen else None
        cards.append(
            Card(f"On {everybody([run])}", percent(accuracy.union.final), f"{percent(unseen)} on unseen classes")
        )
    return cards


def beyond(runs: Sequence[Run]) -> str:
    """Explain scores on everyone's samples; empty if no run has any."""
    if not any(outcome.union for run in runs for outcome in run.outcome.accuracy.values()):
        return ""
    how = {"balanced": ", every class counting alike", "shifted": ", weighted as the next client’s classes"}
    alike = next((how[on] for on in how if on in _find_test_sets(runs)), "")
    return (
        f"“All classes” is the accuracy of every client on the test samples of all clients together{alike}, after "
        "the last evaluated round; “unseen classes” is the part of them that the client has no training samples of."
    )


def everybody(runs: Sequence[Run]) -> str:
    """Name the samples, besides a client's own, on which clients were scored."""
    how = {"balanced": ", classes alike", "shifted": ", classes shifted"}
    return "everyone’s samples" + next((how[on] for on in how if on in _find_test_sets(runs)), "")


def _find_test_sets(runs: Sequence[Run]) -> set[str]:
    return {str(run.config.get("evaluation", {}).get("on")) for run in runs}


def headline(runs: Sequence[Run]) -> str:
    """Return one method's final accuracy by its main rule, over its seeds."""
    scored = [run for run in select_finished(runs) if run.evaluations]
    if not scored:
        return "not evaluated yet"
    rule = rule_of(scored)
    values = [run.outcome.accuracy[rule].final for run in scored if rule in run.outcome.accuracy]
    return f"{mean_std(values)} final accuracy by {scored[0].rule(rule).title.lower()}"


def seeds(runs: Sequence[Run]) -> str:
    """Return the seeds of some runs."""
    numbers = sorted({run.seed for run in runs})
    return f"seed{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def bytes_per_round(run: Run, way: str) -> float:
    """Return the mean number of bytes over the rounds that sent any ``up`` or ``down``, of all clients together."""
    sent = [r.bytes[way] for r in run.rounds if r.bytes[way]]
    return statistics.fmean(sent) if sent else 0.0


def silent(runs: Sequence[Run]) -> bool:
    """Return whether nothing was sent at all."""
    return not any(r.sent for run in runs for r in run.rounds)


def elsewhere(run: Run) -> str:
    """Describe the repetition of a run of a network."""
    if _of_node(run):
        return "This folder belongs to one client's node; only the server can repeat the run."
    secret = str(run.config.get("privacy", {}).get("mode", "none")) != "none"
    return (
        "The data are at the nodes of a network, so protofed run cannot reproduce this run. On the server, with "
        f"the same version, nodes and data, this gives the same result{', but for secret noise' if secret else ''} "
        "(APP is the folder that protofed deploy app has written):"
    )


def again(run: Run, *, resume: bool = False) -> str:
    """Return the command that repeats a run of a network, or goes on with it; ``""`` at a node."""
    if _of_node(run):
        return ""
    config = {"recipe": str(run.directory / "config.toml"), "overrides": "", "clients": len(run.clients)}
    if all(re.fullmatch(r"[\w.+-]+", name) for name in run.class_names):  # no commas
        config["classes"] = ",".join(run.class_names)
    if resume:
        config["resume"] = str(run.directory)
    chosen = " ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in config.items())
    return f"flwr run APP --stream -c {shlex.quote(chosen)}"


def _of_node(run: Run) -> bool:
    """Return whether a run directory belongs to a node of a network."""
    return (run.directory / "clients").is_dir()


def configuration(run: Run) -> str:
    """Return the text of ``config.toml``."""
    return read_text(run.directory / "config.toml").strip()


def version(runs: Sequence[Run]) -> str:
    """Return the versions of protofed that made the runs."""
    versions = sorted({run.summary.protofed for run in runs if run.summary} - {""})
    return ", ".join(versions)
