"""What every registered method must do. A new method joins by being registered."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch.func import functional_call, stack_module_state, vmap

from protofed.methods import Batch, methods
from protofed.methods.contract import Update, Upload, sends
from protofed.options import option_fields, option_rows
from protofed.rounds.checkpoint import Saving, load_checkpoint
from protofed.rounds.loop import Federation
from protofed.visits.visit import LocalTrainer
from protofed.wire.validate import check_structure
from support import K, build, client, degenerate, federated, few, same, tensors_of, told, uploads, visited

STAND = ("fedproto", "fedavg", "gfpl")  #: Methods of three kinds, which stand for all in everyday work
NAMES = sorted(methods())
ALL = [pytest.param(name, marks=[pytest.mark.fast] * (name in STAND)) for name in NAMES]
GENTLE = {
    "fedpft": {"method__server_lr": 0.1},
    "fedplvm": {"method__lambda": 1.0},
    "fedsa": {"method__lambda": 1.0},
    "fpl": {"method__temperature": 0.2},
}
"""For five features, where the papers' weights let prototypes outweigh classes, and for few steps."""
SENDING = [kind.name for kind in map(methods().get, NAMES) if kind.traits(kind.Options()).exchanges != "nothing"]


def run(federation: Federation) -> list[dict]:
    return told(federation.run())


@pytest.mark.parametrize("name", ALL)
def test_declares_itself(name):
    method = methods().get(name)
    assert method.summary
    assert "\n" not in method.summary
    assert method.Options.__dataclass_params__.frozen
    for option, field in option_fields(method.Options).items():
        assert field.metadata.get("doc"), f"{name}.{option} has no description"


@pytest.mark.parametrize("name", ALL)
def test_learns_separable_classes(name):
    known = [row[0] for row in option_rows(methods().get(name).Options)]
    # With five features, prototypes of length 100 are far beyond what a head can follow.
    gentle = {"method__gamma": 3.0} if "gamma" in known else {}
    federation = build(name, rounds=40, **gentle, **GENTLE.get(name, {}))
    assert any(a["weighted"] >= 0.9 for r in federation.run() for a in r.to_dict()["accuracy"].values())


@pytest.mark.parametrize("name", ALL)
def test_survives_degenerate_clients(name):
    federation = build(name, degenerate(), rounds=3)
    records = run(federation)
    for record in records:
        assert not record["refused"]
        assert record["participants"] == ["all", "one-class", "one-sample", "no-test"]
        assert all(value is not None for value in record["losses"].values())
        for accuracy in record["accuracy"].values():
            assert [a is None for a in accuracy["clients"]] == [False, False, False, False, True, True]
    assert all(t.isfinite().all() for t in tensors_of(federation).values() if t.is_floating_point())


@pytest.mark.parametrize("name", ALL)
def test_partial_participation(name):
    federation = build(name, rounds=4, participation__fraction=0.34)
    records = run(federation)
    assert all(len(r["participants"]) == 1 for r in records)
    assert len({r["participants"][0] for r in records}) > 1
    assert all(len(a["clients"]) == 3 for r in records for a in r["accuracy"].values())


@pytest.mark.parametrize("name", ALL)
@few("at", ["broadcast", "trained"], 1)
def test_is_deterministic_and_leaves_global_randomness_alone(name, at):
    torch.manual_seed(1)
    first = build(name, evaluation__at=at)
    before = torch.get_rng_state()
    records = run(first)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    second = build(name, evaluation__at=at)
    assert run(second) == records
    assert same(tensors_of(first), tensors_of(second))


@pytest.mark.parametrize("name", ALL)
def test_resumes_bit_for_bit(name, tmp_path: Path):
    whole = build(name, rounds=3)
    records = run(whole)

    stopped = build(name, rounds=3)
    first = told(record for _, record in zip(range(2), stopped.run(), strict=False))
    Saving(tmp_path).save(stopped.state, stopped.executor.clients)

    resumed = build(name, rounds=3)
    assert load_checkpoint(tmp_path, resumed.state, resumed.executor.clients)
    assert first[: resumed.round] + run(resumed) == records
    assert same(tensors_of(whole), tensors_of(resumed))


@pytest.mark.parametrize("name", ALL)
def test_messages_satisfy_their_schemas(name):
    """Whatever is sent, in any of eight rounds, is complete, counted, and encoded the same way again."""
    often = {"method__start": 2, "method__interval": 2} if name == "gfpl" else {}  # by default not before round 9
    federation = build(name, rounds=4, **often)
    records = run(federation)
    method, codec = federation.method, federation.codec
    sent = {way: sum(r["parameters"][way] for r in records) for way in ("up", "down")}
    if method.declared.exchanges == "nothing":
        assert method.upload_schema is None
        assert method.broadcast_schema is None
        assert sent == {"up": 0, "down": 0}
        return
    assert sent["up"] > 0
    assert sent["down"] > 0
    for round_number in range(5, 13):
        messages = federation.open(federation.names, round_number).messages
        for message in messages.values():
            if message is not None:
                payload = codec.decode(message, method.broadcast_schema)
                check_structure(payload, method.broadcast_schema)
                assert codec.encode(payload, method.broadcast_schema) == message
        if not sends(method, round_number):
            continue
        for result in federation.executor.train(federation.names, messages, round_number):
            payload = codec.decode(result.message, method.upload_schema)
            assert method.upload_schema.parameters(payload) > 0
            assert codec.encode(payload, method.upload_schema) == result.message


def refuse(monkeypatch, names: set[str]) -> None:
    """Let the models of some clients seem to have diverged."""
    compose = LocalTrainer.compose

    def refused(self, local, statistics, train):
        return (None, "model: has diverged") if local.name in names else compose(self, local, statistics, train)

    monkeypatch.setattr(LocalTrainer, "compose", refused)


@pytest.mark.parametrize("name", SENDING)
def test_rounds_without_uploads_keep_the_server(name, monkeypatch):
    """From the first round on, and later; the method is not asked what to make of nothing."""
    federation = build(name, rounds=40)
    method, rounds = federation.method, federation.run()
    sending = [r for r in range(1, 41) if sends(method, r)][:3]
    refuse(monkeypatch, set(federation.names))
    for _ in range(sending[0]):
        record = next(rounds)
    assert same(method.server_state(), federation.server)
    assert record.accuracy
    assert not record.diagnostics
    assert [r.client for r in record.refused] == federation.names
    monkeypatch.undo()
    for _ in range(sending[1] - sending[0]):
        next(rounds)
    before = {n: t.clone() for n, t in federation.server.items()}
    refuse(monkeypatch, set(federation.names))
    for _ in range(sending[2] - sending[1]):
        next(rounds)
    assert same(before, federation.server)


@pytest.mark.parametrize("name", ALL)
def test_one_client_is_enough(name, monkeypatch):
    federation = build(name, rounds=3)
    refuse(monkeypatch, set(federation.names[1:]))
    records = run(federation)
    assert all(value is not None for r in records for value in r["losses"].values())
    assert all(t.isfinite().all() for t in tensors_of(federation).values() if t.is_floating_point())


@pytest.mark.parametrize("name", SENDING)
@few("size", [1e9, 1e-30], 1)
@few("count", [0, 1, 2**28], 1)  # whose sums over clients and classes fit a message
def test_extreme_uploads_do_not_end_the_run(name, size, count):
    """Whatever a schema allows, clients can read the broadcast that follows from it."""
    federation = build(name, execution__precision="fp32", wire__codec="float32")
    method, schema = federation.method, federation.method.upload_schema

    def filled(field, sign):
        shape = [s if isinstance(s, int) else schema.sizes.get(s) or min(schema.limits[s], K) for s in field.shape]
        if field.kind == "label":
            return torch.arange(*shape) % K
        if field.kind == "count":
            return torch.full(shape, count)
        least = -field.limit if field.minimum is None else field.minimum
        return torch.full(shape, min(max(sign * size, least), field.limit))

    sent = [
        Upload(n, {f: filled(field, s) for f, field in schema.fields.items()}) for n, s in (("ann", 1), ("bob", -1))
    ]
    state = federation.server
    for number in range(1, 4):
        state, _ = method.aggregate(state, iter(sent), number)
        for client_name in federation.names:
            message = method.broadcast(state, number + 1, client_name if method.declared.personal else None)
            if message is not None:
                encoded = federation.codec.encode(message, method.broadcast_schema)
                federation.codec.decode(encoded, method.broadcast_schema)


@pytest.mark.parametrize("name", ALL)
def test_losses_are_pure_and_vectorise_over_clients(name):
    """The same loss for one client and for several stacked ones; nothing but its value changes."""
    federation = build(name, rounds=2)
    run(federation)
    clients = list(visited(federation).values())[:2]
    models = [c.model.eval() for c in clients]
    batches = [Batch(c.train.x[:4], c.train.y[:4]) for c in clients]
    updates = [u for p in federation.method.round(3).phases if p.source is None for u in p.updates]
    for update in updates:
        _check_loss(update, clients, models, batches)


def _check_loss(update: Update, clients, models, batches) -> None:
    received = [c.received or {} for c in clients]
    states = [copy.deepcopy(c.state) for c in clients]
    single = [update.terms(m, b, r, s)[0] for m, b, r, s in zip(models, batches, received, states, strict=True)]
    for owner, s in zip(clients, states, strict=True):
        assert same(owner.state, s)

    class Wrapped(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x, y, r, s):
            return update.terms(self.model, Batch(x, y), r, s)[0]

    wrapped = [Wrapped(model) for model in models]
    parameters, buffers = stack_module_state(wrapped)
    base = copy.deepcopy(wrapped[0]).to("meta")

    def call(p, b, x, y, r, s):
        return functional_call(base, (p, b), (x, y, r, s))

    def stack(dicts):
        return {n: torch.stack([d[n] for d in dicts]) for n in dicts[0]}

    x, y = (torch.stack([getattr(b, f) for b in batches]) for f in ("x", "y"))
    together = vmap(call)(parameters, buffers, x, y, stack(received), stack(states))
    for index, terms in enumerate(single):
        for term, value in terms.items():
            torch.testing.assert_close(together[term][index], value)


VARIANTS = [
    *((name, {}) for name in NAMES),
    ("fedproto", {"aggregation": "weighted"}),
    ("fedproto", {"aggregation": "paper"}),
    ("gfpl", {"weight_by_counts": True}),
    ("gfpl", {"weight_by_counts": True, "pfg": False}),
    ("tinyproto", {"mu": 0.1}),
    ("tinyproto", {"scaling": False}),
    ("tinyproto", {"reduction": "compensated"}),
    ("fedproto", {"classes": "own"}),
]


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_what_needs_counts_says_so(name, options):
    """Counts cross the network in uploads, or in descriptions where the task's class size is used."""
    method = build(name, **{f"method__{n}": v for n, v in options.items()}).method
    schema = method.upload_schema
    sent = schema is not None and any(f.kind == "count" for f in schema.fields.values())
    used = name == "tinyproto" and method.sparse.scaling and not method.sparse.mu
    sums = schema is not None and any(f.sums for f in schema.fields.values())
    assert method.declared.counts == ("always" if sent or used else "for robust rules" if sums else "never")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedproto", {"prototypes": "during"}),
        ("fedtgp", {"prototypes": "during"}),
        ("tinyproto", {"base_options": {"prototypes": "during"}}),
        ("feddistill", {"preset": "htfl"}),
        ("fedgh", {"prototypes": "during"}),
        ("fedsa", {}),
        ("fedfa", {}),
        ("fedpa", {}),
        ("fedproc", {}),
        ("fpl", {}),
    ],
)
@few("executor", ["sequential", "fused"], 1)
def test_a_client_that_can_take_no_step_sends_nothing_of_any_class(name, options, executor):
    """BatchNorm cannot take its only sample, so no step's statistics are there."""
    data = federated(client("ann", [0, 0, 1, 1, 2]), client("bob", [1, 1, 2, 2]), client("one", [3]))
    chosen = {f"method__{key}": value for key, value in options.items()}
    model = {"model__name": "support:WithBatchNorm", "model__options": {}, "execution__executor": executor}
    federation = build(name, data, **model, **chosen)
    sent = {upload.client: upload.payload for upload in uploads(federation)}
    assert len(sent) == 3
    if "classes" in sent["one"]:
        assert not len(sent["one"]["classes"])
        assert len(sent["ann"]["classes"]) == 3
    assert not any(record.refused for record in federation.run())
