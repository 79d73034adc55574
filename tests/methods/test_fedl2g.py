"""FedL2G: against a naive reference, finite differences, and clients that have nothing to take a quiz with."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.func import functional_call

import naive
from naive import build, same, same_nets, uneven
from protofed.compute.seeding import generator
from protofed.errors import ConfigError
from protofed.methods.contract import Batch, Upload
from support import K, client, degenerate, federated, few, held_out, visited

RATE, STUDY, QUIZ = 0.05, 4, 3
SMALL = {"method__client_lr": RATE, "method__study": STUDY, "method__quiz": QUIZ, "method__warm_up": 1}
SERVER = {"logits": 0.1, "features": 100.0}


def guided(w, guide, batch, of):
    """``mean of −log p_y + ‖o − v_y‖²/m`` over a batch, ``o`` the logits or the features."""
    total = []
    for x, y in batch:
        f = naive.features(w, x)
        moved = f if of == "features" else naive.head(w, f)
        apart = sum((moved[i] - guide[y][i]) ** 2 for i in range(len(moved))) / len(moved)
        total.append(naive.cross_entropy(naive.head(w, f), y) + apart)
    return naive.mean(total)


def taken(w, guide, study, quiz, of):
    """Return the mean cross-entropy of the quiz after a step on the study set."""
    leaves = [t.clone().requires_grad_() for t in w]
    slopes = torch.autograd.grad(guided(leaves, guide, study, of), leaves, create_graph=True, allow_unused=True)
    after = [t - RATE * g for t, g in zip(leaves, slopes, strict=True)]
    return naive.mean([naive.cross_entropy(naive.logits(after, x), y) for x, y in quiz])


def pairs(samples, rows):
    return [(samples.x[i].double(), int(samples.y[i])) for i in rows]


def draw(purpose, number, name, n):
    return torch.randperm(n, generator=generator(naive.SEED, purpose, number, name)).tolist()


def sets(c, number):
    """Return the study set and the quiz: validation samples if there are any, else training samples at the end."""
    n = len(c.train)
    order = draw("study", number, c.name, n)
    if c.validation is not None:
        quiz = draw("quiz", number, c.name, len(c.validation))[:QUIZ]
        return pairs(c.train, order[:STUDY]), pairs(c.validation, quiz)
    size = min(QUIZ, n // 2)
    return pairs(c.train, order[: n - size][:STUDY]), pairs(c.train, order[n - size :])


def gradient(w, guide, study, quiz, of):
    """Return ``u_y`` of the classes in the study set."""
    leaf = guide.clone().requires_grad_()
    (slope,) = torch.autograd.grad(taken(w, leaf, study, quiz, of), leaf)
    return {y: slope[y] for y in sorted({y for _, y in study})}


def mixed():
    """Return three clients, of which one holds validation samples."""
    first, *others = uneven().clients
    return federated(held_out(first, [0, 1, 2, 1, 0]), *others)


@few("of", ["logits", "features"], 2)
def test_three_rounds(of):
    """The first warms the vectors up: models rest."""
    data = mixed()
    federation = build("fedl2g", data, rounds=3, method__guides=of, **SMALL)
    own = {c.name: naive.own_net(federation, c.name) for c in data.clients}
    guide = federation.server["guide"].clone()
    assert guide.shape == (K, K if of == "logits" else naive.D)
    for number, record in enumerate(federation.run(), start=1):
        sent = []
        for c in data.clients:
            if number > 1:
                for batch in naive.rounds_of(c.train, c.name, number):
                    (w,), _ = naive.step([own[c.name]], lambda n, batch=batch, v=guide: guided(n[0], v, batch, of))
                    own[c.name] = naive.clipped(own[c.name], w, 100.0)
            sent.append(gradient(own[c.name], guide, *sets(c, number), of))
        slope = torch.zeros_like(guide)
        for y in range(K):
            if rows := [u[y] for u in sent if y in u]:
                slope[y] = naive.mean(rows)
        assert record.diagnostics["guide_gradient_norm"] == pytest.approx(float(slope.norm()))
        guide = guide - SERVER[of] * slope
        same(federation.server["guide"], guide)
        for c in data.clients:
            same_nets(naive.own_net(federation, c.name), own[c.name])
        assert record.parameters["up"] == sum(len(u) for u in sent) * guide.shape[1]
        assert record.parameters["down"] == 3 * guide.numel()


@few("of", ["logits", "features"], 2)
def test_the_gradient_is_that_of_finite_differences(of):
    federation = build("fedl2g", method__guides=of, **SMALL)
    list(federation.run())
    method, c = federation.method, visited(federation)["ann"]
    batch = Batch(c.train.x.double(), c.train.y)
    study, quiz = Batch(batch.x[:4], batch.y[:4]), Batch(batch.x[4:], batch.y[4:])
    result = method.take_quiz(c, study, quiz)
    guide = c.received["guide"]
    found = torch.func.grad(result)(guide)
    for y in range(K):
        for i in range(guide.shape[1]):
            moved = torch.zeros_like(guide)
            moved[y, i] = 1e-5
            slope = (result(guide + moved) - result(guide - moved)) / 2e-5
            torch.testing.assert_close(found[y, i], slope, rtol=1e-4, atol=1e-9)
    assert bool((found[study.y.unique()] != 0).any())
    absent = [y for y in range(K) if y not in study.y]
    assert bool((found[absent] == 0).all())


def test_a_long_gradient_is_shortened_and_silence_moves_nothing():
    federation = build("fedl2g", **SMALL)
    method, server = federation.method, federation.server
    rows = torch.zeros(2, K, dtype=torch.float64)
    rows[0, 0], rows[1, 1] = 300.0, 400.0
    upload = Upload("ann", {"classes": torch.tensor([0, 2]), "gradients": rows})
    new, told = method.aggregate(server, iter([upload]), 1)
    assert told["guide_gradient_norm"] == 500.0
    moved = server["guide"] - new["guide"]
    torch.testing.assert_close(moved[[0, 2]], 0.1 * rows / 5)
    assert bool((moved[[1, 3]] == 0).all())
    nothing = Upload("ann", {"classes": torch.tensor([], dtype=torch.int64), "gradients": rows[:0]})
    assert torch.equal(method.aggregate(server, iter([nothing]), 2).state["guide"], server["guide"])


def test_models_rest_while_vectors_warm_up():
    federation = build("fedl2g", rounds=2, method__warm_up=2)
    before = {name: naive.own_net(federation, name) for name in federation.names}
    start = federation.server["guide"].clone()
    records = list(federation.run())
    assert all(not record.losses for record in records)
    assert not torch.equal(start, federation.server["guide"])
    for name, w in before.items():
        assert all(torch.equal(a, b) for a, b in zip(naive.own_net(federation, name), w, strict=True))


def test_clients_without_a_quiz_send_nothing():
    """One sample is either studied or asked about."""
    federation = build("fedl2g", federated(client("ann", [0, 1, 2, 3]), client("bob", [1])), **SMALL)
    records = list(federation.run())
    assert not any(record.refused for record in records)
    list(build("fedl2g", degenerate(), method__softmax="balanced", **SMALL).run())


@pytest.fixture(scope="module")
def plain():
    """A federation that guides outputs."""
    return build("fedl2g", **SMALL)


@given(seed=st.integers(0, 2**31), n=st.integers(0, 9), validation=st.integers(0, 5))
def test_study_and_quiz_share_no_sample(plain, seed, n, validation):
    """Numbers from 100 on are validation samples."""

    def batches(start, size):
        parts = torch.arange(start, start + size).split(4)
        return lambda: [Batch(part, part % K) for part in parts]

    local = SimpleNamespace(
        training=batches(0, n),
        validation=batches(100, validation),
        generator=lambda purpose: generator(seed, purpose),
    )
    study, quiz = plain.method.sets(local)
    asked = [i + 100 for i in range(validation)] or list(range(n))
    learned, examined = study.x.tolist(), quiz.x.tolist()
    assert len(set(learned) | set(examined)) == len(learned) + len(examined)
    assert set(learned) <= set(range(n))
    assert set(examined) <= set(asked)
    assert len(examined) == min(QUIZ, validation or n // 2)
    assert len(learned) == min(STUDY, n if validation else n - len(examined))
    assert torch.equal(torch.cat([study.y, quiz.y]), torch.cat([study.x, quiz.x]) % K)


def test_batch_norm_takes_the_statistics_of_study_set_and_quiz():
    """As in the authors' code, whose models are in train mode; the running statistics stay."""
    data = federated(client("ann", [0, 0, 1, 1, 2, 2, 3, 3]))
    federation = build("fedl2g", data, rounds=2, **SMALL, model__name="support:WithBatchNorm", model__options={})
    list(federation.run())
    owner, drawn = visited(federation)["ann"], generator(0, "guide")
    local = SimpleNamespace(
        model=owner.model.eval(),
        state=owner.state,
        received={
            "guide": torch.randn(K, K, dtype=torch.float64, generator=drawn),
            "present": torch.ones(K, dtype=torch.bool),
        },
        training=lambda: [Batch(owner.train.x.double(), owner.train.y)],
        validation=list,
        generator=lambda purpose: generator(0, purpose),
    )
    buffers = {name: tensor.clone() for name, tensor in local.model.named_buffers()}
    sent = federation.method.upload(local, {})
    assert not local.model.training
    assert all(torch.equal(tensor, buffers[name]) for name, tensor in local.model.named_buffers())
    assert all(m.track_running_stats for m in local.model.modules() if isinstance(m, torch.nn.BatchNorm1d))

    study, quiz = federation.method.sets(local)
    bare = copy.deepcopy(local.model).train()
    for module in bare.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.running_mean = module.running_var = None
            module.track_running_stats = False
    guide = local.received["guide"].clone().requires_grad_()
    weights = dict(bare.named_parameters())
    logits = bare(study.x).logits
    loss = F.cross_entropy(logits, study.y) + (logits - guide[study.y]).square().mean()
    slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True, allow_unused=True)
    after = {n: w - RATE * (0 if g is None else g) for (n, w), g in zip(weights.items(), slopes, strict=True)}
    answer = F.cross_entropy(functional_call(bare, after, quiz.x).logits, quiz.y)
    (expected,) = torch.autograd.grad(answer, guide)
    torch.testing.assert_close(sent["gradients"], expected[sent["classes"]])


def test_gradients_of_samples_are_not_private():
    with pytest.raises(ConfigError, match="uploads of fedl2g: they are gradients of a few samples"):
        build("fedl2g", privacy__mode="sample", privacy__epsilon=8.0)
