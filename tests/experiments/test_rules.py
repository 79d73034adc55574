"""What leaves the library classifies by the rule that it names: modules and exported files, of every method."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open

import protofed
from protofed.config.schema import every_method
from protofed.experiments import resolve
from protofed.experiments.loading import load_data
from protofed.models.encoders import EncoderOptions
from support import SMALL_RUN, command, few, write_vectors


def train(out, method, **overrides):
    dotted = {name.replace("__", "."): value for name, value in overrides.items()}
    return protofed.run(
        "quickstart", {**SMALL_RUN, "model.d": 16, "rounds": 1, "method.name": method, **dotted}, out=out
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs by method, each trained once."""
    made = {}

    def of(method):
        if method not in made:
            names = {"data__labels": dict(zip("0123456789", "abcdefghij", strict=True))}  # fedtsp takes no numbers
            made[method] = train(tmp_path_factory.mktemp("runs") / method, method, **names)
        return made[method]

    return of


def held_by(run, client):
    unencoded = replace(resolve(run.config), encoder=EncoderOptions())
    return {c.name: c.test for c in load_data(unencoded).clients}[client].x


@pytest.mark.parametrize("method", every_method())
def test_a_module_is_the_rule_that_predict_names(method, runs):
    """Softmax of its scores are the probabilities, the largest is the label; without a rule, the main rule."""
    run = runs(method)
    trained = run.client(run.names[-1])
    x = held_by(run, trained.name)
    for rule in ("", *trained.rules):
        found, model = run.predict(trained.name, x, rule), trained.model(rule)
        scores = model(x)
        assert model.rule == found.rule == (rule or run.main_rule)
        assert scores.double().softmax(-1).numpy() == pytest.approx(found.probabilities, abs=1e-6), rule
        assert scores.argmax(-1).tolist() == found.labels.tolist(), rule
        assert (model.class_names, model.input_shape) == (tuple(run.class_names), (1, 8, 8))


def test_a_diverged_model_stays_one(runs):
    """Its scores are not finite where ``predict`` gives no class."""
    run = runs("fedproto")
    trained = run.client("client-00")
    with torch.no_grad():
        next(trained.classifier.model.parameters()).fill_(torch.nan)
    x = held_by(run, "client-00")
    for rule in trained.rules:
        assert (trained.predict(x, rule).labels == -1).all()
        assert not trained.model(rule)(x).isfinite().all(-1).any()


CASES = [
    *(("beacon", rule) for rule in ("head", "expert", "beacon", "all_classes", "global_model")),
    *(("fedproto", rule) for rule in ("global", "local", "head")),
    *(("gfpl", rule) for rule in ("etf", "head")),
    *(("fedlc", rule) for rule in ("global_model", "global_prior", "head")),
    ("fixed_etf", "global"),
    ("fml", "global_model"),
]


@few("form", ["onnx", "torch_export", "safetensors"], 1)
@few(("method", "rule"), CASES, 1)
def test_an_exported_file_is_the_rule_that_it_names(method, rule, form, runs, tmp_path, monkeypatch, capsys):
    if form == "onnx":
        onnxruntime, onnx = pytest.importorskip("onnxruntime"), pytest.importorskip("onnx")
    run, path = runs(method), tmp_path / "model"
    arguments = ("export", run.directory, "client-00", "--format", form, "--rule", rule, "--out", path)
    status, out, _ = command(monkeypatch, capsys, *arguments)
    x = held_by(run, "client-00")
    assert status == 0
    assert out == (
        f"Written: {path}, by the rule {rule}; equal to predict on {len(x)} test samples of client-00 and 200 "
        f"random samples. Card: {path}.model-card.md\n"
    )
    if form == "onnx":
        facts = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
        found = onnxruntime.InferenceSession(path).run(["probabilities"], {"samples": x.numpy()})[0]
    elif form == "torch_export":
        extra = {"protofed.json": ""}
        found = torch.export.load(path, extra_files=extra).module()(x)[1].numpy()
        facts = json.loads(extra["protofed.json"])
    else:
        with safe_open(path, framework="pt") as file:
            facts = json.loads(file.metadata()["protofed"])
        found = None
    assert (facts["rule"], json.loads(facts["outputs"])) == (rule, ["logits", "probabilities", "features"])
    if found is not None:
        assert np.abs(found - run.predict("client-00", x, rule).probabilities).max() < 1e-4


@pytest.mark.slow
def test_a_file_has_what_its_rule_needs_and_nothing_else(runs, tmp_path):
    """The shared network leaves without the private one and without the client's class frequencies."""
    needs = {}
    for rule in ("head", "beacon", "global_model"):
        path = runs("beacon").export("client-00", tmp_path / f"{rule}.safetensors", rule=rule)
        with safe_open(path, framework="pt") as file:
            needs[rule] = {name.split(".")[0] if "state" not in name else name for name in file.keys()}  # noqa: SIM118
    assert needs["global_model"] == {"extras"}
    assert needs["beacon"] == {"extras", "state.prior"}
    assert needs["head"] == {"extractor", "head", "extras", "state.prior", "state.own"}
    with safe_open(runs("fedproto").export("client-00", tmp_path / "p.safetensors"), framework="pt") as file:
        assert {"received.prototypes", "received.present"} <= set(file.keys())
        assert not any(name.startswith("state.") for name in file.keys())  # noqa: SIM118


@pytest.mark.slow
def test_a_check_says_on_what_it_was(tmp_path, monkeypatch, capsys):
    root = write_vectors(tmp_path / "data")
    overrides = {"data.source": "path", "data.path": str(root), "partition.alpha": 0.5}
    run = train(tmp_path / "run", "fedproto", **overrides)
    samples = tmp_path / "given.npy"
    np.save(samples, np.load(root / "clients" / "c1" / "test.npz")["x"])
    ask = ("export", run.directory, "c0", "--format", "torch_export", "--out", tmp_path / "m.pt2")
    _, given, _ = command(monkeypatch, capsys, *ask, "--samples", samples, "--samples", samples)
    assert f"equal to predict on 30 samples of {samples}, {samples} and 200 random samples. Card: " in given
    load_data.__globals__["_load_data"].cache_clear()
    shutil.rmtree(root)
    status, alone, _ = command(monkeypatch, capsys, *ask)
    assert status == 0
    assert "; equal to predict on 200 random samples alone (the run's data are not at hand: " in alone
    assert alone.count("\n") == 1
    (tmp_path / "m.pt2").unlink()
    status, _, wrong = command(monkeypatch, capsys, *ask, "--samples", tmp_path / "none.npy")
    assert (status, wrong.count("\n"), (tmp_path / "m.pt2").exists()) == (2, 1, False)


OWN = """
import torch
from protofed.methods import Method, Rule, Traits

class Draws(Method):
    name = "draws"
    summary = "rules that cannot be exported"

    @classmethod
    def traits(cls, options):
        return Traits(rules=(Rule("head", "Head"), Rule("dice", "Dice")))

    def scores(self, model, batch, received, state):
        logits = model(batch.x).logits
        return {"head": logits, "dice": logits + torch.rand_like(logits)}
"""


@pytest.mark.slow
def test_rules_that_cannot_be_exported_say_which_can(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    train(tmp_path / "run", "own.py:Draws")
    for rule, why in (("dice", "its scores differ from one call to the next"),):
        for form in ("onnx", "torch_export", "safetensors"):
            status, _, told = command(
                monkeypatch, capsys, "export", "run", "client-00", "--format", form, "--rule", rule, "--trust-code"
            )
            assert status == 2
            assert f"by the rule {rule!r}" in told
            assert why in told
            assert told.endswith("rules that can be: head\n")
            assert told.count("\n") == 1
    assert not list(tmp_path.glob("client*"))
