"""Data sets that ``save_to_disk`` wrote, those in the hub's layout, and what others may put in their place."""

from __future__ import annotations

import io
import json
import shutil
from contextlib import suppress
from pathlib import Path

import datasets as hf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hostile.bounds import hasty
from protofed.config.schema import resolve
from protofed.data import DataOptions, load, load_pool
from protofed.data.columns import Columns
from protofed.data.saved import parse_saved
from protofed.errors import DataError
from protofed.experiments.loading import load_data
from protofed.sites.looking import inspect_folder
from protofed.untrusted.limits import Budget
from protofed.untrusted.reading import parse_toml

N = 60


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    columns = {
        "age": rng.integers(20, 80, N).tolist(),
        "sex": np.array(["f", "m"])[rng.integers(2, size=N)].tolist(),
        "hospital": np.array(["Nord", "Süd"])[rng.integers(2, size=N)].tolist(),
        "outcome": (np.arange(N) % 2).tolist(),
    }
    kinds = {"age": hf.Value("int64"), "sex": hf.Value("string"), "hospital": hf.Value("string")}
    kinds["outcome"] = hf.ClassLabel(names=["well", "ill"])
    return hf.Dataset.from_dict(columns, features=hf.Features(kinds))


def pictures(sizes=(8,)):
    def encoded(i):
        side = sizes[i % len(sizes)]
        out = io.BytesIO()
        Image.fromarray(np.full((side, side), 4 * i, np.uint8)).save(out, "PNG")
        return {"bytes": out.getvalue(), "path": None}

    kinds = hf.Features(
        {"image": hf.Image(), "label": hf.ClassLabel(names=["cat", "dog"]), "site": hf.Value("string")}
    )
    columns = {
        "image": list(map(encoded, range(N))),
        "label": [i % 2 for i in range(N)],
        "site": ["a", "b", "c"] * 20,
    }
    return hf.Dataset.from_dict(columns, features=kinds)


def as_hub(whole, folder):
    folder.joinpath("data").mkdir(parents=True)
    whole.select(range(40)).to_parquet(folder / "data" / "train-00000-of-00001.parquet")
    whole.select(range(40, N)).to_parquet(folder / "data" / "test-00000-of-00001.parquet")


def test_a_saved_table_is_the_table(table, tmp_path):
    table.save_to_disk(tmp_path / "one", num_shards=3)
    hf.DatasetDict(train=table.select(range(40)), test=table.select(range(40, N))).save_to_disk(tmp_path / "two")
    table.to_parquet(tmp_path / "file.parquet")
    read = [
        load_pool(DataOptions(source="path", path=str(tmp_path / name), drop=("hospital",)), 0)
        for name in ("file.parquet", "one", "two")
    ]
    for pool in read:
        assert pool.class_names == ("well", "ill")
        assert torch.equal(pool.x, read[0].x)
        assert torch.equal(pool.y, read[0].y)


def test_sites_can_be_saved_data_sets(table, tmp_path):
    for site in ("Nord", "Süd"):
        own = table.filter(lambda row, site=site: row["hospital"] == site)
        parts = hf.DatasetDict(train=own.select(range(15)), test=own.select(range(15, len(own))))
        parts.save_to_disk(tmp_path / "all" / site)
        own.save_to_disk(tmp_path / "sites" / site)
    for folder in ("all", "sites"):
        options = {"sites": True}
        data = DataOptions(source="path", path=str(tmp_path / folder), drop=("hospital",), options=options)
        found = load(data, "iid", None, 0)
        assert [client.name for client in found.clients] == ["Nord", "Süd"]
        assert sum(len(c.train) + len(c.test) for c in found.clients) == N


@pytest.mark.parametrize("form", ["saved", "hub"])
def test_init_finds_the_sites_of_a_table(table, form, tmp_path):
    if form == "saved":
        table.save_to_disk(tmp_path / "data set")
    else:
        as_hub(table, tmp_path / "data set")
    look = inspect_folder(tmp_path / "data set")
    assert look.kind == "table"
    assert list(look.sites) == ["Nord", "Süd"]
    clients = load_data(resolve(parse_toml(look.recipe([n for n in look.notices if n.options])))).clients
    assert [client.name for client in clients] == ["Nord", "Süd"]


@pytest.mark.parametrize("form", ["saved", "hub"])
def test_init_finds_images(form, tmp_path):
    whole = pictures((8, 12))
    if form == "saved":
        whole.save_to_disk(tmp_path / "data")
    else:
        as_hub(whole, tmp_path / "data")
    look = inspect_folder(tmp_path / "data")
    assert look.kind == "image"
    assert look.sites == {"a": 20, "b": 20, "c": 20}
    taken = [n for n in look.notices if n.options]
    assert "images of several sizes" in {n.found for n in taken}
    data = load_data(resolve(parse_toml(look.recipe(taken))))
    assert data.input_shape == (1, 64, 64)
    assert data.class_names == ("cat", "dog")
    assert [client.name for client in data.clients] == ["a", "b", "c"]


def test_init_finds_vectors_and_a_named_data_set(tmp_path):
    rng = np.random.default_rng(0)
    x = hf.Dataset.from_dict({"features": rng.normal(size=(N, 5)).tolist(), "label": ["a", "b"] * (N // 2)})
    x.save_to_disk(tmp_path / "x")
    look = inspect_folder(tmp_path / "x")
    assert look.kind == "vector"
    assert look.notices[0].found == "nothing names a site"
    named = inspect_folder(Path("digits"))
    assert (named.kind, sum(named.sites.values())) == ("image", 1797)


def test_what_is_damaged_is_one_line(table, tmp_path):
    table.save_to_disk(tmp_path / "good")
    arrow = "data-00000-of-00001.arrow"

    def broken(name, change):
        folder = tmp_path / name
        shutil.copytree(tmp_path / "good", folder)
        change(folder)
        with pytest.raises(DataError) as caught:
            load_pool(DataOptions(source="path", path=str(folder)), 0)
        return str(caught.value)

    def state(**changes):
        def change(folder):
            told = json.loads((folder / "state.json").read_text())
            (folder / "state.json").write_text(json.dumps({**told, **changes}))

        return change

    assert "which is not in its folder" in broken("outside", state(_data_files=[{"filename": "../good/x.arrow"}]))
    assert "which is not in its folder" in broken("gone", lambda folder: (folder / arrow).unlink())
    assert "expected a list '_data_files'" in broken("none", state(_data_files=[]))
    assert "rows in another order" in broken("indices", state(_indices_data_files=[{"filename": "i.arrow"}]))

    shard = {"filename": arrow}
    assert "names one of its '_data_files' twice" in broken("twice", state(_data_files=[shard] * 10**5))

    def nested(folder):
        for _ in range(30):
            (folder / "dataset_dict.json").write_text(json.dumps({"splits": ["a", "b"]}))
            (folder / ".next").mkdir()
            for name in "ab":
                (folder / name).symlink_to(".next")
            folder = folder / ".next"
        for name in ("state.json", arrow):
            shutil.copy(tmp_path / "good" / name, folder)

    with hasty(20):
        assert "nested/a/state.json: a link that leads nowhere" in broken("nested", nested)

    def linked(folder):
        (folder / arrow).unlink()
        (folder / arrow).symlink_to(tmp_path / "good" / arrow)

    assert "leads out of" in broken("link", linked)
    assert "not a readable Arrow file" in broken("noise", lambda f: (f / arrow).write_bytes(b"\xff" * 400))
    content = (tmp_path / "good" / arrow).read_bytes()
    assert "not a readable Arrow file" in broken("cut", lambda f: (f / arrow).write_bytes(content[:900]))


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stream") / "x"
    text = ["a", "bc", "def"] * 10
    kinds = hf.Features({"t": hf.Value("string"), "v": hf.List(hf.Value("float32")), "label": hf.Value("int64")})
    whole = hf.Dataset.from_dict({"t": text, "v": [[1.0, 2.0]] * 30, "label": [0, 1] * 15}, features=kinds)
    whole.save_to_disk(folder)
    return folder, (folder / "data-00000-of-00001.arrow").read_bytes()


def test_a_column_whose_name_is_no_text_is_refused(stream):
    folder, content = stream
    for old, new in ((b"label", b"\x80abel"), (b"t\x00\x00\x00", b"\x80\x00\x00\x00")):
        (folder / "data-00000-of-00001.arrow").write_bytes(content.replace(old, new))
        with pytest.raises(DataError, match="not a readable Arrow file"):
            parse_saved(folder, Columns(), Budget(0.01)).to_pylist()


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_changed_byte_is_read_or_refused(stream, data):
    folder, content = stream
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (folder / "data-00000-of-00001.arrow").write_bytes(changed[: data.draw(st.sampled_from([len(content), 777]))])
    with suppress(DataError):
        parse_saved(folder, Columns(), Budget(0.01)).to_pylist()
