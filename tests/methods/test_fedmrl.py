"""FedMRL: against a naive reference, models of any width, and shared ones it has to refuse."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import naive
import naive_beacon
from naive import build, same, same_nets, uneven
from protofed.errors import ModelError
from protofed.methods import Batch
from support import K, client, federated, few, one_line, visited

D1, CLIP = 3, 0.4
SMALL = {
    "method__auxiliary": "mlp",
    "method__auxiliary_options": {"hidden": [], "relu_features": True},
    "method__auxiliary_d": D1,
}
ANSWERS = ("head", "shared_head", "global_model")


def private(federation, name):
    """Return a client's own network and its projector."""
    projector = visited(federation)[name].model.extras["projector"]
    return [*naive.own_net(federation, name), *(p.detach().clone() for p in projector.parameters())]


def answers(own, small, x):
    """Return ``φ_i(r)``, ``φ_θ(r_1, …, r_d₁)`` and ``h_θ(x)`` of one sample, with ``r = P[f_θ(x); f_i(x)]``."""
    *network, weight, bias = own
    seen = torch.cat([naive.features(small, x), naive.features(network, x)])
    r = torch.stack([weight[j] @ seen + bias[j] for j in range(len(bias))])
    return naive.head(network, r), naive.head(small, r[:D1]), naive.logits(small, x)


def loss(own, small, batch, pi=None, A=range(K)):
    """Mean of both cross-entropies, for balanced softmax of ``f + π`` over ``A``."""
    total = []
    for x, y in batch:
        for z in answers(own, small, x)[:2]:
            kept = torch.stack([z[k] + (pi[k] if pi else 0.0) for k in A])
            total.append(naive.cross_entropy(kept, list(A).index(y)))
    return 2 * naive.mean(total)


def best(scores, classes):
    return max(classes, key=lambda k: float(scores[k]))


@few(
    ("weighting", "clip", "softmax"),
    [("samples", 0.0, "plain"), ("uniform", CLIP, "plain"), ("samples", 0.0, "balanced")],
    3,
)
def test_two_rounds(weighting, clip, softmax):
    data = uneven()
    if softmax == "balanced":  # on classes that the client knows
        data = federated(client("ann", [0, 0, 0, 1, 1, 2], [0, 1, 2]), client("bob", [1, 1, 3, 3, 3], [1, 3, 1]))
    options = {"method__weighting": weighting, "training__clip": clip, "method__softmax": softmax}
    federation = build("fedmrl", data, **options, **SMALL)
    own = {c.name: private(federation, c.name) for c in data.clients}
    small = [t.clone() for t in federation.server.values()]
    assert [tuple(t.shape) for t in small] == [(D1, 6), (D1,), (K, D1), (K,)]
    assert [tuple(t.shape) for t in own["ann"][4:]] == [(naive.D, D1 + naive.D), (naive.D,)]
    for number, record in enumerate(federation.run(), start=1):
        sent, priors = {}, {}
        for c in data.clients:
            labels = c.train.y.tolist()
            held = sorted(set(labels)) if softmax == "balanced" else range(K)
            pi = naive_beacon.log_prior(labels, K, 1.0) if softmax == "balanced" else None
            priors[c.name] = pi, held
            w, m = own[c.name], small
            for batch in naive.rounds_of(c.train, c.name, number):
                (a, b), _ = naive.step([w, m], lambda n, pi=pi, A=held, batch=batch: loss(*n, batch, pi, A))
                if clip:  # the client's own network, its projector and the shared network each for itself
                    a = naive.clipped(w[:4], a[:4], clip) + naive.clipped(w[4:], a[4:], clip)
                    b = naive.clipped(m, b, clip)
                w, m = a, b
            own[c.name], sent[c.name] = w, m
        small = naive.averaged(sent, data, weighting)
        same_nets(list(federation.server.values()), small)
        hits: dict[str, list[float]] = {rule: [] for rule in ANSWERS}
        for c in data.clients:
            same_nets(private(federation, c.name), own[c.name])
            pi, held = priors[c.name]
            right = dict.fromkeys(ANSWERS, 0)
            for x, y in zip(c.test.x.double(), c.test.y.tolist(), strict=True):
                fine, coarse, alone = answers(own[c.name], small, x)
                fine = fine + torch.tensor(pi) if pi else fine
                right["head"] += best(fine, held) == y
                right["shared_head"] += best(coarse, range(K)) == y
                right["global_model"] += best(alone, range(K)) == y
            for rule, count in right.items():
                hits[rule].append(count / len(c.test))
        for rule, found in hits.items():
            assert record.accuracy.clients[rule] == found, rule


def test_any_models_and_a_shared_one_of_ones_choice():
    """Every client's projector leads to the length of its own features."""
    data = federated(client("ann", [0, 1, 2]), client("bob", [1, 3, 3], d=9), client("cid", [1] * 5, model="mlp"))
    shared = {"method__auxiliary": "support:WithBatchNorm", "method__auxiliary_d": 8, "model__d": 8}
    federation = build("fedmrl", data, **shared)
    record = list(federation.run())[-1]
    size = 6 * 8 + 8 + 2 * 8 + 8 * K + K
    assert record.parameters == {"up": 3 * (size + 2 * 8), "down": 3 * (size + 2 * 8)}
    assert f"has {size:,} parameters" in federation.method.notes()[0]
    widths = {n: c.model.extras["projector"].weight.shape for n, c in visited(federation).items()}
    assert widths == {"ann": (8, 16), "bob": (9, 17), "cid": (8, 16)}


@pytest.fixture(scope="module")
def small():
    """A federation of small networks."""
    return build("fedmrl", **SMALL)


@given(seed=st.integers(0, 2**31), share=st.floats(-2, 2))
def test_fusion_is_linear_and_its_start_is_all_that_the_shared_head_reads(small, seed, share):
    source, c = torch.Generator().manual_seed(seed), visited(small)["ann"]
    projector = c.model.extras["projector"]
    shapes = projector.weight.shape, projector.bias.shape
    one, other = ([torch.randn(s, generator=source, dtype=torch.float64) for s in shapes] for _ in range(2))
    x = torch.randn(3, 6, generator=source, dtype=torch.float64)

    def read(weight, bias):
        with torch.no_grad():
            projector.weight.copy_(weight)
            projector.bias.copy_(bias)
            found = small.method.scores(c.model, Batch(x, torch.zeros(3, dtype=torch.int64)), {}, c.state)
        return [found[rule] for rule in ANSWERS]

    first, second = read(*one), read(*other)
    mixed = read(*(share * a + (1 - share) * b for a, b in zip(one, other, strict=True)))
    for a, b, between in zip(first, second, mixed, strict=True):
        same(between, share * a + (1 - share) * b)
    fine, coarse, _ = read(*(torch.cat([a[:D1], b[D1:]]) for a, b in zip(one, other, strict=True)))
    same(coarse, first[1])
    assert not torch.allclose(fine, first[0])


@given(seed=st.integers(0, 2**31), n=st.integers(1, 5), zero=st.booleans())
def test_the_order_of_classes_is_no_matter_to_the_loss(small, seed, n, zero):
    """And gradients are finite, of samples of nothing but zeros too."""
    source, c = torch.Generator().manual_seed(seed), visited(small)["ann"]
    x = torch.randn(n, 6, generator=source, dtype=torch.float64) * (not zero)
    y, order = torch.randint(0, K, (n,), generator=source), torch.randperm(K, generator=source)

    def losses(labels):
        return small.method.loss(c.model, Batch(x, labels), {}, c.state)[0]

    before = losses(y)
    sum(before.values()).backward()
    assert all(bool(p.grad.isfinite().all()) for p in c.model.parameters() if p.grad is not None)
    with torch.no_grad():
        for head in (c.model.head, c.model.extras["network"].head):
            head.weight.copy_(head.weight[order])
            head.bias.copy_(head.bias[order])
    for name, value in losses(order.argsort()[y]).items():
        same(value, before[name])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"auxiliary_d": 6}, ModelError, "6 features have to be the first of a client's 5: set method.auxiliary_d"),
        ({"auxiliary": "cnn2"}, ModelError, "method.auxiliary, the network of fedmrl: cnn2 takes images"),
    ],
)
def test_bad_options(options, error, message):
    with one_line(error, message):
        build("fedmrl", **{f"method__{n}": v for n, v in options.items()})
