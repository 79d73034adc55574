"""What a client chooses by its own samples, each left out in turn: as by refits, one after the other."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protofed.data import DataOptions
from protofed.data.preparing import prepare
from protofed.data.tables import RawColumn
from protofed.experiments.assemble import assemble
from protofed.experiments.encoding import encode
from protofed.methods import Local
from protofed.methods.parts import gaussian
from protofed.methods.parts.gaussian import (
    LEAST,
    PREFERENCE,
    SHRINKAGES,
    TEMPERATURES,
    TIE,
    VOTERS,
    Mix,
    Pools,
    Selection,
    choose,
    describe_choices,
    voters,
)
from protofed.methods.parts.moments import Sums, floor
from protofed.methods.parts.resemblance import STRANGERS, resemblance
from protofed.models.encoders import EncoderOptions
from protofed.samples import ClientData, FederatedData, Samples
from support import EXACT, experiment, few, visited

Data = tuple[np.ndarray, np.ndarray]


def drawn(seed: int, clients: int = 3, n: int = 14, K: int = 3, d: int = 4, apart: float = 1.0) -> list[Data]:
    """Return clients' samples: classes apart, and each client a little elsewhere."""
    rng = np.random.default_rng(seed)
    means = 2 * rng.normal(size=(K, d))
    found = []
    for _ in range(clients):
        y = rng.integers(K, size=n)
        found.append((means[y] + rng.normal(size=(n, d)) + apart * rng.normal(size=d), y))
    return found


def scatter(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the scatter about class means."""
    apart = x - np.stack([x[y == k].mean(0) for k in y]) if len(y) else x
    return apart.T @ apart


def naive_parts(own: Data, others: list[Data], mixture: Mix) -> tuple[dict[int, np.ndarray], np.ndarray, float]:
    """Return a mixture's class means, scatter and number of samples."""
    means = {}
    for k in set(own[1].tolist()):
        rows = [own[0][own[1] == k], *(mixture.kappa * x[y == k] for x, y in others)]
        number = (own[1] == k).sum() + mixture.kappa * sum((y == k).sum() for _, y in others)
        means[k] = sum(r.sum(0) for r in rows) / number
    more = sum(len(y) for _, y in others)
    if mixture.share is None:
        x, y = (np.concatenate([own[i], *(other[i] for other in others)]) for i in (0, 1))
        return means, scatter(x, y), len(y)
    together = scatter(*own) + mixture.share * sum(scatter(*other) for other in others)
    return means, together, len(own[1]) + mixture.share * more


def naive_scores(own: Data, others: list[Data], mixture: Mix, i: int, K: int) -> dict[int, float]:
    """Return log-posteriors, up to a constant, of a sample of a client by all samples but this one."""
    _, whole, n = naive_parts(own, others, mixture)
    d = own[0].shape[1]
    s = gaussian.oracle(torch.tensor(whole / n), n) if mixture.shrinkage == "oas" else mixture.shrinkage
    rest = np.arange(len(own[1])) != i
    means, less, number = naive_parts((own[0][rest], own[1][rest]), others, mixture)
    everything = np.concatenate([own[0], *(x for x, _ in others)])
    ridge = floor(float((everything**2).mean()), torch.float64)
    A = (1 - s) * less / number + (s * np.trace(whole) / n / d + ridge) * np.eye(d)
    found = {}
    for k, mean in means.items():
        u = own[0][i] - mean
        found[k] = math.log((own[1][rest] == k).sum() + 1) - 0.5 * u @ np.linalg.solve(A, u)
    return found


def pools_of(own: Data, others: list[Data], K: int) -> Pools:
    sums = [Sums.of(torch.tensor(x), torch.tensor(y), K, second=True) for x, y in (own, *others)]
    none = Sums.none(K, own[0].shape[1], second=True)
    rest = none
    for other in sums[1:]:
        rest = rest.plus(other)
    return Pools(sums[0], rest, sum((other.scatter for other in sums[1:]), none.moment))


@settings(max_examples=3)
@given(st.integers(0, 999), st.integers(0, 2), st.sampled_from([0.0, 3.0]))
def test_each_sample_left_out_is_a_refit_without_it(seed, more, apart):
    own, *others = drawn(seed, 1 + more, n=9, apart=apart)
    pools = pools_of(own, others, 3)
    x, y = torch.tensor(own[0]), torch.tensor(own[1])
    some = voters(y, pools.own.counts)
    held = pools.own.counts.nonzero().squeeze(-1).tolist()
    mixtures = pools.mixtures(SHRINKAGES)
    seen = []
    for chosen, scores in pools.leave_out(x[some], y[some], mixtures, torch.float64):
        seen += chosen
        for mixture, rows in zip(chosen, scores, strict=True):
            for i, row in zip(some.tolist(), rows, strict=True):
                expected = naive_scores(own, others, mixture, i, 3)
                assert row.tolist() == pytest.approx([expected[k] for k in held], rel=1e-8, abs=1e-8)
    assert sorted(map(str, seen)) == sorted(map(str, mixtures))


def naive_choice(own: Data, others: list[Data], K: int) -> Mix:
    """Return the choice, in loops over mixtures, samples and temperatures."""
    counts = np.bincount(own[1], minlength=K)
    values = {}
    for mixture in pools_of(own, others, K).mixtures(SHRINKAGES):
        scores = [naive_scores(own, others, mixture, i, K) for i, k in enumerate(own[1]) if counts[k] > 1]
        truth = [k for k in own[1].tolist() if counts[k] > 1]
        sums = []
        for t in [times * t for t in TEMPERATURES for times in (1, 2, 4)]:
            total = 0.0
            for row, k in zip(scores, truth, strict=True):
                total += max(LEAST, t * row[k] - float(np.logaddexp.reduce([t * v for v in row.values()])))
            sums.append(total)
        values[mixture] = max(sums) - PREFERENCE * (mixture.share is not None)
    return next(mixture for mixture, value in values.items() if value >= max(values.values()) - TIE)


def federation_of(parts: list[Data], K: int = 3, **options: object):
    clients = tuple(
        ClientData(
            f"c{i}", Samples(torch.tensor(x), torch.tensor(y)), Samples(torch.tensor(x), torch.tensor(y)), None, {}
        )
        for i, (x, y) in enumerate(parts)
    )
    data = FederatedData(clients, K, tuple("abcdefgh"[:K]), (parts[0][0].shape[1],))
    federation = assemble(experiment("fedlda", **{**EXACT, **options}), data)[0]
    list(federation.run())
    return federation


@few("seed", range(3), 1)
def test_a_federation_chooses_and_answers_as_loops_do(seed):
    parts = drawn(seed, n=10, apart=[1.0, 4.0, 0.0][seed])
    federation = federation_of(parts)
    for i, own in enumerate(parts):
        received = visited(federation)[f"c{i}"].received
        others = parts[:i] + parts[i + 1 :]
        mixture = naive_choice(own, others, 3)
        expected = Selection(mixture, int((np.bincount(own[1], minlength=3)[own[1]] > 1).sum()))
        torch.testing.assert_close(received["choice"], expected.tensor())
        means, whole, n = naive_parts(own, others, mixture)
        s = gaussian.oracle(torch.tensor(whole / n), n) if mixture.shrinkage == "oas" else mixture.shrinkage
        A = (1 - s) * whole / n + s * np.trace(whole) / n / 4 * np.eye(4)
        weights = {k: np.linalg.solve(A, mean) for k, mean in means.items()}
        expected = {k: own[0] @ w - w @ means[k] / 2 for k, w in weights.items()}
        found = own[0] @ received["own_weights"].numpy().T + received["own_bias"].numpy()
        first = min(expected)
        for k in expected:
            np.testing.assert_allclose(found[:, k] - found[:, first], expected[k] - expected[first], atol=1e-6)


def test_clients_that_differ_turn_to_their_own():
    """Class means of one are mirrored: it keeps its own, and the others hear less of it."""
    alike = drawn(3, clients=5, n=40, apart=0.0)
    x, y = alike[0]
    mirrored = [(x, y), *[(2 * x.mean(0) - a, b) for a, b in alike[1:]]]
    together = visited(federation_of(alike))["c0"].received["choice"]
    apart = visited(federation_of(mirrored))["c0"].received["choice"]
    assert together[0] == 1
    assert apart[0] <= 0.03


@few(
    "case",
    ["one class", "three samples", "no sample that may vote", "one sample", "a class of one sample everywhere"],
    2,
)
def test_sites_that_cannot_choose_take_what_all_have(case):
    """Nobody's samples speak against the sums of all samples, which are the first choice."""
    parts = drawn(7, clients=4, n=30, apart=0.0)
    x, _ = parts[0]
    if case == "one class":
        parts[0] = (x[:9], np.zeros(9, dtype=np.int64))
    elif case == "three samples":
        parts[0] = (x[:3], np.array([0, 0, 1]))
    elif case == "no sample that may vote":
        parts[0] = (x[:3], np.array([0, 1, 2]))
    elif case == "one sample":
        parts[0] = (x[:1], np.array([1]))
    else:
        parts = [(a, np.where(b == 2, 0, b)) for a, b in parts]
        for part in parts:
            part[1][0] = 2
    federation = federation_of(parts)
    received = visited(federation)["c0"].received
    kappa, share, shrinkage, number, *_ = received["choice"].tolist()
    if case in ("one class", "no sample that may vote", "one sample"):
        assert (kappa, share, shrinkage) == (1, -1, -1)
    assert number == {"three samples": 2, "a class of one sample everywhere": 29}.get(case, 0)
    assert all(tensor.isfinite().all() for tensor in received.values())


def test_large_clients_let_some_samples_vote():
    labels = torch.arange(4 * VOTERS + 1) % 3
    labels[0] = 3
    some = voters(labels, labels.bincount())
    assert len(some) == len(some.unique()) == VOTERS
    assert 0 not in some
    assert labels[some].bincount().min() > VOTERS / 4


@few("options", [{}, {"method__centre": True}, {"method__shrinkage": 0.1}], 2)
def test_every_executor_and_secure_sums_give_the_same_numbers(options):
    parts = drawn(5, n=18, apart=1.0)
    runs = [{"execution__executor": e, "execution__workers": 2} for e in ("sequential", "workers", "fused")]
    if "method__centre" not in options:
        runs.append({"secure__aggregation": True, "secure__fraction_bits": 40})
    found = []
    for more in runs:
        federation = federation_of(parts, **options, **more)
        try:
            found.append({n: client.received for n, client in visited(federation).items()})
        finally:
            federation.executor.close()
    for other in found[1:]:
        for client, received in found[0].items():
            for name, tensor in received.items():
                torch.testing.assert_close(other[client][name].cpu(), tensor.cpu(), rtol=1e-6, atol=1e-6)


def test_a_client_of_which_a_part_counts_subtracts_that_part():
    parts = drawn(9, clients=4, n=20)
    parts[0] = drawn(9, clients=1, n=200)[0]
    whole = federation_of(parts)
    capped = federation_of(parts, robust__rule="none", robust__weight=2.0)
    assert int(whole.server["most"]) == 200
    assert int(capped.server["most"]) == 40
    for federation in (whole, capped):
        message = federation.method.broadcast(federation.server, 2)
        own = pools_of(parts[0], [], 3).own
        local = Local("c0", 2, None, own.counts.long(), {"sent": torch.tensor(True)}, {}, None, 0)
        found = federation.method.pools(local, own, message, torch.zeros(4, dtype=torch.float64))
        expected = pools_of(parts[0], parts[1:], 3)
        torch.testing.assert_close(found.others.counts, expected.others.counts, rtol=0, atol=2.0)
        torch.testing.assert_close(
            found.within, expected.within, rtol=0.05, atol=0.05 * float(expected.within.max())
        )


def test_choices_in_words():
    def tensor(mixture: Mix, number: int) -> torch.Tensor:
        return Selection(mixture, number).tensor()

    choices = {"ann": tensor(Mix(1.0, None, "oas"), 9), "bob": tensor(Mix(0.1, 1.0, 0.03), 9)}
    choices |= {"cid": tensor(Mix(1.0, None, "oas"), 0), "dan": tensor(Mix(0.0, 0.0, 0.1), 9)}
    assert describe_choices(choices) == (
        "Clients chose by their own samples, each left out in turn: the sums of all (2), others' class means at "
        "0.1 of their weight (1), nothing of others (1). Without a choice (one class, or "
        "no second sample of any), and so with the first: cid."
    )
    of_two = {name: Selection(Mix(0.0, 0.0, 0.1, view), 9).tensor(2) for name, view in (("ann", 0), ("bob", 1))}
    assert describe_choices({"ann": of_two["ann"]}).endswith("Clients measure alike: standardised together.")
    assert describe_choices({"bob": of_two["bob"]}).endswith(
        "Each client measures in its own way: standardised by site."
    )
    assert "alike at ann (standardised together) and otherwise at bob (standardised by site)" in describe_choices(
        of_two
    )


@few(("ridge", "normalise", "constant"), [(0.01, True, True), (1e-4, False, False), (1e-4, True, False)], 2)
def test_each_sample_left_out_of_a_ridge_regression_is_a_refit_without_it(ridge, normalise, constant):
    from protofed.methods import Task, get

    (x, y), *others = drawn(4, 3, n=12)
    options = get("fed3r").Options(normalise=normalise, constant=constant)
    method = get("fed3r")(options, Task(3, 4, 1, 0, 1.0, dtype=torch.float64))
    everything = [np.concatenate(parts) for parts in zip((x, y), *others, strict=True)]
    gram = method.gather([Sums.of(torch.tensor(a), torch.tensor(b), 3, second=True) for a, b in [(x, y), *others]])
    held = torch.tensor(sorted(set(y.tolist())))
    place = torch.searchsorted(held, torch.tensor(y))
    found = method.left_out(torch.tensor(x), place, held, gram, ridge)
    everything[0] = np.concatenate([everything[0], np.ones((len(everything[0]), int(constant)))], 1)
    x = everything[0][: len(x)]
    for i in range(len(y)):
        rest = np.arange(len(everything[1])) != i
        X, targets = everything[0][rest], np.eye(3)[everything[1][rest]]
        W = np.linalg.solve(X.T @ X + ridge * np.eye(X.shape[1]), X.T @ targets)
        W = W / np.linalg.norm(W, axis=0) if normalise else W
        assert found[i].tolist() == pytest.approx((x[i] @ W)[held.numpy()].tolist(), rel=1e-8, abs=1e-8)


@few("method", ["fed3r", "fedcof", "local_lda"], 1)
def test_other_closed_forms_choose_alike(method):
    """What a client chooses for its head is no choice for all classes."""
    parts = drawn(2, clients=4, n=30, d=6, apart=2.0)
    clients = tuple(
        ClientData(
            f"c{i}", Samples(torch.tensor(x), torch.tensor(y)), Samples(torch.tensor(x), torch.tensor(y)), None, {}
        )
        for i, (x, y) in enumerate(parts)
    )
    data = FederatedData(clients, 3, tuple("abc"), (6,))
    runs = [{"execution__executor": e} for e in ("sequential", "fused")]
    received = []
    for options in runs:
        federation = assemble(experiment(method, **{**EXACT, **options}), data)[0]
        list(federation.run())
        received.append({name: client.received for name, client in visited(federation).items()})
    for name, one in received[0].items():
        for key, tensor in one.items():
            torch.testing.assert_close(tensor, received[1][name][key], rtol=1e-6, atol=1e-7)
        if method != "local_lda":
            torch.testing.assert_close(one["weights"], federation.server["weights"], rtol=1e-6, atol=1e-7)


def hospitals(seed: int, units: bool) -> FederatedData:
    """Return raw tables of four hospitals whose class shares differ; perhaps each measures in units of its own."""
    rng = np.random.default_rng(seed)
    means, shares = rng.normal(size=(2, 6)) * 0.9, [0.9, 0.7, 0.3, 0.1]
    scale, shift = rng.lognormal(size=(4, 6)), 9 * rng.normal(size=(4, 6))
    clients = []
    for i, share in enumerate(shares):
        parts = []
        for n in (80, 1500):
            y = (rng.random(n) < share).astype(int)
            x = means[y] + rng.normal(size=(n, 6))
            x = x * scale[i] + shift[i] if units else x * [1, 10, 0.1, 3, 1, 1] + [70, 0, 0, 5, 0, 1]
            parts.append(Samples(torch.tensor(x), torch.tensor(y)))
        clients.append(ClientData(f"h{i}", *parts, None, {}))
    return FederatedData(tuple(clients), 2, ("ill", "well"), (6,))


def hospital_accuracy(
    raw: FederatedData, standardise: str, method: str = "fedlda", encoder: str = "random", **options: object
):
    columns = tuple(RawColumn(str(number)) for number in range(6))
    data = prepare(raw, columns, DataOptions(standardise=standardise))
    data = encode(data, EncoderOptions(encoder, dim=6), kept=False)
    federation = assemble(experiment(method, **{**EXACT, **options}), data)[0]
    rounds = list(federation.run())
    choices = {name: client.received.get("choice") for name, client in visited(federation).items()}
    return rounds[-1].accuracy.weighted["head"], choices


@few(("method", "encoder"), [("fedlda", "random"), ("fedlda", "identity"), ("local_lda", "random")], 1)
@few("units", [False, True], 2)
def test_each_client_chooses_how_its_table_is_standardised(method, encoder, units):
    kinds = ("site", "federated", "chosen")
    by_seed = [[hospital_accuracy(hospitals(s, units), k, method, encoder)[0] for k in kinds] for s in range(6)]
    *single, found = np.mean(by_seed, 0)
    assert found >= max(single) - 0.005


def test_one_of_several_features_is_chosen_as_if_it_stood_alone():
    (x, y), *others = drawn(0, n=20)
    noise = np.random.default_rng(1).normal(size=(3, 20, 4))
    worse = [(np.concatenate([a + 5 * e, a], 1), b) for (a, b), e in zip([(x, y), *others], noise, strict=True)]
    both = replace(pools_of(worse[0], worse[1:], 3), views=2)
    alone = choose(pools_of((x, y), others, 3), torch.tensor(x), torch.tensor(y), SHRINKAGES, torch.float64)
    found = choose(both, torch.tensor(worse[0][0]), torch.tensor(y), SHRINKAGES, torch.float64)
    assert found[:2] == (alone.mixture._replace(view=1), alone.voters)
    assert torch.allclose(found.scores, alone.scores)
    wide, narrow = (
        pools.classifier(choice.mixture, torch.float64)
        for pools, choice in ((both, found), (pools_of((x, y), others, 3), alone))
    )
    assert torch.allclose(wide.weights[:, 4:], narrow.weights)
    assert not wide.weights[:, :4].any()
    assert torch.allclose(wide.bias, narrow.bias)


def test_the_server_notes_who_resembles_whom():
    parts = [*drawn(3, 4, n=60, d=8, apart=0.0), *((-x, y) for x, y in drawn(3, 3, n=60, d=8, apart=0.0))]
    federation = federation_of(parts, robust__rule="none")
    apart = federation.server["apart"].double()
    assert torch.equal(apart, apart.mT)
    assert apart[:4, :4].max() < 0.3 < 1 < apart[:4, 4:].min()


def test_clients_that_share_no_class_are_strangers():
    counts = torch.tensor([[9.0, 0.0], [0.0, 9.0], [9.0, 0.0]], dtype=torch.float64)
    means = torch.zeros(3, 2, 4, dtype=torch.float64)
    apart = resemblance(counts, means, torch.eye(4, dtype=torch.float64), 1e-6)
    near = -2 / 9
    expected = [[0, STRANGERS, near], [STRANGERS, 0, STRANGERS], [near, STRANGERS, 0]]
    torch.testing.assert_close(apart, torch.tensor(expected, dtype=torch.float64))


@few(("clients", "n"), [(3, 40), (1, 60), (6, 15)], 1)
def test_samples_of_known_classes_are_rarely_untypical(clients, n):
    """Of new samples of a class, about a share p or fewer have a p-value up to p; of a new class nearly all do."""
    known, strange = [], []
    for seed in range(12):
        parts = drawn(seed, clients, n=n + 200, d=4, apart=0.5)
        kept = [(x[:n], y[:n]) for x, y in parts]
        federation = federation_of(kept)
        for i, (x, y) in enumerate(parts):
            received = visited(federation)[f"c{i}"].received
            seen = np.isin(y, kept[i][1])
            new = torch.tensor(np.concatenate([x[n:][seen[n:]], x[n:] + 12]))
            state = visited(federation)[f"c{i}"].state
            p = gaussian.typical(new, received, state["own"]).numpy()
            known.append(p[: seen[n:].sum()])
            strange.append(p[seen[n:].sum() :])
    found, other = np.concatenate(known), np.concatenate(strange)
    for level in (0.02, 0.05, 0.1, 0.25):
        assert (found <= level).mean() <= 1.3 * level + 0.01, level
    assert (found <= 0.25).mean() > 0.1  # it is no empty promise
    assert (other <= (0.25 if n > 15 else 0.5)).mean() > 0.95  # of two samples, a third is as far with 1/3


def test_a_client_without_a_second_sample_of_any_class_finds_everything_typical():
    (x, _), *others = drawn(2, 3)
    own = (x[:3], np.array([0, 1, 2]))
    received = visited(federation_of([own, *others]))["c0"].received
    found = gaussian.typical(torch.tensor(x + 100), received, torch.ones(3, dtype=torch.bool))
    assert found.tolist() == [1.0] * len(x)
