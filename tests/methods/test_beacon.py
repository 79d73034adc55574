"""Beacon: against a naive reference, its network, and what it has to refuse."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import naive
import naive_beacon
from naive import build, same_nets
from protofed.errors import ModelError
from protofed.experiments.assemble import assemble
from protofed.methods import Batch
from protofed.methods.beacon import all_classes
from protofed.methods.contract import predict
from protofed.models import build as build_model
from protofed.models.tiny import tiny_width
from protofed.prototypes.etf import spread_directions
from protofed.samples import ClientData, FederatedData, Samples
from support import K, client, degenerate, experiment, federated, few, held_out, ordinary, visited

EPOCHS, LR, MOMENTUM, RHO, LAMBDA, GAMMA = 2, 0.05, 0.8, 0.5, 0.7, 3.0


def two() -> FederatedData:
    """Return two clients of different classes; nobody holds class 3, on which one is tested.

    One has validation samples, also of class 3.
    """
    return federated(
        held_out(client("ann", [0, 0, 0, 0, 0, 1, 1, 2, 2], [0, 1, 2, 2, 0]), [0, 2, 3, 1, 1, 2]),
        client("bob", [1, 1, 1, 2, 2, 2], [1, 2, 3, 0, 1]),
    )


def tiny(shape, classes, **options):
    """Return the beacon for samples of a shape."""
    width = tiny_width(shape, **options)
    return build_model("tiny", input_shape=shape, num_classes=classes, d=width, options=options)


def beacon_of(federation, name):
    return [p.detach().clone() for p in visited(federation)[name].model.extras["beacon"].parameters()]


@few(
    ("fusion", "expert", "weighting"),
    [("average", "plain", "samples"), ("sum", "etf", "uniform"), ("validation", "plain", "samples")],
    1,
)
def test_two_rounds(fusion, expert, weighting):
    data = two()
    federation = build(
        "beacon",
        data,
        method__hidden=3,
        method__epochs=EPOCHS,
        method__lr=LR,
        method__momentum=MOMENTUM,
        method__rho=RHO,
        method__fusion=fusion,
        method__expert=expert,
        method__weighting=weighting,
        **{"method.lambda": LAMBDA, "method.gamma": GAMMA},
    )
    targets = GAMMA * spread_directions(K, naive.D, naive.SEED, dtype=torch.float64)
    own = {c.name: naive.own_net(federation, c.name) for c in data.clients}
    theta = [t.clone() for t in federation.server.values()]
    assert [tuple(t.shape) for t in theta] == [(3, 6), (3,), (3,), (3,), (K, 3), (K,)]
    held = {c.name: sorted(set(c.train.y.tolist())) for c in data.clients}
    prior = {c.name: naive_beacon.log_prior(c.train.y.tolist(), K, RHO) for c in data.clients}

    for number, record in enumerate(federation.run(), start=1):
        sent = {}
        for c in data.clients:
            pi, A = prior[c.name], held[c.name]

            def of_beacon(w, batch, pi=pi):  # step 1, over all classes
                return naive_beacon.mean_balanced(naive_beacon.beacon, w, batch, pi, range(K))

            def of_expert(w, batch, pi=pi, A=A):  # step 2, over the client's own
                loss = naive_beacon.mean_balanced(naive.logits, w, batch, pi, A)
                if expert == "etf":
                    pulls = [((naive.features(w, x) - targets[y]) ** 2).sum() / naive.D for x, y in batch]
                    loss = loss + LAMBDA * naive.mean(pulls)
                return loss

            steps = naive_beacon.batches(c.train, c.name, number, 0, EPOCHS)
            sent[c.name] = naive_beacon.descend(theta, steps, of_beacon, LR, MOMENTUM)
            steps = naive_beacon.batches(c.train, c.name, number, 1, 1)
            own[c.name] = naive_beacon.descend(own[c.name], steps, of_expert, naive.LR, 0.0)
        theta = naive.averaged(sent, data, weighting)  # step 3
        same_nets(list(federation.server.values()), theta)
        for c in data.clients:
            same_nets(naive.own_net(federation, c.name), own[c.name])
            same_nets(beacon_of(federation, c.name), theta)
        for place, c in enumerate(data.clients):
            hits = dict.fromkeys(record.accuracy.clients, 0)

            def outputs(x, w=own[c.name], shared=theta):
                return naive.logits(w, x), naive_beacon.log_softmax(naive_beacon.beacon(shared, x))

            A, pi = held[c.name], prior[c.name]
            weights = (1.0, 1.0) if fusion == "sum" else (0.5, 0.5)
            if fusion == "validation" and c.validation is not None:
                scored = []
                for x, y in zip(c.validation.x.double(), c.validation.y.tolist(), strict=True):
                    f, g = ([float(v[k]) for k in A] for v in outputs(x))
                    scored += [(f, g, A.index(y))] if y in A else []
                weights = naive_beacon.fit(scored, [pi[k] for k in A], 1.0)
                learned = visited(federation)[c.name].received["fusion"]
                assert learned.tolist() == pytest.approx(weights, abs=1e-5)
                assert abs(weights[0] - 0.5) > 0.001
            for x, y in zip(c.test.x.double(), c.test.y.tolist(), strict=True):
                found = naive_beacon.answers(*outputs(x), pi, A, weights)
                for rule, answer in found.items():
                    hits[rule] += answer == y
            for rule, number_right in hits.items():
                assert record.accuracy.clients[rule][place] == number_right / len(c.test), rule


def images(name: str, labels: list[int], shape=(1, 8, 8), test: list[int] | None = None) -> ClientData:
    """Return a client with bytes as pixels, in which the class shows as a bright row."""

    def drawn(labels):
        pixels = torch.randint(0, 90, (len(labels), *shape), generator=torch.Generator().manual_seed(len(labels)))
        for i, y in enumerate(labels):
            pixels[i, ..., y % shape[-2], :] = 255
        return Samples(pixels.to(torch.uint8), torch.tensor(labels, dtype=torch.int64))

    return ClientData(name, drawn(labels), drawn(labels if test is None else test))


def pictures(*clients: ClientData) -> FederatedData:
    return FederatedData(clients, K, tuple("abcd"), tuple(clients[0].train.x.shape[1:]))


PRECISE = {"wire__codec": "float64", "execution__precision": "fp64", "seed": naive.SEED}


@given(
    st.integers(2, 12).flatmap(
        lambda classes: st.tuples(
            st.lists(st.floats(-40, 40), min_size=classes, max_size=classes),
            st.lists(st.floats(-40, 40), min_size=classes, max_size=classes),
            st.lists(st.booleans(), min_size=classes, max_size=classes),
        )
    )
)
def test_probabilities_of_all_classes(drawn):
    """They sum to 1 for any A_i; they are ``softmax s`` where A_i is all, and the beacon's where it is empty."""
    s, h, held = (torch.tensor(t) for t in drawn)
    s, g = s.double()[None], h.double()[None].log_softmax(-1)
    p = all_classes(s, g, held).exp()
    torch.testing.assert_close(p.sum(), torch.ones((), dtype=torch.float64))
    if held.any():
        expected = naive_beacon.everything(s[0].tolist(), g[0], held.nonzero().flatten().tolist())
        torch.testing.assert_close(p[0], torch.tensor(expected, dtype=torch.float64), rtol=1e-7, atol=1e-12)
    everything, nothing = torch.ones_like(held), torch.zeros_like(held)
    torch.testing.assert_close(all_classes(s, g, everything).exp(), s.softmax(-1))
    torch.testing.assert_close(all_classes(s, g, nothing), g)


def test_degenerate_clients():
    """One class: the head can answer nothing else. No training samples: every rule is the beacon's."""
    federation = build("beacon", degenerate(), method__hidden=3)
    record = list(federation.run())[-1]
    assert not record.refused
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    batch = Batch(x, torch.zeros(50, dtype=torch.int64))
    answers = {
        name: predict(federation.method, c.model, batch, c.received, c.state)
        for name, c in visited(federation).items()
    }
    assert set(answers["one-class"]["head"].tolist()) == {2}
    shared = answers["all"]["global_model"]
    assert len(shared.unique()) > 1
    for name in ("no-training", "nothing"):
        assert all(torch.equal(classes, shared) for classes in answers[name].values())
    assert all(torch.equal(a["global_model"], shared) for a in answers.values())


def test_diverged_networks_answer_nothing():
    federation = build("beacon", two(), method__hidden=3, rounds=1)
    list(federation.run())
    ann = visited(federation)["ann"]
    batch = Batch(ann.train.x.double(), ann.train.y)
    with torch.no_grad():
        ann.model.head.weight.fill_(torch.nan)
    found = predict(federation.method, ann.model, batch, {}, ann.state)
    assert {rule: bool((classes == -1).all()) for rule, classes in found.items()} == {
        "head": True,
        "expert": True,
        "beacon": False,
        "all_classes": True,
        "global_model": False,
    }


# The network.


def size(network) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("shape", "classes", "weights"),
    [
        ((1, 28, 28), 10, 6218),
        ((3, 32, 32), 10, 6218 + 2 * 8 * 9),
        ((1, 8, 8), 10, 6218),
        ((1, 128), 10, 6218),
        ((1, 28, 28), 200, 6218 + 190 * 257),
        ((64,), 10, 81 * (64 + 3 + 10) + 10),
        ((512,), 10, 16 * (512 + 3 + 10) + 10),
    ],
)
def test_sizes(shape, classes, weights):
    network = tiny(shape, classes)
    assert size(network) == weights
    assert network(torch.zeros(2, *shape)).logits.shape == (2, classes)
    assert not list(network.buffers())


def test_network_of_images_by_hand():
    """Convolution, GroupNorm over four channels, ReLU and pooling, in loops."""
    torch.manual_seed(0)
    network = tiny((2, 9, 7), 3, channels=(8,)).double()
    with torch.no_grad():
        for p in network.parameters():
            p.normal_()
    weights = {n.removeprefix("extractor.backbone."): w for n, w in network.named_parameters()}
    x = torch.randn(2, 9, 7, dtype=torch.float64)
    padded = torch.zeros(2, 11, 9, dtype=torch.float64)
    padded[:, 1:-1, 1:-1] = x
    H, W = 5, 4  # stride 2: 9 and 7 are halved and rounded up
    maps = torch.zeros(8, H, W, dtype=torch.float64)
    for c in range(8):
        for i in range(H):
            for j in range(W):
                patch = padded[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
                maps[c, i, j] = (patch * weights["conv1.weight"][c]).sum() + weights["conv1.bias"][c]
    for group in (slice(0, 4), slice(4, 8)):
        own = maps[group]
        maps[group] = (own - own.mean()) / (own.var(correction=0) + 1e-5).sqrt()
    maps = (maps * weights["norm1.weight"][:, None, None] + weights["norm1.bias"][:, None, None]).clamp(min=0)
    rows = [(math.floor(i * H / 4), math.ceil((i + 1) * H / 4)) for i in range(4)]
    cells = torch.stack([maps[:, a:b, j : j + 1].mean((1, 2)) for a, b in rows for j in range(4)], 1)
    expected = weights["head.weight"] @ cells.flatten() + weights["head.bias"]
    torch.testing.assert_close(network(x[None]).logits[0], expected)


@few("shape", [(1, 8, 8), (3, 5, 7), (2, 40)], 1)
def test_stacked_clients_train_as_alone(shape, caplog):
    """Images and series, also where pooling repeats or overlaps cells."""
    clients = [images("ann", [0, 0, 1, 1, 2], shape), images("bob", [1, 2, 3, 3], shape), images("cid", [2], shape)]
    found = []
    for executor in ("sequential", "fused"):
        chosen = {"execution__executor": executor, "rounds": 1, "method__channels": [4, 6]}
        federation, _ = assemble(experiment("beacon", **chosen, **PRECISE), pictures(*clients))
        found.append(([r.losses for r in federation.run()], federation.server))
    (losses, alone), (stacked_losses, together) = found
    assert losses == [pytest.approx(own) for own in stacked_losses]
    for name, tensor in alone.items():
        torch.testing.assert_close(tensor, together[name])
    assert not caplog.messages  # a stack that cannot be computed is reported


# Messages.


def test_uniform_weights_disclose_no_numbers():
    federation = build("beacon", ordinary(), method__weighting="uniform")
    assert "samples" not in federation.method.upload_schema.fields
    assert federation.method.declared.counts == "never"


# What is refused, and what draws a warning.


def test_samples_without_a_network():
    video = Samples(torch.zeros(3, 1, 4, 8, 8), torch.tensor([0, 1, 2]))
    data = FederatedData((ClientData("ann", video, video),), K, tuple("abcd"), (1, 4, 8, 8))
    with pytest.raises(ModelError, match="tiny has no form for samples of shape 1×4×8×8: it takes vectors"):
        assemble(experiment("beacon"), data)


def test_a_beacon_larger_than_the_clients_models(caplog):
    federation = build("beacon", ordinary())
    own = size(visited(federation)["ann"].model) - size(federation.method.network)
    with caplog.at_level(logging.WARNING, "protofed"):
        notes = federation.method.notes()
    assert len(caplog.messages) == 1
    assert f"with {size(federation.method.network):,} parameters, is larger than" in caplog.messages[0]
    assert f"with {own:,}:" in caplog.messages[0]
    assert caplog.messages[0] in notes
    caplog.clear()
    small = build("beacon", ordinary(), method__hidden=2)
    assert len(small.method.notes()) == 1
    assert not caplog.messages
