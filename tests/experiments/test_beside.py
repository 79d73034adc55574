"""Samples beside their features, experts beside a closed form, and encoders that clients are dealt."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from network import FakeGrid, forget, locally, nodes_of, numbers, over, wanted, write_folders
from protofed.errors import ConfigError
from protofed.experiments import resolve
from protofed.experiments.assemble import assemble
from protofed.experiments.encoding import encode
from protofed.experiments.loading import load_data
from protofed.methods.contract import Batch, Upload
from protofed.methods.parts import expert as _expert
from protofed.methods.parts.prior import log_prior
from protofed.prototypes.fusion import fitted
from protofed.rounds.loop import Federation
from protofed.samples import FederatedData
from protofed.wire.validate import check_structure
from support import command, few, ordinary

TREE = {
    "rounds": 2,
    "data": {"source": "digits", "samples": 240, "clients": 4, "validation_fraction": 0.2},
    "model": {"name": "cnn2", "d": 8, "options": {"channels": [2, 3]}},
    "training": {"batch_size": 16, "optimizer": "Adam", "lr": 0.01},
    "transforms": {"crop": 1},
    "robust": {"rule": "none"},
    "execution": {"device": "cpu", "precision": "fp64", "executor": "sequential"},
}
BESIDE = {"name": "random", "dim": 12, "beside": True}
DEALT = [{"name": "random", "dim": 12}, {"name": "scattering", "dim": 7}]
GROUPS = {"encoder": {"members": DEALT}, "model": {}, "transforms": {}, "rounds": 1}


def made(method: str, options: dict | None = None, **more: object) -> tuple[Federation, FederatedData]:
    tree = {**TREE, **more, "method": {"name": method, **(options or {})}}
    chosen = resolve(tree)
    data = load_data(chosen)
    return assemble(chosen, data)[0], data


def ran(method: str, options: dict | None = None, **more: object) -> tuple[Federation, list]:
    federation, _ = made(method, options, **more)
    records = list(federation.run())
    assert not any(record.refused for record in records)
    return federation, records


def kept(federation: Federation, name: str) -> dict[str, torch.Tensor]:
    return federation.executor.clients.snapshot(name).model


@few("executor", ["sequential", "fused"], 1)
def test_beside_features_a_network_learns_what_it_learns_alone(executor):
    how = {"execution": {**TREE["execution"], "executor": executor}}
    alone, a = ran("local", **how)
    beside, b = ran("local", encoder=BESIDE, **how)
    for name in alone.names:
        for weight, value in kept(alone, name).items():
            torch.testing.assert_close(kept(beside, name)[weight], value, rtol=1e-3, atol=1e-4)
    assert [r.accuracy.weighted for r in a] == [r.accuracy.weighted for r in b]


@pytest.mark.slow
@few("kind", ["plain", "balanced"], 1)
def test_an_expert_is_local_beside_an_unchanged_closed_form(kind):
    fused, records = ran("fedlda", {"expert": kind, "kappa": 1.0}, encoder=BESIDE)
    closed, _ = ran("fedlda", {"kappa": 1.0}, encoder=BESIDE, rounds=1)
    local, trained = ran("local", {"softmax": kind, "predict_over": "own"}, encoder=BESIDE)
    assert fused.server.keys() == closed.server.keys()
    assert all(torch.equal(tensor, closed.server[name]) for name, tensor in fused.server.items())
    assert records[-1].accuracy.weighted["expert"] == trained[-1].accuracy.weighted["head"]
    assert records[0].bytes["up"] > 0 == records[1].bytes["up"]
    for name in local.names:
        torch.testing.assert_close(kept(fused, name)["head.weight"], kept(local, name)["head.weight"])


def test_answers_of_both_are_those_of_the_formula():
    federation, data = made("fedlda", {"expert": "plain", "kappa": 1.0}, encoder=BESIDE)
    list(federation.run())
    method, roster = federation.method, federation.executor.clients
    client = data.clients[0]
    snapshot = roster.snapshot(client.name)
    model = roster.working_model(client.name, snapshot.model).eval()
    counts = client.train.counts(10)
    own = (counts > 0).nonzero().squeeze(-1)
    W, bias, prior = federation.server["weights"], federation.server["bias"], log_prior(counts, dtype=torch.float64)

    def naive(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        network = model(x.double()).logits[:, own].log_softmax(-1)
        closed = x[:, :12].double() @ W[own].T + bias[own] + prior[own]
        return network, closed.log_softmax(-1)

    known = torch.isin(client.validation.y, own)
    labels = torch.searchsorted(own, client.validation.y[known])
    with torch.no_grad():
        f, g = naive(client.validation.x[known])
        a, b = fitted(f, g, torch.zeros(len(own)), labels, 1.0)
        f, g = naive(client.test.x)
        batch = Batch(client.test.x.double(), client.test.y)
        found = method.scores(model, batch, snapshot.received, snapshot.state)["head"][:, own]
    torch.testing.assert_close(snapshot.received["fusion"], torch.stack([a, b]))
    torch.testing.assert_close(found, a * f + b * g)


def test_auto_trains_where_there_are_enough_samples(monkeypatch):
    data = made("local", encoder=BESIDE)[1]
    sizes = sorted(len(c.train) for c in data.clients)
    monkeypatch.setattr(_expert, "LEAST", sizes[-1])
    federation, _ = ran("fedlda", {"expert": "auto", "kappa": 1.0}, encoder=BESIDE)
    start, _ = made("fedlda", {"expert": "auto", "kappa": 1.0}, encoder=BESIDE)
    for client in data.clients:
        snapshot, large = federation.executor.clients.snapshot(client.name), len(client.train) == sizes[-1]
        before = kept(start, client.name)["head.weight"]
        assert torch.equal(snapshot.model["head.weight"], before) != large
        assert (snapshot.received["fusion"].tolist() == [0.0, 1.0]) != large


@pytest.mark.slow
def test_an_expert_alone_on_features_is_a_trained_head():
    encoder, how = {"name": "random", "dim": 12}, {"model": {}, "transforms": {}}
    fused, _ = ran("fedlda", {"expert": "plain"}, encoder=encoder, **how)
    local, _ = ran("local", encoder=encoder, **how)
    for name in local.names:
        torch.testing.assert_close(kept(fused, name)["head.weight"], kept(local, name)["head.weight"])


def test_encoders_of_ones_own_beside_a_shared_one():
    encoder = {"name": "scattering", "dim": 12, "members": [{"name": "random", "dim": 5}, {"name": "identity"}]}
    how = {"model": {}, "transforms": {}}
    federation, _ = ran("fedlda", {"expert": "plain", "kappa": 1.0}, encoder=encoder, **how)
    shapes = [tuple(kept(federation, name)["head.weight"].shape) for name in federation.names]
    assert shapes == [(10, 5), (10, 64)] * 2
    closed, _ = ran(
        "fedlda", {"kappa": 1.0}, encoder={"name": "scattering", "dim": 12}, model={}, transforms={}, rounds=1
    )
    assert all(torch.equal(tensor, closed.server[name]) for name, tensor in federation.server.items())


@few(
    ("method", "options"),
    [
        ("fedlda", {}),
        ("fedlda", {"message": "factor"}),
        ("fed3r", {}),
        ("fedncm", {}),
        ("fedcof", {}),
        ("local_lda", {}),
    ],
    1,
)
def test_groups_have_the_classifiers_that_they_would_have_by_themselves(method, options):
    """Fields of a group are exact within it: as if its clients were alone."""
    federation, records = ran(method, options, **GROUPS, evaluation={"on": "union"})
    raw = load_data(resolve({**TREE, "method": {"name": method}, "transforms": {}}))
    hits = 0.0
    for group, encoder in enumerate(DEALT):
        chosen = resolve({**TREE, **GROUPS, "encoder": encoder, "method": {"name": method, **options}})
        some = encode(replace(raw, clients=raw.clients[group::2]), chosen.encoder)
        alone = assemble(chosen, some)[0]
        (record,) = alone.run()
        hits += record.accuracy.weighted["head"] * sum(len(c.test) for c in some.clients)
        for name, tensor in alone.server.items():
            torch.testing.assert_close(federation.server[f"{group}|{name}"], tensor)
    assert records[0].accuracy.weighted["head"] * sum(len(c.test) for c in raw.clients) == pytest.approx(hits)


def test_a_client_hears_from_its_own_group():
    federation, _ = ran("fedlda", **GROUPS)
    method, server = federation.method, federation.server
    for number, name in enumerate(federation.names):
        message = method.broadcast(server, 2, name)
        check_structure(message, method.broadcast_schema)
        assert [len(message[f"weights|{g}"]) > 0 for g in (0, 1)] == [number % 2 == 0, number % 2 == 1]
    unknown = method.broadcast(server, 2, "newcomer")
    assert all(len(unknown[f"weights|{g}"]) > 0 for g in (0, 1))
    assert method.broadcast(method.server_state(), 1, "newcomer") is None


def test_an_upload_counts_in_one_group_whatever_it_holds():
    federation, _ = ran("fedlda", **GROUPS)
    method, names = federation.method, federation.names
    uploads = {u.client: u.payload for u in federation.exchange(names, 1)}
    both = {n: t if n.endswith("|0") else uploads[names[1]][n] for n, t in uploads[names[0]].items()}
    nothing = {n: t[:0] for n, t in both.items()}
    for payload in (both, nothing):
        check_structure(payload, method.upload_schema)
    state = method.aggregate(method.server_state(), iter([Upload("eve", both), Upload("ann", nothing)]), 1).state
    honest = method.aggregate(method.server_state(), iter([Upload("eve", uploads[names[0]])]), 1).state
    assert state.keys() == honest.keys()
    assert all(torch.equal(tensor, honest[name]) for name, tensor in state.items())


def test_robust_rules_compare_clients_of_one_group():
    _, records = ran("fedlda", **GROUPS, robust={"rule": "clip"})
    assert not records[0].robust.kept
    with pytest.raises(ConfigError, match="vary in size"):
        made("fedlda", **GROUPS, robust={"rule": "multi_krum"})


TYPED = ("quickstart", "data.samples=200", "data.clients=3", "partition.alpha=1")
TWO = 'encoder.members=[{name="random"}, {name="identity"}]'
WRONG = [
    (("method.name=fedlda", "method.expert=plain"), "set encoder.name, e.g. auto, and encoder.beside=true"),
    (("method.name=fedlda", "method.expert=best"), "expert"),
    (("method.name=fedlda", "encoder.beside=true"), "set encoder.name, e.g. auto"),
    (("method.name=fedproto", "encoder.name=random", "encoder.beside=true"), "not for fedproto"),
    (("method.name=fedproto", TWO), "not for fedproto"),
    (("method.name=fedlda", "encoder.members=[{dim=3}]"), "encoder.members: dim"),
    (("method.name=fedlda", 'encoder.members=[{name="random", dims=3}]'), "dims"),
    (("method.name=fedlda", "encoder.members=[3]"), "encoder.members"),
    (("method.name=fedlda", 'encoder.members=[{name="random", beside=true}]'), "each is an encoder with a name"),
    (("encoder.name=random", "encoder.beside=true", 'encoder.members=[{name="random"}]'), "choose one"),
    (("method.name=fedlda", TWO, "secure.aggregation=true"), "but encoder.members makes one per encoder"),
]


@few(("typed", "told"), WRONG, 2, ids=lambda value: value if isinstance(value, str) else "")
def test_mistakes_are_told_in_one_line(typed, told, tmp_path, monkeypatch, capsys):
    status, _, errors = command(monkeypatch, capsys, "run", *TYPED, *typed, "--out", tmp_path)
    assert status == 2
    assert told in " ".join(errors.split())
    assert "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*was trained on class")
@few(
    "typed",
    [
        (
            "method.expert=plain",
            "encoder.name=random",
            "encoder.dim=20",
            "encoder.beside=true",
            "transforms.crop=1",
        ),
        ('encoder.members=[{name="random", dim=20}, {name="identity"}]',),
    ],
    1,
    ids=["beside", "dealt"],
)
def test_predictions_of_raw_samples_are_those_of_the_run(typed, tmp_path, monkeypatch, capsys):
    from protofed.runs.loading import load_run
    from protofed.trained.metrics import data_of
    from protofed.trained.opening import open_client

    out = tmp_path / "out"
    status, _, errors = command(
        monkeypatch, capsys, "run", *TYPED, "method.name=fedlda", "rounds=2", *typed, "--out", out
    )
    assert status == 0, errors
    directory = next(out.rglob("federation.json")).parent
    run, summary = load_run(directory), json.loads((directory / "summary.json").read_text())
    held = data_of(run)
    hits = 0
    for client in held.clients:
        trained = open_client(run, client.name)
        hits += int((trained.predict(client.test.x, "head").labels == client.test.y.numpy()).sum())
    assert hits / sum(len(c.test) for c in held.clients) == pytest.approx(summary["accuracy"]["head"]["final"])
    np.save(tmp_path / "raw.npy", held.clients[1].test.x.numpy())
    for typed in (
        ("predict", directory, held.clients[1].name, tmp_path / "raw.npy"),
        ("export", directory, held.clients[1].name, "--format", "torch_export", "--out", tmp_path / "m"),
    ):
        status, _, errors = command(monkeypatch, capsys, *typed)
        assert status == 0, errors


@pytest.mark.slow
def test_a_network_gives_the_numbers_of_one_machine(tmp_path):
    forget()
    root = write_folders(tmp_path / "data", ordinary())
    chosen = wanted(
        "fedlda", root, method__expert="plain", model__name="mlp", encoder__name="random", encoder__beside=True
    )
    expected = locally(chosen, tmp_path / "local")
    found = over(FakeGrid(nodes_of(root, tmp_path / "state")), chosen, tmp_path / "network")
    assert numbers(found) == numbers(expected)


def test_encoders_are_not_dealt_over_a_network(tmp_path):
    root = write_folders(tmp_path / "data", ordinary())
    chosen = wanted("fedlda", root, encoder__members=[{"name": "random"}])
    with pytest.raises(ConfigError, match="is for simulations: use --engine local"):
        over(FakeGrid(nodes_of(root, tmp_path / "state")), chosen, tmp_path / "network")


@pytest.mark.slow
def test_nothing_is_forgotten_where_encoders_would_be_dealt_anew(tmp_path, monkeypatch, capsys):
    typed = ("run", *TYPED, "method.name=fedlda", TWO, "--out", tmp_path)
    assert command(monkeypatch, capsys, *typed)[0] == 0
    directory = next(tmp_path.rglob("federation.json")).parent
    status, _, errors = command(monkeypatch, capsys, "forget", directory, "client-00")
    assert status == 2
    assert "would have other encoders (encoder.members)" in " ".join(errors.split())
