"""Attacks that earlier versions of the audit lacked, and what stands in their way."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import closing
from functools import partial

import pytest
import torch
from attacking import audited
from torch import nn

import protofed
import support
from protofed.errors import PayloadError
from protofed.experiments.assemble import assemble
from protofed.models import SplitModel
from protofed.samples import ClientData, Samples
from protofed_flower.pins import check_weights
from protofed_lab.audit import imprint
from protofed_lab.audit.attacks import INFORMED, SERVER
from protofed_lab.audit.imprint import read_verbatim
from protofed_lab.audit.membership import Observed, _findings, _view, likelihood_ratio
from protofed_lab.audit.seen import Rows
from support import few


def scarce(random: torch.Generator) -> protofed.samples.FederatedData:
    """Return clients with classes of 2, 6, 20 and 60 samples, and as many others of each class."""
    clients = []
    for number, name in enumerate(("ann", "bob", "cid", "dan", "eve", "fay")):
        sizes = [(2, 6, 20, 60)[(label + number) % 4] for label in range(support.K)]
        y = torch.cat([torch.full((n,), label) for label, n in enumerate(sizes)])
        x = torch.randn(2 * len(y), support.FEATURES, generator=random) + torch.cat([y, y]).unsqueeze(1)
        clients.append(ClientData(name, Samples(x[: len(y)], y), Samples(x[len(y) :], y)))
    return support.federated(*clients)


def membership_of(**options):
    """Return the findings on membership by key and observer."""
    data = scarce(torch.Generator().manual_seed(0))
    experiment = support.experiment("fedproto", rounds=2, model__d=8, **options)
    return audited(experiment, data)


@pytest.mark.slow
def test_a_prototype_of_few_samples_is_nearly_a_sample():
    found = membership_of()
    few, many = found["membership_informed_1", INFORMED], found["membership_informed_31", INFORMED]
    assert few.value > max(0.8, many.value + 0.1)
    assert few.learned
    assert few.measure == "AUC, classes of 1 to 3 samples"
    assert "too few" in few.note
    assert "likelihood ratio" in few.note
    assert found["membership_informed_tpr_1", INFORMED].value > 0.3


@pytest.mark.slow
def test_rare_classes_that_are_not_reported_tell_nothing():
    """Of classes that are reported, the attack still finds what it did."""
    open_, closed = membership_of(), membership_of(privacy__least_samples=11)
    for least in (1, 4):
        key = (f"membership_informed_{least}", INFORMED)
        assert open_[key].learned
        assert closed[key].value == pytest.approx(closed[key].baseline, abs=0.1)
    assert ("membership_11", SERVER) in closed


def test_the_likelihood_ratio_is_that_of_two_normal_densities():
    random = torch.Generator().manual_seed(0)
    x, p = torch.randn(2, 3, generator=random, dtype=torch.float64)
    spread = torch.randn(3, 3, generator=random, dtype=torch.float64)
    covariance, mean, n = spread @ spread.mT + torch.eye(3), torch.zeros(3, dtype=torch.float64), 4
    normal = torch.distributions.MultivariateNormal
    inside = normal(mean + (x - mean) / n, covariance * ((n - 1) / n**2 + 0.02 / n)).log_prob(p)
    outside = normal(mean, covariance * 1.02 / n).log_prob(p)
    found = likelihood_ratio(x.unsqueeze(0), p.unsqueeze(0), n, mean, covariance)
    assert found.item() == pytest.approx((inside - outside).item())


def test_a_prototype_as_wide_as_the_inputs_is_compared_with_features():
    features, logits, raw = torch.ones(3, 8), torch.ones(3, 4), torch.zeros(3, 8)
    rows = Rows(torch.full((1, 8), 2.0), torch.zeros(1, dtype=torch.int64), False)
    assert _view(rows, features, logits, raw) is features


# A server that crafts weights.


@pytest.fixture(scope="module")
def readings():
    """Return the number of samples read, by options."""

    def read(method="fedavg", free=True, model="mlp", **options):
        experiment = support.experiment(
            method, model__name=model, model__options={"hidden": [64, 16]} if model == "mlp" else {}, **options
        )
        data = scarce(torch.Generator().manual_seed(0))
        federation, _ = assemble(experiment, data)
        with closing(federation.executor):
            before = {n: t.clone() for n, t in federation.server.items()}
            found = read_verbatim(federation, data, 1, free=free)
            assert all(torch.equal(before[n], t) for n, t in federation.server.items())
        return found

    return read


@pytest.mark.parametrize("free", [True, False])
def test_a_server_reads_training_samples_from_one_upload(readings, free):
    """Whether or not batch size and epochs are pinned: the weights alone suffice."""
    found = readings(free=free, training__batch_size=16)
    assert found.value > (0.1 if free else 0.02)
    assert found.learned
    assert "training samples to 1 %, " in found.note


def test_a_network_beside_the_client_s_own_is_read_too_through_its_normalisation(readings, monkeypatch):
    """Beacon's for vectors has LayerNorm, which would hide a direction that all units have."""
    found = readings("beacon")
    assert found.value > 0.1
    monkeypatch.setattr(imprint, "FAR", 0.0)
    assert readings("beacon").value < 0.1 * found.value


def test_a_node_refuses_the_weights_of_the_attack():
    layers = OrderedDict(linear=nn.Linear(12, 32), norm=nn.LayerNorm(32), relu=nn.ReLU())
    model = SplitModel(nn.Sequential(layers), nn.Linear(32, 4))
    at = imprint.Door("extractor.linear", "head", "extractor.norm")
    random = torch.Generator().manual_seed(0)
    weights = {n: t.detach() for n, t in model.named_parameters()}
    check_weights(model, weights, weights)
    made = imprint.crafted(weights, at, torch.randn(50, 12, generator=random), 1.0, random)
    assert {n: t.shape for n, t in made.items()} == {n: weights[n].shape for n in at.parameters()}
    with pytest.raises(PayloadError, match=r"\d+ of \d+ rows have one direction"):
        check_weights(model, made, weights)


def altered(made, at, own, *, noise=0.0, negated=False, directions=1, kept=0):
    """Return the weights of the attack with noise on rows, opposite ones, more directions, or rows left alone."""
    weight, bias = f"{at.first}.weight", f"{at.first}.bias"
    rows, levels = made[weight].clone(), made[bias].clone()
    units, random = len(rows), torch.Generator().manual_seed(0)
    if directions > 1:
        others = torch.randn(directions, rows.shape[1], generator=random)
        rows = nn.functional.normalize(others, dim=1)[torch.arange(units) % directions] * rows.norm(
            dim=1, keepdim=True
        )
    rough = nn.functional.normalize(torch.randn(rows.shape, generator=random), dim=1)
    rows += noise * rows.norm(dim=1, keepdim=True) * rough
    if negated:
        rows[units // 2 :] *= -1
        levels[units // 2 :] *= -1
    rows[:kept], levels[:kept] = own[weight][:kept], own[bias][:kept]
    return {**own, **made, weight: rows, bias: levels}


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"noise": 0.016},
        {"negated": True},
        {"noise": 0.016, "negated": True},
        {"noise": 0.1},
        {"noise": 0.2, "negated": True},
        {"directions": 4},
        {"directions": 4, "noise": 0.016, "negated": True},
        {"kept": 64},
        {"kept": 100, "noise": 0.016},
    ],
    ids=str,
)
def test_a_node_refuses_disguised_weights_of_the_attack(how):
    model = protofed.models.build("mlp", input_shape=(64,), num_classes=10, d=64)
    own = {n: t.detach() for n, t in model.named_parameters()}
    at, random = imprint.Door("extractor.backbone.1", "extractor.backbone.3"), torch.Generator().manual_seed(0)
    made = imprint.crafted(own, at, torch.rand(500, 64, generator=random), 1.0, random)
    with pytest.raises(PayloadError, match=r"^extractor.backbone.1.weight: \d+ of \d+ rows have one direction"):
        check_weights(model, altered(made, at, own, **how), own)


def test_a_node_refuses_the_attack_behind_a_layer_that_passes_inputs_on():
    model = protofed.models.build("mlp", input_shape=(64,), num_classes=10, d=64)
    own = {n: t.detach() for n, t in model.named_parameters()}
    at, random = imprint.Door("extractor.backbone.3", "extractor.map.linear"), torch.Generator().manual_seed(0)
    made = imprint.crafted(own, at, torch.rand(500, 128, generator=random), 1.0, random)
    made |= {"extractor.backbone.1.weight": torch.eye(128, 64), "extractor.backbone.1.bias": torch.zeros(128)}
    with pytest.raises(PayloadError, match=r"^extractor.backbone.3.weight: 128 of 128 rows"):
        check_weights(model, {**own, **made}, own)


def weights_of(model):
    return {n: t.detach().clone() for n, t in model.named_parameters()}


SHAPED = {"cnn1d": (2, 64), "fcn1d": (2, 64), "mlp": (20,), "tiny": (20,), "identity": (20,)}


@pytest.mark.parametrize("name", sorted(protofed.models.architectures))
def test_no_architecture_is_refused_at_its_start_nor_trained_and_averaged(name):
    """Two clients with a class each and strong weight decay, which makes rows parallel."""
    random = torch.Generator().manual_seed(0)
    text = name.startswith("text_")
    shape = (12,) if text else SHAPED.get(name, (3, 32, 32))
    build = partial(protofed.models.build, name, input_shape=shape, num_classes=4, d=16)
    shared = weights_of(build(seed=0))
    check_weights(build(seed=0), weights_of(build(seed=1)), shared)
    own, model = dict(shared), build(seed=0)
    for _ in range(2):
        trained = []
        for label in range(2):
            model.load_state_dict(shared, strict=False)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
            for _ in range(3):
                x = torch.randint(1, 100, (4, *shape), generator=random) if text else None
                x = torch.randn(4, *shape, generator=random) + label if x is None else x
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x).logits, torch.tensor([label, label, 2, 3])).backward()
                optimizer.step()
            trained.append(weights_of(model))
            check_weights(model, trained[-1], own)
        shared = {n: (trained[0][n] + trained[1][n]) / 2 for n in shared}
        check_weights(model, shared, own)


@few(
    ("data", "decay", "seed"),
    [(d, w, s) for d in ("iris", "breast_cancer") for w in (1e-2, 5e-2) for s in (0, 1)],
    2,
)
def test_layers_that_weight_decay_has_condensed_are_not_refused(data, decay, seed):
    """Trained for long, all rows of a layer have one direction or two, but their thresholds are the same."""
    from sklearn import datasets

    found = getattr(datasets, f"load_{data}")()
    x, y = torch.tensor(found.data, dtype=torch.float32), torch.tensor(found.target)
    x = (x - x.mean(0)) / x.std(0)
    model = protofed.models.build("mlp", input_shape=(x.shape[1],), num_classes=3, d=16, seed=seed)
    own, random = weights_of(model), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=decay)
    for _ in range(1500):
        batch = torch.randint(len(x), (32,), generator=random)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]).logits, y[batch]).backward()
        optimizer.step()
    check_weights(model, weights_of(model), own)


@few(
    "options",
    [
        {"secure__aggregation": True},
        {"privacy__mode": "sample", "privacy__noise": 1.0},
        {"secure__aggregation": True, "privacy__mode": "client", "privacy__noise": 1.0},
    ],
    1,
)
def test_sums_and_noise_hide_them(readings, options):
    assert readings(**options).value < 0.1 * readings().value


@pytest.mark.parametrize("method", ["fedproto", "lg_fedavg"])
def test_says_where_no_such_weights_travel(readings, method):
    found = readings(method)
    assert found.value is None
    assert "load no weights" in found.note


def noise(members: int, others: int, seed: int) -> Observed:
    """Return what an attacker observes of samples about which nothing can be told."""
    n, generator = members + others, torch.Generator().manual_seed(seed)
    member = torch.arange(n) < members
    draw = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    return Observed(draw[:, :3], draw[:, 3], member, torch.full((n,), 2), torch.arange(n) % 4)


@pytest.mark.slow
def test_noise_is_no_finding_among_few_others():
    """Above the largest score of one other are half of the members by chance."""
    known, found = noise(40, 40, 99), 0
    for seed in range(60):
        judged = {f.key: f for f in _findings(SERVER, known, noise(5, 1, seed))}
        (caught,) = [f for key, f in judged.items() if key == "membership_tpr"]
        assert caught.baseline == 0.5
        found += bool(caught.learned)
    assert found <= 6
