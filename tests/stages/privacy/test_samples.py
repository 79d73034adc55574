"""privacy.mode=sample: DP-SGD, private class means, their common budget, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import reduce

import dp_accounting
import pytest
import torch
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st

from protofed.compute.seeding import generator
from protofed.errors import ConfigError, FederationError, ModelError
from protofed.experiments.assemble import assemble
from protofed.methods import methods
from protofed.methods.contract import Batch, Phase, Round, Update
from protofed.methods.fedrep import FedRep
from protofed.models import build as build_model
from protofed.models import group_norm
from protofed.runs.spent import Spent
from protofed.samples import ClientData, FederatedData, Samples
from protofed.stages.privacy import SamplePrivacy
from protofed.stages.privacy.accounting import ORDERS, Release, epsilon
from protofed.storage.snapshots import Snapshot, flatten
from protofed.visits.private import Noise, Private, private_counts, rate, sum_clipped
from stages.privacy.auditing import lower_bound
from stages.privacy.everywhere import everywhere
from support import build, client, experiment, federated, few, one_line, stage, uploads

PRIVATE = {
    "privacy__accountant": "rdp",
    "privacy__mode": "sample",
    "privacy__noise": 0.7,
    "privacy__clip": 0.5,
    "privacy__means": 0.1,
}


def gradients(model, update, batch, received, state) -> list[dict[str, torch.Tensor]]:
    """Return each sample's gradient, by plain autograd on batches of one."""
    found = []
    names = [n for n, _ in model.named_parameters() if update.trainable(n)]
    weights = [p for n, p in model.named_parameters() if update.trainable(n)]
    for x, y in zip(batch.x, batch.y, strict=True):
        terms, _ = update.terms(model, Batch(x[None], y[None]), received, state)
        own = torch.autograd.grad(reduce(torch.add, terms.values()), weights, allow_unused=True)
        found.append(
            {n: torch.zeros_like(w) if g is None else g for n, w, g in zip(names, weights, own, strict=True)}
        )
    return found


# What is computed.


@pytest.mark.parametrize("method", ["fedproto", "beacon"])
def test_a_round_is_abadi_s_algorithm_1(method):
    """``w ← w − η·(Σ_b clip(g_b, C) + N(0, (zC)²))/B`` over batches drawn by coins, written down naively."""
    chosen = {"rounds": 1, "training__batch_size": 5, "training__lr": 0.3} | PRIVATE
    if method == "beacon":
        chosen |= {"method__epochs": 1, "method__momentum": 0, "method__lr": 0.3}
    federation = build(method, **chosen)
    member = federation.executor.clients["cid"]
    model = federation.executor.clients.model("cid")
    state, phase = federation.executor.clients.snapshot("cid").state, federation.method.round(1).phases[0]
    received = fresh(federation, "cid")
    (update,), n = phase.updates, len(member.train)
    coins = torch.rand(
        (math.ceil(n / 5), n), generator=generator(0, "private batches 0", 1, "cid"), dtype=torch.float64
    )
    noise = generator(0, "private steps 1", 1, "cid")
    model.train()
    for row in coins < 5 / n:
        batch = Batch(member.train.x[row], member.train.y[row])
        each = gradients(model, update, batch, received, state)
        lengths = [math.sqrt(sum(float(g.double().square().sum()) for g in own.values())) for own in each]
        assert not each or max(lengths) > 0.5
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if update.trainable(name):
                    total = sum(
                        (own[name] * min(1, 0.5 / length) for own, length in zip(each, lengths, strict=True)),
                        torch.zeros_like(parameter),
                    )
                    total = total + 0.7 * 0.5 * torch.randn(parameter.shape, generator=noise)
                    parameter -= 0.3 * total / 5
    expected = {n: p.detach().clone() for n, p in model.named_parameters() if update.trainable(n)}
    list(federation.executor.train(["cid"], federation.open(["cid"], 1).messages, 1))
    found = federation.executor.clients.snapshot("cid").model
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5)


def fresh(federation, name) -> dict[str, torch.Tensor]:
    """Return what a client receives in the first round."""
    local = federation.executor.trainer.open(federation.executor.clients, name, 1)
    federation.executor.trainer.receive(local, federation.open([name], 1).messages[name])
    return local.received


@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_gradients_of_samples_are_those_of_opacus():
    """An independent implementation, by hooks on layers, on a model with convolutions and GroupNorm."""
    opacus = pytest.importorskip("opacus", reason="uv pip install opacus")
    federation = build("fedavg", images(), rounds=1, model__name="tiny", model__d=256, model__options={}, **PRIVATE)
    roster = federation.executor.clients
    member, model = roster["ann"], roster.model("ann").train()
    local = federation.executor.trainer.open(roster, "ann", 1)
    local.received = fresh(federation, "ann")
    (update,) = federation.method.round(1).phases[0].updates
    batch = Batch(member.train.x, member.train.y)
    sums, _ = sum_clipped(model, update, dict(model.named_parameters()), batch, local, 0.5)
    wrapped = opacus.GradSampleModule(model, loss_reduction="mean")
    loss = torch.nn.functional.cross_entropy(wrapped(batch.x).logits, batch.y)
    loss.backward()
    named = {n.removeprefix("_module."): p for n, p in wrapped.named_parameters()}
    square = sum(p.grad_sample.flatten(1).square().sum(1) for p in named.values())
    factors = (0.5 / square.sqrt()).clamp(max=1)
    assert bool((factors < 1).any())
    for name, parameter in named.items():
        expected = torch.einsum("b,b...->...", factors, parameter.grad_sample)
        torch.testing.assert_close(sums[name], expected, rtol=1e-3, atol=1e-5)


def images() -> FederatedData:
    """Return a client with small images."""
    x = torch.randn(12, 1, 12, 12, generator=torch.Generator().manual_seed(3))
    data = Samples(x, torch.arange(12) % 4)
    return FederatedData((ClientData("ann", data, data),), 4, tuple("abcd"), (1, 12, 12))


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_class_means_are_quotients_of_noisy_sums_of_short_features(noise):
    chosen = {"rounds": 1, "training__lr": 1e-9, **PRIVATE, "privacy__noise": noise, "privacy__features": 0.8}
    sent = {u.client: u.payload for u in uploads(build("fedproto", **chosen))}
    federation = build("fedproto", **chosen)
    for name, payload in sent.items():
        member, model = federation.executor.clients[name], federation.executor.clients.model(name).eval()
        with torch.no_grad():
            features = model(member.train.x).features
        short = features * (0.8 / features.norm(dim=1, keepdim=True)).clamp(max=1)
        member_of = torch.nn.functional.one_hot(member.train.y, 4).float()
        counts, sums = member_of.sum(0), member_of.T @ short
        g, spread = generator(0, "private statistics", 1, name), noise * 0.1 * math.sqrt(2)
        counts = counts + spread * torch.randn(4, generator=g)
        sums = sums + spread * 0.8 * torch.randn(sums.shape, generator=g)
        known = counts > max(2 * spread, 0.5)
        assert payload["classes"].tolist() == known.nonzero().flatten().tolist()
        means = (sums / counts.clamp(min=1)[:, None])[known]
        torch.testing.assert_close(payload["prototypes"], means, rtol=1e-4, atol=1e-5)


def test_numbers_of_samples_are_noisy_wherever_a_method_sees_them_and_are_not_sent():
    data = federated(client("ann", [0] * 40 + [1] * 3), client("bob", [2] * 30))
    federation = build("fedavg", data, rounds=1, **{**PRIVATE, "privacy__means": 3.0})
    local = federation.executor.trainer.open(federation.executor.clients, "ann", 1)
    assert abs(int(local.counts[0]) - 40) < 12
    assert local.counts.tolist() != [40, 3, 0, 0]
    assert [int(u.payload["samples"]) for u in uploads(federation)] == [1, 1]
    beacon = build("beacon", data, rounds=1, **{**PRIVATE, "privacy__means": 3.0})
    state, true = beacon.executor.clients.snapshot("ann").state, torch.tensor([40, 3, 0, 0])
    assert not torch.equal(state["beacon_prior"], beacon.method.client_state(true)["beacon_prior"])


@few("method", ["beacon", "fedlc"], 1)
def test_what_stays_with_a_client_knows_its_true_numbers_of_samples(method):
    """Predictions and the expert use them; nothing that is sent depends on them."""
    federation = build(method, rounds=2, **{**PRIVATE, "privacy__means": 30.0})
    method_, clients = federation.method, federation.executor.clients
    for name in federation.names:
        true = method_.client_state(clients[name].train.counts(4))
        for entry in method_.protection.local_only:
            assert torch.equal(clients.snapshot(name).state[entry], true[entry])
    sent = [dict(u.payload) for u in uploads(build(method, rounds=2, **{**PRIVATE, "privacy__means": 30.0}))]
    other = build(method, rounds=2, **{**PRIVATE, "privacy__means": 30.0})
    for name in other.names:
        found = other.executor.clients.snapshot(name)
        other_state = method_.client_state(torch.tensor([0, 90, 1, 0]))
        wrong = {entry: other_state[entry] for entry in method_.protection.local_only}
        other.executor.clients.store.write(name, Snapshot(found.model, {**found.state, **wrong}, found.received))
    for a, b in zip(sent, uploads(other), strict=True):
        assert all(torch.equal(a[n], t) for n, t in b.payload.items())


@pytest.mark.slow
@few("method", ["fedavg", "beacon", "fml", "fedlc"], 1)
def test_small_clients_weigh_as_much_as_others(method):
    """Where no class stands out of the noise, too: 15 samples, noise of 50 on their number."""
    data = federated(client("ann", [0] * 5 + [1] * 5 + [2] * 5), client("bob", [0, 1, 2, 3] * 60))
    federation = build(method, data, rounds=1, **{**PRIVATE, "privacy__means": 50.0})
    assert [int(u.payload["samples"]) for u in uploads(federation)] == [1, 1]


def test_noisy_numbers_of_samples():
    p = Private(1.0, 1.0, 1.0, 2.0)
    drawn = torch.stack([private_counts(torch.tensor([50, 0]), p, generator(i)) for i in range(300)]).double()
    assert abs(float(drawn[:, 0].mean()) - 50) < 0.6
    assert abs(float(drawn[:, 0].std()) - 2) < 0.3
    assert float((drawn[:, 1] == 0).double().mean()) > 0.95


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.floats(0, 100), st.integers(0, 1000))
def test_noisy_numbers_of_samples_are_numbers_of_some_samples(counts, means, seed):
    drawn = private_counts(torch.tensor(counts), Private(1.0, 1.0, 1.0, means), generator(seed))
    assert (drawn >= 0).all()
    assert drawn.sum() >= 1
    if means == 0:
        assert drawn.tolist() == counts or not sum(counts)


def test_batches_are_drawn_by_coins():
    noise = Noise(generator(1))
    rows = [row for _ in range(40) for row in noise.rows(30, 8)]
    assert len(rows) == 160
    assert len({len(r) for r in rows}) > 5
    often = torch.bincount(torch.cat(rows), minlength=30) / 160
    assert float((often - 8 / 30).abs().max()) < 0.13
    assert [len(r) for r in Noise(None).rows(5, 9)] == [5]
    assert rate(5, 9) == 1


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedproto", "protonorm", "beacon", "fedavg", "tinyproto", "fml"])
def test_every_executor_adds_the_same_noise_once(method):
    expected = None
    for federation, records in everywhere(method, **PRIVATE):
        assert all(not record.losses for record in records), "losses are of the samples that are protected"
        clients = federation.executor.clients
        found = {f"{n}.{k}": t for n in federation.names for k, t in flatten(clients.snapshot(n)).items()}
        found |= federation.server
        expected = expected or found
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-4)


@few("more", [{}, {"training__class_weights": "balanced"}], 1)
def test_the_expert_of_beacon_is_trained_without_noise_because_it_stays(more):
    """With all noise, its predictions alone are those of a run without any; the beacon's are not."""
    noisy = {**PRIVATE, "privacy__means": 30.0}
    plain, private = build("beacon", rounds=1, **more), build("beacon", rounds=1, **noisy, **more)
    for federation in (plain, private):
        list(federation.run())
    a, b = (f.executor.clients.snapshot("ann").model for f in (plain, private))
    for name in a:
        assert torch.equal(a[name], b[name]) != name.startswith("extras."), name


# What it costs.


def interrupted(tmp_path, *, noise: float | None, combine: bool = True, lost: int = 2):
    """Return the records of rounds that were lost with a killed server, and the federation that begins anew."""
    chosen = {**PRIVATE, "privacy__noise": noise, "privacy__delta": 1e-3, "participation__combine": combine}
    if noise is None:
        chosen |= {"privacy__epsilon": 20.0, "privacy__means": 5.0}
    killed = build("fedproto", rounds=3, **chosen)
    stage(killed, SamplePrivacy).keep(tmp_path, 0)
    course = killed.run()
    before = [next(course) for _ in range(lost)]
    course.close()
    restarted = build("fedproto", rounds=3, **chosen)
    stage(restarted, SamplePrivacy).keep(tmp_path, 0)
    return before, restarted


@pytest.mark.slow
@few("combine", [True, False], 1)
def test_rounds_that_a_restarted_server_repeats_are_paid_for(tmp_path, combine):
    """Nobody trains before the round is counted; with combine, clients may have trained for the third round too."""
    before, restarted = interrupted(tmp_path, noise=0.7, combine=combine)
    counted = (tmp_path / "releases").stat().st_size
    assert counted == (3 if combine else 2)
    after = [record.privacy for record in restarted.run()]
    assert (tmp_path / "releases").stat().st_size == counted + 3
    per_round = before[0].privacy.releases
    for number, cost in enumerate(after, start=1):
        assert cost.releases == (number + counted) * per_round
        assert cost.means == 1 + number + 2 * counted
        accountant = RdpAccountant(ORDERS)
        step = dp_accounting.PoissonSampledDpEvent(cost.rate, dp_accounting.GaussianDpEvent(cost.noise))
        accountant.compose(step if cost.rate < 1 else dp_accounting.GaussianDpEvent(cost.noise), cost.releases)
        accountant.compose(dp_accounting.GaussianDpEvent(cost.means_noise), cost.means)
        assert cost.epsilon == pytest.approx(accountant.get_epsilon(1e-3), rel=1e-9)
    assert after[0].epsilon > before[1].privacy.epsilon


def test_a_restarted_server_stops_before_it_exceeds_the_budget(tmp_path):
    """The noise was found for three rounds; after one that was lost, three would cost more than the budget."""
    _, restarted = interrupted(tmp_path, noise=None, combine=False, lost=1)
    records = list(restarted.run())
    assert 0 < len(records) < 3
    assert all(record.privacy.epsilon <= 20.0 for record in records)
    assert restarted.exhausted
    assert not stage(restarted, SamplePrivacy).affords(len(records) + 1)


def test_a_restarted_server_begins_no_round_that_the_budget_does_not_afford(tmp_path):
    """With combine, clients of two rounds have trained for the third as well."""
    with pytest.raises(FederationError, match=r"privacy.epsilon=20 is spent: 3 rounds were lost .* ε would be 2\d"):
        interrupted(tmp_path, noise=None, combine=True)


@pytest.mark.slow
def test_a_repeated_round_costs_what_the_dearest_of_all_rounds_does(tmp_path, monkeypatch):
    """The last round, which has more steps, may be the one that has to be repeated, before it is reached again."""
    longer = lambda self, number: Round((Phase((Update(self.loss),), epochs=7 if number == 3 else 2),))  # noqa: E731
    monkeypatch.setattr(FedRep, "round", longer)
    chosen = {**PRIVATE, "method__head_epochs": 1, "method__extractor_epochs": 1}
    killed = build("fedrep", rounds=3, **chosen)
    stage(killed, SamplePrivacy).keep(tmp_path, 0)
    each = [record.privacy for record in killed.run()]
    restarted = build("fedrep", rounds=3, **chosen)
    stage(restarted, SamplePrivacy).keep(tmp_path, 0)
    first = next(restarted.run()).privacy
    assert first.releases >= each[-1].releases + each[0].releases
    assert first.epsilon > each[-1].epsilon


@few("method", ["fedproto", "beacon"], 1)
def test_epsilon_follows_from_what_is_recorded(method):
    federation = build(method, rounds=3, **{**PRIVATE, "privacy__means": 2.0, "privacy__delta": 1e-3})
    for number, record in enumerate(federation.run(), start=1):
        cost = record.privacy
        accountant = RdpAccountant(ORDERS)
        step = dp_accounting.GaussianDpEvent(cost.noise)
        if cost.rate < 1:
            step = dp_accounting.PoissonSampledDpEvent(cost.rate, step)
        accountant.compose(step, cost.releases)
        accountant.compose(dp_accounting.GaussianDpEvent(cost.means_noise), cost.means)
        assert cost.epsilon == pytest.approx(accountant.get_epsilon(1e-3))
        passes = 2 if method == "beacon" else 1
        assert (cost.noise, cost.means_noise) == (0.7, 1.4)
        assert cost.means == (1 + number if method == "fedproto" else 1)
        assert cost.releases in [number * passes * math.ceil(n / 4) for n in (7, 9, 11)]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"privacy__noise": 2.0}, "noise of 2 times that on their sums, ε = 2.34 at δ = 0.001"),
        ({"privacy__noise": 0.0}, "noise of 0 times that on their sums, ε = inf at δ = 0.001"),
        ({"privacy__epsilon": 5.0}, "noise of 1.026 to 1.167 times that on their sums, ε = 5 at δ = 0.001"),
    ],
)
def test_a_run_says_how_it_is_protected(given, words):
    federation = build("fedavg", rounds=3, privacy__mode="sample", privacy__delta=1e-3, **given)
    (note,) = stage(federation, SamplePrivacy).note()
    assert note == (
        f"Differential privacy of samples: gradients of norm at most 1, {words} after all rounds for runs with and "
        "without one sample of the client "
        "that pays most; batches are drawn by Poisson sampling."
    )


@pytest.mark.slow
def test_every_client_finds_the_noise_that_the_budget_needs():
    federation = build("fedproto", rounds=3, privacy__mode="sample", privacy__epsilon=5.0, privacy__delta=1e-3)
    noises = [m.plan.private.noise for m in federation.executor.clients.values()]
    assert len(set(noises)) == 3
    (*_, last) = federation.run()
    assert 4.98 < last.privacy.epsilon <= 5.0


@pytest.mark.slow
def test_a_run_stops_before_it_exceeds_its_budget():
    chosen = {"privacy__mode": "sample", "privacy__noise": 2.0, "privacy__delta": 1e-3}
    (first, second, *_) = [r.privacy.epsilon for r in build("fedavg", rounds=3, **chosen).run()]
    federation = build("fedavg", rounds=3, **chosen, privacy__epsilon=(first + second) / 2)
    assert [r.privacy.epsilon for r in federation.run()] == [first]
    with pytest.raises(ConfigError, match=r"is less than one round costs \w+ with privacy.noise=2"):
        build("fedavg", rounds=3, **chosen, privacy__epsilon=first / 2)


def canaries(noise: float, seed: int = 0, **chosen) -> tuple[float, Spent]:
    """Return the ε that samples with an input of their own each prove, and what the run says to have spent.

    They are present by a coin; the weights that are sent are looked at.
    """
    m = 300
    present = torch.rand(m, generator=generator(5, "coins", seed)) < 0.5
    inputs = 3 * torch.eye(m)[present]
    data = Samples(inputs, torch.zeros(len(inputs), dtype=torch.int64))
    lone = FederatedData((ClientData("ann", data, Samples(data.x[:1], data.y[:1])),), 2, ("a", "b"), (m,))
    chosen |= {"model__options": {"hidden": [8]}, "model__d": 4, "seed": seed}
    chosen |= {"privacy__mode": "sample", "privacy__noise": noise, "privacy__clip": 0.01}
    federation = assemble(experiment("fedavg", **chosen), lone)[0]
    before = dict(federation.server)
    layer = next(n for n, t in before.items() if t.dim() == 2 and t.shape[1] == m)
    (*_, record) = federation.run()
    # All gradients point towards class a, so their mean tells where a canary's would.
    moved = federation.server[layer] - before[layer]
    return lower_bound(moved.T @ moved.mean(1), present, 1e-5, 60), record.privacy


def test_canaries_find_no_more_than_epsilon():
    once = {"rounds": 1, "training__batch_size": 1200}
    (found, spent), (without, _) = (canaries(noise, **once) for noise in (1.0, 1e-3))
    assert (spent.rate, spent.releases) == (1.0, 1)
    assert found < spent.epsilon < 10
    assert without > 2, "canaries do tell where there is hardly any noise"


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "size", "epochs", "rounds"), [(1.0, 40, 3, 1), (1.0, 40, 3, 3), (2.0, 20, 2, 4)])
def test_canaries_find_no_more_than_epsilon_in_many_steps_of_samples_drawn_by_coins(noise, size, epochs, rounds):
    chosen = {"rounds": rounds, "training__batch_size": size, "training__epochs": epochs}
    found, spent = canaries(noise, **chosen)
    assert spent.rate < 0.5
    assert spent.releases >= 12
    assert found < spent.epsilon < 15
    assert canaries(1e-3, **chosen)[0] > 2


@pytest.mark.slow
def test_canaries_find_more_than_a_single_step_would_cost():
    """So this audit would notice if steps were not added up."""
    found, spent = canaries(3.0, rounds=1, training__batch_size=100, training__epochs=100)
    single = epsilon([Release(spent.noise, spent.rate)], 1e-5)
    assert single < found < spent.epsilon


# What is refused.


@few(
    ("method", "overrides", "message"),
    [
        ("fedtgp", {}, "cannot protect the uploads of fedtgp: its server may need every single one"),
        ("fedproto", {"method__prototypes": "during"}, "statistics collected during training"),
        ("fedfa", {}, "statistics collected during training"),
        ("fedproto", {"method__aggregation": "weighted"}, "weights them by n_ij"),
        ("tinyproto", {}, "set method.mu"),
        (
            "fedavg",
            {"privacy__epsilon": 1e-9, "privacy__delta": 1e-12, "privacy__noise": None},
            "no noise keeps this budget",
        ),
    ],
    5,
)
def test_what_cannot_be_protected_is_refused_before_training(method, overrides, message):
    chosen = {n: v for n, v in (PRIVATE | overrides).items() if v is not None}
    with one_line(ConfigError, message):
        build(method, **chosen)


def test_several_updates_on_one_batch_are_refused(monkeypatch):
    """They release one batch several times, which the accountant would count as several batches."""
    kind = methods().get("fedavg")
    plain = kind.round

    def twice(self, number):
        (phase,) = plain(self, number).phases
        return replace(plain(self, number), phases=(replace(phase, updates=phase.updates * 2),))

    monkeypatch.setattr(kind, "round", twice)
    with pytest.raises(ConfigError, match="several updates on a batch"):
        build("fedavg", **PRIVATE)


def test_batchnorm_is_refused_and_group_norm_takes_its_place():
    model = {"model__name": "support:WithBatchNorm", "model__options": {}, "rounds": 1}
    with pytest.raises(ModelError, match=r"ann: .* is a BatchNorm1d, which mixes samples: set model.norm=group"):
        build("fedproto", **model, **PRIVATE)
    federation = build("fedproto", **model, **PRIVATE, model__norm="group")
    assert any(isinstance(m, torch.nn.GroupNorm) for m in federation.executor.clients.model("ann").modules())
    assert next(federation.run()).accuracy is not None
    assert next(build("local", **model, **PRIVATE).run()).privacy is None, (
        "nothing is sent, so nothing is protected"
    )


@pytest.mark.slow
def test_an_expert_that_is_trained_without_noise_may_mix_samples():
    federation = build("beacon", model__name="support:WithBatchNorm", model__options={}, rounds=2, **PRIVATE)
    assert any(isinstance(m, torch.nn.BatchNorm1d) for m in federation.executor.clients.model("ann").modules())
    other = build("beacon", rounds=2, **PRIVATE)
    for trained in (federation, other):
        assert [record.accuracy is not None for record in trained.run()] == [True, True]
    assert all(torch.equal(tensor, other.server[name]) for name, tensor in federation.server.items()), (
        "the expert influences what is sent"
    )
    with pytest.raises(ModelError, match="which mixes samples"):  # a client's own model teaches the shared one
        build("fml", model__name="support:WithBatchNorm", model__options={}, rounds=2, **PRIVATE)


def test_group_norm_keeps_affine_weights_and_divides_the_channels():
    plain = build_model("resnet18", input_shape=(3, 32, 32), num_classes=4, d=8)
    norms = {n: m for n, m in plain.named_modules() if isinstance(m, torch.nn.BatchNorm2d)}
    for norm in norms.values():
        torch.nn.init.normal_(norm.weight)
    model = group_norm(plain).train()
    for name, norm in norms.items():
        found = model.get_submodule(name)
        assert isinstance(found, torch.nn.GroupNorm)
        assert found.num_channels % found.num_groups == 0
        assert torch.equal(found.weight, norm.weight)
    x = torch.randn(3, 3, 32, 32)
    torch.testing.assert_close(model(x).logits[:1], model(x[:1]).logits, rtol=1e-4, atol=1e-5)
