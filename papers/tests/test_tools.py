"""The tools that make the pages and files of the studies."""

from __future__ import annotations

import csv
import io
import json
import tarfile

import pytest

import protofed
from conftest import REPOSITORY
from protofed.config.schema import load_recipe, resolve
from protofed.errors import DataError
from protofed.experiments.loading import load_data
from support import script

TOOLS = REPOSITORY / "papers/tools"


@pytest.mark.parametrize("path", sorted(TOOLS.glob("*.py")), ids=lambda p: p.stem)
def test_tools_find_what_they_import(path):
    assert vars(script(path))


@pytest.mark.slow
@pytest.mark.parametrize(("method", "rounds"), [("fedlda", 1), ("beacon", 10), ("fedproto", 40)])
def test_the_demonstration_shows_what_is_recorded(method, rounds):
    tool = script(TOOLS / "demo_page.py")
    found = tool.shown("apart", method, {}, rounds, 0)
    rows = tool.rows.read_rows(tool.FILE)
    row = next(r for r in rows if (r["skew"], r["method"], r["seed"]) == ("apart", method, "0"))
    assert found.bytes == int(row["bytes"])
    assert found.accuracy == pytest.approx(float(row["accuracy"]), abs=0.02)


def test_runs_at_several_budgets_are_saved_and_read_back(tmp_path):
    tool = script(TOOLS / "privacy_table.py")
    small = {"rounds": 1, "data.samples": 300, "data.clients": 4, "partition.alpha": 0.5, "model.d": 16}
    small |= {"method.name": "fedproto", "robust.rule": "none", "privacy.mode": "client"}
    for epsilon in (8.0, float("inf")):
        protofed.run("quickstart", {**small, "privacy.epsilon": epsilon}, out=tmp_path / f"runs/{epsilon}")
    found = tool.results([tmp_path / "runs"])
    assert {r.epsilon for r in found} == {8.0, float("inf")}
    tool.save(found, tmp_path / "study.csv")
    assert tool.results([tmp_path / "study.csv"]) == found
    lines = tool.table(found).splitlines()
    assert lines[0] == "| method, rule | 8 | ∞ |"
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| `fedproto`, head",
        "| `fedproto`, nearest own prototype",
        "| `fedproto`, nearest global prototype",
    ]


def packed(path, held):
    with tarfile.open(path, "w:gz") as archive:
        for name, text in held.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


def test_the_brown_corpus_becomes_a_table(tmp_path):
    tool = script(TOOLS / "prepare_texts.py")
    held = {"cats.txt": "ca01 news\ncb01 humor\n", "ca01": "\n\tThe/at jury/nn said/vbd ``/`` no/at ''/'' ./.\n"}
    path = packed(tmp_path / "brown.tgz", held | {"cb01": "Ha/uh !/.", "README": "x"})
    assert tool.brown(path, tmp_path) == ["brown.csv: 2 texts, 2 genres"]
    read = list(csv.DictReader(io.StringIO((tmp_path / "brown.csv").read_text())))
    assert read == [{"text": 'The jury said " no ".', "genre": "news"}, {"text": "Ha!", "genre": "humor"}]
    assert resolve(load_recipe("brown")).data.text == ("text",)


@pytest.mark.parametrize("name", ["brown", "spam"])
def test_a_recipe_whose_data_are_missing_says_where_they_come_from(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROTOFED_DATA", str(tmp_path))
    why = (
        rf"no such file or folder .* set data\.path, .* \(recipe {name}: .* from papers/tools/prepare_texts\.py\)$"
    )
    with pytest.raises(DataError, match=why):
        load_data(resolve(load_recipe(name)))
    with pytest.raises(DataError, match=r"or PROTOFED_DATA$"):
        load_data(resolve({**load_recipe(name), "data": {"source": "path", "path": "other"}}))


def test_mails_become_a_table_per_domain(tmp_path):
    tool = script(TOOLS / "prepare_texts.py")
    mails = {
        "spam-1/1": "From: a@x.b.com\nSubject: Win\nContent-Type: text/html\n\n<style>p</style>go &amp; <b>see",
        "easy-ham-1/2": "From: Bo <b@b.com>\nSubject: Re: talk\n\nSee\nyou",
        "easy-ham-2/3": "From: c@rare.org\n\nHello",
    }
    held = {f"data/{name}.json": json.dumps({"text": text}) for name, text in mails.items()}
    told = tool.spam(packed(tmp_path / "spam.tgz", held), tmp_path, 2)
    assert told == ["spam/b-com.csv: 2 messages, 1 spam", "1 domains with fewer than 2 messages are left out"]
    written = io.StringIO((tmp_path / "spam/b-com.csv").read_text())
    read = {row["kind"]: row["text"] for row in csv.DictReader(written)}
    assert read == {"spam": "Win go & see", "ham": "Re: talk See you"}
    with pytest.raises(SystemExit, match="has no messages"):
        tool.spam(packed(tmp_path / "none.tgz", {"x": "y"}), tmp_path, 2)
