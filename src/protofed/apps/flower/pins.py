"""Properties that a server may not change in the course of a run, and weights that a node refuses to train."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from protofed.config.architectures import FederationSummary
from protofed.config.schema import Experiment
from protofed.errors import ConfigError, PayloadError
from protofed.experiments.rundir import why_rounds_matter
from protofed.untrusted import claims

if TYPE_CHECKING:
    from protofed.models import SplitModel

log = logging.getLogger(__name__)
PINS = "pins"
"""Name of the note in which a client's folder keeps them."""
SERVERS_OWN = ("rounds", "participation", "evaluation", "robust", "attack", "compare")
"""Options that only the server reads, or that it may change when it goes on with a run."""
PLAN = ("rounds", "participation")
"""Of these, what clients depend on where the plan affects every round, as it does noise on a budget."""
SHOWN = (
    "method.name",
    "training.batch_size",
    "training.epochs",
    "secure.aggregation",
    "privacy.mode",
    "privacy.epsilon",
)
"""The message to a node's operator about a new run."""
ALIKE = 0.9999
"""Cosine from which two rows of a layer count as the same."""
LEAST = 4
"""Least number of units and of inputs of a layer whose rows are compared."""


def pins(experiment: Experiment, summary: FederationSummary) -> list[str]:
    """Return everything that decides what a client computes and sends, as ``name=value``."""
    tree: dict[str, Any] = {"table": summary.table}
    planned = PLAN if why_rounds_matter(experiment) else ()
    for section, value in experiment.identity().items():
        if section not in SERVERS_OWN or section in planned:
            tree |= {f"{section}.{n}": v for n, v in value.items()} if isinstance(value, dict) else {section: value}
    tree["precision"] = experiment.execution.precision
    (architecture,) = summary.architectures
    tree |= {"architecture": str(architecture), "architecture.options": architecture.options, "d": architecture.d}
    tree |= {"classes": summary.classes, "input_shape": summary.input_shape}
    return [f"{name}={json.dumps(value, sort_keys=True, default=str)}" for name, value in sorted(tree.items())]


def check_pins(notes: dict[str, Any], client: str, found: list[str]) -> None:
    """Compare with what held when the client joined the run, or note it in its first round.

    Args:
        found: Of :func:`pins`.
    """
    if PINS not in notes:
        shown = (pin for pin in found if pin.split("=", 1)[0] in SHOWN)
        log.warning("%s: a run begins, in which this node keeps to %s", client, claims.clean(", ".join(shown)))
    kept = notes.setdefault(PINS, found)
    if kept == found:
        return
    before, now = (dict(str(pin).split("=", 1) for pin in pins) for pins in (kept, found))
    name = next(n for n in sorted({*before, *now}) if before.get(n) != now.get(n))
    old, new = (claims.clean(pins.get(name, "nothing"), 60) for pins in (before, now))
    raise ConfigError(
        f"{client}: the server changed {name} from {old} to {new} in the course of the run: a node keeps to "
        "what held when it joined; begin a new run",
        code="changed",
        option=name.partition("=")[0],
    )


def check_weights(model: SplitModel, payload: Mapping[str, Tensor]) -> None:
    """Refuse weights that are made to read single samples: a layer most of whose rows have one direction."""
    networks: list[Mapping[str, Any]] = [dict(model.named_parameters())]
    networks += [dict(extra.named_parameters()) for extra in model.extras.values()]
    for name, tensor in payload.items():
        if not any(name in weights for weights in networks) or tensor.dim() < 2 or len(tensor) < LEAST:
            continue
        rows = tensor.detach().double().flatten(1)
        if rows.shape[1] < LEAST:
            continue
        middle = torch.nn.functional.normalize(rows, dim=1).median(0).values
        same = int((torch.cosine_similarity(rows, middle.unsqueeze(0), dim=1) > ALIKE).sum())
        if 2 * same > len(rows):
            raise PayloadError(
                f"{name}: {same} of {len(rows)} rows have one direction: such weights read single training samples "
                "from an upload",
                code="weights",
            )
