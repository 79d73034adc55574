"""A node's own run directory: what one client's node knows of a run, with the client's model as it was last scored.

The commands and readers of a local run take it as one of a single client. It is the folder in which the client
rests (:mod:`protofed_flower.state`), where ``clients/NAME`` leads to the generation that was scored last.
"""

from __future__ import annotations

import json

from protofed.engine import Accuracy, Builder, Evaluated, Experiment, RoundRecord, RunDirectory, Trained, summary_of
from protofed.experiments.description import describe_roster
from protofed.experiments.ending import Network, describe_models
from protofed.storage.files import write_json
from protofed_flower.visits import Kept


def show(place: Kept, builder: Builder, experiment: Experiment, result: Evaluated) -> None:
    """Keep a client in its run directory as it was scored.

    The client's model and state change at once. A process that is killed before leaves those of the last scored
    round, and the next visit writes what is missing.
    """
    folder, method = place.folder.path, builder.method
    if place.start is None:  # nothing was ever stored
        return
    files = RunDirectory(folder)
    rounds = [r for r in files.rounds() if r.round < place.job.round]
    rounds.append(_record(place, result, method.rules))
    told = builder.summary
    described = describe_roster(method, place.roster, builder.federated)
    described["models"] = describe_models(experiment, builder.federated, told.architectures)
    described["network"] = {"run": place.job.run, **{name: getattr(told, name) for name in Network.__annotations__}}
    files.rewrite(experiment, described, rounds)
    place.folder.show(place.start)
    here = {"device": builder.hardware.device.type, "executor": "flower"}
    write_json(folder / "summary.json", summary_of(experiment, method, rounds, 1, here).to_dict())


def _record(place: Kept, result: Evaluated, rules: tuple[str, ...]) -> RoundRecord:
    """Return a node's record of a round after its client was scored."""
    job, training = place.job, place.training
    record = RoundRecord(job.round, [job.client] if training else [])
    record.accuracy = Accuracy.of([(result.correct, result.samples)], rules)
    correct, held_out = result.validation
    record.validation = Accuracy.of([(correct, held_out)], rules) if held_out else None
    record.bytes["down"] = len(job.message or b"")
    record.seconds["evaluation"] = record.seconds["total"] = result.seconds
    if training is not None:
        record.bytes["up"] = len(place.folder.reply(training) or b"")
        losses = json.loads(training.losses)
        record.set_losses([Trained(job.client, None, losses, len(place.roster[job.client].train), 0.0)])
    return record
