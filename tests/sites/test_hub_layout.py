"""Data sets in the hub's layout, and built-in ones by name, as ``protofed init`` finds them."""

from __future__ import annotations

import io
from pathlib import Path

import datasets as hf
import numpy as np
import pytest
from PIL import Image

from protofed.config.schema import resolve
from protofed.experiments.loading import load_data
from protofed.sites.looking import inspect_folder
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


def test_init_finds_the_sites_of_a_table(table, tmp_path):
    as_hub(table, tmp_path / "data set")
    look = inspect_folder(tmp_path / "data set")
    assert look.kind == "table"
    assert list(look.sites) == ["Nord", "Süd"]
    clients = load_data(resolve(parse_toml(look.recipe([n for n in look.notices if n.options])))).clients
    assert [client.name for client in clients] == ["Nord", "Süd"]


def test_init_finds_images(tmp_path):
    as_hub(pictures((8, 12)), tmp_path / "data")
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
    as_hub(x, tmp_path / "x")
    look = inspect_folder(tmp_path / "x")
    assert look.kind == "vector"
    assert look.notices[0].found == "nothing names a site"
    named = inspect_folder(Path("digits"))
    assert (named.kind, sum(named.sites.values())) == ("image", 1797)
