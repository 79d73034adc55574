"""Texts as tokens from data to predictions: executors, methods, folders, tables, and what does not fit."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import protofed
from notes import write_notes
from protofed.config.schema import load_recipe
from protofed.data import DataOptions, load
from protofed.errors import ConfigError
from support import command, few

SMALL = {
    "data.clients": 4,
    "data.options": {"people": 4, "notes": 16},
    "data.text_length": 12,
    "model.d": 8,
    "rounds": 1,
    "training.epochs": 1,
    "evaluation.metrics": False,
}


@few("method", ["fedproto", "beacon", "fml", "fedavg"], 1)
def test_every_executor_gives_the_same_numbers(method, tmp_path):
    """Four architectures; `fused` differs by rounding alone."""
    losses = []
    for executor in ("sequential", "workers", "fused"):
        more = {"method.name": method, "execution.executor": executor, "execution.precision": "fp64"}
        run = protofed.run("texts", SMALL | more, out=tmp_path / executor)
        losses.append([record.losses for record in run.rounds])
    one, workers, fused = losses
    assert workers == one
    assert fused == [pytest.approx(loss, rel=1e-6) for loss in one]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["text_bag", "text_cnn", "text_gru", "text_transformer", "tiny"])
def test_networks_for_texts_learn_the_topics(name, tmp_path):
    options = {"data.options": {"people": 4, "notes": 60, "share": 0.5}, "data.clients": 4, "rounds": 4}
    train = {"method.name": "fedavg", "training.lr": 0.01, "model.name": name, "model.map": "linear"}
    run = protofed.run("texts", options | train, out=tmp_path / "run")
    assert np.mean(run.rounds[-1].accuracy.clients["head"]) > 0.8  # by chance, below 0.4


def test_generated_notes_depend_on_the_seed_alone():
    first, again, other = (
        load(DataOptions(source="notes", text_as="tokens", clients=12), "natural", None, s) for s in (0, 0, 1)
    )
    assert len(first.clients) == 12
    assert first.input_shape == (128,)
    assert first.class_names == ("cooking", "football", "garden", "music", "travel", "weather")
    assert all(torch.equal(a.train.x, b.train.x) for a, b in zip(first.clients, again.clients, strict=True))
    assert not torch.equal(first.clients[0].train.x[:9], other.clients[0].train.x[:9])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model.name": "mlp"}, "^model.name=mlp takes numbers, .* as tokens: choose model.name=text4, text_cnn"),
        ({"model.name": "small4"}, "^model.name=small4 takes numbers, .* choose model.name=text4, text_cnn"),
        ({"model.members": [{"name": "cnn2"}]}, "^model cnn2 takes numbers, and the samples are texts as tokens"),
        ({"method.name": "fedavg", "model.shared": "mlp"}, "^model.shared=mlp .* choose model.shared=text_cnn, "),
        ({"method.name": "fml", "method.auxiliary": "mlp"}, "model mlp takes numbers, and the samples are texts"),
        ({"encoder.name": "random"}, "encoder.name=random is for images and series and vectors, and .* t"),
        ({"encoder.name": "scattering"}, "encoder.name=scattering is for images, and .* texts as tokens"),
        ({"transforms.flip": 0.5}, "image"),
    ],
)  # fmt: skip
def test_texts_where_others_are_expected(options, reason, tmp_path):
    with pytest.raises(ConfigError, match=reason):
        protofed.run("texts", SMALL | {"method.name": "local"} | options, out=tmp_path / "run")


@pytest.mark.parametrize("name", ["cnn2", "small4", "resnet8"])
def test_vectors_of_texts_where_images_are_expected(name, tmp_path):
    pytest.importorskip("tokenizers", reason="wordllama is not installed: pip install 'protofed[text]'")
    options = SMALL | {"method.name": "local", "data.text_as": "vectors", "model.name": name}
    reason = (
        f"^model.name={name} takes images, and the samples are texts as vectors: choose model.name=mlp, or set "
        "data.text_as=tokens and choose model.name=text4, text_cnn, …$"
    )
    with pytest.raises(ConfigError, match=reason):
        protofed.run("texts", options, out=tmp_path / "run")


@pytest.mark.parametrize("source", ["digits", "breast_cancer"])
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model.name": "text4"}, r"^model.name=text4 takes texts, but the samples are not texts: name"),
        ({"model.name": "text_cnn"}, r"text_cnn takes texts, but .* not texts: name their column, data\.text=COL"),
        ({"encoder.name": "hashing"}, "encoder.name=hashing is for texts, but the samples are not texts"),
        ({"data.text": ["note"], "data.text_as": "tokens"}, r"data\.text=note: .* has no texts"),
    ],
)  # fmt: skip
def test_images_and_numbers_where_texts_are_expected(source, options, reason, tmp_path):
    given = {"data.source": source, "data.clients": 3, "partition.name": "iid", "method.name": "local", **options}
    with pytest.raises(ConfigError, match=reason):
        protofed.run("quickstart", given, out=tmp_path / "run")


# Folders.


@few(
    "options",
    [
        ("method.name=fedlda", "encoder.name=hashing", "encoder.dim=64", "rounds=1"),
        ("method.name=beacon", "model.name=text4", "rounds=3", "training.epochs=4"),
        ("method.name=fedproto", "model.name=text_cnn", "rounds=3", "training.epochs=4"),
    ],
    2,
)
def test_run_and_predict(options, tmp_path, monkeypatch, capsys):
    """A folder of tables with a column of texts beside numbers; predictions of a file are those of the run."""
    root = write_notes(tmp_path / "data")
    data = ("data.source=path", f"data.path={root}", "data.text=note", "data.text_as=tokens", "data.text_length=12")
    train = ("training.optimizer=Adam", "training.lr=0.01", "execution.executor=sequential")
    place = ("--out", tmp_path / "out")
    status, _, errors = command(monkeypatch, capsys, "run", "quickstart", *data, *train, *options, *place)
    assert status == 0, errors
    run = protofed.load_run(tmp_path / "out")
    reached = run.rounds[-1].accuracy.clients["head"]
    assert np.mean(reached) > 0.75
    file = root / "clients" / "site0" / "test.csv"
    asked = (tmp_path / "out", "site0", file, "--rule", "head")
    status, told, errors = command(monkeypatch, capsys, "predict", *asked)
    assert status == 0, errors
    found = [row["class"] for row in csv.DictReader(io.StringIO(told))]
    assert np.mean(pd.read_csv(file)["label"] == found) == pytest.approx(reached[0])


def test_a_folder_of_texts_becomes_a_recipe_that_runs(tmp_path, monkeypatch, capsys):
    """Without wordllama, from one file with a column of texts, a label and a column of sites."""
    from protofed.sites import tables

    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    data = load_recipe("texts")["data"]
    assert data["source"] == "notes"
    write_notes(tmp_path / "made", sites=3)
    frames = [
        pd.read_csv(path).drop(columns="age").assign(hospital=path.parent.name)
        for path in sorted((tmp_path / "made").rglob("*.csv"))
    ]
    (tmp_path / "notes").mkdir()
    pd.concat(frames).to_csv(tmp_path / "notes" / "all.csv", index=False)
    status, told, errors = command(monkeypatch, capsys, "init", "notes", "--yes")
    assert status == 0, errors
    assert "learn from its first words" in told
    recipe = Path("protofed.toml").read_text()
    assert 'text_as = "tokens"' in recipe
    assert 'name = "text4"' in recipe
    fast = ("rounds=1", "training.epochs=1", "data.text_length=8")
    status, told, errors = command(
        monkeypatch, capsys, "compare", "protofed.toml", *fast, "--methods", "fedlda-fixed,local", "--out", "out"
    )
    assert status == 0, errors
    assert np.mean(protofed.load_run("out/fedlda-fixed-seed0").rounds[-1].accuracy.clients["head"]) > 0.8


@pytest.mark.slow
def test_the_documented_text_model_of_hugging_face_is_trained_and_opened_again(tmp_path):
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed: pip install transformers"
    )
    tokenizers = pytest.importorskip(
        "tokenizers", reason="tokenizers is not installed: pip install 'protofed[text]'"
    )
    words = {"[UNK]": 0, "[CLS]": 1, "knee": 2, "rash": 3, "pulse": 4, "fall": 5, "sun": 6, "artery": 7}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    config = transformers.BertConfig(
        vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    folder = tmp_path / "bert"
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(folder)
    made.save(str(folder / "tokenizer.json"))
    root = write_notes(tmp_path / "data")
    data = {"data.source": "path", "data.path": str(root), "data.text": ["note"], "data.text_as": "tokens"}
    data |= {"data.tokenizer": str(folder), "data.text_length": 10, "data.drop": ["age"]}
    example = Path(__file__).parents[2] / "docs" / "examples" / "hugging_face_net.py"
    model = {"model.name": f"{example}:TextNet", "model.options.folder": str(folder), "model.d": 8}
    train = {"training.optimizer": "Adam", "training.lr": 0.01, "rounds": 20, "method.name": "fedavg"}
    run = protofed.run("quickstart", data | model | train, out=tmp_path / "run")
    assert np.mean(run.rounds[-1].accuracy.clients["head"]) > 0.5
    frame = pd.read_csv(root / "clients/site0/test.csv")
    found = run.predict("site0", frame, rule="head").classes
    assert np.mean(frame["label"] == found) == pytest.approx(run.rounds[-1].accuracy.clients["head"][0])
