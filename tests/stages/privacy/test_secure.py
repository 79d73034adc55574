"""Secure aggregation in the round loop: the same results as without, and one line where it cannot be."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import support
from protofed.config.schema import every_method
from protofed.errors import ConfigError, PayloadError
from protofed.experiments.assemble import assemble
from protofed.methods import methods
from protofed.stages.secure.options import SecureOptions
from protofed.stages.secure.stage import SecureSum
from protofed.stages.secure.sums import SumLayout
from protofed.visits.contract import Missing
from support import few, one_line

SECURE = {"secure__aggregation": True}
BITS = SecureOptions().fraction_bits
OPTIONS = [
    ("fedproto", {"method__aggregation": "weighted"}),
    ("fedproto", {"method__aggregation": "paper"}),
    ("tinyproto", {"method__reduction": "mean"}),
    ("tinyproto", {"method__scaling": False}),
    ("tinyproto", {"method__base": "protonorm"}),
    ("fedavg", {"method__weighting": "uniform"}),
    ("beacon", {"method__weighting": "uniform"}),
    ("fednh", {"method__weighting": "uniform"}),
]


def needs_more(method: str) -> bool:
    """Return whether a method is refused with its default options."""
    try:
        support.build(method, **SECURE)
    except ConfigError:
        return True
    return False


SILENT = {"local", "fixed_etf", "fedtsp", "local_lda", "local_ncm"}
SUMS = [m for m in every_method() if m not in SILENT and not needs_more(m)]


def after(method: str, **options) -> tuple[dict, list]:
    """Return the server's state, but for what single clients sent, and the records after two rounds."""
    federation = support.build(method, **options)
    records = list(federation.run())
    return {name: tensor for name, tensor in federation.server.items() if "/" not in name}, records


def test_which_methods_need_sums_only():
    refused = [m for m in every_method() if m not in SUMS]
    declared = [m for m in methods() if support.build(m).method.declared.aggregation in ("mean", "sums")]
    assert set(SUMS) == set(declared)
    assert set(refused) >= {"fedtgp", "gfpl", "fedgh", "fesem", "fedgen", "fedpa", "fedkd"}


@few(("method", "options"), [*((m, {}) for m in SUMS), *OPTIONS], 2)
def test_results_equal_plain_aggregation_to_the_fixed_step(method, options):
    plain, records = after(method, **options)
    masked, secured = after(method, **options, **SECURE)
    plain.pop("apart", None)  # who resembles whom is not seen in sums
    assert plain.keys() == masked.keys()
    for name, tensor in plain.items():
        if name == "most":  # of one client, in place of which stands a bound: that of all
            assert masked[name] >= tensor
            continue
        # Two rounds of training make a little more of a difference of 2^-24 in sums of a few clients.
        assert torch.allclose(tensor.double(), masked[name].double(), rtol=1e-4, atol=2e-4), name
    for one, other in zip(records, secured, strict=True):
        assert other.refused == []
        for rule, accuracy in one.accuracy.weighted.items():
            assert other.accuracy.weighted[rule] == pytest.approx(accuracy, abs=0.08)


@pytest.mark.parametrize("method", ["fedproto", "fedavg", "tinyproto"])
def test_one_round_is_exact_to_the_step(method):
    """After one round, the mean of ``n`` clients differs by half a step per client at most, and float32."""
    plain, masked = (
        support.build(method, rounds=1, execution__precision="fp64", wire__codec="float64", **o)
        for o in ({}, SECURE)
    )
    for federation in (plain, masked):
        list(federation.run())
    scale = masked.method.mu if method == "tinyproto" else 1.0
    for name, tensor in plain.server.items():
        if tensor.is_floating_point():
            off = (tensor - masked.server[name]).abs().max()
            assert off <= 3 * scale * 2.0 ** -(BITS + 1) + 1e-12, name
        else:
            assert torch.equal(tensor, masked.server[name])


def test_the_sum_of_random_uploads():
    """Against sums computed field by field, with clients of different classes."""
    rng = torch.Generator().manual_seed(0)
    method = support.build("fedproto", method__aggregation="weighted").method
    layout = SumLayout(method, BITS)
    d, K = method.task.feature_dim, method.task.num_classes
    sums, counts, reporters = torch.zeros(K, d, dtype=torch.float64), torch.zeros(K), torch.zeros(K)
    total = 0
    for held in ([0, 1], [1, 3], [1]):
        rows, n = torch.randn(len(held), d, generator=rng), torch.randint(1, 9, (len(held),), generator=rng)
        total = total + layout.encode({"classes": torch.tensor(held), "prototypes": rows, "counts": n})
        sums[held] += rows.double() * n.unsqueeze(1)
        counts[held] += n
        reporters[held] += 1
    shared = layout.decode(total, 3)
    assert [len(p["classes"]) for p in shared] == [3, 1, 1]
    for j in range(K):
        rows = [p["prototypes"][p["classes"] == j] for p in shared]
        n = [p["counts"][p["classes"] == j] for p in shared]
        assert sum(map(len, rows)) == reporters[j]
        assert sum(int(c.sum()) for c in n) == counts[j]
        for row in torch.cat(rows):
            assert torch.allclose(row, sums[j] / counts[j], atol=2.0 ** -(BITS - 2))


def test_vectors_do_not_show_which_classes_a_client_holds():
    method = support.build("fedproto").method
    layout = SumLayout(method, BITS)
    d = method.task.feature_dim
    sizes = {
        len(
            layout.encode(
                {"classes": torch.tensor(held, dtype=torch.int64), "prototypes": torch.ones(len(held), d)}
            )
        )
        for held in ([], [0], [0, 1, 2, 3])
    }
    assert sizes == {layout.length}
    assert layout.length == 4 + 4 * d


def test_overflow_is_refused_at_the_client():
    federation = support.build("fedproto", **SECURE)
    layout = SumLayout(federation.method, BITS)
    d = federation.method.task.feature_dim
    most = 2.0 ** (63 - BITS) / 3
    for factor, fits in ((0.9, True), (1.1, False)):
        payload = {"classes": torch.tensor([2]), "prototypes": torch.full((1, d), factor * most)}
        if fits:
            layout.encode(payload)
            continue
        with pytest.raises(PayloadError, match=r"prototypes: .* would overflow the sum of 3 clients"):
            layout.encode(payload)


@pytest.mark.parametrize(
    ("count", "reason"),
    [
        (2**39, "counts: sums must be from 0 to 12884901885, not "),  # more than three clients can have
        (2**33, "clients would have refused the new one (counts: "),
    ],
)
def test_a_count_beyond_all_bounds_costs_the_round_and_no_more(count, reason, monkeypatch):
    offer = SecureSum.offer

    def hostile(self, client, *rest):
        offered = offer(self, client, *rest)
        if client == "cid":
            names, sizes = zip(*((entry.name, entry.size) for entry in self.layout.entries), strict=True)
            np.split(offered.vector, np.cumsum(sizes))[names.index("counts")][:] = count  # a view
        return offered

    monkeypatch.setattr(SecureSum, "offer", hostile)
    federation = support.build("fedlda", rounds=2, **SECURE)
    records = list(federation.run())
    assert len(records) == 2
    assert all(record.robust.kept.startswith(reason) for record in records)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"robust__rule": "clip"}, "robust.rule=clip does not go with secure.aggregation=true"),
        ({"method__name": "fedtgp"}, "fedtgp needs single uploads"),
        ({"method__name": "fedkd", "method__compress": "none"}, "fedkd vary"),
        ({"participation__fraction": 0.5}, "a round needs 3 of them, not 2"),
        ({"secure__threshold": 0.5}, "secure.threshold must"),
        ({"secure__fraction_bits": 60}, "secure.fraction_bits must"),
    ],
)
def test_refuses_in_one_line_before_training(options, match):
    name = {"method__name": "fedproto", **options}
    with one_line(ConfigError, match):
        support.build(name.pop("method__name"), **SECURE, **name)


def test_too_few_clients_leave_the_state_unchanged():
    """Two of three uploads cannot be read, so that one is left of the two needed."""
    federation = support.build("fedproto", rounds=1, **SECURE)
    train = federation.executor.train

    def damaged(names, messages, round_number):
        for result in train(names, messages, round_number):
            yield type(result)(**{**vars(result), "message": b"" if result.client != "ann" else result.message})

    federation.executor.train = damaged
    before = {n: t.clone() for n, t in federation.server.items()}
    (record,) = federation.run()
    assert [r.client for r in record.refused] == ["bob", "cid"]
    assert "1 of the 3 clients needed have uploads" in record.robust.kept
    assert all(torch.equal(t, federation.server[n]) for n, t in before.items())


def test_clients_that_fall_silent_in_training_do_not_lower_the_threshold():
    """Of six, four are needed; three that are left could show the server the sum of half as many."""
    everybody = ("a", "b", "c", "d", "e", "f")
    data = support.federated(*(support.client(n, [0, 0, 1, 1, 2, 3]) for n in everybody))
    for silent, needed in ((2, 4), (3, 4)):
        federation = support.build("fedproto", data, rounds=1, **SECURE)
        train = federation.executor.train

        def patchy(names, messages, round_number, train=train, silent=silent):
            for result in train(names, messages, round_number):
                late = result.client in everybody[:silent]
                yield Missing(result.client, "no answer in time") if late else result

        federation.executor.train = patchy
        before = {n: t.clone() for n, t in federation.server.items()}
        (record,) = federation.run()
        same = all(torch.equal(t, federation.server[n]) for n, t in before.items())
        assert same == (6 - silent < needed)
        assert (f"{6 - silent} of the {needed} clients needed" in record.robust.kept) == same


@pytest.mark.parametrize("clients", range(3, 30))
def test_threshold_is_more_than_half(clients):
    for share in (0.51, 0.66, 1.0):
        least = SecureOptions(threshold=share).least(clients)
        assert clients < 2 * least <= 2 * clients
        assert least >= math.ceil(share * clients)
    assert SecureOptions(threshold=0.55).least(100) == 55, "55.000000000000007 is rounding"


@pytest.mark.slow
@few("executor", ["workers", "fused"], 1)
def test_executors_agree(executor):
    sequential, _ = after("fedproto", **SECURE)
    other, _ = assemble(support.experiment("fedproto", execution__executor=executor, **SECURE), support.ordinary())
    list(other.run())
    other.executor.close()
    for name, tensor in sequential.items():
        assert torch.allclose(tensor, other.server[name], atol=1e-5), name


def test_traffic_is_that_of_the_protocol():
    _, (record, _) = after("fedproto", **SECURE)
    federation = support.build("fedproto", **SECURE)
    masked = 8 * support.stage(federation, SecureSum).layout.length
    assert record.bytes["up"] > 3 * masked
    assert record.parameters["up"] == 3 * support.stage(federation, SecureSum).layout.reals
