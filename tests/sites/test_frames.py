"""Pandas frames as federations: as physicians have them, against the same table as a CSV file."""

from __future__ import annotations

import subprocess
import sys
from datetime import date, timedelta

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer

import protofed
from protofed.config.schema import resolve
from protofed.data import frames
from protofed.errors import ConfigError, DataError
from protofed.experiments.loading import load_data
from protofed.sites.looking import inspect_folder
from support import one_line


@pytest.fixture(scope="module")
def patients():
    data = load_breast_cancer()
    rng = np.random.default_rng(0)
    n = len(data.target)
    frame = pd.DataFrame(data.data[:, :5].round(4), columns=[f"cell {i}" for i in range(5)])
    frame["Hospital"] = np.array(["Köln", "St. Mary's", "Nord/West", "Süd"])[rng.integers(4, size=n)]
    frame["diagnosis"] = np.where(data.target, "benign", "malignant")
    frame["admitted"] = pd.Timestamp("2024-01-01", tz="Europe/Berlin") + pd.to_timedelta(
        rng.integers(300, size=n), "D"
    )
    frame["born"] = [date(1950, 1, 1) + timedelta(days=int(d)) for d in rng.integers(20_000, size=n)]
    frame["stay"] = pd.to_timedelta(rng.integers(1, 30, size=n), "D")
    frame["smoker"] = pd.array([None if i % 50 == 7 else bool(i % 3) for i in range(n)], dtype="boolean")
    frame["stage"] = pd.Categorical(rng.integers(1, 5, size=n), ordered=True)
    frame["crp"] = pd.Series([3.5 + i % 7 if i % 11 else "unknown" for i in range(n)], dtype=object)
    frame["children"] = pd.array([None if i == 3 else i % 4 for i in range(n)], dtype="Int64")
    frame["ward"] = pd.cut(rng.random(n), [0, 0.3, 0.6, 1.0])
    frame["dose"] = [f"{i % 90},{i % 4}" for i in range(n)]
    frame["patient_id"] = [f"P{i}" for i in range(n)]
    return frame.sample(frac=1, random_state=1)  # with an index in disorder


def test_a_physician_s_frame_becomes_a_federation(patients, tmp_path):
    found = protofed.federation(patients, site="Hospital", label="diagnosis")
    assert list(found.sites) == ["Köln", "Nord/West", "St. Mary's", "Süd"]
    assert found["data"]["dates"] == {"admitted": "day", "born": "admitted"}
    assert found["data"]["drop"] == ["patient_id"]
    assert found["data"]["na_values"] == ["unknown"]
    assert "crp: 'unknown' among numbers → read it as a missing value" in repr(found)
    data = load_data(resolve(found))
    assert [client.name for client in data.clients] == ["Köln", "Nord-West", "St Marys", "Süd"]
    kinds = {column.name: column.kind for column in data.table.columns}
    assert kinds.pop("stage") == kinds.pop("ward") == "category"
    assert set(kinds.values()) == {"number"}
    run = protofed.run(found, {"method.name": "fedlda", "encoder.name": "auto", "rounds": 1}, out=tmp_path / "run")
    assert run.names == ["Köln", "Nord-West", "St Marys", "Süd"]
    assert run.metrics().rule == "head"  # for which the data are read again
    told = run.predict("Süd", patients.drop(columns="diagnosis").head(9))
    assert len(told) == 9


@pytest.mark.slow
def test_a_comparison_in_other_processes(patients, tmp_path):
    small = patients[["cell 0", "cell 1", "Hospital", "diagnosis"]]
    found = protofed.federation(small, "Hospital", "diagnosis", {"rounds": 1, "evaluation.metrics": False})
    compared = protofed.compare(found, ["local", "fedavg"], out=tmp_path / "both", jobs=2)
    assert set(compared.runs) == {"local", "fedavg"}
    again = protofed.federation(small.copy(), "Hospital", "diagnosis", {"rounds": 1, "evaluation.metrics": False})
    assert dict(again) == dict(found)  # so that what began with an equal frame can be continued
    resumed = protofed.compare(again, ["local", "fedavg"], out=tmp_path / "both", resume=True)
    assert resumed.runs.keys() == compared.runs.keys()


@pytest.mark.slow
def test_a_trial_answers(patients, tmp_path):
    small = patients[["cell 0", "cell 1", "Hospital", "diagnosis"]]
    trial = protofed.try_out(
        protofed.federation(small, "Hospital", "diagnosis"), methods=[], out=tmp_path / "trial"
    )
    assert trial.page.is_file()
    assert trial.verdict
    assert [site.name for site in trial.sites] == ["Köln", "Nord-West", "St Marys", "Süd"]
    assert trial.notices


VALUES = {
    "number": st.one_of(st.none(), st.floats(-1e6, 1e6).map(lambda v: round(v, 3))),
    "whole": st.integers(-50, 50),
    "word": st.one_of(st.none(), st.sampled_from(["a", "b", " b", "NA", "3", "x y", ""])),
    "digits": st.sampled_from(["1", "2.5", "-3", "01", "-3,25"]),
    "truth": st.booleans(),
    "mixed": st.one_of(st.none(), st.integers(0, 9), st.sampled_from(["1", "7"])),
}


@given(st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_frame_is_read_as_the_same_table_in_a_csv_file(tmp_path, data):
    n = data.draw(st.integers(6, 12))
    kinds = data.draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4))
    columns = {
        f"{kind} {i}": pd.Series(data.draw(st.lists(VALUES[kind], min_size=n, max_size=n)), dtype=object)
        for i, kind in enumerate(kinds)
    }
    frame = pd.DataFrame({**columns, "label": [i % 2 for i in range(n)]}).infer_objects()
    frame.to_csv(tmp_path / "table.csv", index=False, sep=";")
    options = {"data.missing": "mean", "data.label_column": "label", "data.clients": 1, "partition.name": "iid"}
    path = frames.keep(frame)
    own = {"data.source": "frame", "data.data_dir": str(path.parent), "data.options.frame": path.stem}
    given = [{"data.source": "path", "data.path": str(tmp_path / "table.csv")}, own]
    found = [_loaded({**options, **source}) for source in given]
    assert found[0][0] == found[1][0]
    if found[0][1] is not None:
        assert torch.equal(found[0][1].nan_to_num(7), found[1][1].nan_to_num(7))


def _loaded(options):
    """Return the columns and the inputs of a table, or why it cannot be read."""
    load_data.__globals__["_load_data"].cache_clear()
    tree = protofed.config.schema.apply_overrides({}, options)
    try:
        found = load_data(resolve(tree))
    except DataError as error:
        return str(error).split(": ", 1)[-1].split(": ")[0].split(", row")[0], None  # a file has a header
    return found.table, torch.cat([found.clients[0].train.x, found.clients[0].test.x])


def _frame(**columns):
    return pd.DataFrame({"x": np.arange(40) % 7 / 2, "y": np.arange(40) % 2, **columns})


@pytest.mark.parametrize(
    ("frame", "options", "error"),
    [
        ([[1, 2]], {}, "the data frame: expected a pandas data frame, not list"),
        (_frame(), {"site": "clinic"}, "the data frame: unknown site column 'clinic'"),
        (_frame(), {"label": "z"}, "the data frame: unknown label column 'z'"),
        (_frame().rename_axis("clinic"), {"site": "clinic"}, r"it is the index: use frame\.reset_index\(\)"),
        (_frame().set_axis(["x", "x"], axis=1), {}, "2 columns are called 'x'"),
        (_frame().T.set_index([[1, 2], [3, 4]]).T, {}, "2 levels of names"),
        (_frame(a=[object() if i == 5 else 1 for i in range(40)]), {}, "column 'a', row 5: holds a object"),
        (_frame(s=["a"] * 39 + [None]), {"site": "s"}, "column 's', row 39 has no value"),
        (_frame(s=["A.B", "AB"] * 20), {"site": "s"}, "'AB' and 'AB' are the same"),
        (_frame(s=["?!", "b"] * 20), {"site": "s"}, "use letters, digits"),
        (_frame(s="a")[:0], {"site": "s"}, "the data frame: holds no rows"),
    ],
)
def test_what_cannot_be_read_is_one_line(frame, options, error):
    with one_line(DataError, error) as caught:
        protofed.federation(frame, **options)
    assert ".parquet" not in str(caught.value)


def test_rows_are_those_of_the_frame_and_not_of_a_site():
    frame = _frame(s=["a", "b"] * 20, lab=[i % 9 + 0.5 if i != 21 else "<3" for i in range(40)])
    told = repr(protofed.federation(frame, "s", "y"))
    assert "lab: '<3' in row 21, among numbers" in told


def test_infinity_is_no_number():
    told = repr(protofed.federation(_frame(a=[np.inf if i == 9 else i % 4 + 0.5 for i in range(40)]), label="y"))
    assert "a: 'inf' in row 9, among numbers → leave the column out" in told


def test_a_frame_that_is_not_here_is_told():
    tree = {"data": {"source": "frame"}}
    with pytest.raises(ConfigError, match=r"call protofed\.federation with a data frame"):
        load_data(resolve(tree))
    tree["data"]["options"] = {"frame": "../" * 20 + "a" * 4}
    with pytest.raises(ConfigError, match=r"call protofed\.federation with a data frame"):
        load_data(resolve(tree))
    tree["data"]["options"] = {"frame": "a" * 64}
    with pytest.raises(DataError, match="with the same frame first"):
        load_data(resolve(tree))


@pytest.mark.slow
def test_nothing_of_a_frame_stays_on_disk(tmp_path):
    code = "import pandas, sys; from protofed.data.frames import keep; print(keep(pandas.DataFrame({'a': [1]})))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    path = type(tmp_path)(shown.stdout.strip())
    assert path.suffix == ".parquet"
    assert not path.parent.exists()


@pytest.fixture
def gaps(tmp_path):
    """Two sites with parquet files, in which a word stands for a missing number; their recipe, and new samples."""
    values = [str(i % 9) if i % 5 else "unknown" for i in range(60)]
    frame = pd.DataFrame({"crp": values, "b": np.arange(60) % 7 / 2, "label": np.arange(60) % 2})
    for site in "ab":
        frame.to_parquet(tmp_path / f"{site}.parquet")
    look = inspect_folder(tmp_path)
    path = tmp_path / "protofed.toml"
    path.write_text(look.recipe([notice for notice in look.notices if notice.options]))
    return path, frame[["crp", "b"]]


def test_texts_for_nothing_count_in_parquet_files_too(gaps):
    data = load_data(resolve(protofed.config.schema.load_recipe(gaps[0])))
    assert {column.name: column.kind for column in data.table.columns} == {"crp": "number", "b": "number"}
    assert data.table.inputs == ("crp", "crp missing", "b")


@pytest.mark.slow
def test_texts_for_nothing_count_in_new_samples(gaps, tmp_path):
    path, new = gaps
    options = {"method.name": "fedlda", "rounds": 1, "evaluation.metrics": False}
    run = protofed.run(path, options, out=tmp_path / "run")
    new.to_parquet(tmp_path / "new.parquet")
    new.to_csv(tmp_path / "new.csv", index=False)
    found = [
        run.predict("a", given).probabilities for given in (new, tmp_path / "new.parquet", tmp_path / "new.csv")
    ]
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
