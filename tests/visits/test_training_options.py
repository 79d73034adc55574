"""Transforms, schedules and clipping: what they do, the same on every executor."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from protofed.errors import ConfigError
from protofed.experiments.assemble import assemble
from protofed.methods.contract import Phase, Round, Update
from protofed.methods.local import LocalTraining
from protofed.prototypes.table import Prototypes
from protofed.rounds.checkpoint import Saving, load_checkpoint
from protofed.samples import FederatedData, Samples
from protofed.visits.batches import epoch_rows, normalise
from protofed.visits.client import Schedule
from support import K, assert_alike, build, experiment, few, images, one_line, ordinary, outcome, visited

EXACT = {"rounds": 3, "execution__precision": "fp64", "wire__codec": "float64"}
IMAGES = {"model__name": "support:Images", "model__options": {}}
TRANSFORMS = {
    "transforms__crop": 1,
    "transforms__flip": 0.5,
    "transforms__rotation": 20,
    "transforms__mean": [0.4, 0.5, 0.6],
    "transforms__std": [0.2],
}
ADAM = {"training__optimizer": "Adam", "training__lr": 0.01}
SGD = {"training__momentum": 0.9}
SCHEDULED = {"training__schedule": "cosine", "training__clip": 0.5, "training__epochs": 2}
OPTIONS = {"adam": ADAM, "sgd": SGD | SCHEDULED}


def run(method: str, executor: str, data: FederatedData, **overrides):
    return outcome(build(method, data, execution__executor=executor, **{**EXACT, **overrides}))


# What they do.


def test_factors_of_the_schedules():
    rounds = range(1, 9)
    assert [Schedule().factor(t, 8) for t in rounds] == [1.0] * 8
    assert [Schedule("step", 0.5, 3).factor(t, 8) for t in rounds] == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25]
    assert [Schedule("exponential", 0.5).factor(t, 8) for t in rounds] == [0.5 ** (t - 1) for t in rounds]
    cosine = [Schedule("cosine").factor(t, 8) for t in rounds]
    assert cosine == pytest.approx([0.5 + 0.5 * math.cos(math.pi * (t - 1) / 8) for t in rounds])
    assert cosine[0] == 1
    assert 0 < cosine[-1] < 0.1


@pytest.mark.parametrize("executor", ["sequential", "fused"])
@pytest.mark.parametrize("own", [False, True], ids=["plan", "method"])
def test_a_schedule_scales_every_learning_rate(executor, own, monkeypatch):
    """``w ← w - η·f_t·g`` with f = 1, 1/2, 1/4, for the experiment's η and for a method's own."""
    if own:
        monkeypatch.setattr(
            LocalTraining, "round", lambda self, _: Round((Phase((Update(self.loss, optimizer={"lr": 0.3}),)),))
        )
    lr = 0.3 if own else 0.1
    options = {"training__batch_size": 20, "training__schedule": "exponential", "training__decay": 0.5}
    federation = assemble(experiment("local", execution__executor=executor, **EXACT, **options), ordinary())[0]
    models = {name: c.model.train() for name, c in visited(federation).items()}
    list(federation.run())
    for name, now in visited(federation).items():
        model = models[name]
        for t in range(3):
            parameters = dict(model.named_parameters())
            loss = F.cross_entropy(model(now.train.x.double()).logits, now.train.y)
            for p, g in zip(parameters.values(), torch.autograd.grad(loss, parameters.values()), strict=True):
                p.data -= lr * 0.5**t * g
        for n, p in now.model.named_parameters():
            torch.testing.assert_close(p.data, parameters[n].data, rtol=1e-9, atol=1e-12)


@few("executor", ["sequential", "fused"], 1)
@pytest.mark.parametrize(("mine", "limit"), [(None, 1e-3), (1e-2, 1e-3), (1e-4, 1e-4)])
def test_the_smaller_limit_holds(executor, mine, limit, monkeypatch):
    monkeypatch.setattr(LocalTraining, "round", lambda self, _: Round((Phase((Update(self.loss, clip=mine),)),)))
    chosen = {**EXACT, "training__batch_size": 20, "training__lr": 1.0, "training__clip": 1e-3, "rounds": 1}
    federation = assemble(experiment("local", execution__executor=executor, **chosen), ordinary())[0]
    before = {n: p.clone() for n, p in visited(federation)["ann"].model.named_parameters()}
    next(federation.run())
    after = visited(federation)["ann"].model.named_parameters()
    step = sum(float((p - before[n]).detach().square().sum()) for n, p in after) ** 0.5
    assert step == pytest.approx(limit, rel=2e-2)


@few("executor", ["sequential", "fused"], 1)
def test_steps_see_augmented_samples_and_prototypes_do_not(executor):
    seen = []
    chosen = experiment("fedproto", execution__executor=executor, **EXACT, **IMAGES)
    federation = assemble(chosen, images(train=(8,)))[0]
    assert federation.executor.trainer.augment is None, "nothing is asked for"

    def blacken(samples: Samples, source: torch.Generator) -> Samples:
        seen.append(source.initial_seed())
        return Samples(torch.zeros_like(samples.x), samples.y)

    object.__setattr__(federation.executor.trainer, "augment", blacken)
    before = visited(federation)["c0"].model
    list(federation.run())
    assert len(set(seen)) == len(seen) == 3, "once per round"
    now = visited(federation)["c0"]
    changed = (now.model.extractor.backbone.body[0].weight - before.extractor.backbone.body[0].weight).abs()
    assert changed.max() > 0, "black is -1"
    x = normalise(now.train.x, torch.float64)
    features = now.model.eval()(x).features
    table = Prototypes.of(federation.server)
    for j in now.train.y.unique().tolist():
        torch.testing.assert_close(table.rows[j], features[now.train.y == j].mean(0))


@pytest.mark.slow
def test_normalisation_is_for_training_and_test_alike():
    """A model that is given ``(v - m)/s`` itself computes the same."""
    data, options = images(), {"transforms__mean": [0.4, 0.5, 0.6], "transforms__std": [0.2, 0.3, 0.4]}
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in ([0.4, 0.5, 0.6], [0.2, 0.3, 0.4]))
    by_hand = data.map(lambda s: Samples((s.x.double() / 255 - mean) / std, s.y))
    wide = data.map(lambda s: Samples(s.x.double() / 255, s.y))
    for executor in ("sequential", "fused"):
        expected = run("fedproto", executor, by_hand, **IMAGES)
        assert_alike(expected, run("fedproto", executor, data, **IMAGES, **options), exact=False)
        assert_alike(expected, run("fedproto", executor, wide, **IMAGES, **options), exact=False)


# On every executor.


@few(
    ("method", "options"),
    [("probes:Probe", "adam"), ("probes:Probe", "sgd"), ("fml", "adam"), ("fedrep", "sgd")],
    1,
)
def test_executors_agree(method, options):
    chosen = IMAGES | TRANSFORMS | OPTIONS[options]
    expected = run(method, "sequential", images(), **chosen)
    assert_alike(expected, run(method, "sequential", images(), execution__clients_in="disk", **chosen), exact=True)
    assert_alike(expected, run(method, "fused", images(), **chosen), exact=False)


def test_a_seed_gives_the_same_numbers_in_every_version():
    """Orders of batches, noise, augmentation, draws of hooks: another stream of any changes every result."""
    options = {**EXACT, **IMAGES, **TRANSFORMS, "rounds": 2}
    _, records, tensors = run("probes:Probe", "sequential", images(), **options)
    losses = {name: [r["losses"][name] for r in records] for name in ("cross_entropy", "probe", "total")}
    assert losses == {
        "cross_entropy": pytest.approx([1.46462018630, 1.37121140502], rel=1e-6),
        "probe": pytest.approx([2.01461743187, 1.40500206617], rel=1e-6),
        "total": pytest.approx([4.92095497325, 4.13157032745], rel=1e-6),
    }
    traces = [float(tensors[f"c{i}.state.trace"]) for i in range(3)]
    assert traces == pytest.approx([9.38927855850, 10.4838523141, 8.02997564001], rel=1e-6)


@pytest.mark.slow
@few("simulated", [False, True], 1, ids=["deployment", "simulation"])
def test_nodes_agree(simulated, tmp_path: Path):
    pytest.importorskip("protofed_flower", reason="needs protofed-flower")
    from network import assert_nodes_agree, wanted, write_folders

    root = write_folders(tmp_path / "data", images())
    chosen = wanted("probes:Probe", root, execution__executor="sequential", **IMAGES, **TRANSFORMS, **ADAM)
    assert_nodes_agree(chosen, root, tmp_path, simulated=simulated)


@few("options", OPTIONS, 1)
def test_a_run_resumes_bit_for_bit(options, tmp_path):
    chosen = experiment("fedproto", **EXACT, **IMAGES, **TRANSFORMS, **OPTIONS[options])
    _, records, tensors = run("fedproto", "sequential", images(), **IMAGES, **TRANSFORMS, **OPTIONS[options])
    stopped = assemble(chosen, images())[0]
    next(stopped.run())
    Saving(tmp_path).save(stopped.state, stopped.executor.clients)
    resumed = assemble(chosen, images())[0]
    assert load_checkpoint(tmp_path, resumed.state, resumed.executor.clients)
    assert_alike((None, records[1:], tensors), outcome(resumed), exact=True)


# Bad input.


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"transforms__cutout": 3}, "unknown option of transforms 'cutout'"),
        ({"transforms__crop": 2}, r"transforms\.crop is for images .* samples have the shape \(6,\)"),
        ({"training__schedule": "linear"}, "training.schedule must be 'constant' or"),
        ({"training__decay": 0}, r"training\.decay must be above 0 and at most 1, not 0"),
        ({"training__decay_every": 0}, "training.decay_every must be at least 1"),
        ({"training__clip": -1}, "training.clip must be at least 0"),
    ],
)
def test_it_is_told_before_training_starts(overrides, expected):
    with one_line(ConfigError, expected):
        assemble(experiment("local", **overrides), ordinary())


@pytest.mark.parametrize("executor", ["sequential", "fused"])
def test_batches_in_order_with_the_last_one_dropped(executor):
    """Two of ann's, one of bob's and two of cid's batches of four, the same in every round."""
    chosen = {"training__shuffle": False, "training__drop_last": True}
    federation = assemble(experiment("local", execution__executor=executor, **EXACT, **chosen), ordinary())[0]
    models = {name: copy.deepcopy(c.model).train() for name, c in visited(federation).items()}
    list(federation.run())
    for name, now in visited(federation).items():
        parameters = dict(models[name].named_parameters())
        for start in [*range(0, len(now.train) // 4 * 4, 4)] * 3:
            rows = slice(start, start + 4)
            loss = F.cross_entropy(models[name](now.train.x[rows].double()).logits, now.train.y[rows])
            for p, g in zip(parameters.values(), torch.autograd.grad(loss, parameters.values()), strict=True):
                p.data -= 0.1 * g
        for n, p in now.model.named_parameters():
            torch.testing.assert_close(p.data, parameters[n].data, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("samples", [0, 1, 3, 4, 5, 8])
@pytest.mark.parametrize("even", [False, True])
def test_the_only_batch_is_never_dropped(samples, even):
    rows = epoch_rows(samples, 4, even, 0, "x", drop_last=True)
    expected = samples // 4 * 4 or (samples if samples > 1 or not even else 0)
    assert sum(map(len, rows)) == expected
    assert all(len(own) == min(4, samples) for own in rows)


@few("executor", ["sequential", "fused"], 1)
@pytest.mark.parametrize("drop", [False, True])
def test_prototypes_of_the_weights_before_training(executor, drop):
    """They are those of the round before, of the samples in whole batches if the last is dropped."""
    options = {"method__prototypes": "before", "training__drop_last": drop, "training__shuffle": not drop}
    federation = assemble(experiment("fedproto", execution__executor=executor, **EXACT, **options), ordinary())[0]
    for _ in range(2):
        before = visited(federation)
        next(federation.run())
        for name, now in visited(federation).items():
            kept = len(now.train) // 4 * 4 if drop else len(now.train)
            y = now.train.y[:kept]
            with torch.no_grad():
                features = before[name].model.eval()(now.train.x[:kept].double()).features
            for j in range(K):
                assert bool(now.state["present"][j]) is bool((y == j).any())
                if (y == j).any():
                    torch.testing.assert_close(now.state["prototypes"][j], features[y == j].mean(0))
        assert any(
            not torch.equal(a.model.head.weight, b.model.head.weight)
            for a, b in zip(before.values(), visited(federation).values(), strict=True)
        )


@pytest.mark.parametrize("options", [{"training__shuffle": False}, {"training__drop_last": True}])
def test_dp_sgd_draws_its_own_batches(options):
    with pytest.raises(ConfigError, match="draws its batches"):
        assemble(experiment("fedproto", privacy={"mode": "sample", "noise": 1.0}, **options), ordinary())
