"""privacy.mode=client: what is clipped, what noise is added, what it costs, and what is refused."""

from __future__ import annotations

import json
import math
from contextlib import closing

import dp_accounting
import pytest
import torch
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st

import support
from protofed.compute.seeding import generator
from protofed.errors import ConfigError
from protofed.experiments.running import run_experiment
from protofed.methods import Method, Upload, methods
from protofed.methods.contract import Task, Traits
from protofed.methods.traits import Protection
from protofed.rounds import loop
from protofed.rounds.checkpoint import Saving, load_checkpoint
from protofed.rounds.stage import Opened
from protofed.runs.records import RoundRecord
from protofed.runs.spent import Spent
from protofed.stages.privacy import ClientPrivacy, PrivacyOptions
from protofed.stages.privacy.accounting import ORDERS
from protofed.stages.privacy.noise import from_seed, from_system
from protofed.untrusted.decoding import decode
from protofed.wire.schema import Field, prototype_schema, weight_schema
from stages.privacy.auditing import lower_bound
from stages.privacy.everywhere import OPTIONS, everywhere
from support import build, experiment, few, one_line, told, uploads

PRIVATE = {"privacy__accountant": "rdp", "privacy__mode": "client", "privacy__noise": 0.5, "privacy__clip": 2.0}
K, D = 4, 3


class Mixed(Method):
    """Prototypes, a weight and a number of samples."""

    name = "mixed"
    summary = "a test"

    @property
    def upload_schema(self):
        more = {"w": Field((2, 2)), "samples": Field((), "count", parameter=False)}
        return prototype_schema(K, "d", {"d": D}, **more)

    broadcast_schema = upload_schema

    @classmethod
    def traits(cls, options) -> Traits:
        return Traits(protection=Protection(dp_obstacle=""))


def stage(noise=0.0, clip=1.0, rounds=1, rate=1.0, expected=2.0, source=None, kind=Mixed, **more) -> ClientPrivacy:
    o = PrivacyOptions("client", clip, noise, **more)
    return ClientPrivacy(
        o, kind(None, Task(K, D, rounds, 0, 5.0)), [rate] * rounds, expected, source or from_seed(0, "privacy")
    )


def upload(name: str, rows: dict[int, list[float]], w: float = 0.0, samples: int = 7) -> Upload:
    classes = torch.tensor(sorted(rows), dtype=torch.int64)
    values = torch.tensor([rows[c] for c in sorted(rows)]).reshape(len(rows), D)
    return Upload(
        name,
        {"classes": classes, "prototypes": values, "w": torch.full((2, 2), w), "samples": torch.tensor(samples)},
    )


def merged(s: ClientPrivacy, given, centre=None) -> tuple[dict, Spent]:
    record = RoundRecord(1, [])
    s.account(record)
    (only,) = s(iter(given), Opened(1, {}, centre), record)
    return only.payload, record.privacy


# What is computed.


@pytest.mark.parametrize("method", ["fedavg", "beacon", "fml", "lg_fedavg", "fedper"])
def test_weights_are_the_broadcast_and_the_noisy_mean_of_clipped_changes(method):
    """``w^{t+1} = w^t + (Σ clip(w_i − w^t, C) + N(0, (zC)²)) / m``, written down naively."""
    chosen = {**PRIVATE, "privacy__clip": 0.05}
    federation = build(method, **chosen)
    before = {n: t.double() for n, t in federation.method.broadcast(federation.server, 1).items()}
    changes = [
        torch.cat([(u.payload[n] - before[n]).flatten() for n in before]) for u in uploads(build(method, **chosen))
    ]
    assert any(c.norm() > 0.05 for c in changes)
    total = sum(c * min(1, 0.05 / c.norm()) for c in changes)
    n = len(total)
    total = total + 0.5 * 0.05 * torch.randn(n, generator=generator(0, "privacy", 1), dtype=torch.float64)
    next(federation.run())
    after = torch.cat([federation.method.broadcast(federation.server, 2)[n].double().flatten() for n in before])
    old = torch.cat([t.flatten() for t in before.values()])
    torch.testing.assert_close(after, old + total / 3, rtol=1e-5, atol=1e-6)


def test_prototypes_are_quotients_of_noisy_sums():
    """``C_j = C_j + Σ f_i·(c_ij − C_j) / Σ f_i`` with ``f_i`` by which the norm of everything is shortened."""
    given = [upload("a", {0: [3.0, 0, 0], 1: [0, 1.0, 0]}, w=1.0), upload("b", {0: [1.0, 0, 0]}, w=-0.1)]
    centre = upload("", {0: [1.0, 0, 0]}, w=0.5).payload
    payload, spent = merged(stage(clip=2.0), given, centre)
    unit = 2.0 / math.sqrt(K)
    f = [min(1, 2 / math.sqrt(4 + 1 + 4 * 0.25 + 2 * unit**2)), min(1, 2 / math.sqrt(0 + 4 * 0.36 + unit**2))]
    assert f[0] < 1
    assert f[1] == 1
    assert spent.clipped == 1
    assert payload["classes"].tolist() == [0, 1]
    assert int(payload["samples"]) == 1
    expected = torch.tensor([[1 + f[0] * 2 / (f[0] + 1), 0, 0], [0, 1.0, 0]])
    torch.testing.assert_close(payload["prototypes"], expected)
    torch.testing.assert_close(payload["w"], torch.full((2, 2), 0.5 + (f[0] * 0.5 - 0.6) / 2))


def test_without_noise_and_with_a_large_norm_nothing_changes():
    plain, private = (
        build("fedproto", rounds=3),
        build("fedproto", rounds=3, privacy__mode="client", privacy__noise=0, privacy__clip=1e4),
    )
    with closing(plain.executor), closing(private.executor):
        assert [r.accuracy for r in plain.run()] == [r.accuracy for r in private.run()]
        for name, tensor in plain.server.items():
            torch.testing.assert_close(private.server[name], tensor, rtol=1e-4, atol=1e-6)


def test_a_class_that_noise_alone_reports_keeps_its_prototype():
    payload, _ = merged(stage(noise=100.0), [upload("a", {0: [1.0, 0, 0]})])
    assert len(payload["classes"]) == 0
    many = [upload(f"c{i}", {0: [1.0, 0, 0], 3: [0, 0, 2.0]}) for i in range(200)]
    payload, _ = merged(stage(noise=1.0, clip=4.0), many)
    assert payload["classes"].tolist() == [0, 3]
    torch.testing.assert_close(payload["prototypes"], torch.tensor([[1.0, 0, 0], [0, 0, 2.0]]), atol=0.1, rtol=0)


def test_a_client_of_weight_0_and_numbers_of_samples_do_not_count():
    one = [upload("a", {0: [1.0, 0, 0]}, samples=1)]
    other = [upload("a", {0: [1.0, 0, 0]}, samples=900), upload("b", {1: [9.0, 0, 0]}, w=5.0, samples=0)]
    (first, _), (second, _) = merged(stage(), one), merged(stage(), other)
    assert all(torch.equal(first[n], second[n]) for n in first)


rows = st.dictionaries(st.integers(0, K - 1), st.lists(st.floats(-1e6, 1e6), min_size=D, max_size=D))


@given(
    st.lists(st.tuples(rows, st.floats(-1e6, 1e6)), max_size=4), rows, st.floats(-1e8, 1e8), st.floats(1e-3, 1e3)
)
def test_one_client_moves_the_sum_by_at_most_the_clip(others, mine, weight, clip):
    """The sensitivity on which the guarantee rests, for any uploads."""
    s = stage(clip=clip)
    s.layout.upload = lambda total, *_: {"total": total}
    s.dtype = torch.float64
    company = [upload(f"c{i}", r, w) for i, (r, w) in enumerate(others)]
    without, with_me = (merged(s, given)[0]["total"] for given in (company, [*company, upload("me", mine, weight)]))
    assert float((with_me - without).norm()) <= clip * (1 + 1e-9)


# The same numbers everywhere, once.


@few("method", ["fedproto", "protonorm", "beacon", "fedavg", "tinyproto"], 1)
def test_every_executor_adds_the_same_noise_once(method):
    expected = None
    for federation, records in everywhere(method, **PRIVATE):
        found = [r["privacy"] for r in told(records)], federation.server
        expected = expected or found
        assert found[0] == expected[0]
        for name, tensor in expected[1].items():
            torch.testing.assert_close(found[1][name], tensor, rtol=1e-3, atol=1e-4)


def test_a_resumed_run_adds_the_noise_that_it_would_have(tmp_path):
    whole = build("protonorm", rounds=3, **PRIVATE)
    expected = told(whole.run())
    stopped = build("protonorm", rounds=3, **PRIVATE)
    first = [next(stopped.run())]
    Saving(tmp_path).save(stopped.state, stopped.executor.clients)
    resumed = build("protonorm", rounds=3, **PRIVATE)
    assert load_checkpoint(tmp_path, resumed.state, resumed.executor.clients)
    assert told(first) + told(resumed.run()) == expected


def test_a_release_that_is_discarded_has_been_made(tmp_path, monkeypatch):
    """A restarted server compares the file of releases with the rounds that it has recorded."""
    federation = build("fedavg", **PRIVATE)
    support.stage(federation, ClientPrivacy).keep(tmp_path, 0)
    monkeypatch.setattr(loop, "unsound", lambda method, codec, state, round_number: "w: too large")
    records = list(federation.run())
    assert [r.robust.kept for r in records] == ["clients would have refused the new one (w: too large)"] * 2
    assert records[-1].privacy.releases == (tmp_path / "releases").stat().st_size == 2


def test_noise_is_normal():
    def drawn(source, round_number: int, n: int = 9) -> torch.Tensor:
        return source(round_number).add(torch.zeros(n, dtype=torch.float64), 1.0)

    for source in (from_seed(3, "x"), from_system):
        x = drawn(source, 1, 50_000)
        assert x.dtype == torch.float64
        assert abs(float(x.mean())) < 0.03
        assert abs(float(x.var()) - 1) < 0.04
        assert abs(float((x**4).mean()) - 3) < 0.3
    same = torch.randn(9, generator=generator(3, "x", 1), dtype=torch.float64)
    assert torch.equal(drawn(from_seed(3, "x"), 1), same)
    assert not torch.equal(drawn(from_seed(3, "x"), 2), same)
    assert not torch.equal(drawn(from_system, 1), drawn(from_system, 1))


# What it costs.


@few(("fraction", "sampling"), [(1.0, "uniform"), (0.5, "uniform"), (0.5, "poisson")], 1)
def test_epsilon_follows_from_what_is_recorded(fraction, sampling, tmp_path):
    run = run_experiment(
        experiment(
            "fedproto",
            rounds=3,
            **PRIVATE,
            participation__fraction=fraction,
            participation__sampling=sampling,
            data__source="digits",
            data__samples=120,
            data__clients=4,
            model__options={},
            evaluation__every=3,
        ),
        tmp_path / "run",
    )
    for number, line in enumerate((tmp_path / "run" / "rounds.jsonl").read_text().splitlines(), start=1):
        cost = json.loads(line)["privacy"]
        event = dp_accounting.GaussianDpEvent(cost["noise"])
        if cost["rate"] < 1:
            event = dp_accounting.PoissonSampledDpEvent(cost["rate"], event)
        accountant = RdpAccountant(ORDERS).compose(event, cost["releases"])
        assert cost["epsilon"] == pytest.approx(accountant.get_epsilon(cost["delta"]))
        assert (cost["releases"], cost["clip"], cost["noise"]) == (number, 2.0, 0.5)
        assert cost["rate"] == (0.5 if sampling == "poisson" else 1.0)
    assert run.summary.privacy.to_dict() == {**cost, "clipped": run.summary.privacy.clipped}
    assert f"{cost['epsilon']:.3g}" in " ".join(run.notes)


def test_the_noise_of_a_budget_suffices_for_the_planned_rounds_and_hardly_more():
    federation = build("fedproto", rounds=5, privacy__mode="client", privacy__epsilon=4.0)
    cost = [r.privacy.epsilon for r in federation.run()]
    assert len(cost) == 5
    assert cost == sorted(cost)
    assert 3.98 < cost[-1] <= 4.0


def test_a_run_stops_before_it_exceeds_its_budget():
    federation = build("fedproto", rounds=9, evaluation__every=9, **PRIVATE, privacy__epsilon=22.0)
    records = list(federation.run())
    assert len(records) == 3
    assert records[-1].accuracy is not None
    assert records[1].accuracy is None
    assert records[-1].privacy.epsilon <= 22.0 < support.stage(federation, ClientPrivacy).epsilon(4)


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (1.0, "without amplification: participation.sampling is not poisson."),
        (0.5, "amplified by secret Poisson participation with probability 0.5."),
    ],
)
def test_a_run_says_how_it_is_protected(rate, words):
    s = stage(noise=2.0, clip=0.25, rounds=3, rate=rate)
    (note,) = s.note()
    assert note == (
        "Differential privacy of clients: changes of norm at most 0.25, noise of 2 times that on their sum, "
        f"ε = {s.epsilon(3):.3g} at δ = 1e-05 after all rounds for runs with and without one client, "
        f"{words}"
    )


def test_poisson_participation_is_independent_and_may_leave_a_round_empty():
    federation = build("fedavg", rounds=400, participation__sampling="poisson", participation__fraction=0.3)
    drawn = [federation.participants(round_number) for round_number in range(1, 401)]
    assert [] in drawn
    assert federation.names in drawn
    for name in federation.names:
        assert abs(sum(name in d for d in drawn) / 400 - 0.3) < 0.08
    little = PRIVATE | {"privacy__noise": 1e-4, "privacy__clip": 0.1}
    empty = build("fedavg", participation__sampling="poisson", participation__fraction=1e-3, **little)
    before = dict(empty.server)
    assert next(empty.run()).participants == []
    change = empty.server["head.weight"] - before["head.weight"]
    deviation = 1e-4 * 0.1 / (1e-3 * len(empty.names))
    assert float(change.std()) == pytest.approx(deviation, rel=0.3), "noise is added for nobody, too, to what was"


@pytest.mark.slow
def test_canaries_find_no_more_than_epsilon_and_much_without_clipping():
    """Every canary is a client with a direction of its own, present by a coin; the server's result is looked at."""

    class Weights(Mixed):
        @property
        def upload_schema(self):
            return weight_schema({"w": torch.zeros(600)}, K)

        broadcast_schema = upload_schema

    present = torch.rand(600, generator=generator(5, "coins")) < 0.5
    found = {}
    for length in (1.0, 40.0):
        for clipped in (True, False):
            s = stage(noise=1.5, clip=1.0, expected=1.0, kind=Weights, source=from_system)
            if not clipped:
                s.layout.vector = lambda payload, centre: payload["w"].double() / 1e9
                s.noise, length = 1e-9, length
            canaries = [Upload(f"c{i}", {"w": length * torch.eye(600)[i]}) for i in present.nonzero().flatten()]
            payload, _ = merged(s, canaries)
            found[length, clipped] = lower_bound(payload["w"], present, 1e-5, 100)
    bound = stage(noise=1.5).epsilon(1)
    assert 0.1 < found[1.0, True] < bound
    assert found[40.0, True] < bound < found[40.0, False]


# What is refused.


@pytest.mark.parametrize("method", sorted(methods()))
def test_every_method_is_clipped_or_says_why_not(method):
    closed = "fed3r fedcof fedlda fedncm"
    every = "fedgen fedgh fedkd fedl2g fednh fedorgp fedpa fedpcl fedpft fedplvm fedtgp fesem fpl gfpl"
    if method in f"{closed} {every}".split():
        with pytest.raises(ConfigError, match=f"privacy.mode=client cannot clip the uploads of {method}: "):
            build(method, **PRIVATE)
        return
    federation = build(method, **PRIVATE, **OPTIONS.get(method, {}))
    for record in federation.run():
        assert (record.privacy is not None) == (federation.method.upload_schema is not None)
        assert not record.robust.kept


@few(
    ("overrides", "message"),
    [
        ({"privacy__epsilon": 0.0}, "privacy.epsilon must be above 0, not 0"),
        ({"privacy__epsilon": math.nan}, "privacy.epsilon must be above 0, not nan"),
        ({}, "privacy: mode=client needs epsilon .the budget, e.g. 8. or noise"),
        ({"privacy__mode": "none", "privacy__noise": 1}, "noise and epsilon have no effect without mode"),
        (
            {"privacy__epsilon": 1.0, "privacy__noise": 1},
            "epsilon=1 is less than one round costs with privacy.noise=1: 4.3",
        ),
        ({"privacy__epsilon": 1e-9, "privacy__delta": 1e-12}, "no noise keeps this budget"),
        (
            {"privacy__noise": 1, "robust__rule": "median"},
            "robust.rule=median does not go with privacy.mode=client",
        ),
        (
            {"privacy__noise": 1, "participation__sampling": "samples"},
            "participation.sampling=samples does not go with privacy.mode=client: the draw shows numbers",
        ),
        (
            {"privacy__noise": 1, "method__aggregation": "weighted"},
            "aggregation=weighted weights them by n_ij: choose mean",
        ),
        ({"privacy__noise": 1, "method__classes": "own"}, "method.classes=own lets the server know"),
    ],
    8,
)
def test_what_cannot_be_protected_is_refused_before_training(overrides, message):
    with one_line(ConfigError, message):
        build("fedproto", **{"privacy__mode": "client", **overrides})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({}, "method.rho derives μ from their numbers of samples: set method.mu"),
        ({"method__reduction": "mean", "method__mu": 1}, "reduction=mean needs the number of clients"),
        ({"method__base": "fedtgp", "method__mu": 1}, "its server may need every single one"),
    ],
)
def test_tinyproto_says_what_it_needs(overrides, message):
    with pytest.raises(ConfigError, match=message):
        build("tinyproto", **PRIVATE, **overrides)


def test_a_user_s_method_declares_nothing_at_first():
    class Mine(Mixed):
        traits = Method.traits

    with pytest.raises(ConfigError, match="cannot clip the uploads of mixed: its server may need every single one"):
        stage(kind=Mine)


def test_a_run_with_a_budget_cannot_be_given_more_rounds(tmp_path):
    chosen = {"data__source": "digits", "data__samples": 60, "data__clients": 2, "model__options": {}}
    with_budget = experiment("fedavg", rounds=1, privacy__mode="client", privacy__epsilon=8, **chosen)
    run_experiment(with_budget, tmp_path / "run")
    longer = experiment("fedavg", rounds=2, privacy__mode="client", privacy__epsilon=8, **chosen)
    with pytest.raises(ConfigError, match=r"the noise that privacy.epsilon needs depends on their number"):
        run_experiment(longer, tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    "change", [{"epsilon": "1"}, {"epsilon": -math.inf}, {"mode": "all"}, {"releases": -1}, {"noise": None}]
)
def test_damaged_costs_are_refused(change):
    from protofed.errors import CheckpointError

    value = Spent("client", 1.0, 1e-5, 1.0, 1.0, 1.0, 3).to_dict() | change
    with pytest.raises(CheckpointError, match=f"^x: privacy: {next(iter(change))}: "):
        decode(value, Spent, "x: privacy")
