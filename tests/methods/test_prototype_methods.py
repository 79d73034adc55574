"""The prototype methods' own files: what goes up, what the server makes of it, which options fit."""

from __future__ import annotations

import pytest
import torch

from protofed.errors import ConfigError
from protofed.prototypes.alignment import align
from protofed.prototypes.contrastive import adaptive_margin
from protofed.prototypes.etf import spread_directions
from support import K, build, client, federated, one_line, uploads, visited

D = 5


def naive_mean(received):
    """Return the plain mean per class over the clients that report it, by loops in float64."""
    table = torch.zeros(K, D, dtype=torch.float64)
    for j in range(K):
        rows = [
            u.payload["prototypes"][position].double()
            for u in received
            for position, label in enumerate(u.payload["classes"].tolist())
            if label == j
        ]
        if rows:
            table[j] = sum(rows) / len(rows)
    return table


# ProtoNorm


def test_protonorm_aligns_the_plain_means():
    federation = build("protonorm")
    received = uploads(federation)
    state, diagnostics = federation.method.aggregate(federation.server, iter(received), 1)
    expected = align(naive_mean(received).float())
    torch.testing.assert_close(state["prototypes"], expected.directions)
    assert diagnostics["alignment_iterations"] == expected.iterations
    assert diagnostics["alignment_energy"] == pytest.approx(expected.energy, rel=1e-5)
    assert len(diagnostics["alignment_distances"]) == expected.iterations


@pytest.mark.parametrize(("alignment", "upscaling"), [(True, True), (True, False), (False, True), (False, False)])
def test_protonorm_ablations(alignment, upscaling):
    federation = build(
        "protonorm", method__alignment=alignment, method__upscaling=upscaling, method__gamma=7.0, rounds=1
    )
    record = next(federation.run())
    norms = federation.server["prototypes"].norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(K))
    assert ("alignment_iterations" in record.diagnostics) is alignment
    received = next(iter(visited(federation).values())).received["prototypes"]
    torch.testing.assert_close(received.norm(dim=1), torch.full((K,), 7.0 if upscaling else 1.0))


def test_gamma_scales_the_targets_of_fedproto_and_fedtgp():
    for method in ("fedproto", "fedtgp"):
        plain, scaled = (build(method, method__gamma=g, rounds=1) for g in (1.0, 1.4))
        next(plain.run())
        next(scaled.run())
        torch.testing.assert_close(plain.server["prototypes"], scaled.server["prototypes"])
        a, b = (visited(f)["ann"].received["prototypes"] for f in (plain, scaled))
        torch.testing.assert_close(1.4 * a, b)


# FedTGP


def test_fedtgp_trains_a_network_that_lives_on():
    federation = build("fedtgp", rounds=2)
    first, second = (r.diagnostics for r in federation.run())
    assert first["acl_loss_last"] < first["acl_loss_first"]
    # The second round continues where the first ended, not from a fresh network.
    assert second["acl_loss_first"] < first["acl_loss_first"]
    assert first["acl_margin"] > 0


def test_fedtgp_margin_is_of_this_rounds_uploads():
    federation = build("fedtgp")
    received = uploads(federation)
    prototypes = torch.cat([u.payload["prototypes"] for u in received])
    labels = torch.cat([u.payload["classes"] for u in received])
    _, diagnostics = federation.method.aggregate(federation.server, iter(received), 1)
    assert diagnostics["acl_margin"] == pytest.approx(adaptive_margin(prototypes, labels, K))
    capped = build("fedtgp", method__margin_cap=1e-3)
    assert capped.method.aggregate(capped.server, iter(received), 1).diagnostics["acl_margin"] == pytest.approx(
        1e-3
    )


@pytest.mark.parametrize("loss", ["softmax", "hinge"])
def test_fedtgp_never_sends_a_class_that_was_never_reported(loss):
    data = federated(client("ann", [0, 0, 1, 1]), client("bob", [2, 2]))
    federation = build("fedtgp", data, method__loss=loss, rounds=2)
    *_, last = federation.run()
    assert federation.server["present"].tolist() == [True, True, True, False]
    assert last.parameters["down"] == 2 * 3 * D


# FixedETF


def test_fixed_etf_sends_nothing_and_everybody_has_the_same_targets():
    federation = build("fixed_etf", method__gamma=4.0, rounds=2)
    *_, last = federation.run()
    assert last.bytes == {"up": 0, "down": 0}
    tables = [c.received["prototypes"] for c in visited(federation).values()]
    assert all(torch.equal(t, tables[0]) for t in tables)
    torch.testing.assert_close(tables[0], 4 * spread_directions(K, D, 0))


def test_fixed_etf_works_with_more_classes_than_dimensions():
    federation = build("fixed_etf", model__d=2, rounds=1)
    assert next(federation.run()).accuracy is not None


# What does not fit is told before training starts.


@pytest.mark.parametrize(
    ("method", "overrides", "message"),
    [
        ("tinyproto", {"method__s": 6}, r"method\.s must be at most d = 5, not 6"),
        ("tinyproto", {"method__base_options": {"aggregation": "weighted"}}, "set method.scaling=false"),
        ("tinyproto", {"method__base": "fedavg"}, "method.base must be 'fedproto' or 'fedtgp' or 'protonorm'"),
        ("tinyproto", {"method__base_options": {"gama": 1}}, "did you mean 'gamma'"),
        ("fedtgp", {"method__aggregation": "mean"}, "unknown option of method 'aggregation'"),
    ],
)
def test_bad_options(method, overrides, message):
    with one_line(ConfigError, message):
        build(method, **overrides)
