"""FedGH: against a naive reference, and what it has to survive."""

from __future__ import annotations

import pytest
import torch

import naive
from naive import LR, SEED, build, same_nets, uneven
from protofed.compute.seeding import generator
from protofed.errors import ConfigError, ModelError
from support import K, client, federated

SERVER_LR, SERVER_BATCH, SERVER_EPOCHS = 0.2, 3, 2


def test_two_rounds():
    """Clients: ``CE`` from the header. Server: ``φ ← φ − η ∇ mean CE(g_φ(p_ic), c)`` over batches of pairs."""
    data = uneven()
    federation = build(
        "fedgh",
        data,
        method__server_lr=SERVER_LR,
        method__server_batch_size=SERVER_BATCH,
        method__server_epochs=SERVER_EPOCHS,
    )
    nets = {c.name: naive.own_net(federation, c.name) for c in data.clients}
    header = [federation.server["weight"].clone(), federation.server["bias"].clone()]
    for number, record in enumerate(federation.run(), start=1):
        pairs = []
        for c in data.clients:
            w = nets[c.name][:2] + header
            for batch in naive.rounds_of(c.train, c.name, number):
                (w,), _ = naive.step(
                    [w],
                    lambda parts, batch=batch: naive.mean(
                        [naive.cross_entropy(naive.logits(parts[0], x), y) for x, y in batch]
                    ),
                )
            nets[c.name] = w
            for label in range(K):
                own = [x.double() for x, y in zip(c.train.x, c.train.y, strict=True) if y == label]
                if own:
                    pairs.append((naive.mean([naive.features(w, x) for x in own]), label))
        order = generator(SEED, "server training", number)
        for _ in range(SERVER_EPOCHS):
            rows = torch.randperm(len(pairs), generator=order).tolist()
            for start in range(0, len(rows), SERVER_BATCH):
                chosen = [pairs[i] for i in rows[start : start + SERVER_BATCH]]
                (header,), _ = naive.step(
                    [header],
                    lambda parts, chosen=chosen: naive.mean(
                        [naive.cross_entropy(naive.head(parts[0], p), y) for p, y in chosen]
                    ),
                    SERVER_LR,
                )
        same_nets([federation.server["weight"], federation.server["bias"]], header)
        # Everyone is scored with its own extractor and the header that was just broadcast.
        hits = [
            sum(int(naive.logits(nets[c.name][:2] + header, x.double()).argmax()) == y for x, y in rows_of(c.test))
            for c in data.clients
        ]
        expected = [h / len(c.test) for h, c in zip(hits, data.clients, strict=True)]
        assert record.accuracy.clients["head"] == expected
    assert LR != SERVER_LR


def rows_of(samples):
    return zip(samples.x, samples.y.tolist(), strict=True)


def test_without_server_epochs_the_header_stays_random():
    federation = build("fedgh", method__server_epochs=0)
    before = {n: t.clone() for n, t in federation.server.items()}
    list(federation.run())
    assert all(torch.equal(before[n], t) for n, t in federation.server.items())


def test_extractors_may_differ():
    data = federated(client("ann", [0, 1, 2]), client("bob", [1, 3, 3], model="support:WithBatchNorm"))
    list(build("fedgh", data, model__d=8, data__trust_code=True).run())
    with pytest.raises(ConfigError, match="fedgh exchanges features and needs one d"):
        build("fedgh", federated(client("ann", [0, 1]), client("bob", [0, 1], d=3)))


def test_a_head_without_bias_is_refused():
    with pytest.raises(ModelError, match=r"ann: fedgh shares a head with a bias"):
        build("fedgh", model__name="support:NoBias", model__options={})
