"""The encoder as a step of data preparation: every engine, prediction and export, and the cache."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from network import FakeGrid, forget, nodes_of, over, wanted, write_folders
from protofed.errors import DataError
from protofed.experiments import encoding
from protofed.experiments.encoding import encode
from protofed.experiments.loading import _load_data
from protofed.models.encoders import EncoderOptions, build_encoder
from protofed.runs.loading import load_run
from protofed.samples import ClientData, Samples
from support import command, few, ordinary

ARGUMENTS = (
    "method.name=fedproto",
    "rounds=1",
    "data.samples=300",
    "data.clients=3",
    "data.validation_fraction=0.2",
)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PROTOFED_CACHE", str(tmp_path / "cache"))
    _load_data.cache_clear()
    yield tmp_path / "cache"
    _load_data.cache_clear()


def images(n=6, seed=0, dtype=torch.uint8):
    x = torch.randint(0, 256, (n, 1, 8, 8), generator=torch.Generator().manual_seed(seed)).to(dtype)
    return Samples(x, torch.arange(n) % 2)


def two(**splits):
    a = ClientData("a", images(6, 1), images(4, 2), images(3, 3))
    b = ClientData("b", images(5, 4), Samples(torch.zeros(0, 1, 8, 8, dtype=torch.uint8), torch.zeros(0).long()))
    from protofed.samples import FederatedData

    return FederatedData((a, b), 2, ("0", "1"), (1, 8, 8))


def test_every_split_of_every_client_is_encoded():
    raw, options = two(), EncoderOptions(name="scattering", dim=10)
    made = encode(raw, options)
    encoder = build_encoder(options, (1, 8, 8))
    assert made.input_shape == (10,)
    assert made.encoding.input_shape == (1, 8, 8)
    assert made.encoding.eight_bit
    for before, after in zip(raw.clients, made.clients, strict=True):
        for name in ("train", "test", "validation"):
            if (samples := getattr(before, name)) is None:
                assert getattr(after, name) is None
                continue
            expected = torch.cat([torch.zeros(0, 10), *encoder.batches(samples.x)])
            assert torch.equal(getattr(after, name).x, expected)
            assert torch.equal(getattr(after, name).y, samples.y)
    assert any("10 fixed features" in note for note in made.notes)
    assert encode(raw, EncoderOptions()) is raw


def test_values_that_are_not_finite_are_refused_by_name():
    raw = two()
    x = raw.clients[1].train.x.float()
    x[3, 0, 2, 2] = torch.nan
    raw = raw.map(lambda s: Samples(s.x.float(), s.y))
    from dataclasses import replace

    broken = replace(raw.clients[1], train=Samples(x, raw.clients[1].train.y))
    with pytest.raises(DataError, match="b: train samples: sample 3 has values that are not finite"):
        encode(replace(raw, clients=(raw.clients[0], broken)), EncoderOptions(name="scattering"))


@few("name", ["scattering", "random", "identity", "auto"], 1)
def test_run_as_typed(name, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    status, _, errors = command(
        monkeypatch, capsys, "run", "quickstart", f"encoder.name={name}", *ARGUMENTS, "--out", out
    )
    assert status == 0, errors
    (found,) = out.rglob("federation.json")
    tree = json.loads(found.read_text())
    assert tree["encoder"]["input_shape"] == [1, 8, 8]
    assert len(tree["input_shape"]) == 1
    assert any(f"encoder.name={'scattering' if name == 'auto' else name}" in note for note in tree["notes"])


def test_a_model_for_images_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    typed = ("encoder.name=random", "model.name=cnn2", *ARGUMENTS, "--out", tmp_path)
    status, _, errors = command(monkeypatch, capsys, "run", "quickstart", *typed)
    assert status == 2
    assert "cnn2 takes images (C, H, W), not samples of shape 3600" in errors
    status, _, errors = command(
        monkeypatch, capsys, "run", "quickstart", "encoder.name=random", "transforms.crop=1", *ARGUMENTS
    )
    assert status == 2
    assert "transforms.crop is for images" in errors


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*was trained on class")
def test_predictions_of_raw_samples_are_those_of_the_run(tmp_path, monkeypatch, capsys):
    from protofed.trained.metrics import data_of
    from protofed.trained.opening import open_client

    out = tmp_path / "out"
    typed = ("run", "quickstart", "encoder.name=random", "encoder.dim=64", *ARGUMENTS, "rounds=3", "--out", out)
    assert command(monkeypatch, capsys, *typed)[0] == 0
    directory = next(out.rglob("federation.json")).parent
    run = load_run(directory)
    held, summary = data_of(run), json.loads((directory / "summary.json").read_text())
    scores = dict.fromkeys(open_client(run, held.clients[0].name).rules, 0)
    for client in held.clients:
        assert client.test.x.shape[1:] == (1, 8, 8)
        trained = open_client(run, client.name)
        for rule in scores:
            scores[rule] += int((trained.predict(client.test.x, rule).labels == client.test.y.numpy()).sum())
    total = sum(len(c.test) for c in held.clients)
    for rule, hits in scores.items():
        assert hits / total == pytest.approx(summary["accuracy"][rule]["final"], abs=1e-9), rule
    np.save(tmp_path / "raw.npy", held.clients[0].test.x.numpy())
    status, _, errors = command(
        monkeypatch, capsys, "predict", directory, held.clients[0].name, tmp_path / "raw.npy"
    )
    assert status == 0, errors
    for form in ("torch_export", "safetensors"):
        typed = ("export", directory, held.clients[0].name, "--format", form, "--out", tmp_path / form)
        status, _, errors = command(monkeypatch, capsys, *typed)
        assert status == 0, errors


def test_features_are_computed_once_for_all_methods_and_seeds(cache, monkeypatch, tmp_path, capsys):
    computed = []
    original = encoding.Encoder.batches

    def counted(self, x):
        computed.append(len(x))
        return original(self, x)

    monkeypatch.setattr(encoding.Encoder, "batches", counted)
    typed = ("compare", "quickstart", "encoder.name=scattering", "rounds=1", "data.clients=3")
    status, _, errors = command(
        monkeypatch,
        capsys,
        *typed,
        "compare.methods=local,fedproto",
        "compare.seeds=0,1",
        "--out",
        tmp_path / "out",
    )
    assert status == 0, errors
    assert sum(computed) <= 1797  # all digits, each once, whatever the seed's partition


def test_what_is_damaged_on_disk_is_computed_again(cache, caplog):
    raw, options = two(), EncoderOptions(name="random")
    whole = encode(raw, options).clients[0].train.x
    (path,) = cache.rglob("*.safetensors")
    content = path.read_bytes()
    for damaged in (content[:-1], content[:50], b"", content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]):
        path.write_bytes(damaged)
        caplog.clear()
        assert torch.equal(encode(raw, options).clients[0].train.x, whole)
        assert "damaged" in caplog.text
        assert path.read_bytes() == content
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("PROTOFED_CACHE", str(tmp_path / "file"))
    assert encode(two(), EncoderOptions(name="random")).input_shape == (3600,)
    assert "nothing is kept there" in caplog.text


OWN = """
import os, torch
class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.ones(1))
    def forward(self, x):
        return self.factor * x.flatten(1)
"""


def test_a_client_with_other_weights_is_left_out_by_name(tmp_path, monkeypatch, caplog):
    from protofed_flower.sources import Folder

    forget()
    root = write_folders(tmp_path / "data", ordinary())
    code = tmp_path / "scaled_encoder.py"
    code.write_text(OWN)
    chosen = wanted("fedproto", root, model__name="mlp", encoder__name=f"{code}:Scaled")
    describe = Folder.describe

    def other(self, experiment, expected):
        from dataclasses import replace

        found = describe(self, experiment, expected)
        return [replace(d, encoder="0" * 32) if d.name == last else d for d in found]

    last = sorted(p.name for p in (root / "clients").iterdir())[-1]
    monkeypatch.setattr(Folder, "describe", other)
    allow = {"methods": ["fedproto"], "models": ["mlp"], "encoders": [f"{code}:Scaled"]}
    nodes = {number: {**node, "allow": allow} for number, node in nodes_of(root, tmp_path / "state").items()}
    run = over(FakeGrid(nodes), chosen, tmp_path / "network", clients=2)
    network = json.loads((run.directory / "federation.json").read_text())["network"]
    assert last not in network.get("clients", [])
    assert f"{last}: left out: its encoder is another one, or has other weights, than most" in caplog.text


@pytest.mark.slow
def test_a_run_goes_on_with_the_encoder_with_which_it_began(cache, tmp_path, monkeypatch, capsys):
    from safetensors.torch import save_file

    code = tmp_path / "scaled_encoder.py"
    code.write_text(OWN)
    weights = tmp_path / "weights.safetensors"
    save_file({"factor": torch.ones(1)}, weights)
    options = (f"encoder.name={code}:Scaled", f"encoder.weights={weights}", "data.samples=200", "data.clients=3")
    typed = ("run", "quickstart", *options, "method.name=fedlda", "--out", tmp_path / "run", "--resume")
    assert command(monkeypatch, capsys, *typed, "method.personal=false")[0] == 0
    save_file({"factor": torch.full((1,), 2.0)}, weights)
    _load_data.cache_clear()
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    status, _, errors = command(monkeypatch, capsys, *typed, "method.personal=false", "rounds=2")
    assert status == 2
    assert "its encoder has other weights now than when the run began" in " ".join(errors.split())
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before
    save_file({"factor": torch.ones(1)}, weights)
    _load_data.cache_clear()
    assert command(monkeypatch, capsys, *typed, "method.personal=false", "rounds=2")[0] == 0
