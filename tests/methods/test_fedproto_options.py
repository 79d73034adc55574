"""FedProto's Eq. 8, its distances, and broadcasts of a client's own classes (Sec. 5.1), against loops."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad, vmap

import naive
from protofed.prototypes.inference import distance, pull_of_means
from protofed.prototypes.table import Prototypes
from support import K, client, federated, few, visited

LAMBDA = 1.5


def rho(kind, a, b):
    """Eq. 8's distance, by loops; ``squared`` is the public code's mean over the entries."""
    entries = [x - y for x, y in zip(a, b, strict=True)]
    if kind == "squared":
        return sum(e**2 for e in entries) / len(a)
    # The only sample of a class is its own prototype: what is left is rounding, which has no direction.
    entries = [e for e in entries if e.abs() > torch.finfo(e.dtype).eps ** 0.5 * b.abs().max()]
    if kind == "l1" or not entries:
        return sum((e.abs() for e in entries), torch.zeros((), dtype=b.dtype))
    return sum(e**2 for e in entries).sqrt()


def regulariser(form, kind, features, labels, targets):
    """R of Eq. 8 (``prototypes``), or the mean over the batch of the samples' distances."""
    if form == "samples":
        terms = [rho(kind, f, targets[y]) for f, y in zip(features, labels, strict=True) if y in targets]
        return sum(terms, torch.zeros(())) / len(labels)
    total = torch.zeros((), dtype=torch.float64)
    for j in sorted(set(labels) & set(targets)):
        total = total + rho(
            kind, naive.mean([f for f, y in zip(features, labels, strict=True) if y == j]), targets[j]
        )
    return total


def naive_round(weights, samples, name, number, targets, form, kind):
    for batch in naive.rounds_of(samples, name, number):

        def loss(parts, batch=batch):
            features = [naive.features(parts[0], x) for x, _ in batch]
            labels = [y for _, y in batch]
            errors = [
                naive.cross_entropy(naive.head(parts[0], f), y) for f, y in zip(features, labels, strict=True)
            ]
            return naive.mean(errors) + LAMBDA * regulariser(form, kind, features, labels, targets)

        (weights,), _ = naive.step([weights], loss)
    return weights


def naive_means(weights, samples):
    rows = {}
    for x, y in zip(samples.x.double(), samples.y.tolist(), strict=True):
        rows.setdefault(y, []).append(naive.features(weights, x))
    return {y: naive.mean(own) for y, own in rows.items()}


@few("classes", ["all", "own"], 1)
@pytest.mark.parametrize(
    ("form", "kind"), [("samples", "l1"), ("samples", "euclidean"), ("prototypes", "squared"), ("prototypes", "l1")]
)
def test_two_rounds_by_loops(form, kind, classes):
    options = {"method__regulariser": form, "method__distance": kind, "method__classes": classes}
    federation = naive.build("fedproto", rounds=2, method__lambda=LAMBDA, **options)
    members = visited(federation)
    weights = {name: naive.own_net(federation, name) for name in members}
    targets: dict[int, torch.Tensor] = {}
    for number, _ in enumerate(federation.run(), start=1):
        means = {}
        for name, member in members.items():
            weights[name] = naive_round(weights[name], member.train, name, number, targets, form, kind)
            means[name] = naive_means(weights[name], member.train)
        targets = {j: naive.mean([m[j] for m in means.values() if j in m]) for j in range(K)}
    for name in members:
        naive.same_nets(naive.own_net(federation, name), weights[name])
    for c in visited(federation).values():
        held = set(c.train.y.tolist()) if classes == "own" else set(range(K))
        assert c.received["present"].tolist() == [j in held for j in range(K)]
        assert not bool(c.received["prototypes"][~c.received["present"]].any())


@pytest.mark.parametrize("kind", ["squared", "euclidean", "l1"])
def test_distances_have_gradients_everywhere(kind):
    """Also where features are their prototype, and under vmap."""
    rows = torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0]])
    gradients = vmap(grad(lambda a, b: distance(a, b, kind)))(rows, torch.zeros(2, 3))
    nearly = vmap(grad(lambda a, b: distance(a, b, kind)))(1 + 1e-7 * rows, torch.ones(2, 3))
    assert float(nearly.norm()) < 1e-6
    alone = torch.autograd.grad(distance(x := rows[:1].clone().requires_grad_(), torch.zeros(1, 3), kind).sum(), x)
    torch.testing.assert_close(gradients[:1], alone[0])
    assert torch.equal(gradients[1], torch.zeros(3))


@pytest.mark.parametrize("kind", ["squared", "euclidean", "l1"])
def test_eq_8_leaves_padding_and_unknown_classes_out(kind):
    features = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 0, 1, 3, 1, 2])
    prototypes = Prototypes(torch.ones(K, 5), torch.tensor([True, True, True, False]))
    weight = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, 0.0])
    found = pull_of_means(features, labels, prototypes, kind, weight)
    expected = rho(kind, features[:2].mean(0), torch.ones(5)) + rho(kind, features[2], torch.ones(5))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found, pull_of_means(features[:4], labels[:4], prototypes, kind))


@pytest.mark.parametrize(
    ("method", "base"), [("fedproto", {}), ("fedtgp", {}), ("protonorm", {}), ("tinyproto", {})]
)
def test_only_the_clients_own_classes_are_sent_down(method, base):
    """Traffic is Σ K_i·d down; the rule ``global`` chooses among the classes received."""
    own = {"method__base_options": {"classes": "own"}} if method == "tinyproto" else {"method__classes": "own"}
    data = federated(client("ann", [0, 0, 1, 1]), client("bob", [1, 2, 2], [0, 1, 2, 3]), client("new", [], [0, 3]))
    federation = naive.build(method, data, rounds=3, **own)
    assert federation.method.declared.personal
    records = list(federation.run())
    width = federation.method.broadcast_schema.sizes.popitem()[1]
    assert [r.parameters["down"] for r in records] == [0, (2 + 2) * width, (2 + 2) * width]
    accuracy = records[-1].accuracy.clients
    assert accuracy["global"] == accuracy["global_own"]
    assert {n: c.received["present"].tolist() for n, c in visited(federation).items()} == {
        "ann": [True, True, False, False],
        "bob": [False, True, True, False],
        "new": [False] * 4,  # it has no classes, so the head decides
    }
    assert accuracy["global"][2] == accuracy["head"][2]


def test_a_client_that_never_uploaded_is_sent_all_classes_and_keeps_its_own():
    data = federated(client("ann", [0, 0, 1, 1]), client("bob", [1, 2, 2, 3]))
    federation = naive.build("fedproto", data, rounds=1, method__classes="own", participation__fraction=0.5)
    next(federation.run())
    absent = next(name for name in federation.names if f"classes.{name}" not in federation.server)
    present = next(name for name in federation.names if name != absent)
    known = federation.server["present"]
    message = federation.method.broadcast(federation.server, 2, absent)
    assert message["classes"].tolist() == known.nonzero().squeeze(1).tolist()
    assert torch.equal(
        visited(federation)[absent].received["present"], known & (visited(federation)[absent].train.counts(K) > 0)
    )
    assert (
        federation.server[f"classes.{present}"].tolist()
        == (visited(federation)[present].train.counts(K) > 0).tolist()
    )
