"""Methods that share weights: degenerate clients, and what is refused before training starts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protofed.errors import ConfigError
from protofed.experiments.assemble import assemble
from protofed.methods import Batch
from protofed.methods.contract import Upload
from protofed.methods.feduv import uniformity, variance_hinge
from support import K, client, degenerate, experiment, federated, few, one_line, ordinary, visited

BATCH_NORM = {"model__name": "support:WithBatchNorm", "model__options": {}}
# FeSEM


def test_fesem_centres_keep_their_places_and_their_weights():
    federation, _ = assemble(experiment("fesem", method__clusters=2, rounds=6), ordinary())
    earlier: dict[str, torch.Tensor] = {}
    for record in federation.run():
        server = federation.server
        assert sum(record.diagnostics["cluster_size"].values()) == 3
        for c in range(2):
            if earlier and record.diagnostics["cluster_size"][str(c + 1)] == 0:
                name = next(n for n in server if n.startswith("centre."))
                assert torch.equal(server[name][c], earlier[name][c])
        earlier = {n: t.clone() for n, t in server.items()}


def test_fesem_waits_for_uploads_to_seed_its_centres():
    """One client a round: the second centre gets its place when a second client has come."""
    federation, _ = assemble(experiment("fesem", rounds=12, participation__fraction=0.34), ordinary())
    known, clients = [], set()
    for record in federation.run():
        clients |= set(record.participants)
        known.append(int(federation.server["known"].sum()))
        assert all(v is not None for v in record.losses.values())
    assert known[0] == 1
    assert known == sorted(known)
    assert known[-1] == 3
    assert clients == {"ann", "bob", "cid"}


def test_fesem_with_equal_uploads_and_with_newcomers():
    method = assemble(experiment("fesem", method__clusters=3), ordinary())[0].method
    server = method.server_state()
    payload = {n: w + 1 for n, w in method.initial.items()} | {"samples": torch.tensor(3)}
    state = method.aggregate(server, iter([Upload(n, payload) for n in ("ann", "bob")]), 1).state
    assert state["known"].tolist() == [True, False, False]
    other = {n: w - 5 for n, w in method.initial.items()} | {"samples": torch.tensor(9)}
    state = method.aggregate(state, iter([Upload("cid", other)]), 2).state
    assert state["known"].tolist() == [True, True, False]
    name = next(iter(method.initial))
    assert torch.equal(method.broadcast(state, 3, "cid")[name], other[name])
    # Who has not uploaded yet gets the centre of the largest group.
    assert torch.equal(method.broadcast(state, 3, "new")[name], payload[name])


def test_fesem_by_numbers_of_classes():
    """bob and cid, with three classes each, are above the mean of 8/3; ann, with two, is alone."""
    data = federated(client("ann", [0, 0, 1, 1]), client("bob", [1, 2, 3]), client("cid", [0, 1, 3, 3]))
    federation = assemble(experiment("fesem", method__grouping="classes", method__clusters=2, rounds=2), data)[0]
    for record in federation.run():
        own = {name: c.model.state_dict() for name, c in visited(federation).items()}
        assert record.diagnostics["cluster_size"] == {"1": 1, "2": 2}
        for n in federation.method.initial:
            centre = federation.server[f"centre.{n}"]
            torch.testing.assert_close(centre[0], own["ann"][n])
            torch.testing.assert_close(centre[1], (own["bob"][n] + own["cid"][n]) / 2)
    with pytest.raises(ConfigError, match=r"method\.clusters=2"):
        assemble(experiment("fesem", method__grouping="classes"), data)


# FedNH and FedFA


@given(rows=st.lists(st.integers(0, 3), min_size=4, max_size=4), seed=st.integers(0, 99), rho=st.floats(0, 1))
def test_fednh_prototypes_stay_on_the_unit_sphere(rows, seed, rho):
    method = FEDNH(rho)
    generator = torch.Generator().manual_seed(seed)
    server = method.server_state()
    for number in range(1, 4):
        means = torch.randn(K, 5, generator=generator) * torch.tensor(rows).unsqueeze(1)
        payload = {**method.initial, "means": means, "counts": torch.tensor(rows), "samples": torch.tensor(4)}
        before = server["prototypes"]
        server = method.aggregate(server, iter([Upload("ann", payload)]), number).state
        torch.testing.assert_close(server["prototypes"].norm(dim=1), torch.ones(K))
        absent = torch.tensor(rows) == 0
        assert torch.equal(server["prototypes"][absent], before[absent])


def FEDNH(rho):  # noqa: N802
    return assemble(experiment("fednh", method__rho=rho), ordinary())[0].method


def test_fednh_keeps_a_prototype_that_has_nowhere_to_go():
    """A mean exactly opposite leaves no direction at ρ = ½; one of length 0 does not move it."""
    method = FEDNH(0.5)
    server = method.server_state()
    for means in (-server["prototypes"], torch.zeros(K, 5)):
        counts = {"counts": torch.ones(K, dtype=torch.int64), "samples": torch.tensor(K)}
        payload = {**method.initial, "means": means, **counts}
        state = method.aggregate(server, iter([Upload("ann", payload)]), 1).state
        torch.testing.assert_close(state["prototypes"], server["prototypes"])


@few("method", ["fednh", "fedfa"], 1)
def test_more_classes_than_dimensions(method):
    federation, _ = assemble(experiment(method, model__d=2, rounds=3), degenerate())
    records = list(federation.run())
    assert all(v is not None for r in records for v in r.losses.values())
    name = "prototypes" if method == "fednh" else "anchors"
    assert federation.server[name].shape == (K, 2)
    assert len({tuple(row) for row in federation.server[name].tolist()}) == K


def test_the_scores_of_fednh_are_the_logits_that_it_trains():
    federation, _ = assemble(experiment("fednh"), ordinary())
    list(federation.run())
    method, local = federation.method, visited(federation)["ann"]
    batch = Batch(local.test.x, local.test.y)
    scores = method.scores(local.model.eval(), batch, local.received, local.state)
    terms, _ = method.loss(local.model, batch, local.received, local.state)
    loss = torch.nn.functional.cross_entropy(scores["head"], batch.y)
    torch.testing.assert_close(loss, terms["cross_entropy"])
    shared = local.received["extras.scale.s"]
    assert float(scores["global_model"].abs().max()) > 1, "longer than a cosine"
    assert float((scores["global_model"] / shared).abs().max()) <= 1 + 1e-6


def test_fedfa_starts_with_anchors_of_length_one():
    """With more classes than dimensions, too."""
    for d in (3, 5):
        federation, _ = assemble(experiment("fedfa", model__d=d), ordinary())
        anchors = federation.method.first_anchors()
        assert anchors.shape == (K, d)
        torch.testing.assert_close(anchors.norm(dim=-1), torch.ones(K))


def test_fedfa_keeps_the_anchor_of_a_class_nobody_holds():
    data = federated(client("ann", [0, 0, 1, 1, 1]), client("bob", [1, 1, 0], [0, 1, 2]))
    federation, _ = assemble(experiment("fedfa", rounds=3), data)
    start = federation.server["anchors"].clone()
    list(federation.run())
    moved = (federation.server["anchors"] - start).abs().amax(1)
    assert (moved[:2] > 1e-3).all()
    torch.testing.assert_close(federation.server["anchors"][2:], start[2:])


# FedUV's terms on odd batches


@pytest.mark.parametrize("rows", [[], [[1.0, 2.0]], [[1.0, 2.0]] * 3], ids=["none", "one", "equal"])
def test_feduv_terms_are_zero_and_have_gradients_where_they_say_nothing(rows):
    z = torch.tensor(rows).reshape(-1, 2).requires_grad_()
    terms = [uniformity(z)] if len(rows) == 0 else [uniformity(z), variance_hinge(z.softmax(-1))]
    assert terms[0].item() == 0.0
    if len(rows) < 2:
        assert all(t.item() == 0 for t in terms)
    if rows:
        (gradient,) = torch.autograd.grad(sum(terms), z)
        assert gradient.isfinite().all()


# BatchNorm's running statistics


@pytest.mark.parametrize("share", [True, False])
@few("method", ["fedavg", "fedprox", "fedlc", "fedper", "fedrep", "feduv", "fednh", "fedfa", "fesem"], 2)
def test_running_statistics_are_shared_on_request_and_it_is_said(method, share):
    federation, _ = assemble(experiment(method, method__share_buffers=share, **BATCH_NORM), ordinary())
    next(federation.run())
    assert any("running_mean" in n for n in federation.server) is share
    said = [note for note in federation.method.notes() if "running statistics" in note]
    assert said == [
        f"BatchNorm's running statistics {'are averaged with the weights' if share else 'stay on each client'}."
    ]


def test_notes_tell_what_is_shared_and_how_long_is_trained():
    method = assemble(experiment("fedrep"), ordinary())[0].method
    model = method.task.template()
    total = sum(p.numel() for p in model.parameters())
    shared = total - sum(p.numel() for p in model.head.parameters())
    assert method.notes() == (
        f"{shared:,} of the {total:,} parameters of a model are shared.",
        "6 local epochs per round, whatever training.epochs says: 5 of the head, 1 of the rest.",
    )


# Sampling by size


def test_clients_drawn_by_their_size():
    sizes = {"small": 2, "middle": 20, "large": 200}
    data = federated(*(client(name, [0, 1] * (n // 2)) for name, n in sizes.items()))
    options = {"rounds": 40, "participation__fraction": 0.34, "training__batch_size": 256, "evaluation__every": 40}
    federation, _ = assemble(experiment("fedprox", participation__sampling="samples", **options), data)
    drawn = [federation.participants(round_number)[0] for round_number in range(1, 401)]
    assert {n: drawn.count(n) for n in sizes} == pytest.approx(
        {n: 400 * size / 222 for n, size in sizes.items()}, abs=25
    )
    federation, _ = assemble(experiment("fedprox", **options), data)
    drawn = [federation.participants(round_number)[0] for round_number in range(1, 401)]
    assert min(drawn.count(n) for n in sizes) > 90


# What is refused


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("fesem", {"method__clusters": 4}, r"fesem: method.clusters = 4, but there are only 3 clients"),
        ("fedrep", {"method__personal": []}, "fedrep: method.personal is empty, so no head is trained first"),
        ("fedrep", {"method__head_epochs": 0, "method__extractor_epochs": 0}, "nothing would be trained"),
        ("fedper", {"method__personal": ["haed"]}, "unknown module in method.personal 'haed': did you mean 'head'"),
        ("fedper", {"method__personal": ["extractor", "head"]}, "fedper: .*whole model, so nothing is shared"),
        ("lg_fedavg", {"method__shared": []}, "lg_fedavg: method.shared is empty"),
        ("lg_fedavg", {"method__shared": ["backbone"]}, "unknown module in method.shared 'backbone'"),
    ],
)
def test_refusals(method, options, message):
    with one_line(ConfigError, message):
        assemble(experiment(method, **options), ordinary())


@pytest.mark.parametrize(
    "method", ["fedavg", "fedprox", "fedlc", "fedper", "fedrep", "fesem", "feduv", "fednh", "fedfa"]
)
def test_different_architectures_are_refused_by_name(method):
    data = federated(*(client(n, [0, 1, 2, 3]) for n in ("ann", "bob")), client("cid", [0, 1], model="mlp", d=9))
    with pytest.raises(ConfigError, match=rf"{method} shares weights .* ann has mlp.* cid has mlp.*model\.shared"):
        assemble(experiment(method), data)


def test_lg_fedavg_lets_extractors_differ_but_not_what_is_shared():
    data = federated(client("ann", [0, 1, 2, 3] * 2), client("bob", [0, 1, 2], model="mlp"))
    federation, _ = assemble(experiment("lg_fedavg"), data)
    shapes = {c.model.extractor.backbone for c in visited(federation).values()}
    assert len(shapes) == 2
    for _ in federation.run():
        heads = [c.model.head.weight for c in visited(federation).values()]
        assert torch.equal(heads[0], heads[1])
    with pytest.raises(ConfigError, match=r"bob: lg_fedavg averages extractor.* at the first client"):
        assemble(experiment("lg_fedavg", method__shared=["extractor"]), data)
    with pytest.raises(ConfigError, match=r"ann has d=5 and bob has d=9"):
        assemble(experiment("lg_fedavg"), federated(data.clients[0], client("bob", [0], d=9)))
