"""data.ranges: public bounds of columns, to which values are clamped, in place of means that depend on samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protofed.data import DataOptions, load
from protofed.data.tables import RawColumn, Table, TableInputs, fit, moments
from protofed.errors import DataError
from support import command, one_line


def folder(root: Path, *rows: str, header: str = "age,dose,label") -> Path:
    for name in ("ann", "bob"):
        client = root / "clients" / name
        client.mkdir(parents=True)
        for part in ("train", "test"):
            (client / f"{part}.csv").write_text("\n".join([header, *rows]) + "\n")
    return root


def loaded(root: Path, **data: Any):
    return load(DataOptions(source="path", path=str(root), **data), "iid", None, 0)


ROWS = ("30,0,0", "110,4,1", "200,-9,1", "55,2,0")


def test_ranges_map_to_minus_one_to_one_and_clamp(tmp_path):
    found = loaded(folder(tmp_path, *ROWS), ranges={"age": [0, 110], "*": [0, 4]})
    x = found.clients[0].train.x
    assert torch.allclose(x[:, 0], torch.tensor([30 / 55 - 1, 1.0, 1.0, 0.0]))
    assert x[:, 1].tolist() == [-1, 1, -1, 0]
    assert (
        "Values beyond their declared range were clamped to it (data.ranges): 4 of age, 4 of dose." in found.notes
    )
    assert "2 are clamped to declared ranges and map these to [-1, 1]" in found.remarks()[-1]
    assert Table.from_dict(json.loads(json.dumps(found.table.to_dict()))) == found.table


def test_no_sample_has_an_influence_on_the_preparation(tmp_path):
    ranges = {"*": [0, 100]}
    a = loaded(folder(tmp_path / "a", *ROWS), ranges=ranges, missing="indicator")
    b = loaded(folder(tmp_path / "b", *ROWS, "1000000,,1"), ranges=ranges, missing="indicator")
    assert a.table == b.table
    assert all(c.table == a.table for c in (*a.clients, *b.clients))
    assert b.clients[0].train.x[-1].tolist() == [1, 0, 0, 1], "in the middle, with an input that says so"


def test_a_column_without_a_range_is_standardised_as_before(tmp_path):
    root = folder(tmp_path, *ROWS)
    plain, ranged = loaded(root), loaded(root, ranges={"age": [0, 110]})
    assert torch.equal(plain.clients[0].train.x[:, 1], ranged.clients[0].train.x[:, 1])
    assert not torch.equal(plain.clients[0].train.x[:, 0], ranged.clients[0].train.x[:, 0])


def test_categories_are_left_alone_by_the_star_and_have_no_range(tmp_path):
    root = folder(tmp_path, "30,red,0", "40,blue,1")
    found = loaded(root, ranges={"*": [0, 100]})
    assert found.table.inputs == ("age", "dose=blue", "dose=red")
    with pytest.raises(DataError, match=r"data\.ranges\.dose: the column holds categories"):
        loaded(root, ranges={"dose": [0, 1]})


def test_a_column_with_a_range_is_no_identifier(tmp_path):
    rows = [f"{n},{n % 3},{n % 2}" for n in range(60)]
    with pytest.raises(DataError, match="looks like an identifier"):
        loaded(folder(tmp_path / "a", *rows))
    assert len(loaded(folder(tmp_path / "b", *rows), ranges={"age": [0, 60]}).table.columns) == 2


def test_a_channel_that_is_missing_is_named(monkeypatch, capsys):
    given = 'data.ranges={"0" = [-3, 3], "7" = [0, 1]}'
    status, _, error = command(monkeypatch, capsys, "inspect", "sensors", given)
    assert (status, error.strip()) == (2, "error: data.ranges.7: motion has no such column among its features")


@pytest.mark.parametrize("value", [[1, 0], [1, 1], [0], [0, 1, 2], "wide", [0, float("inf")], [None, 1], 3])
def test_what_is_no_range_is_refused_in_one_line(value):
    with one_line(ValueError, r"ranges\.age must be \[least, largest\]"):
        DataOptions(ranges={"age": value})
    with pytest.raises(ValueError, match="standardise=none leaves them as they are"):
        DataOptions(ranges={"age": [0, 1]}, standardise="none")


@pytest.mark.parametrize("shape", [(3,), (3, 5)])
def test_vectors_and_series_have_ranges_by_number(shape, tmp_path):
    client = tmp_path / "clients" / "ann"
    client.mkdir(parents=True)
    x = np.full((4, *shape), 5.0, dtype=np.float32)
    x[0, 1] = 50
    for part in ("train", "test"):
        np.savez(client / f"{part}.npz", x=x, y=np.arange(4) % 2)
    found = loaded(tmp_path, ranges={"1": [0, 10], "*": [-10, 10]})
    inputs = found.clients[0].train.x
    assert tuple(inputs.shape) == x.shape
    assert inputs[1, 0].flatten()[0] == 0.5
    assert inputs[1, 1].flatten()[0] == 0.0
    assert inputs[0, 1].flatten()[0] == 1.0
    assert any("2 of 1" in note or "of 1." in note for note in found.notes)


@pytest.mark.parametrize("seed", range(20))
def test_inputs_are_never_beyond_one_and_come_back(seed):
    random = np.random.default_rng(seed)
    columns = tuple(RawColumn(name) for name in "abc")
    low = random.normal(size=3) * 10.0 ** random.integers(-6, 6, 3)
    ranges = {c.name: (float(v), float(v + abs(v) + 1e-3)) for c, v in zip(columns, low, strict=True)}
    raw = torch.from_numpy(random.normal(size=(50, 3)) * 10.0 ** random.integers(-8, 8, (50, 3)))
    raw[0, 0] = torch.nan
    table = fit(columns, [moments(raw)], "site", "mean", ranges)
    inputs = TableInputs(table)(raw)
    assert float(inputs.abs().max()) <= 1
    assert inputs[0, 0] == 0
    within = torch.stack([(raw[:, n] >= r[0]) & (raw[:, n] <= r[1]) for n, r in enumerate(ranges.values())], 1)
    back = table.restore(inputs)
    assert torch.allclose(back[within], raw[within], rtol=1e-4, atol=1e-3 * max(abs(v) for v in low))
    assert sum(table.beyond(raw).values()) >= int((~within).sum()) - 1 - int(raw.isnan().sum())
