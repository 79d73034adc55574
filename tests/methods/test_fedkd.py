"""FedKD: against a naive reference, its compression, who is sent what, and what it has to survive."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import naive
from naive import build, same, same_nets, uneven
from protofed.errors import ModelError, PayloadError
from protofed.methods.contract import Upload
from protofed.methods.parts.lowrank import LowRank, factorise
from support import K, client, degenerate, federated, few, one_line, visited

MENTEE = {"method__auxiliary": "mlp", "method__auxiliary_options": {"hidden": [], "relu_features": True}}
START, END = 0.6, 0.9


def extras(federation, name):
    return visited(federation)[name].model.extras


# Compression.


def truncated(matrix, energy):
    """Keep the smallest rank s with Σ_{j≤s} σ_j² ≥ T·Σ_j σ_j², by numpy's decomposition."""
    u, sigma, v = (torch.from_numpy(part) for part in np.linalg.svd(matrix.numpy(), False))
    total, kept, rank = float((sigma**2).sum()), 0.0, 0
    while kept < energy * total * (1 - 1e-12):
        kept += float(sigma[rank] ** 2)
        rank += 1
    return sum((sigma[j] * torch.outer(u[:, j], v[j]) for j in range(rank)), torch.zeros_like(matrix)), rank


@given(
    m=st.integers(1, 9),
    n=st.integers(1, 9),
    seed=st.integers(0, 999),
    energy=st.sampled_from([0.3, 0.9, 0.98, 1.0]),
)
def test_factors_are_the_truncated_decomposition(m, n, seed, energy):
    matrix = torch.randn(m, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected, rank = truncated(matrix, energy)
    found = factorise(matrix, energy)
    assert len(found.values) == rank
    torch.testing.assert_close(found.product(), expected, rtol=1e-8, atol=1e-10)
    for side in (found.left, found.right):
        torch.testing.assert_close(side @ side.mT, torch.eye(rank, dtype=torch.float64), rtol=1e-7, atol=1e-7)


def test_kernels_are_flattened_and_sent_whole_where_that_is_no_more():
    g = torch.Generator().manual_seed(0)
    kernel = torch.outer(torch.randn(16, generator=g), torch.randn(72, generator=g)).reshape(16, 8, 3, 3)
    weights = {"kernel": kernel, "bias": torch.randn(16, generator=g), "head": torch.randn(3, 12, generator=g)}
    packing = LowRank(weights)
    payload = packing.pack(weights, 0.95)
    assert payload["kernel.left"].shape == (1, 16)
    assert payload["kernel.right"].shape == (1, 72)
    assert payload["kernel.whole"].shape == (0, 16, 72)
    # Rank 2 of 3×12 takes 2·(3 + 12 + 1) = 32 numbers, rank 3 takes 48 of 36: whole.
    assert payload["head.whole"].shape == (1, 3, 12)
    assert packing.most("head") == 2
    for name, tensor in packing.unpack(payload).items():
        torch.testing.assert_close(tensor, weights[name])
    schema = packing.schema(K)
    assert schema.parameters(payload) == 1 + 16 + 72 + 16 + 36


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_is_sent_whole(bad):
    weights = {"head": torch.full((6, 7), bad)}
    assert LowRank(weights).pack(weights, 0.9)["head.whole"].shape == (1, 6, 7)


# Training.


def loss(mentor, mentee, mapping, batch):
    """``L_t + L_s`` with L_t = CE_t + [KL(p_s‖p_t) + MSE(h_t, W_h h_s)]/c, L_s likewise, c = CE_t + CE_s."""
    ce_t, ce_s, to_t, to_s, mse_t, mse_s = ([] for _ in range(6))
    for x, y in batch:
        h_t, h_s = naive.features(mentor, x), naive.features(mentee, x)
        z_t, z_s = naive.head(mentor, h_t), naive.head(mentee, h_s)
        p_t, p_s = naive.probabilities(z_t), naive.probabilities(z_s)
        mapped = mapping[0] @ h_s
        ce_t.append(naive.cross_entropy(z_t, y))
        ce_s.append(naive.cross_entropy(z_s, y))
        to_t.append(naive.divergence(p_s, p_t))
        to_s.append(naive.divergence(p_t, p_s))
        mse_t.append(sum((h_t[i] - mapped[i]) ** 2 for i in range(len(h_t))) / len(h_t))
        mse_s.append(sum((h_t[i] - mapped[i]) ** 2 for i in range(len(h_t))) / len(h_t))
    ce_t, ce_s, to_t, to_s, mse_t, mse_s = (naive.mean(v) for v in (ce_t, ce_s, to_t, to_s, mse_t, mse_s))
    c = ce_t + ce_s + 1e-8
    return ce_t + (to_t / K + mse_t) / c + ce_s + (to_s / K + mse_s) / c


@few(
    "options",
    [{}, {"method__compress": "none", "method__weighting": "samples"}, {"method__compress": "parameters"}],
    1,
    ids=["updates", "none", "parameters"],
)
def test_two_rounds(options):
    data = uneven()
    federation = build(
        "fedkd",
        data,
        method__auxiliary_d=4,
        method__energy_start=START,
        method__energy_end=END,
        **MENTEE,
        **options,
    )
    compress = options.get("method__compress", "updates")
    mentor = {c.name: naive.own_net(federation, c.name) for c in data.clients}
    maps = {
        c.name: [p.detach().clone() for p in extras(federation, c.name)["map"].parameters()] for c in data.clients
    }
    names = [n.removeprefix("mentee.") for n in federation.server if n.startswith("mentee.")]
    mentee = [federation.server[f"mentee.{n}"].clone() for n in names]
    ranks: set[tuple[int, bool]] = set()
    assert maps["ann"][0].shape == (5, 4)

    def squeezed(tensors, number):
        """Truncate matrices, unless the factors would take as many numbers as the matrix."""
        T = START + (number - (compress == "parameters")) / 2 * (END - START)
        found = []
        for t in tensors:
            small, rank = truncated(t, T) if t.dim() == 2 else (t, t.numel())
            fewer = t.dim() == 2 and rank * (sum(t.shape) + 1) < t.numel()
            ranks.add((t.dim(), fewer))
            found.append(small if fewer and compress != "none" else t)
        return found

    for number, record in enumerate(federation.run(), start=1):
        sent = []
        for c in data.clients:
            s = mentee
            for batch in naive.rounds_of(c.train, c.name, number):
                (mentor[c.name], s, maps[c.name]), _ = naive.step(
                    [mentor[c.name], s, maps[c.name]], lambda w, b=batch: loss(*w, b)
                )
            if compress != "parameters":
                s = [a - b for a, b in zip(s, mentee, strict=True)]
            sent.append((len(c.train) if "method__weighting" in options else 1, squeezed(s, number)))
        total = sum(n for n, _ in sent)
        average = squeezed([sum(n * s[i] for n, s in sent) / total for i in range(4)], number)
        mentee = average if compress == "parameters" else [a + b for a, b in zip(mentee, average, strict=True)]
        same_nets([federation.server[f"mentee.{n}"] for n in names], mentee)
        for c in data.clients:
            same_nets(naive.own_net(federation, c.name), mentor[c.name])
            same_nets(naive.net(extras(federation, c.name)["mentee"]), mentee)
            same(extras(federation, c.name)["map"].weight.detach(), maps[c.name][0])
        hits = [
            sum(
                int(naive.logits(mentee, x.double()).argmax()) == int(y)
                for x, y in zip(c.test.x, c.test.y, strict=True)
            )
            for c in data.clients
        ]
        assert record.accuracy.clients["global_model"] == [
            h / len(c.test) for h, c in zip(hits, data.clients, strict=True)
        ]
    assert {(2, True), (2, False)} <= ranks or compress == "parameters"


def test_what_is_compressed_decides_who_is_sent_what():
    official, htfl = (build("fedkd", method__compress=c).method for c in ("updates", "parameters"))
    assert (official.declared.personal, htfl.declared.personal) == (True, False)
    assert [m.round(1).phases[0].updates[0].clip for m in (official, htfl)] == [None, 10]
    assert build("fedkd", method__compress="none").method.declared.aggregation == "sums"


# Who is sent what.


@pytest.mark.slow
def test_updates_for_those_who_follow_and_all_of_it_for_the_others():
    """With partial participation every client ends up with the server's mentee, each version added once."""
    federation = build("fedkd", rounds=8, participation__fraction=0.67, wire__codec="float64", **MENTEE)
    method = federation.method
    wholes = set()
    for record in federation.run():
        for name in federation.names:
            message = method.broadcast(federation.server, record.round + 1, name)
            assert bool(message["whole"]) is (name not in record.participants)
            wholes.add(int(message["whole"]))
            mentee = extras(federation, name)["mentee"]
            for n, p in mentee.named_parameters():
                same(p.detach(), federation.server[f"mentee.{n}"])
    assert wholes == {0, 1}


def test_an_update_that_does_not_follow_is_refused():
    federation = build("fedkd", rounds=2)
    list(federation.run())
    federation.server["version"] += 1
    local = federation.executor.trainer.open(federation.executor.clients, "ann", 3)
    federation.executor.trainer.receive(local, None)
    federation.server["client.ann"] = federation.server["version"] - 1
    message = federation.method.broadcast(federation.server, 3, "ann")
    local.state["version"] -= 1
    with pytest.raises(PayloadError, match="version: the update leads to 3, but ann has 1"):
        federation.method.receive(local, message)


def test_traffic_is_less_than_all_of_it():
    """Per matrix of rank s, ``s(m + n + 1)`` numbers; vectors whole; two sizes and one count in the header."""
    options = {"model__d": 40, "model__options": {"hidden": [30]}, "wire__codec": "float32"}
    federation = build("fedkd", execution__precision="fp32", rounds=3, **options)
    size = sum(p.numel() for p in federation.method.network.parameters())
    first, *later = federation.run()
    assert first.parameters["down"] == 3 * size
    for record in later:
        assert record.parameters["up"] < 0.7 * 3 * size
        assert record.parameters["down"] < 0.7 * 3 * size
        header = 4 + 4 * 2 * 3
        assert record.bytes["up"] == 4 * record.parameters["up"] + 3 * (header + 4)
        assert record.bytes["down"] == 4 * record.parameters["down"] + 3 * (header + 8)
        assert record.diagnostics["energy"] == pytest.approx(0.95 + record.round / 3 * 0.03)


def test_energy_is_counted_from_the_first_round_or_as_htfllib_counts_it():
    ours, theirs = (build("fedkd", rounds=10, method__compress=c).method for c in ("updates", "parameters"))
    assert [ours.energy(t) for t in (1, 10)] == pytest.approx([0.953, 0.98])
    assert [theirs.energy(t) for t in (1, 10)] == pytest.approx([0.95, 0.977])


# What it has to survive.


@pytest.mark.slow
def test_any_models_any_widths_and_odd_clients():
    data = federated(client("ann", [0, 1, 2]), client("bob", [1, 3, 3], d=3), client("cid", [1] * 5, model="mlp"))
    list(build("fedkd", data, method__auxiliary="support:WithBatchNorm", method__auxiliary_d=8).run())
    for compress in ("updates", "parameters", "none"):
        federation = build(
            "fedkd",
            degenerate(),
            rounds=3,
            model__d=2,
            method__auxiliary="support:WithBatchNorm",
            method__compress=compress,
        )
        list(federation.run())
        for name in federation.names:
            state = visited(federation)[name].model.state_dict()
            assert all(t.isfinite().all() for t in state.values())
            assert all((t >= 0).all() for n, t in state.items() if n.endswith("running_var"))


@pytest.mark.parametrize("compress", ["updates", "parameters", "none"])
def test_extreme_uploads_do_not_end_the_run(compress):
    federation = build(
        "fedkd", method__compress=compress, execution__precision="fp32", method__auxiliary="support:WithBatchNorm"
    )
    method, schema = federation.method, federation.method.upload_schema
    factors, whole = {}, {}
    for name, field in schema.fields.items():
        for part, rank, dense in ((factors, 2, 0), (whole, 0, 1)):
            shape = [
                s if isinstance(s, int) else min(rank, schema.limits[s]) if s.startswith("rank") else dense
                for s in field.shape
            ]
            part[name] = torch.tensor(7) if field.kind == "count" else torch.full(shape, -1e9)
    state = federation.server
    for number in range(1, 4):
        uploads = [Upload("ann", factors), Upload("bob", whole)]
        state, _ = method.aggregate(state, iter(uploads), number)
        for name in federation.names:
            message = method.broadcast(state, number + 1, name)
            encoded = federation.codec.encode(message, method.broadcast_schema)
            federation.codec.decode(encoded, method.broadcast_schema)


def test_a_mentee_that_takes_other_samples():
    with one_line(ModelError, "method.auxiliary, the mentee of fedkd: cnn2 takes images"):
        build("fedkd", method__auxiliary="cnn2")
