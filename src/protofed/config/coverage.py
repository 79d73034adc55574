"""Derivatives of samples before or beside DP-SGD, and their coverage; the table is in ``docs/privacy.md``.

Every party checks for itself before it trains or describes its data: a simulation, the server, and each node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from protofed.data.tables import RawColumn, range_of
from protofed.errors import ConfigError
from protofed.methods.contract import Method

if TYPE_CHECKING:
    from protofed.config.schema import Experiment


def check_steps(experiment: Experiment, columns: Sequence[RawColumn]) -> None:
    """Reject steps that depend on protected data without noise or public bounds."""
    mode = experiment.privacy.mode
    if mode == "none":
        return
    for column in columns:
        if reason := _column(experiment, mode, column):
            raise ConfigError(f"privacy.mode={mode} does not cover {reason}")


def check_classes(experiment: Experiment, declared: bool, client: str) -> None:
    """Reject a list of classes derived from the labels of a node's samples."""
    if experiment.privacy.mode != "none" and not declared:
        raise ConfigError(
            f"privacy.mode={experiment.privacy.mode} does not cover classes as they occur among the labels of "
            f"{client}: number them from 0 and set data.classes"
        )


def check_method(experiment: Experiment, method: Method) -> None:
    """Reject early stopping by scores without noise, and features or rounds that one release does not cover."""
    mode = experiment.privacy.mode
    if method.task.noise is not None and not experiment.encoder.unit:
        raise ConfigError(
            f"privacy.mode=sample: a sample's features of {method.name} must have a length of at most 1: set "
            "encoder.unit=true (encoder.name=identity for samples that are features already)"
        )
    if method.task.noise is not None and experiment.secure.aggregation and experiment.rounds > 1:
        raise ConfigError(
            f"privacy.mode=sample with secure.aggregation covers one round of {method.name}, since sums of several "
            "could be subtracted: set rounds=1"
        )
    exposed = mode == "client" or (mode == "sample" and keeps_unprotected(method))
    if experiment.evaluation.patience and exposed and method.upload_schema is not None:
        raise ConfigError(
            f"privacy.mode={mode} does not cover evaluation.patience, which ends the run by scores of "
            f"{method.name} to which no noise is added: set evaluation.patience=0"
        )


def keeps_unprotected(method: Method) -> bool:
    """Return whether a client's local state, and so its scores, depends on its samples without noise."""
    rounds = range(1, method.task.rounds + 1)
    stays = any(phase.local_only for round_number in rounds for phase in method.round(round_number).phases)
    return stays or bool(method.protection.local_only)


def withholds_scores(experiment: Experiment, method: Method) -> bool:
    """Return whether scores stay at the nodes for good."""
    return experiment.privacy.mode == "sample" and keeps_unprotected(method)


def _column(experiment: Experiment, mode: str, column: RawColumn) -> str:
    """Return why a column is not covered, or ""."""
    data, name = experiment.data, column.name
    if column.kind == "category":
        if not data.declared.get(name):
            return f'categories as they occur: column {name!r} needs data.categories.{name}=["…", …]'
        return _indicator(data.missing, name, "choose data.missing=mean")
    if column.kind == "text" or range_of(column, data.ranges) is not None:
        return ""
    standardised, needs = data.standardise_by(table=True), f"data.ranges.{name}=[least, largest]"
    if mode == "client":
        if standardised == "federated":
            return f"data.standardise=federated: column {name!r} needs {needs}, or choose data.standardise=site"
        return _indicator(data.missing, name, f"set {needs}")
    if standardised != "none":
        return f"data.standardise={standardised}: column {name!r} needs {needs}"
    return f"data.missing={data.missing}: column {name!r} needs {needs}" if data.missing != "refuse" else ""


def _indicator(missing: str, name: str, remedy: str) -> str:
    if missing != "indicator":
        return ""
    return f"data.missing=indicator, which adds an input if a value of {name!r} is missing: {remedy}"
