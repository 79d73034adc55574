"""Data sets that are no images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer

from protofed.data import DataOptions, load, load_pool
from protofed.data.builtin import read_breast_cancer
from protofed.errors import DataError
from protofed.experiments import load_recipe, resolve
from protofed.experiments.loading import load_data


def test_breast_cancer_is_that_of_scikit_learn():
    expected = load_breast_cancer()
    names, x, y, classes = read_breast_cancer()
    assert names == list(expected.feature_names)
    assert np.array_equal(x, expected.data)
    assert np.array_equal(y, expected.target)
    assert classes == tuple(expected.target_names)
    pool = load_pool(DataOptions("breast_cancer"), 0)
    assert torch.equal(pool.x, torch.from_numpy(expected.data).float())


def test_columns_of_a_named_data_set_are_dropped_by_name():
    options = {"source": "breast_cancer", "clients": 2}
    full = load(DataOptions(**options), "iid", None, 0)
    names = [c.name for c in full.table.columns]
    data = load(DataOptions(**options, drop=(names[0], names[7])), "iid", None, 0)
    assert [c.name for c in data.table.columns] == [n for n in names if n not in (names[0], names[7])]
    kept = [i for i in range(len(names)) if i not in (0, 7)]
    assert torch.equal(data.clients[1].train.x, full.clients[1].train.x[:, kept])
    for drop, told in ((("sex",), "unknown dropped column 'sex'"), (tuple(names), "leaves no column")):
        with pytest.raises(DataError, match=told):
            load(DataOptions(**options, drop=drop), "iid", None, 0)


def test_motion_is_a_series_per_person():
    data = load_data(resolve(load_recipe("sensors")))
    assert len(data.clients) == 12
    assert data.input_shape == (3, 64)
    assert all(c.train.counts(4).tolist() == [8, 8, 8, 7] or len(c.train) == 30 for c in data.clients)
    again, other = (load_pool(DataOptions("motion"), seed).x for seed in (0, 1))
    assert torch.equal(again, load_pool(DataOptions("motion"), 0).x)
    assert not torch.equal(again, other)
    still, running = (again[load_pool(DataOptions("motion"), 0).y == k].std(2).mean() for k in (0, 2))
    assert running > 2 * still
