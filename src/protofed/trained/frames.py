"""Runs as pandas tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from protofed.runs import HEADLINES, Run

if TYPE_CHECKING:
    from pandas import DataFrame


def rounds_frame(run: Run) -> DataFrame:
    """Return one row per round, by number; accuracies in fractions, missing where a round was not evaluated.

    Columns: the accuracy by each rule over all test samples (``RULE``), its mean over clients
    (``RULE_client_mean``) and on validation samples (``validation_RULE``), losses (``loss_TERM``), ``bytes_up``,
    ``bytes_down``, ``seconds``, ``participants``, ``refused`` and ``missing``.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for record in run.rounds:
        row: dict[str, Any] = {"round": record.round}
        if record.accuracy:
            row |= record.accuracy.weighted
            row |= {f"{rule}_client_mean": mean for rule, (mean, _) in record.accuracy.spreads.items()}
        if record.validation:
            row |= {f"validation_{rule}": value for rule, value in record.validation.weighted.items()}
        row |= {f"loss_{term}": value for term, value in record.losses.items()}
        row |= {f"bytes_{way}": sent for way, sent in record.bytes.items()}
        row |= {
            "seconds": record.seconds["total"],
            "participants": len(record.participants),
            "refused": len(record.refused),
            "missing": len(record.missing),
        }
        rows.append(row)
    return pd.DataFrame(rows, columns=None if rows else ["round"]).set_index("round")


def clients_frame(run: Run) -> DataFrame:
    """Return one row per client, by name: its model, its samples, and its last accuracy by each rule.

    Columns: ``architecture``, ``parameters``, ``d``, ``train``, ``test``, ``classes`` (with training samples) and
    the accuracy by each rule (``RULE``), missing without test samples. Where there are metrics, by their rule also
    ``balanced_accuracy``, ``macro_f1`` and ``auroc``, missing where they are not defined.
    """
    import pandas as pd

    table = pd.DataFrame(
        {
            "architecture": [c.architecture for c in run.clients],
            "parameters": [c.parameters for c in run.clients],
            "d": [c.d for c in run.clients],
            "train": [sum(c.train) for c in run.clients],
            "test": [sum(c.test) for c in run.clients],
            "classes": [sum(1 for n in c.train if n) for c in run.clients],
        },
        index=pd.Index([c.name for c in run.clients], name="client"),
    )
    for rule in run.rules:
        table[rule] = _numbers(run.client_accuracies(rule))
    if run.measured is not None:
        for name in HEADLINES:
            table[name] = _numbers([getattr(run.measured.clients[c.name], name) for c in run.clients])
    return table


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]
