"""FedPCL: against a naive reference, and frozen encoders beside each other."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import naive
from naive import build, same, same_nets, uneven
from protofed.methods import Batch, fedpcl
from protofed.methods.contract import Upload
from support import K, visited

P, TAU, WEIGHT = 6, 0.3, 0.8
CHOSEN = {"method__projection_dim": P, "method__temperature": TAU, "method__global_weight": WEIGHT}


def net_of(federation, name):
    """Return the extractor and the projection of a client."""
    model = visited(federation)[name].model
    return naive.net(model.extractor) + naive.net(model.extras["projection"])


def projected(w, x):
    f = naive.features(w, x)
    z = torch.stack([(w[2][i] @ f + w[3][i]).clamp(min=0) for i in range(P)])
    length = (z @ z).sqrt()
    return z / length if float(length.detach()) > 1e-12 else z * 0


def among_prototypes(z, batch, C):
    total = []
    for f, (_, y) in zip(z, batch, strict=True):
        if y not in C:
            total.append(torch.zeros((), dtype=torch.float64))
            continue
        chances = {c: (f @ C[c] / TAU).exp() for c in C}
        total.append(-(chances[y] / sum(chances.values())).log())
    return naive.mean(total)


def loss(w, batch, sets, mean):
    z = [projected(w, x) for x, _ in batch]
    if not mean:
        return sum(f.sum() for f in z) * 0
    filled = [{c: own.get(c, mean[c]) for c in mean} for own in sets.values()]
    nothing = sum(f.sum() for f in z) * 0
    apart = [among_prototypes(z, batch, C) for C in filled]
    return nothing + WEIGHT * among_prototypes(z, batch, mean) + naive.mean(apart)


def nearest(z, C, among):
    return max(sorted(set(C) & set(among)), key=lambda y: -float((z - C[y]).square().sum()))


def test_three_rounds():
    data = uneven()
    federation = build("fedpcl", data, rounds=3, **CHOSEN)
    own = {c.name: net_of(federation, c.name) for c in data.clients}
    heads = {c.name: naive.own_net(federation, c.name)[2:] for c in data.clients}
    sets, mean = {}, {}
    for number, record in enumerate(federation.run(), start=1):
        new = {}
        for c in data.clients:
            for batch in naive.rounds_of(c.train, c.name, number):
                args = batch, sets, mean
                (own[c.name],), _ = naive.step([own[c.name]], lambda n, args=args: loss(n[0], *args))
            z = [projected(own[c.name], x.double()) for x in c.train.x]
            labels = c.train.y.tolist()
            new[c.name] = {
                y: naive.mean([a for a, b in zip(z, labels, strict=True) if b == y]) for y in set(labels)
            }
            same_nets(net_of(federation, c.name), own[c.name])
            same_nets(naive.own_net(federation, c.name)[2:], heads[c.name])
        sets = new
        mean = {y: naive.mean([C[y] for C in sets.values() if y in C]) for y in range(K)}
        for y in range(K):
            same(federation.server["prototypes"][y], mean[y])
        hits = {"local": [], "global": [], "global_own": []}
        for c in data.clients:
            z, labels = [projected(own[c.name], x.double()) for x in c.test.x], c.test.y.tolist()
            tables = {
                "local": (sets[c.name], range(K)),
                "global": (mean, range(K)),
                "global_own": (mean, sets[c.name]),
            }
            for rule, table in tables.items():
                right = sum(nearest(f, *table) == y for f, y in zip(z, labels, strict=True))
                hits[rule].append(right / len(labels))
        assert record.accuracy.clients == hits
        held = sum(len(C) for C in sets.values())
        assert record.parameters["up"] == held * P
        assert record.parameters["down"] == (0 if number == 1 else 3 * held * P)


def test_clients_that_rest_keep_their_prototypes_in_the_broadcast():
    federation = build("fedpcl", rounds=4, participation__fraction=0.34, **CHOSEN)
    seen = set()
    for record in federation.run():
        seen |= set(record.participants)
        message = federation.method.broadcast(federation.server, 9)
        assert int(message["owners"].max()) + 1 == len(seen)


def test_without_a_projection_features_are_compared():
    federation = build("fedpcl", method__projection_dim=0)
    model = visited(federation)["ann"].model
    assert "projection" not in model.extras
    assert federation.method.upload_schema.sizes == {"p": naive.D}
    *_, record = federation.run()
    assert record.losses["contrast"] > 0


def test_on_frozen_features_only_the_projection_moves():
    federation = build("fedpcl", model__name="identity", model__options={})
    before = visited(federation)["ann"].model
    assert before.fixed
    list(federation.run())
    after = visited(federation)["ann"].model
    moved = {n for n, p in after.named_parameters() if not torch.equal(p, dict(before.named_parameters())[n])}
    assert moved == {"extras.projection.weight", "extras.projection.bias"}


@given(seed=st.integers(0, 2**31), n=st.integers(1, 6), clients=st.integers(1, 3), zero=st.booleans())
def test_contrasts_know_no_order_of_clients_or_classes(seed, n, clients, zero):
    """Nor absent classes and padding; they are those of the reference, and their gradients are finite."""
    source, found = torch.Generator().manual_seed(seed), fedpcl.among_prototypes
    z = torch.nn.functional.normalize(torch.randn(n, P, generator=source, dtype=torch.float64), dim=-1)
    z = (z * (not zero)).requires_grad_()
    sets = torch.randn(clients, K, P, generator=source, dtype=torch.float64)
    present, y = torch.rand(K, generator=source) < 0.7, torch.randint(0, K, (n,), generator=source)
    batch = [(None, int(c)) for c in y]
    each = [{c: C[c] for c in range(K) if present[c]} for C in sets]
    value = found(z, Batch(z, y), sets, present, TAU)
    same(value, naive.mean([among_prototypes(list(z), batch, C) for C in each]))
    assert bool(torch.autograd.grad(value, z)[0].isfinite().all())
    order, queue = (torch.randperm(k, generator=source) for k in (K, clients))
    changed = torch.where(present.unsqueeze(1), sets, 9.0)[queue][:, order]
    padded = torch.cat([z, torch.ones(2, P, dtype=torch.float64)])
    weight = torch.tensor([1.0] * n + [0.0] * 2, dtype=torch.float64)
    labels = order.argsort()[torch.cat([y, y[:1].repeat(2)])]
    same(found(padded, Batch(padded, labels, weight), changed, present[order], TAU), value)


@pytest.fixture(scope="module")
def plain():
    return build("fedpcl", **CHOSEN)


@given(seed=st.integers(0, 2**31), clients=st.integers(1, 4))
def test_means_of_clients_stand_in_for_the_classes_that_they_lack(plain, seed, clients):
    """Whatever the order in which they report."""
    source, method = torch.Generator().manual_seed(seed), plain.method
    rows = torch.randn(clients, K, P, generator=source, dtype=torch.float64)
    held = torch.rand(clients, K, generator=source) < 0.5
    held[0, 0] = True
    sent = [
        Upload(str(i), {"classes": held[i].nonzero()[:, 0], "prototypes": rows[i][held[i]]}) for i in range(clients)
    ]
    queue = torch.randperm(clients, generator=source).tolist()
    server, again = (
        method.aggregate(method.server_state(), iter(u), 1).state for u in (sent, [sent[i] for i in queue])
    )
    assert all(torch.equal(again[name], server[name]) for name in server)
    received = method.receive(None, method.broadcast(server, 2))
    reporting = [i for i in range(clients) if bool(held[i].any())]
    assert received["sets"].shape == (len(reporting), K, P)
    for c in range(K):
        own = [rows[i, c] for i in reporting if held[i, c]]
        mean = naive.mean(own) if own else torch.zeros(P, dtype=torch.float64)
        assert bool(received["present"][c]) == bool(server["present"][c]) == bool(own)
        same(server["prototypes"][c], mean)
        same(received["prototypes"][c], mean)
        for place, i in enumerate(reporting):
            same(received["sets"][place, c], rows[i, c] if held[i, c] else mean)
