"""Closed forms: what the server makes of sums is what it would make of all samples together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.covariance import OAS
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge

from protofed.config.schema import apply_overrides, load_recipe
from protofed.errors import ConfigError
from protofed.experiments import resolve
from protofed.experiments.assemble import assemble
from protofed.methods.contract import Upload, predict
from protofed.methods.parts.gaussian import oracle
from protofed.rounds.loop import Federation
from protofed.samples import ClientData, FederatedData, Samples
from support import BASE, EXACT, experiment, few, one_line

K, D = 3, 5
CLOSED = ["fedncm", "fed3r", "fedcof", "fedlda", "local_ncm", "local_lda"]


def points(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    y = torch.cat([torch.arange(K), torch.randint(K, (n - K,), generator=g)])
    mixing = torch.randn(D, D, generator=g, dtype=torch.float64)
    centres = 2 * torch.randn(K, D, generator=g, dtype=torch.float64)
    return centres[y] + torch.randn(n, D, generator=g, dtype=torch.float64) @ mixing + 3, y


def divided(x: torch.Tensor, y: torch.Tensor, owners: list[int], names: list[str]) -> FederatedData:
    whose = torch.tensor(owners)
    clients = []
    for i, name in enumerate(names):
        own = Samples(x[whose == i], y[whose == i])
        clients.append(ClientData(name, own, own, None, {}))
    return FederatedData(tuple(clients), K, tuple("abc"), (D,))


def run(method: str, data: FederatedData, **overrides: object) -> Federation:
    federation = assemble(experiment(method, **{**EXACT, **overrides}), data)[0]
    for record in federation.run():
        assert not record.refused
        assert not record.robust.kept
    return federation


def global_scores(federation: Federation, x: torch.Tensor) -> np.ndarray:
    server = federation.server
    return (x @ server["weights"].T + server["bias"]).numpy()


def apart(scores: np.ndarray) -> np.ndarray:
    return scores - scores[:, :1]


PARTS = st.lists(st.integers(0, 3), min_size=24, max_size=24)


@settings(max_examples=settings.default.max_examples // 2)
@given(
    PARTS,
    st.permutations(["ann", "bob", "cid", "dan"]),
    st.booleans(),
    st.sampled_from([0.05, 0.5, 1.0]),
    st.integers(0, 99),
)
def test_fedlda_is_the_discriminant_of_the_pooled_samples(owners, names, secure, shrinkage, seed):
    x, y = points(24, seed)
    owners[:4] = [0, 1, 2, 3]
    data = divided(x, y, owners, names)
    more = {"secure__aggregation": True, "secure__fraction_bits": 40} if secure else {}
    federation = run("fedlda", data, method__shrinkage=shrinkage, **more)
    pooled = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(x, y)
    expected = apart(pooled.decision_function(x) - np.log(pooled.priors_))
    assert apart(global_scores(federation, x)) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.slow
@settings(max_examples=15)
@given(PARTS, st.integers(0, 99))
def test_partial_participation_and_late_clients_count_once(owners, seed):
    """Once all have come, in any order and some of them often, it is the pooled classifier."""
    x, y = points(24, seed)
    owners[:4] = [0, 1, 2, 3]
    data = divided(x, y, owners, ["ann", "bob", "cid", "dan"])
    options = {"method__shrinkage": 0.3, "method__personal": False}
    whole = run("fedlda", data, **options).server
    part = run("fedlda", data, rounds=12, participation__fraction=0.5, seed=seed, **options).server
    held = {name.partition(".")[2].partition("/")[0] for name in part if name.startswith("counts.")}
    if held == {"ann", "bob", "cid", "dan"}:  # twelve draws of two among four, nearly always
        assert torch.equal(part["weights"], whole["weights"])
        assert torch.equal(part["bias"], whole["bias"])


@settings(max_examples=15)
@given(PARTS, st.integers(0, 99), st.booleans(), st.booleans())
def test_fed3r_is_the_ridge_regression_of_the_pooled_samples(owners, seed, secure, constant):
    x, y = points(24, seed)
    owners[:4] = [0, 1, 2, 3]
    more = {"secure__aggregation": True, "secure__fraction_bits": 40} if secure else {}
    data = divided(x, y, owners, ["ann", "bob", "cid", "dan"])
    more["method__constant"] = constant
    federation = run("fed3r", data, method__lambda=0.5, method__normalise=False, **more)
    targets = torch.nn.functional.one_hot(y, K).double()
    x = torch.cat([x, torch.ones(len(x), int(constant), dtype=x.dtype)], 1)
    expected = Ridge(alpha=0.5, fit_intercept=False).fit(x, targets).coef_
    if constant:
        assert federation.server["bias"].numpy() == pytest.approx(expected[:, -1], rel=1e-6, abs=1e-6)
        expected = expected[:, :-1]
    assert federation.server["weights"].numpy() == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_afl_is_fed3r_without_a_ridge():
    """The absolute aggregation law of AFL, client after client, gives W of Fed3R for λ → 0."""
    x, y = points(40, 1)
    owners = torch.arange(40) % 3
    targets, gamma, eye = torch.nn.functional.one_hot(y, K).double(), 1.0, torch.eye(D, dtype=torch.float64)
    W, C = torch.zeros(D, K, dtype=torch.float64), torch.zeros(D, D, dtype=torch.float64)
    for i in range(3):
        own, labels = x[owners == i], targets[owners == i]
        Ci = own.T @ own + gamma * eye
        Wi = torch.linalg.solve(Ci, own.T @ labels)
        W, C = torch.linalg.solve(C + Ci, C @ W + Ci @ Wi), C + Ci
    W = torch.linalg.solve(C - 3 * gamma * eye, C @ W)
    data = divided(x, y, owners.tolist(), ["ann", "bob", "cid"])
    found = run("fed3r", data, method__lambda=0.0, method__normalise=False).server["weights"]
    assert found.T.numpy() == pytest.approx(W.numpy(), rel=1e-6, abs=1e-7)


def test_oas_is_that_of_scikit_learn():
    x, y = points(30, 2)
    means = torch.stack([x[y == k].mean(0) for k in range(K)])
    centred = (x - means[y]).numpy()
    expected = OAS(assume_centered=True).fit(centred).shrinkage_
    assert oracle(torch.tensor(centred.T @ centred / 30), 30) == pytest.approx(expected)


@pytest.mark.parametrize("gamma", [0.1, 1.0])
def test_fedcof_is_its_sum_class_by_class(gamma):
    """In loops, with γ as the number that its authors take; class 2 is held by one client."""
    x, y = points(40, 8)
    owners = [0 if label == 2 else i % 3 for i, label in enumerate(y.tolist())]
    held = {(i, k): x[(torch.tensor(owners) == i) & (y == k)] for i in range(3) for k in range(K)}
    scatter, sizes, known = torch.zeros(D, D, dtype=torch.float64), 0, 0
    for k in range(K):
        own = [rows for (_, label), rows in held.items() if label == k and len(rows)]
        n = sum(map(len, own))
        sizes += n - 1
        known += (n - 1) * (len(own) > 1)
        for rows in own:
            apart = rows.mean(0) - torch.cat(own).mean(0)
            scatter += (n - 1) * len(rows) * apart.outer(apart) / max(len(own) - 1, 1)
    absolute = gamma * scatter.trace() / D / known  # of the classes whose variance is known
    gram = scatter + sizes * absolute * torch.eye(D, dtype=torch.float64) + 40 * x.mean(0).outer(x.mean(0))
    sums = torch.stack([x[y == k].sum(0) for k in range(K)])
    expected = torch.nn.functional.normalize(torch.linalg.solve(gram, sums.T).T, dim=1)
    for scale in (1.0, 1e-3):  # of the features, which changes nothing
        data = divided(scale * x, y, owners, ["ann", "bob", "cid"])
        found = run("fedcof", data, method__gamma=gamma).server["weights"]
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


def test_fedncm_answers_with_the_nearest_mean():
    x, y = points(24, 4)
    federation = run("fedncm", divided(x, y, [i % 2 for i in range(24)], ["ann", "bob"]))
    means = torch.stack([x[y == k].mean(0) for k in range(K)])
    cosines = torch.nn.functional.cosine_similarity(x.unsqueeze(1), means, dim=-1)
    assert (global_scores(federation, x).argmax(1) == cosines.argmax(1).numpy()).all()


DEGENERATE = {
    "all zero": (torch.zeros(12, D), [0, 1, 2] * 4, [0, 1] * 6),
    "no variance within classes": (torch.eye(D)[[0, 1, 2] * 4], [0, 1, 2] * 4, [0, 1] * 6),
    "constant features": (torch.cat([torch.randn(12, 2), torch.full((12, 3), 7.0)], 1), [0, 1, 2] * 4, [0, 1] * 6),
    "a class of one sample": (torch.randn(12, D), [2] + [0, 1] * 5 + [0], [0, 1] * 6),
    "a class that nobody has": (torch.randn(12, D), [0, 1] * 6, [0, 1] * 6),
    "d above N": (torch.randn(3, D), [0, 1, 2], [0, 1, 0]),
    "one has everything": (torch.randn(12, D), [0, 1, 2] * 4, [0] * 12),
    "one sample": (torch.randn(1, D), [1], [0]),
    "huge": (torch.randn(12, D) * 1e6, [0, 1, 2] * 4, [0, 1] * 6),
    "tiny": (torch.randn(12, D) * 1e-8, [0, 1, 2] * 4, [0, 1] * 6),
}


@few("method", CLOSED, 2)
@few("case", DEGENERATE, 3)
def test_degenerate_samples(case, method):
    """Answers are classes that somebody has, in every precision and without a shrinkage that would help."""
    torch.manual_seed(0)
    x, y, owners = DEGENERATE[case]
    data = divided(x, torch.tensor(y), owners, ["ann", "bob"])
    bare = {"method__shrinkage": 0.0} if method.endswith("lda") else {}
    bare |= {"method__lambda": 0.0} if method == "fed3r" else {"method__gamma": 0.0} if method == "fedcof" else {}
    for options in ({}, bare):
        for more in ({}, {"execution__precision": "fp32", "wire__codec": "float32"}, {"rounds": 2}):
            federation = run(method, data, **options, **more)
            for tensor in federation.server.values():
                assert tensor.isfinite().all()
            for name, rules in answers(federation, x).items():
                for rule, classes in rules.items():
                    assert set(classes.tolist()) <= set(y), (name, rule)


def answers(federation: Federation, x: torch.Tensor) -> dict[str, dict[str, torch.Tensor]]:
    from protofed.methods import Batch
    from support import visited

    found = {}
    for name, client in visited(federation).items():
        model = client.model.eval()
        batch = Batch(x.to(next(model.parameters()).dtype), torch.zeros(len(x), dtype=torch.int64))
        if len(client.train):
            found[name] = predict(federation.method, model, batch, client.received, client.state)
    return found


def test_with_others_that_have_nothing_it_is_local_lda():
    x, y = points(60, 6)
    data = divided(x, y, [i % 3 for i in range(60)], ["ann", "bob", "cid"])
    alone = answers(run("local_lda", data), x)
    pooled = answers(run("fedlda", data, method__personal=False), x)
    mixed = answers(run("fedlda", data), x)
    single = {c.name: answers(run("fedlda", replace(data, clients=(c,))), x)[c.name] for c in data.clients}
    for name in alone:
        assert torch.equal(single[name]["head"], alone[name]["head"])
        assert torch.equal(mixed[name]["global_model"], pooled[name]["global_model"])
        assert torch.equal(mixed[name]["nearest"], pooled[name]["nearest"])


def test_secure_rounds_replace_each_other():
    x, y = points(24, 7)
    data = divided(x, y, [i % 3 for i in range(24)], ["ann", "bob", "cid"])
    options = {"secure__aggregation": True, "secure__fraction_bits": 40, "method__personal": False}
    one, three = (run("fedlda", data, rounds=rounds, **options).server for rounds in (1, 3))
    assert one.keys() == three.keys()
    assert all(torch.allclose(one[n].double(), three[n].double(), atol=1e-9) for n in one)


def test_what_is_not_reported_is_not_in_the_moment():
    """The second moment is of reported classes alone: that of a single sample would be the sample."""
    x, y = points(24, 8)
    y = torch.tensor([2] + [0, 1] * 11 + [0])
    data = divided(x, y, [0] * 12 + [1] * 12, ["ann", "bob"])
    options = {"method__personal": False, "method__shrinkage": 0.1}
    rare = run("fedlda", data, privacy__least_samples=2, **options).server
    without = run("fedlda", divided(x[1:], y[1:], [0] * 11 + [1] * 12, ["ann", "bob"]), **options).server
    assert rare["present"].tolist() == [True, True, False]
    assert torch.allclose(rare["weights"], without["weights"], atol=1e-9)


def test_one_round_unless_asked_otherwise():
    tree = load_recipe("quickstart")
    assert resolve(tree, method="fedlda").rounds == 1
    assert resolve(tree, method="fedproto").rounds == tree["rounds"]
    assert resolve(apply_overrides(tree, {"rounds": 3}), method="fedlda").rounds == 3
    asked = resolve(apply_overrides(tree, {"rounds": tree["rounds"]}), method="fedlda")
    assert asked.rounds == resolve(asked.to_tree()).rounds == tree["rounds"] > 1
    assert resolve({**BASE, "rounds": 1, "data": {"validation_fraction": 0.2}}, method="fedlda").rounds == 1
    assert resolve({"method": {"name": "fedlda"}}).rounds == 1
    held = apply_overrides(tree, {"data.validation_fraction": 0.2})
    assert resolve(held, method="fedlda").rounds == 1


@pytest.mark.parametrize("method", [*CLOSED, "fedpft"])
def test_a_closed_form_has_an_encoder_unless_a_network_is_asked_for(method):
    """A recipe's network, which nobody would train, is no reason to take its features."""
    tree = {"model": {"name": "cnn4", "d": 16}, "transforms": {"mean": [0.5], "std": [0.5]}}
    found = resolve(tree, method=method)
    assert (found.encoder.name, found.encoder.dim, found.model.name) == ("auto", 128, "identity")
    assert not found.transforms.mean
    assert resolve(found.to_tree()) == found
    assert resolve({**tree, "encoder": {"dim": 32}}, method=method).encoder.dim == 32
    asked = resolve(apply_overrides(tree, {"encoder.name": "none"}), method=method)
    assert (asked.encoder.name, asked.model.name) == ("", "cnn4")
    assert asked.to_tree()["encoder"]["name"] == "none"
    assert resolve(asked.to_tree()) == asked != found
    assert asked.key != found.key
    trained = resolve(tree, method="fedproto")
    assert (trained.encoder.name, trained.model.name) == ("", "cnn4")
    assert resolve(trained.to_tree(), method=method).encoder == found.encoder  # it asked for nothing
    assert resolve(apply_overrides(tree, {"encoder.name": "none"}), method="fedproto") == trained


@pytest.mark.parametrize(
    ("options", "rounds", "message"),
    [
        ({"method__shrinkage": "half"}, 1, "method.shrinkage must be a number or 'auto' or 'oas', not 'half'"),
        ({"method__kappa": 0.3}, 1, "method.kappa was removed: clients mix for themselves"),
        ({"privacy__mode": "client", "privacy__noise": 1.0}, 1, "its server needs n_ik"),
    ],
)
def test_what_does_not_fit_is_one_line(options, rounds, message):
    x, y = points(24, 9)
    data = divided(x, y, [i % 3 for i in range(24)], ["ann", "bob", "cid"])
    with one_line(ConfigError, message):
        run("fedlda", data, **{**options, "rounds": rounds})


@pytest.mark.parametrize("method", ["fedncm", "fed3r", "fedcof", "fedlda"])
def test_a_client_can_be_taken_out_again_bit_for_bit(method):
    """The server keeps what each client sent: without one's, the rest gives that of a run without it."""
    x, y = points(24, 12)
    owners = [i % 3 for i in range(24)]
    data = divided(x, y, owners, ["ann", "bob", "cid"])
    options = {"method__personal": False} if method == "fedlda" else {}
    whole = run(method, data, **options)
    rest = FederatedData(data.clients[:1] + data.clients[2:], K, data.class_names, data.input_shape)
    expected = run(method, rest, **options).server
    left = {name: tensor for name, tensor in whole.server.items() if ".bob/" not in name}
    again = {name.partition(".")[0]: tensor for name, tensor in left.items() if ".ann/" in name}
    found = whole.method.aggregate(left, iter([Upload("ann", again)]), 2).state
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def two_models(**settings: object) -> FederatedData:
    x, y = points(24, 14)
    data = divided(x.float(), y, [i % 2 for i in range(24)], ["ann", "bob"])
    ann, bob = data.clients
    return FederatedData((ann, replace(bob, settings=settings)), K, data.class_names, data.input_shape)


MLP = {"model__name": "mlp", "model__options": {"hidden": [4]}, "execution__precision": "fp32"}


@pytest.mark.parametrize("method", ["fedncm", "fed3r", "fedcof", "fedlda"])
@pytest.mark.parametrize(
    ("options", "settings", "message"),
    [
        ({**MLP, "model__init": "own"}, {}, r"if each client has weights of its own \(model.init=own\)"),
        ({**MLP, "model__start": "runs/trained"}, {}, r"if each client has weights of its own \(model.start\)"),
        (MLP, {"model": "mlp"}, "adds up features and needs one architecture, but ann has mlp"),
        (
            {**MLP, "model__options": {}, "model__members": [{"name": "mlp"}, {"name": "identity"}]},
            {},
            "adds up features and needs one architecture, but ann has mlp",
        ),
    ],
)
def test_features_that_mean_different_things_are_refused(method, options, settings, message):
    with one_line(ConfigError, message, says="encoder.name"):
        run(method, two_models(**settings), **options)


def test_a_network_that_nobody_trains_is_told_of():
    data = two_models()
    said = "Features are those of a network with its initial weights"
    assert said in " ".join(run("fedlda", data, **MLP).method.notes())
    assert not run("fedlda", data).method.notes()
    assert not run("local_lda", data, **MLP).method.notes()
    alone = {**MLP, "model__init": "own"}
    run("local_lda", two_models(model="mlp"), **alone)  # which adds up nothing
