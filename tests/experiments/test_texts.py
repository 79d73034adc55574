"""Free text from files to predictions, as a user types it."""

from __future__ import annotations

import csv
import io

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("tokenizers", reason="wordllama is not installed: pip install 'protofed[text]'")

from notes import write_notes
from protofed import load_run
from protofed.data import text
from protofed.errors import ConfigError, DataError
from support import command, few

CLOSED = ("method.name=fedlda", "encoder.name=identity")


@pytest.fixture
def typed(tmp_path, monkeypatch, capsys):
    """Return a function that runs a command on notes with ``data.text=note``."""
    root = write_notes(tmp_path / "data")

    def run(name, *more):
        data = ("data.source=path", f"data.path={root}", "data.text=note", "execution.executor=sequential")
        return command(monkeypatch, capsys, name, "quickstart", *data, *more, "--out", tmp_path / "out")

    return run


@few(
    "options",
    [CLOSED, ("method.name=local_lda", "encoder.name=identity"), ("method.name=fed3r", "encoder.name=random"),
     ("method.name=fedproto", "model.name=mlp", "rounds=8", "training.epochs=5", "training.lr=0.1")], 1,
)  # fmt: skip
def test_run_and_predict(options, typed, tmp_path, monkeypatch, capsys):
    status, _, errors = typed("run", *options)
    assert status == 0, errors
    run = load_run(tmp_path / "out")
    assert np.mean(run.rounds[-1].accuracy.clients["head"]) > 0.8
    file = tmp_path / "data" / "clients" / "site0" / "test.csv"
    status, told, errors = command(
        monkeypatch, capsys, "predict", tmp_path / "out", "site0", file, "--rule", "head"
    )
    assert status == 0, errors
    frame = pd.read_csv(file)
    found = [row["class"] for row in csv.DictReader(io.StringIO(told))]
    assert np.mean(frame["label"] == found) == pytest.approx(run.rounds[-1].accuracy.clients["head"][0])
    assert run.predict("site0", frame, rule="head").classes == found


def test_predictions_of_what_is_not_right(typed, tmp_path, monkeypatch):
    typed("run", *CLOSED)
    run = load_run(tmp_path / "out")
    with pytest.raises(DataError, match="lacks the column 'note'; it has age"):
        run.predict("site0", pd.DataFrame({"age": [30]}))
    with pytest.raises(DataError, match="column 'note', row 1 has no text"):
        run.predict("site0", pd.DataFrame({"age": [30, 40], "note": ["fall", None]}))
    static = text._static()
    monkeypatch.setattr(text, "_static", lambda: static._replace(digest="00000000"))
    with pytest.raises(ConfigError, match="the run had another version of wordllama"):
        run.predict("site0", pd.DataFrame({"age": [30], "note": ["fall"]}))


def test_without_the_package(typed, monkeypatch):
    text._static.cache_clear()
    monkeypatch.setattr(text, "find_spec", lambda name: None)
    status, _, errors = typed("run", *CLOSED)
    text._static.cache_clear()
    assert status != 0
    assert errors == "error: text needs the package wordllama: pip install 'protofed[text]'\n"
