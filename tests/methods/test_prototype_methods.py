"""The prototype methods' own files: what goes up, what the server makes of it, which options fit."""

from __future__ import annotations

import pytest
import torch

from protofed.errors import ConfigError, PayloadError
from protofed.experiments.assemble import assemble
from protofed.methods._wrapped import WrappedMethod
from protofed.methods.contract import Method, Upload
from protofed.prototypes.alignment import align
from protofed.prototypes.contrastive import adaptive_margin
from protofed.prototypes.etf import spread_directions
from protofed.wire.validate import check_values
from support import K, client, degenerate, experiment, federated, ordinary, visited

D = 5


def build(method, data=None, **overrides):
    return assemble(experiment(method, **overrides), data or ordinary())[0]


def uploads(federation, round=1):
    """Return every client's decoded upload of ``round``."""
    messages = federation._messages(federation.names, round)
    schema = federation.method.upload_schema
    return [
        Upload(r.client, federation.codec.decode(r.message, schema))
        for r in federation.executor.train(federation.names, messages, round)
    ]


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


# TinyProto


@pytest.mark.parametrize(
    ("base", "options"),
    [
        ("fedproto", {}),
        ("fedproto", {"aggregation": "weighted"}),
        ("fedproto", {"aggregation": "paper", "prototypes": "during"}),
        ("fedtgp", {"prototypes": "during"}),
        ("protonorm", {"patience": 2}),
    ],
)
def test_tinyproto_without_its_two_parts_is_its_base(base, options):
    bare = {"method__cps": False, "method__scaling": False, "method__base_options": options}
    wrapped = build("tinyproto", method__base=base, rounds=3, **bare)
    alone = build(base, rounds=3, **{f"method__{name}": value for name, value in options.items()})
    for a, b in zip(wrapped.run(), alone.run(), strict=True):
        assert a.accuracy == b.accuracy
        assert a.losses == b.losses
        assert a.bytes == b.bytes


def test_a_wrapped_method_forwards_every_hook():
    def hooks(kind):
        return {n for n, v in vars(kind).items() if callable(v) or isinstance(v, (property, classmethod))}

    declared = {"sums_only", "personal_broadcast"}  # may depend on the options
    public = {n for n in hooks(Method) | declared if not n.startswith("_")}
    assert public - {"Options"} <= hooks(WrappedMethod)
    assert all(n in hooks(Method) | declared or n == "base_of" for n in hooks(WrappedMethod) if n[0] != "_")


@pytest.mark.parametrize("cps", [True, False])
@pytest.mark.parametrize("scaling", [True, False])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_tinyproto_server_by_loops(cps, scaling, reduction):
    """``C_j = μ·Σ n_ij ĉ_ij``, its mean over clients, or the plain mean; zero outside the masks."""
    federation = build(
        "tinyproto",
        method__cps=cps,
        method__scaling=scaling,
        method__reduction=reduction,
        method__s=2,
        method__rho=0.5,
        rounds=1,
    )
    method = federation.method
    received = uploads(federation)
    state = method.aggregate(federation.server, iter(received), 1).state
    mu = 0.5 / method.task.class_size if scaling else 1.0
    assert method.task.class_size == sum([9, 7, 11]) / K
    for j in range(K):
        own = []
        for name, c in visited(federation).items():
            if c.state["present"][j]:
                n = int(c.train.counts(K)[j]) if scaling else 1
                mask = method.masks[j] if cps else torch.ones(D, dtype=torch.bool)
                own.append(n * c.state["prototypes"][j].double() * mask)
                assert len(received[federation.names.index(name)].payload["prototypes"][0]) == (2 if cps else D)
        total = sum(own)
        if not (scaling and reduction == "sum"):
            total = total / len(own)
        torch.testing.assert_close(state["prototypes"][j].double(), mu * total, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("base", ["fedproto", "fedtgp", "protonorm"])
def test_tinyproto_traffic_is_s_in_place_of_d(base):
    federation = build("tinyproto", degenerate(), method__base=base, method__s=2, rounds=2)
    first, second = federation.run()
    held = [4, 1, 1, 2]
    assert first.parameters == {"up": sum(held) * 2, "down": 0}
    assert second.parameters == {"up": sum(held) * 2, "down": 4 * K * 2}
    for c in visited(federation).values():
        assert torch.equal(c.received["prototypes"] != 0, (c.received["prototypes"] != 0) & federation.method.masks)


def test_tinyproto_passes_options_to_its_base():
    federation = build(
        "tinyproto", method__base="protonorm", method__gamma=3.0, method__base_options={"patience": 20}
    )
    assert federation.method.base.options.gamma == 3.0
    assert federation.method.base.options.patience == 20
    assert build("tinyproto", method__base="fedtgp").method.base.options.lambda_ == 10.0


# GFPL


def test_gfpl_exchanges_only_around_retraining():
    federation = build("gfpl", method__start=4, method__interval=3, rounds=10)
    records = list(federation.run())
    assert [r.round for r in records if r.parameters["up"]] == [5, 8]
    assert [r.round for r in records if r.parameters["down"]] == [6, 9]
    assert [r.round for r in records if "retrain_cross_entropy" in r.losses] == [6, 9]
    assert set(records[0].accuracy.weighted) == {"head", "etf"}
    assert records[4].diagnostics["components_before"] >= records[4].diagnostics["components_after"] >= K


@pytest.mark.parametrize(("dcs", "pfg"), [(True, False), (False, True), (False, False)])
def test_gfpl_ablations(dcs, pfg):
    federation = build("gfpl", method__dcs=dcs, method__pfg=pfg, method__start=2, method__interval=1, rounds=3)
    records = list(federation.run())
    assert ("dot_regression" in records[0].losses) is dcs
    assert bool(sum(r.bytes["up"] for r in records)) is pfg
    assert set(records[0].accuracy.weighted) == ({"head", "etf"} if dcs else {"head"})


def test_gfpl_without_both_is_local():
    gfpl = build("gfpl", method__dcs=False, method__pfg=False, rounds=3)
    local = build("local", rounds=3)
    for a, b in zip(gfpl.run(), local.run(), strict=True):
        assert a.accuracy == b.accuracy


def test_gfpl_leaves_extractors_alone_when_it_retrains():
    federation = build("gfpl", method__start=2, method__interval=1, rounds=2)
    run = federation.run()
    next(run)
    seen = {}
    method = type(federation.method)
    original = method.pseudo_features

    def spy(self, local):
        if local.name == "ann":
            seen.update({n: p.detach().clone() for n, p in local.model.named_parameters()})
        return original(self, local)

    method.pseudo_features = spy
    try:
        next(run)
    finally:
        method.pseudo_features = original
    ann = visited(federation)["ann"]
    changed = {n for n, p in ann.model.named_parameters() if not torch.equal(p, seen[n])}
    assert changed == {n for n in seen if not n.startswith("extractor.")}


def test_gfpl_weights_by_counts_on_request():
    federation = build("gfpl", method__weight_by_counts=True, method__start=2, method__interval=1, rounds=1)
    next(federation.run())
    weights, classes = federation.server["weights"], federation.server["classes"]
    per_class = [float(weights[classes == j].sum()) for j in range(K)]
    held = sum(c.train.counts(K) for c in visited(federation).values())
    assert per_class == pytest.approx(held.tolist(), rel=1e-5)


def test_gfpl_needs_an_optimiser_with_momentum_to_retrain():
    with pytest.raises(ConfigError, match=r"method gfpl sets .*momentum.* optimizer Adam"):
        build("gfpl", training__optimizer="Adam", method__start=2, method__interval=1, rounds=3)
    build("gfpl", training__optimizer="Adam", method__pfg=False)


def test_gfpl_survives_mixtures_at_the_edge_of_what_is_allowed():
    federation = build("gfpl", method__weight_by_counts=True, method__start=2, method__interval=1, rounds=1)
    method = federation.method
    field = method.upload_schema.fields["stds"]
    payload = {
        "classes": torch.tensor([0, 0, 1, 2]),
        "weights": torch.tensor([0.5, 0.5, 0.0, 1.0]),
        "means": torch.tensor([[1e9], [-1e9], [0.0], [0.0]]).repeat(1, D),
        "stds": torch.tensor([[field.minimum], [field.limit], [1.0], [1.0]]).repeat(1, D),
        "counts": torch.tensor([3, 3, 5, 0]),
    }
    state, _ = method.aggregate(method.server_state(), [Upload("ann", payload)], 1)
    assert state["classes"].tolist() == [0, 0]  # nothing has weight in the other classes
    assert all(bool(t.isfinite().all()) for t in state.values())
    for least in (0.0, 1e-30):
        refused = {**payload, "stds": torch.full((4, D), least)}
        with pytest.raises(PayloadError, match=r"^stds: values must be at least"):
            check_values(refused, method.upload_schema)


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
        ("tinyproto", {"method__s": 0}, "s must be at least 1"),
        ("tinyproto", {"method__base_options": {"aggregation": "weighted"}}, "set method.scaling=false"),
        ("tinyproto", {"method__mu": -1.0}, "method.mu must be at least 0, not -1"),
        ("tinyproto", {"method__rho": 0.0}, "method.rho must be greater than 0, not 0"),
        ("tinyproto", {"method__base": "fedavg"}, "method.base must be 'fedproto' or 'fedtgp' or 'protonorm'"),
        ("tinyproto", {"method__base_options": {"gama": 1}}, "did you mean 'gamma'"),
        ("tinyproto", {"method__gamma": -1.0}, "gamma must be at least 0"),
        ("protonorm", {"method__gamma": -1.0}, "gamma must be at least 0"),
        ("protonorm", {"method__momentum": 1.0}, r"method\.momentum must lie in \[0, 1\), not 1"),
        ("fedtgp", {"method__server_lr": 0.0}, "method.server_lr must be greater than 0, not 0"),
        ("fedtgp", {"method__margin_cap": -1.0}, "method.margin_cap must be at least 0, not -1"),
        ("fedtgp", {"method__aggregation": "mean"}, "unknown option of method 'aggregation'"),
        ("gfpl", {"model__d": 3}, "d >= K, but d = 3 and K = 4"),
        ("gfpl", {"method__components": 0}, "components must be at least 1"),
        ("gfpl", {"method__threshold": 0.0}, "method.threshold must be greater than 0, not 0"),
        ("fixed_etf", {"method__gamma": -1.0}, "gamma must be at least 0"),
    ],
)
def test_bad_options(method, overrides, message):
    with pytest.raises(ConfigError, match=message) as caught:
        build(method, **overrides)
    assert "\n" not in str(caught.value)
