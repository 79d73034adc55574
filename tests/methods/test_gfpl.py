"""GFPL's own file: when it exchanges, what it retrains, and Algorithm 2 by loops."""

from __future__ import annotations

import pytest
import torch

import naive
from protofed.compute.seeding import derive
from protofed.errors import ConfigError, PayloadError
from protofed.experiments.assemble import assemble
from protofed.methods.contract import Upload
from protofed.methods.parts import pseudo
from protofed.models.layers import uniform
from protofed.wire.validate import check_values
from support import K, experiment, few, one_line, ordinary, visited

D = 5
EVERY_ROUND = {"method__start": 2, "method__interval": 1}


def build(data=None, **overrides):
    return assemble(experiment("gfpl", **overrides), data or ordinary())[0]


def test_gfpl_exchanges_only_around_retraining():
    federation = build(method__start=4, method__interval=3, rounds=10)
    records = list(federation.run())
    assert [r.round for r in records if r.parameters["up"]] == [5, 8]
    assert [r.round for r in records if r.parameters["down"]] == [6, 9]
    assert [r.round for r in records if "retrain_cross_entropy" in r.losses] == [6, 9]
    assert set(records[0].accuracy.weighted) == {"head", "etf"}
    assert records[4].diagnostics["components_before"] >= records[4].diagnostics["components_after"] >= K


def test_draws_do_not_depend_on_the_order_of_components():
    """Rounding decides which of two components of equal weight the server sends first, and engines round."""
    means = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    found = []
    for order in ([0, 1, 2], [2, 0, 1]):
        components = {"classes": torch.zeros(3, dtype=torch.int64), "weights": torch.full((3,), 1 / 3)}
        components |= {"means": means[order], "stds": torch.full((3, 4), 0.1)}
        local = visited(build(rounds=1))["ann"]
        local.received, local.generator = components, lambda purpose: torch.Generator().manual_seed(1)
        found.append(pseudo.draw_once(local, 5, 4)[0])
    assert torch.equal(*found)


@few(
    ("options", "trained"),
    [
        ({}, ("extras.projection.",)),
        ({"retrain_parts": "heads"}, ("extras.projection.", "head.")),
        ({"dcs": False}, ("head.",)),
        ({"dcs": False, "retrain_parts": "heads"}, ("head.",)),
        ({"retrain_parts": "heads", "cross_entropy": 0.0}, ("extras.projection.",)),
    ],
    1,
)
def test_gfpl_retrains_these_parts_alone(options, trained):
    """Line 19 names the projection, the text projection and head; the extractor stays frozen (appendix C.1)."""
    chosen = {f"method__{name}": value for name, value in {"retrain": "epoch", **options}.items()}
    federation = build(rounds=2, **EVERY_ROUND, **chosen)
    run = federation.run()
    next(run)
    seen = {}
    method = federation.method
    original = type(method).pseudo_features

    def spy(self, local):
        if local.name == "ann":
            seen.update({n: p.detach().clone() for n, p in local.model.named_parameters()})
        return original(self, local)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(method), "pseudo_features", spy)
        next(run)
    ann = visited(federation)["ann"]
    changed = {n for n, p in ann.model.named_parameters() if not torch.equal(p, seen[n])}
    assert changed == {n for n in seen if n.startswith(trained)}
    each_batch = build(**{**chosen, "method__retrain": "batch"}).method
    assert {n for n in seen if each_batch.is_retrained(n)} == {n for n in seen if method.is_retrained(n)}


def hybrid(options, p, W, etf, f, y):
    """Eq. 11-14 of one feature vector: ``λ·½(h·z_y − 1)² + w·CE(g, y)``."""
    loss = options.cross_entropy * naive.cross_entropy(naive.head(W, f), y)
    if options.dcs:
        raw = torch.stack([p[0][i] @ f + p[1][i] for i in range(len(p[1]))])
        h = raw / raw.square().sum().sqrt()
        loss = loss + options.lambda_ * (h @ etf[y] - 1) ** 2 / 2
    return loss


@few(
    "options",
    [
        {},
        {"retrain_parts": "heads", "projection_dim": 7, "cross_entropy": 0.5, "momentum": 0.9},
        {"dcs": False, "samples": 3},
    ],
    1,
)
def test_algorithm_2_by_loops(options):
    """Lines 12-20: after every step on Eq. 13, new pseudo-features (Eq. 4) and a step on Eq. 14."""
    chosen = {f"method__{name}": value for name, value in options.items()}
    federation = naive.build("gfpl", rounds=2, **EVERY_ROUND, **{"method__samples": 4, **chosen})
    method, run = federation.method, federation.run()
    o = method.options
    next(run)
    server = {name: tensor.clone() for name, tensor in federation.server.items()}
    name = "ann"
    start = visited(federation)[name]

    def parts_of(model):
        return naive.net(model.extractor), naive.net(model.head), naive.net(model.extras) if o.dcs else []

    f, g, p = parts_of(start.model)
    key, calls = derive(naive.SEED, "noise", 2, name, 0), 0
    velocity = None
    etf = method.etf if o.dcs else None
    for batch in naive.rounds_of(start.train, name, 2):

        def local_loss(parts, batch=batch):
            f, g, p = parts
            return naive.mean([hybrid(o, p, g, etf, naive.features(f + g, x), y) for x, y in batch])

        (f, g, p), _ = naive.step([f, g, p], local_loss)
        numbers = []
        for shape in ((K, o.samples), (K, o.samples, D)):
            numbers.append(uniform(torch.tensor(key + (calls << 32)), shape).double())
            calls += 1
        drawn = []
        for j in sorted(set(server["classes"].tolist())):
            rows = [i for i in range(len(server["classes"])) if server["classes"][i] == j]
            rows.sort(key=lambda i: float(server["means"][i].sum()))
            total = sum(float(server["weights"][i]) for i in rows)
            for draw in range(o.samples):
                left, place = float(numbers[0][j, draw]) * total, 0
                while left >= float(server["weights"][rows[place]]):
                    left -= float(server["weights"][rows[place]])
                    place += 1
                noise = torch.special.ndtri(numbers[1][j, draw].clamp(2**-25, 1 - 2**-25))
                drawn.append((server["means"][rows[place]] + server["stds"][rows[place]] * noise, j))
        leaves = [t.clone().requires_grad_() for t in [*g, *p]]
        heads, projection = leaves[:2], leaves[2:]
        loss = naive.mean([hybrid(o, projection, heads, etf, x, y) for x, y in drawn])
        trained = projection if o.dcs and o.retrain_parts == "projection" else leaves
        gradients = torch.autograd.grad(loss, trained)
        velocity = [o.momentum * v + d for v, d in zip(velocity, gradients, strict=True)] if velocity else gradients
        moved = [t.detach() - naive.LR * v for t, v in zip(trained, velocity, strict=True)]
        g, p = ([*g], moved) if len(trained) < len(leaves) else (moved[:2], moved[2:])
    next(run)
    for found, expected in zip(parts_of(visited(federation)[name].model), (f, g, p), strict=True):
        naive.same_nets(found, expected)


def test_pseudo_features_are_new_in_every_step_and_of_known_classes_only():
    federation = build(rounds=1, **EVERY_ROUND)
    next(federation.run())
    method, ann = federation.method, visited(federation)["ann"]
    received = dict(ann.received)
    model = ann.model.train()
    first, second = (method.retrain_loss(model, None, received, {})[0] for _ in range(2))
    assert first["retrain_cross_entropy"] != second["retrain_cross_entropy"]
    assert all(bool(term.isfinite()) for term in first.values())
    nothing = pseudo.table({}, K, method.task.feature_dim, method.task.dtype)
    assert not bool(nothing["known"].any())
    none = method.retrain_loss(model, None, {**received, **nothing}, {})[0]
    assert {float(term.detach()) for term in none.values()} == {0.0}
    alone = {**received, "known": torch.tensor([False, True, False, False])}
    other = {**alone, "means": received["means"].clone()}
    other["means"][0] = 1e6
    key = model.extras["noise"].key.clone()
    a = method.retrain_loss(model, None, alone, {})[0]
    model.extras["noise"].key.copy_(key)
    b = method.retrain_loss(model, None, other, {})[0]
    assert a == b


def test_a_retraining_before_any_exchange_changes_nothing():
    """``start = 1``: round 1 has no mixtures yet."""
    early, late = build(rounds=1, method__start=1, method__interval=1), build(rounds=1)
    records = [next(f.run()) for f in (early, late)]
    assert records[0].accuracy == records[1].accuracy
    for one, other in zip(visited(early).values(), visited(late).values(), strict=True):
        for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
            assert torch.equal(a, b)


def test_the_projection_may_have_another_dimension_than_features():
    """Table 3 lists 50, 128, 80 and 80 beside d = 50, 80, 128 and 128 in Sec. 5.1."""
    federation = build(rounds=2, model__d=3, method__projection_dim=6, **EVERY_ROUND)
    list(federation.run())
    ann = visited(federation)["ann"]
    assert ann.model.extras["projection"].weight.shape == (6, 3)
    assert ann.received["etf"].shape == (K, 6)
    assert federation.server["means"].shape[1] == 3


def test_the_dot_regression_alone_trains_no_head():
    """Fig. 2a's ablation: no cross-entropy, so the rule ``head`` is left out."""
    federation = build(rounds=2, method__cross_entropy=0.0, method__retrain_parts="heads", **EVERY_ROUND)
    before = visited(federation)["ann"].model.head.weight.clone()
    records = list(federation.run())
    assert set(records[-1].losses) == {"dot_regression", "retrain_dot_regression", "total"}
    assert set(records[-1].accuracy.weighted) == {"etf"}
    assert torch.equal(visited(federation)["ann"].model.head.weight, before)
    assert federation.method.notes() == (
        "Without cross-entropy the head is never trained, and there is no rule head.",
    )


@pytest.mark.parametrize("distance", ["sum", "mean"])
def test_fusion_by_the_distance_summed_or_per_dimension(distance):
    """Two Gaussians at D_B = 5·0.3 (Eq. 8 with d = 5): fused below S_C = 1 as a mean, not as a sum."""
    method = build(method__distance=distance).method
    apart = (8 * 0.3) ** 0.5
    means = torch.stack([torch.zeros(D), torch.full((D,), apart)])
    assert float(naive.bhattacharyya(means[0], torch.ones(D), means[1], torch.ones(D))) == pytest.approx(1.5)
    payload = {
        "classes": torch.tensor([2, 2]),
        "weights": torch.tensor([0.5, 0.5]),
        "means": means,
        "stds": torch.ones(2, D),
    }
    state, diagnostics = method.aggregate(method.server_state(), [Upload("ann", payload)], 1)
    assert len(state["classes"]) == diagnostics["components_after"] == (2 if distance == "sum" else 1)
    if distance == "mean":
        torch.testing.assert_close(state["means"][0], means.mean(0))


def test_weights_that_are_all_0_describe_no_mixture_anywhere():
    method = build(method__retrain="epoch").method
    nothing = {
        "classes": torch.tensor([1, 1]),
        "weights": torch.zeros(2),
        "means": torch.zeros(2, D),
        "stds": torch.ones(2, D),
    }
    server = method.server_state()
    assert method.aggregate(server, [Upload("ann", nothing)], 1).state is server
    assert not bool(pseudo.table(nothing, K, D, torch.float32)["known"].any())
    local = next(iter(visited(build(method__retrain="epoch")).values()))
    local.received = nothing
    x, y = method.pseudo_features(local)
    assert (x.shape, y.shape) == ((0, D), (0,))


def test_gfpl_weights_by_counts_on_request():
    federation = build(method__weight_by_counts=True, method__start=2, method__interval=1, rounds=1)
    next(federation.run())
    weights, classes = federation.server["weights"], federation.server["classes"]
    per_class = [float(weights[classes == j].sum()) for j in range(K)]
    held = sum(c.train.counts(K) for c in visited(federation).values())
    assert per_class == pytest.approx(held.tolist(), rel=1e-5)


def test_gfpl_needs_an_optimiser_with_momentum_to_retrain():
    with pytest.raises(ConfigError, match=r"method gfpl sets .*momentum.* optimizer Adam"):
        build(training__optimizer="Adam", method__start=2, method__interval=1, rounds=3)
    build(training__optimizer="Adam", method__pfg=False)


def test_gfpl_survives_mixtures_at_the_edge_of_what_is_allowed():
    federation = build(method__weight_by_counts=True, method__start=2, method__interval=1, rounds=1)
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model__d": 3}, r"d >= K, but d = 3 and K = 4: raise model\.d or method\.projection_dim"),
        ({"method__projection_dim": 3}, "projection_dim >= K, but projection_dim = 3 and K = 4: raise it"),
        ({"method__dcs": False, "method__projection_dim": 6}, r"needs the projection of method\.dcs=true"),
        ({"method__dcs": False, "method__cross_entropy": 0.0}, r"raise method\.cross_entropy above 0"),
    ],
)
def test_options_that_do_not_fit(options, message):
    with one_line(ConfigError, message):
        build(**options)
