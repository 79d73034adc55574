"""A server's view: one more round of a finished run, and of a federation trained to compare it with.

A run keeps no uploads. Its end does keep everything that a next round starts from, so the next round that
communicates shows what the server is sent, through the same codec and the same stages as in the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from protofed.compute.seeding import derive, generator
from protofed.engine import ClientData, Experiment, FederatedData, Federation, Run, Samples, load_data
from protofed.errors import CheckpointError, ConfigError, DataError
from protofed.experiments.assemble import assemble
from protofed.experiments.ending import ModelsDescription, forgotten, open_run, restore_end, without
from protofed.methods import Method, Payload, Tensors, Upload
from protofed.models import SplitModel
from protofed.stages.robust.vectors import parts_of

SILENCE = 1000  #: Rounds in which nobody has to send anything before an audit gives up


@dataclass(frozen=True)
class Rows:
    """Vectors of an upload that belong to classes."""

    values: Tensor  #: ``(k, width)``; entries that were not sent are 0
    classes: Tensor  #: ``(k,)`` int64
    sums: bool  #: Each is a sum over the sender's samples


@dataclass(frozen=True)
class Sender:
    """A client whose upload is attacked, with the truth by which attacks are judged."""

    name: str
    model: SplitModel  #: As it was when it sent the upload
    kind: str
    train: Samples
    others: Samples  #: Samples that it was not trained on
    #: The upload. With secure aggregation the server sees nothing of it but the following, from the sum
    upload: Upload
    payload: Payload  #: The part that is seen
    weights: Tensors  #: By name in the network they belong to
    rows: tuple[Rows, ...]
    #: Sent numbers of samples, ``(K,)`` per class, and of all classes; None where not sent
    counts: tuple[Tensor | None, int | None]
    opening: Tensors  #: Weights sent at the start of the round, by name; may be empty


@dataclass(frozen=True)
class Seen:
    """One round of a federation as its server sees it."""

    method: Method
    round: int
    server: Tensors  #: State before the round
    senders: tuple[Sender, ...]
    num_classes: int
    federation: Federation
    summed: bool = False  #: The server is sent the clients' mean or sum alone
    #: The same round for those who are given the server's state, if noise hides single uploads from them and not
    #: from the server; otherwise None
    outside: Seen | None = None


def reopened(run: Run, trust_code: bool = False) -> tuple[Experiment, Federation, FederatedData]:
    """Return the federation of a finished run as the run left it; the caller closes its executor.

    Args:
        trust_code: Import code that the run's configuration names.

    Raises:
        CheckpointError: If the run has not finished, or kept no state to go on from.
        DataError: If the run names code that is not trusted.
    """
    if not run.finished:
        raise CheckpointError(f"{run.directory}: the run has not finished: continue it with --resume")
    if run.federation.network:
        raise DataError(
            f"{run.directory}: an audit needs the data of all clients, which are at the nodes of a network: audit "
            "a simulation of this run"
        )
    ModelsDescription.read(run.directory / "federation.json")
    with open_run(run, trust_code) as experiment:
        return _reopen(run, experiment)


def _reopen(run: Run, experiment: Experiment) -> tuple[Experiment, Federation, FederatedData]:
    execution = replace(experiment.execution, device="cpu", executor="sequential")
    experiment = replace(experiment, execution=execution)
    gone = forgotten(run.directory)
    data = load_data(experiment).without(gone)
    federation, federated = assemble(without(experiment, gone), data, pretrained=False)
    try:
        if not restore_end(run.directory, federation):
            raise CheckpointError(f"{run.directory}: has no end.json: an older version ran it, run it again")
    except BaseException:
        federation.executor.close()
        raise
    return experiment, federation, federated


def observe(federation: Federation, federated: FederatedData) -> Seen:
    """Train the next round that communicates, and return what the server receives."""
    method, first = federation.method, federation.round + 1
    round_number = next((r for r in range(first, first + SILENCE) if federation.participation.sends(r)), 0)
    names = federation.participation.able
    data = {c.name: c for c in federated.clients}
    if not round_number:
        return Seen(method, 0, federation.server, (), federated.num_classes, federation)
    uploads = federation.exchange(names, round_number)
    # All that is seen of a client in a sum is the sum, of which each is as likely to be any part.
    whole = told(federation, uploads, round_number)

    def seen(hidden: bool) -> Seen:
        shown = (whole * len(uploads))[: len(uploads)] if hidden else uploads
        pairs = zip(uploads, shown, strict=False)
        senders = tuple(_sender(federation, data[u.client], u, s.payload, round_number) for u, s in pairs)
        return Seen(method, round_number, federation.server, senders, federated.num_classes, federation, hidden)

    hidden = {stage.hides for stage in federation.stages}
    if "server" in hidden:
        return seen(True)
    return replace(seen(False), outside=seen(True) if "outside" in hidden else None)


def told(
    federation: Federation, uploads: Sequence[Upload], round_number: int, draw: int | None = 0
) -> list[Upload]:
    """Return the view of some uploads for those from whom single ones are hidden: equal sums, or the same.

    Args:
        draw: Number of the noise, 0 for that of the round; None for no noise.
    """
    seed = derive(federation.seed, "audit", draw) if draw else federation.seed
    opened, seen = federation.open(federation.names[:1], round_number), uploads
    for stage in federation.stages:
        seen = stage.shown(seen, opened, None if draw is None else seed)
    return list(seen)


def _sender(federation: Federation, data: ClientData, upload: Upload, seen: Payload, round_number: int) -> Sender:
    """Return a client with what is seen of its upload, as its recipient reads it."""
    method, clients = federation.method, federation.executor.clients
    schema = method.upload_schema
    assert schema is not None
    payload, server = dict(seen), federation.server
    read = method.read(payload, server)
    rows: list[Rows] = []
    sent = method.broadcast(server, round_number, upload.client if method.declared.personal else None)
    opening = method.read(sent, server) if sent else {}
    weights = {name: tensor for name, tensor in read.items() if name not in schema.fields}
    for part in (part for part in parts_of(schema) if part.name in read):
        tensor = read[part.name]
        if part.layout == "rows" and tensor.dim() == 2:
            rows.append(Rows(tensor, payload[part.labels], part.field.sums))
        elif part.layout == "table" and tensor.dim() == 2:
            rows.append(Rows(tensor, torch.arange(len(tensor)), part.field.sums))
        elif part.layout == "tensor":
            weights[part.name] = tensor
    return Sender(
        upload.client,
        clients.model(upload.client).eval().requires_grad_(False),
        clients[upload.client].kind,
        data.train,
        data.test,
        upload,
        payload,
        weights,
        tuple(rows),
        _counts(payload, schema.num_classes),
        opening,
    )


def _counts(payload: Payload, num_classes: int) -> tuple[Tensor | None, int | None]:
    """Return the numbers of samples that an upload states: per class, and in all."""
    each = payload.get("counts")
    if each is not None and "classes" in payload and len(each) == len(payload["classes"]):
        each = torch.zeros(num_classes, dtype=torch.int64).index_put((payload["classes"],), each)
    return each, int(payload["samples"]) if "samples" in payload else None


def shadow(experiment: Experiment, federated: FederatedData) -> tuple[Federation, FederatedData]:
    """Train a federation of other draws: each client's training and test samples are dealt anew.

    An attacker that knows what data are like trains one of its own and learns from it what uploads give away. The
    numbers of samples per client and class stay. The caller closes its executor.
    """
    if experiment.model.start:
        raise ConfigError("model.start: its clients have seen the samples of every draw: audit that run instead")
    dealt = replace(federated, clients=tuple(_dealt(c, experiment.seed) for c in federated.clients))
    experiment = replace(
        experiment,
        evaluation=replace(experiment.evaluation, every=experiment.rounds, on="own", patience=0),
        execution=replace(experiment.execution, executor="sequential"),
    )
    # The recipe's initial weights are known to everybody; the clients' random numbers are not.
    federation, _ = assemble(experiment, dealt, draws=derive(experiment.seed, "audit"))
    try:
        for _ in federation.run():
            pass
    except BaseException:
        federation.executor.close()
        raise
    return federation, dealt


def _dealt(client: ClientData, seed: int) -> ClientData:
    """Return a client whose training and test samples were mixed and divided again, class by class."""
    pool_x, pool_y = torch.cat([client.train.x, client.test.x]), torch.cat([client.train.y, client.test.y])
    order = torch.randperm(len(pool_y), generator=generator(seed, "audit", client.name))
    train, test = [torch.zeros(0, dtype=torch.int64)], [torch.zeros(0, dtype=torch.int64)]
    for label in pool_y.unique().tolist():
        rows = order[pool_y[order] == label]
        number = int((client.train.y == label).sum())
        train.append(rows[:number])
        test.append(rows[number:])
    rows_in, rows_out = torch.cat(train).sort().values, torch.cat(test).sort().values
    return replace(
        client, train=Samples(pool_x[rows_in], pool_y[rows_in]), test=Samples(pool_x[rows_out], pool_y[rows_out])
    )
