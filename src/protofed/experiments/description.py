"""Description of a federation before training, for ``federation.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from protofed import models
from protofed.compute import numerics
from protofed.config.architectures import is_code
from protofed.config.schema import Tree
from protofed.methods import Method
from protofed.rounds.loop import Federation
from protofed.samples import FederatedData
from protofed.untrusted import claims
from protofed.visits import rare
from protofed.visits.roster import Roster


def sizes_of(model: models.SplitModel) -> Tree:
    """Return the number of ``parameters`` of a model, those of its ``extras`` by name, and ``d``."""
    extras = {name: models.parameter_count(network) for name, network in model.extras.items()}
    parameters = models.parameter_count(model) - sum(extras.values())
    return {
        "parameters": parameters,
        "extras": {name: n for name, n in extras.items() if n},
        "d": model.feature_dim,
    }


def _models_notes(federated: FederatedData, roster: Roster) -> list[str]:
    """Return notes on clients' models that are their own code or unknown here."""
    chosen = {c.name: c.settings.get("model", "") for c in federated.clients}
    used = {name: model for name, model in chosen.items() if roster[name].architecture == model}
    code = [name for name, model in used.items() if is_code(model)]
    private = [name for name, model in used.items() if model == claims.PRIVATE]
    notes = [f"Code named by client.toml was imported for the models of {', '.join(code)}."] if code else []
    if private:
        notes.append(f"Models known only to their nodes, which state the sizes: {', '.join(private)}.")
    return notes


def describe_clients(
    federation: Federation, federated: FederatedData, sizes: Mapping[str, Tree] | None = None
) -> Tree:
    """Return the description of the method and the clients for ``federation.json``.

    Args:
        sizes: Of models that are not built here, as :func:`sizes_of` returns them.
    """
    notes = [note for stage in federation.stages for note in stage.note()]
    wanted, main = federation.evaluation.options.rule, federation.evaluation.main_rule
    if wanted not in ("", main):
        notes.insert(0, f"Main rule {main}: the method does not have {wanted} (evaluation.rule).")
    described = describe_roster(federation.method, federation.executor.clients, federated, notes, sizes)
    execution = {**federation.executor.description(), "waiting": numerics.waiting()}
    return {**described, "tests": federated.test_hash(), "execution": execution}


def describe_roster(
    method: Method,
    roster: Roster,
    federated: FederatedData,
    notes: Sequence[str] = (),
    sizes: Mapping[str, Tree] | None = None,
) -> Tree:
    """Return :func:`describe_clients`' entries for clients, wherever they run."""
    K = federated.num_classes
    known = dict(sizes or {})
    known |= {n: sizes_of(roster.models[m.kind]) for n, m in roster.items() if n not in known}
    return {
        "exchanges": method.declared.exchanges,
        "rules": [rule.to_dict() for rule in method.declared.rules],
        "notes": [
            *method.notes(),
            *rare.notes(method, [m.plan.least_samples for m in roster.values()]),
            *notes,
            *_models_notes(federated, roster),
            *federated.remarks(),
        ],
        "class_names": list(federated.class_names),
        "input_shape": list(federated.input_shape),
        **({"table": federated.table.to_dict()} if federated.table else {}),
        **({"encoder": asdict(federated.encoding)} if federated.encoding else {}),
        "bfloat16": roster.in_bfloat16,
        "clients": [
            {
                "name": name,
                "architecture": member.architecture,
                **known[name],
                "train": member.train.counts(K).tolist(),
                "test": member.test.counts(K).tolist(),
                **({"table": own.to_dict()} if (own := member.data.table) not in (None, federated.table) else {}),
            }
            for name, member in roster.items()
        ],
    }
