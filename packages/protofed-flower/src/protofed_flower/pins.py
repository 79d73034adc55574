"""Properties that a server may not change in the course of a run, and weights that a node refuses to train."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from protofed.config.architectures import why_rounds_matter
from protofed.engine import Experiment, FederationSummary
from protofed.errors import ConfigError, PayloadError
from protofed.models import SplitModel
from protofed.untrusted import claims

log = logging.getLogger(__name__)
PINS = "pins"  #: Name of the note in which a client's folder keeps them
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
ALIKE = 0.9  #: Cosine, of either sign, from which rows of a layer count as parallel
RESEMBLING = 0.5  #: Cosine, of either sign, from which a row resembles the initial one
COMMON = 0.25  #: Share of parallel rows with about the same threshold up to which these are slices
EXACT = 1e-3  #: Difference up to which thresholds are the same in any case, in units of the inputs
LEAST = 4  #: Least number of units and of inputs of a layer whose rows are compared


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
    """Compare ``found`` with what held when the client joined the run, or note it in its first round."""
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


def check_weights(model: SplitModel, payload: Mapping[str, Tensor], initial: Mapping[str, Tensor]) -> None:
    """Refuse weights that are made to read single samples: layers that cut few directions into many slices.

    Their rows are parallel or opposite, up to noise, and each has a threshold of its own. Weight decay makes rows
    parallel too, but such units share few thresholds: neither few directions nor a low rank are a sign by
    themselves. Rows that still resemble the initial ones were not made.

    Args:
        initial: The node's own initial weights, by name, where it has them.
    """
    networks = [model, *(extra for extra in model.extras.values() if isinstance(extra, SplitModel))]
    for name, module in (pair for network in networks for pair in network.extractor.named_modules()):
        weight, bias = (f"extractor.{name}.{part}" for part in ("weight", "bias"))
        linear = isinstance(module, nn.Linear | nn.modules.conv._ConvNd) and not name.startswith("map.")
        if not linear or not {weight, bias} <= payload.keys():
            continue
        made, slices = _slices(payload[weight], payload[bias], initial.get(weight))
        if 2 * slices > made:
            raise PayloadError(
                f"{weight}: {slices} of {made} rows have one direction, or few, with thresholds of their own: such "
                "weights read single training samples from an upload",
                code="weights",
            )


def _slices(weight: Tensor, bias: Tensor, initial: Tensor | None) -> tuple[int, int]:
    """Return the number of rows that do not resemble the initial ones, and how many of them slice a direction."""
    rows = weight.detach().flatten(1).double().cpu()
    length = rows.norm(dim=1)
    made = length > 0
    if initial is not None:
        made &= torch.cosine_similarity(rows, initial.flatten(1).double().cpu(), dim=1).abs() < RESEMBLING
    least = max(LEAST, math.ceil(len(rows) / 8))
    if int(made.sum()) < least or rows.shape[1] < LEAST:
        return len(rows), 0
    rows, level = rows[made] / length[made].unsqueeze(1), bias.detach().double().cpu()[made] / length[made]
    left, slices = torch.arange(len(rows)), 0
    while len(left) >= least:
        cosines = rows[left] @ rows[left].mT
        center = cosines[int((cosines.abs() > ALIKE).sum(1).argmax())]
        group = center.abs() > ALIKE
        if int(group.sum()) < LEAST:
            break
        side = center[group].sign()
        members, levels = rows[left[group]] * side.unsqueeze(1), level[left[group]] * side
        apart = members - torch.nn.functional.normalize(members.mean(0), dim=0)
        width = max(EXACT, 3 * float(apart.norm(dim=1).median()) / rows.shape[1] ** 0.5)
        common = ((levels.unsqueeze(1) - levels).abs() <= width).double().mean(1).max()
        slices += int(group.sum()) if common <= COMMON else 0
        left = left[~group]
    return len(rows), slices
