"""The result of a run in one line of a CSV file: small enough to be committed."""

from __future__ import annotations

import ast
import csv
import hashlib
import io
import json
import math
import operator
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from protofed.analysis.restore import prototypes
from protofed.errors import CheckpointError, unknown_name
from protofed.runs.run import Run
from protofed.runs.trouble import find_diverged
from protofed.storage.files import write_text
from protofed.untrusted import claims
from protofed.untrusted.reading import read_text, reason
from protofed_papers.cells import SCALES

_OPERATIONS: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}

RESULTS_BYTES = 64 * 1024 * 1024
FOLDER = Path(str(resources.files("protofed_papers") / "results"))  #: Results that come with the library
BY_RULE = ("final", "best", "client_mean", "best_client_mean", "client_std", "converged", "moved")
"""Numbers that depend on how test samples are classified; accuracies in fractions."""
ACCURACIES = BY_RULE[:5]
ALIGNMENT = ("alignment_first", "alignment_last", "alignment_most")
VALUES = (*BY_RULE, "up", "down", "up_mean", "down_mean", "formula", *ALIGNMENT, "dead_percent")
"""Numbers of a result; those by rule are by its main rule."""
MOST = 1e15  #: Largest number that a result can have: of parameters, over all rounds
FACTS = ("key", "scale", "recipe", "method", "seed", "rounds", "images", "split", "rule", "state", "made")


@dataclass(frozen=True)
class Result:
    """One run."""

    key: str  #: Of its configuration (:attr:`protofed.experiments.Experiment.key`)
    scale: str
    recipe: str
    method: str
    seed: int
    rounds: int = 0
    images: int = 0  #: Training and test samples of all clients
    split: str = ""  #: Hash of every client's samples per class
    rule: str = ""  #: Of headline numbers
    state: str = "done"  #: ``done``, or why it failed, such as clients that diverged
    made: str = ""  #: Versions and hardware
    values: Mapping[str, float] = field(default_factory=dict)  #: Known numbers by name
    #: Those of :data:`BY_RULE` by each other rule
    others: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Return whether the run ended with numbers."""
        return self.state == "done"

    def by(self, rule: str) -> Mapping[str, float]:
        """Return the numbers by a rule, or the main one; without accuracies if the run has none by it."""
        if rule in ("", self.rule):
            return self.values
        rest = {name: value for name, value in self.values.items() if name not in BY_RULE}
        return {**rest, **self.others.get(rule, {})}


def split_hash(run: Run) -> str:
    """Return a hash of every client's training and test samples per class."""
    content = [run.class_names, [[c.train, c.test] for c in run.clients]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]


def result_of(run: Run, key: str, scale: str, method: str) -> Result:
    """Return the result of a finished run."""
    traffic = run.outcome.communication
    known: dict[str, float | None] = {
        **{way: traffic.parameters_per_round[way] for way in ("up", "down")},
        **{f"{way}_mean": traffic.parameters_over_all_rounds[way] for way in ("up", "down")},
        "formula": _formula(run),
        "dead_percent": _count_dead(run),
    }
    steps = [r.diagnostics.get("alignment_iterations") for r in run.rounds]
    counts = [float(n) for n in steps if isinstance(n, (int, float))]
    if counts:
        known |= dict(zip(ALIGNMENT, (counts[0], counts[-1], max(counts)), strict=True))
    images = sum(sum(c.train) + sum(c.test) for c in run.clients)
    by_rule = {rule: _finite(_by_rule(run, rule)) for rule in run.outcome.accuracy}
    rule = run.main_rule
    lost = find_diverged(run.rounds)
    state = f"failed: {len(lost)} of {len(run.clients)} clients diverged" if lost else "done"
    facts = (run.seed, run.last_round, images, split_hash(run), rule, state, _made(run))
    return Result(key, scale, run.recipe, method, *facts, by_rule.pop(rule) | _finite(known), by_rule)


def _by_rule(run: Run, rule: str) -> dict[str, float | None]:
    own = run.outcome.accuracy[rule]
    return {
        **{name: getattr(own, name) for name in ("final", "best", "client_mean", "best_client_mean", "client_std")},
        "converged": own.rounds_to_convergence,
        "moved": _measure_move(run, rule),
    }


def _count_dead(run: Run) -> float | None:
    """Return the percentage of a class's features that are 0 in a client's prototype, as the mean over all."""
    each = [found for client in run.clients if (found := prototypes(run, f"local.{client.name}"))]
    shares = [(own["prototypes"][own["present"]] == 0).double().mean(1).tolist() for own in each]
    return 100 * fmean(chain(*shares)) if any(shares) else None


def _finite(values: Mapping[str, float | None]) -> dict[str, float]:
    return {n: float(v) for n, v in values.items() if v is not None and math.isfinite(v)}


def _made(run: Run) -> str:
    facts = run.summary.environment if run.summary else {}
    version = run.summary.protofed if run.summary else ""
    device = facts.get("device")
    # Results differ in their last bits by the processor's instructions and by executor.
    processor = " ".join(str(facts[name]) for name in ("processor", "instructions") if name in facts)
    where = processor if device == "cpu" else device
    executor = f", executor {facts['executor']}" if "executor" in facts else ""
    return f"protofed {version}, torch {facts.get('torch', '')}, {where}, {os.cpu_count()} cores{executor}"


def _measure_move(run: Run, rule: str) -> float | None:
    """Return the change of accuracy in the last tenth of the rounds, at least one."""
    scores = run.accuracy(rule)
    if len(scores) < 2:
        return None
    last = max(scores)
    before = max((t for t in scores if t <= last - max(1, round(0.1 * last))), default=min(scores))
    return scores[last] - scores[before]


def _formula(run: Run) -> float | None:
    """Return the parameters per round, both ways together, that the method's formulas give for these clients."""
    from protofed.methods import methods
    from protofed.options import build_options

    kind, config = methods().get(run.method), run.config.get("method", {})
    options = {name: value for name, value in config.items() if name != "name"}
    traits, K = kind.traits(build_options(kind.Options, options, "method")), len(run.class_names)
    given = {name: value for name, value in options.items() if type(value) in (int, float)}
    total = 0.0
    for client in run.clients:
        whole, head = client.parameters, (client.d + 1) * K
        weights = {"|w|": whole, "|φ|": head, "|θ|": whole - head, "|w_aux|": sum(client.extras.values())}
        sizes = {**given, "K_i": sum(1 for n in client.train if n), "K": K, "d": client.d, **weights}
        for formula in (traits.up, traits.down):
            if (found := value_of(formula, sizes)) is None:
                return None
            total += found
    return total


def value_of(formula: str, sizes: Mapping[str, float]) -> float | None:
    """Return the value of :attr:`~protofed.methods.Traits.up` or ``down``; None if a size that it names is missing.

    Example:
        >>> value_of("K_i·d + |φ|", {"K_i": 2, "K": 3, "d": 5, "|φ|": 18})
        28.0
    """
    text = formula.replace("·", "*").replace("²", "**2")
    for symbol in sorted(sizes, key=len, reverse=True):
        text = text.replace(symbol, repr(sizes[symbol]))

    def value(node: Any) -> Any:
        if isinstance(node, ast.BinOp):
            return _OPERATIONS[type(node.op)](value(node.left), value(node.right))
        return node.value

    return float(value(ast.parse(text, mode="eval").body)) if re.fullmatch(r"[0-9.+*/() ]+", text) else None


def write_results(path: Path, results: Iterable[Result]) -> None:
    """Write results as CSV, in an order that does not depend on that in which they were run.

    A run's first line has everything by its main rule; one line for each other rule has what depends on it.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*FACTS, *VALUES])
    for result in sorted(results, key=lambda r: (r.scale, r.recipe, r.method, r.key, r.seed)):
        writer.writerow([*(getattr(result, name) for name in FACTS), *_numbers(result.values)])
        for rule, values in sorted(result.others.items()):
            known = {"key": result.key, "rule": rule}
            writer.writerow([*(known.get(name, "") for name in FACTS), *_numbers(values)])
    write_text(path, text.getvalue())


def _numbers(values: Mapping[str, float]) -> list[str]:
    return [f"{values[name]:.8g}" if name in values else "" for name in VALUES]


def read_results(path: Path) -> list[Result]:
    """Return the results in a file."""
    try:
        reader = csv.DictReader(io.StringIO(read_text(path, RESULTS_BYTES)), strict=True)
        if not {*FACTS} <= {*(reader.fieldnames or ())}:
            raise ValueError("not a table of results")
        return _results(reader)
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        why = reason(error) if isinstance(error, (OSError, ValueError)) else "not a table of results"
        raise CheckpointError(f"{path}: cannot be read ({why})") from None


def _results(rows: Iterable[dict[str, Any]]) -> list[Result]:
    first: dict[str, dict[str, Any]] = {}
    others: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        facts: dict[str, Any] = {name: claims.clean(row[name], 400) for name in FACTS}
        values = {name: float(row[name]) for name in VALUES if row.get(name)}
        for name, value in values.items():
            if not (0 <= value <= 1 if name in ACCURACIES else abs(value) <= MOST):
                raise ValueError(f"{name} {value:.4g}: accuracies are fractions, other numbers at most {MOST:g}")
        if facts["scale"]:
            if facts["scale"] not in SCALES:
                raise ValueError(unknown_name("scale", facts["scale"], SCALES))
            if facts["key"] in first:
                raise ValueError(f"has the run {facts['key']} more than once")
            for name in ("seed", "rounds", "images"):
                facts[name] = int(facts[name])
            first[facts["key"]] = {**facts, "values": values}
        else:
            others.setdefault(facts["key"], {})[facts["rule"]] = values
    if others.keys() - first.keys():
        raise ValueError("not a table of results")
    return [Result(**facts, others=others.get(key, {})) for key, facts in first.items()]


@cache
def committed() -> dict[str, Result]:
    """Return the results that come with the library, by key."""
    return {r.key: r for path in sorted(FOLDER.glob("*.csv")) for r in read_results(path)}
