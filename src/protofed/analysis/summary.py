"""Figures of a finished run, computed from its rounds: ``summary.json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Round = dict[str, Any]


def summarise(rounds: Sequence[Round]) -> dict[str, Any]:
    """Return accuracy, communication and time of a run from the lines of its ``rounds.jsonl``.

    Accuracies are fractions. ``best`` and ``final`` are weighted by test samples, ``client_mean`` and
    ``client_std`` are over clients at the final round. ``best`` is the best round *on the test data*, which is what
    the papers print and is optimistic; with a validation split, ``selected`` is the test accuracy at the round
    that is best on the validation data.
    """
    evaluated = [r for r in rounds if "accuracy" in r]
    rules = list(evaluated[-1]["accuracy"]) if evaluated else []
    return {
        "rounds": len(rounds),
        "accuracy": {rule: _accuracy(evaluated, rule) for rule in rules},
        "communication": _communication(rounds),
        "seconds": {
            name: sum(r["seconds"][name] for r in rounds)
            for name in ("total", "training", "evaluation", "aggregation")
        },
        "refused": sum(len(r["refused"]) for r in rounds),
    }


def _accuracy(evaluated: Sequence[Round], rule: str) -> dict[str, Any]:
    best = max(evaluated, key=lambda r: r["accuracy"][rule]["weighted"])
    final = evaluated[-1]["accuracy"][rule]
    result = {
        "best": best["accuracy"][rule]["weighted"],
        "best_round": best["round"],
        "final": final["weighted"],
        "client_mean": final["client_mean"],
        "client_std": final["client_std"],
    }
    validated = [r for r in evaluated if "validation" in r]
    if validated:
        selected = max(validated, key=lambda r: r["validation"][rule]["weighted"])
        result["selected"] = selected["accuracy"][rule]["weighted"]
        result["selected_round"] = selected["round"]
    return result


def _communication(rounds: Sequence[Round]) -> dict[str, Any]:
    """Return totals in bytes, and parameters per round over the rounds that sent any (as papers count)."""
    result: dict[str, Any] = {}
    for direction in ("up", "down"):
        sent = [r["parameters"][direction] for r in rounds if r["parameters"][direction]]
        result[f"parameters_{direction}_per_round"] = sum(sent) / len(sent) if sent else 0
        result[f"bytes_{direction}_total"] = sum(r["bytes"][direction] for r in rounds)
    return result
