"""Dates, Excel files, sites as files, columns with other names, and rows without a label."""

from __future__ import annotations

import zipfile
from datetime import date, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from openpyxl import Workbook

from protofed.data import DataOptions, load
from protofed.data.dates import day, days
from protofed.data.federation import load_client
from protofed.errors import ConfigError, DataError
from protofed.options import build_options
from strangers import write

NAMES = ["age", "size", "label"]


def rows(number: int, seed: int = 0) -> list[list[object]]:
    rng = np.random.default_rng(seed)
    return [[int(rng.integers(20, 90)), round(float(rng.normal()), 3), "yn"[i % 2]] for i in range(number)]


def loaded(path: Path, sites: bool = True, **data: object):
    given = {"source": "path", "path": str(path), "options": {"sites": True} if sites else {}, **data}
    return load(build_options(DataOptions, given, "data"), "dirichlet", None, 0)


@given(st.dates(date(1900, 1, 1), date(2100, 1, 1)))
def test_dates_in_all_forms_are_the_same_day(when):
    number = (when - date(2000, 1, 1)).days
    forms = ["%Y-%m-%d", "%Y/%m/%d", "%Y%m%d", "%d.%m.%Y", "%d/%m/%Y", "%d-%m-%Y", "%Y-%m-%dT00:00:00Z"]
    assert {day(when.strftime(form)) for form in forms} == {number}
    assert day(when.strftime("%m/%d/%Y"), month_first=True) == number
    assert day(f"{when.day}.{when.month}.{when.year} 12:00") == number + 0.5


@pytest.mark.parametrize(
    "text", ["", "2024", "31.4.2024", "2024-13-01", "1-2/2024", "12.5", "today", "2024-1-1 25:00", "2024131"]
)
def test_what_is_no_date(text):
    assert day(text) is None


@given(st.text(max_size=30))
def test_no_text_breaks_the_reading_of_dates(text):
    assert day(text) is None or isinstance(day(text), float)


def test_dates_of_any_type():
    given = [None, float("nan"), date(2000, 1, 2), datetime(2000, 1, 3, 12), 20000104.0, "5.1.2000"]
    found = days(given, str)  # beside a missing value, a data frame has whole numbers as floats
    assert np.isnan(found[:2]).all()
    assert found[2:].tolist() == [1, 2.5, 3, 4]


def test_a_date_becomes_a_number_and_another_an_age(tmp_path):
    names, dates = ["born", "seen", "label"], {"seen": "day", "born": "seen"}
    table = [[f"{1 + i % 28}.{1 + i % 12}.{1950 + i}", f"2024-01-{1 + i % 28:02}", "yn"[i % 2]] for i in range(40)]
    for site in "ab":
        write(tmp_path / f"{site}.csv", names, table)
    found = loaded(tmp_path, dates=dates, standardise="none")
    assert found.input_shape == (2,)
    ages = found.clients[0].train.x[:, 0] / 365.25
    assert 34 < ages.min() < ages.max() < 75
    table[1][1] = "2024-02-31"
    write(tmp_path / "b.csv", names, table)
    with pytest.raises(DataError, match=r"b\.csv: column 'seen', row 3: '2024-02-31' is not a date"):
        loaded(tmp_path, dates=dates)


@pytest.mark.parametrize("dates", [{"a": "b"}, {"a": "a"}, {"a": "b", "b": "a"}, {"a": "week"}])
def test_dates_that_refer_to_none_are_refused(dates):
    with pytest.raises(ConfigError, match="must be 'day' or another column"):
        build_options(DataOptions, {"dates": dates}, "data")


def test_sites_are_files_of_several_kinds(tmp_path):
    write(tmp_path / "north.csv", NAMES, rows(40))
    write(tmp_path / "south.tsv", NAMES, rows(40, 1), delimiter="\t")
    write(tmp_path / "inner" / "data.csv", NAMES, rows(40, 2))
    write(tmp_path / "outer" / "train.csv", NAMES, rows(30, 3))
    write(tmp_path / "outer" / "test.csv", NAMES, rows(10, 4))
    (tmp_path / "README.md").write_text("not data")
    found = loaded(tmp_path)
    assert [(c.name, len(c.train), len(c.test)) for c in found.clients] == [
        ("inner", 30, 10),
        ("north", 30, 10),
        ("outer", 30, 10),
        ("south", 30, 10),
    ]
    assert torch.equal(loaded(tmp_path).clients[1].train.x, found.clients[1].train.x)
    alone, _ = load_client(
        tmp_path / "inner", build_options(DataOptions, {"source": "path", "options": {"sites": True}}, "data"), 0
    )
    assert torch.equal(alone.clients[0].test.x, found.clients[0].test.x)


@pytest.mark.parametrize(
    ("prepare", "error"),
    [
        (
            lambda p: write(p / "a.csv", NAMES, rows(9)) or write(p / "a.tsv", NAMES, rows(9), "\t"),
            "is the same site",
        ),
        (lambda p: (p / "notes.txt").write_text("x"), "holds no site"),
        (lambda p: write(p / "a.b.csv", NAMES, rows(9)), "client"),
        (lambda p: (p / "a.csv").symlink_to("/etc/hostname"), "a link that leads out"),
    ],
)
def test_sites_that_cannot_be_told_apart(prepare, error, tmp_path):
    prepare(tmp_path)
    with pytest.raises(DataError, match=error):
        loaded(tmp_path)


def book(path: Path, table: list[list[object]]) -> None:
    made = Workbook()
    for row in table:
        made.active.append(row)
    made.save(path)


def test_an_excel_file_is_read_as_its_csv(tmp_path):
    table = rows(40)
    table[3][1], table[4][1] = None, "NA"
    (tmp_path / "csv").mkdir()
    (tmp_path / "excel").mkdir()
    write(tmp_path / "csv" / "a.csv", NAMES, [["" if v is None else v for v in row] for row in table])
    book(tmp_path / "excel" / "a.xlsx", [NAMES, *table, [None, None, None]])
    first, second = (loaded(tmp_path / kind, missing="mean").clients[0] for kind in ("csv", "excel"))
    assert torch.equal(first.train.x, second.train.x)
    assert torch.equal(first.train.y, second.train.y)


def test_excel_files_that_are_none(tmp_path):
    path = tmp_path / "a.xlsx"
    for content, error in ((b"text", "not a readable Excel file"), (b"", "not a readable Excel file")):
        path.write_bytes(content)
        with pytest.raises(DataError, match=error):
            loaded(tmp_path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("xl/workbook.xml", "<x/>")
    with pytest.raises(DataError, match="not a readable Excel file"):
        loaded(tmp_path)
    book(path, [])
    with pytest.raises(DataError, match="first sheet is empty"):
        loaded(tmp_path)
    book(path, [["age", None, "label"], [1, 2, "y"]])
    with pytest.raises(DataError, match="column 2 of the first sheet has no name"):
        loaded(tmp_path)
    for above, row, title in ([["Patients 2024"], [None]], 3, r" \('Patients 2024'\)"), ([[None]], 2, ""):
        book(path, [*above, ["age", "label"], [1, "y"]])
        told = rf"a\.xlsx: the header is in row {row}, below a title{title}: delete the rows above it$"
        with pytest.raises(DataError, match=told):
            loaded(tmp_path)


def test_columns_get_the_usual_name_in_every_form(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    write(tmp_path / "a.csv", NAMES, rows(40))
    write(tmp_path / "b.csv", ["Age", "size", "Label"], rows(40, 1))
    third = rows(40, 2)
    columns = zip(*third, strict=True)
    table = pa.table(dict(zip(["size2", "years", "label"], [list(c) for c in columns], strict=True)))
    pq.write_table(table.rename_columns(["years", "size", "label"]), tmp_path / "c.parquet")
    found = loaded(tmp_path, rename={"Age": "age", "years": "age", "Label": "label"})
    assert [column.name for column in found.table.columns] == ["age", "size"]
    assert len(found.clients) == 3


def test_further_texts_stand_for_a_missing_value(tmp_path):
    table = rows(40)
    table[0][0] = "unknown"
    write(tmp_path / "a.csv", NAMES, table)
    with pytest.raises(DataError, match="text 'unknown' in a column of numbers"):
        loaded(tmp_path, missing="mean")
    assert loaded(tmp_path, missing="mean", na_values=["unknown"]).input_shape == (2,)


def test_rows_without_a_label_are_left_out(tmp_path):
    table = rows(40)
    whole = loaded_of(tmp_path / "whole", table[2:])
    table[0][2] = table[1][2] = ""
    with pytest.raises(DataError, match="column 'label', row 2 has no value"):
        loaded_of(tmp_path / "gaps", table)
    rest = loaded_of(tmp_path / "gaps", table, unlabelled="drop")
    assert torch.equal(rest.clients[0].train.x, whole.clients[0].train.x)
    assert torch.equal(rest.clients[0].test.y, whole.clients[0].test.y)


def loaded_of(folder: Path, table: list[list[object]], **data: object):
    write(folder / "a.csv", NAMES, table)
    return loaded(folder, standardise="none", **data)


def test_a_column_to_drop_may_be_at_one_site_alone(tmp_path):
    write(tmp_path / "a.csv", [*NAMES, "remark"], [[*row, "ok"] for row in rows(40)])
    write(tmp_path / "b.csv", NAMES, rows(40, 1))
    assert loaded(tmp_path, drop=["remark"]).input_shape == (2,)
    with pytest.raises(DataError, match="unknown dropped column 'remarks': did you mean 'remark'"):
        loaded(tmp_path, drop=["remarks"])


def test_a_node_is_told_of_a_column_to_drop_that_it_does_not_have(tmp_path):
    for part in ("train", "test"):
        write(tmp_path / "a" / f"{part}.csv", NAMES, rows(40))
    options = build_options(DataOptions, {"drop": ["remarks"]}, "data")
    found, _ = load_client(tmp_path / "a", options, 0)  # others may have it, but it may be misspelt too
    assert found.notes == ("Not in the data (data.drop): remarks.",)
    renaming = build_options(DataOptions, {"labels": {"Malignant": "malignant"}}, "data")
    found, _ = load_client(tmp_path / "a", renaming, 0)
    assert found.notes == ("Not in the data (data.labels): Malignant.",)
    misspelt = f"{NAMES[0].upper()}x"  # would leave in what was to be left out
    with pytest.raises(DataError, match=f"unknown dropped column '{misspelt}': did you mean '{NAMES[0]}'"):
        load_client(tmp_path / "a", build_options(DataOptions, {"drop": [misspelt]}, "data"), 0)


def test_an_excel_file_that_spans_millions_of_empty_cells_is_refused(tmp_path):
    made = Workbook()
    made.active["A1"] = "label"
    made.active.cell(200_000, 500, 1)
    made.save(tmp_path / "a.xlsx")
    with pytest.raises(DataError, match="delete empty rows and columns"):
        loaded(tmp_path)


def test_an_excel_file_is_read_whole_whatever_it_says_of_its_size(tmp_path):
    made = Workbook()
    for row in [NAMES, *rows(40)]:
        made.active.append(row)
    made.save(tmp_path / "made.xlsx")
    with zipfile.ZipFile(tmp_path / "made.xlsx") as given, zipfile.ZipFile(tmp_path / "a.xlsx", "w") as written:
        for name in given.namelist():
            written.writestr(name, given.read(name).replace(b'ref="A1:C41"', b'ref="A1:C11"'))
    (tmp_path / "made.xlsx").unlink()
    (client,) = loaded(tmp_path).clients
    assert len(client.train) + len(client.test) == 40


def test_a_blank_label_is_none(tmp_path):
    table = [[*row[:2], "  "] if place < 4 else row for place, row in enumerate(rows(40))]
    frame = pd.DataFrame(table, columns=NAMES)
    frame.to_parquet(tmp_path / "a.parquet")
    data = loaded(tmp_path, unlabelled="drop")
    assert data.class_names == ("n", "y")
    assert sum(len(part) for client in data.clients for part in (client.train, client.test)) == 36
    with pytest.raises(DataError, match="has no value"):
        loaded(tmp_path)


@pytest.mark.parametrize("blank", ["", " ", " ? ", " NA", " none given "])
def test_a_value_is_missing_with_spaces_around_it_too(tmp_path, blank):
    table = [*rows(40), [blank, *rows(1)[0][1:]]]
    data = loaded_of(tmp_path, table, missing="indicator", na_values=["none given"])
    assert data.table.columns[0].kind == "number"
    held = torch.cat([part.x for client in data.clients for part in (client.train, client.test)])
    assert held[:, data.table.inputs.index(f"{NAMES[0]} missing")].sum() == 1


def test_a_text_that_stands_in_many_cells_is_charged_for_each(tmp_path):
    made = Workbook()
    for row in range(750):
        made.active.append(["x" * 30_000 if row else "size", row, "yn"[row % 2] if row else "label"])
    made.active["B1"] = "age"
    made.save(tmp_path / "a.xlsx")
    with pytest.raises(DataError, match=r"a\.xlsx"):
        loaded(tmp_path, max_gb=0.0125)
