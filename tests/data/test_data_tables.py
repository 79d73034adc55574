"""Tables with typed columns: reading, agreement over sites, standardisation, and their refusals."""

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv

from data.files import write_npz
from protofed.data import DataOptions, Table, load, load_pool
from protofed.data.comparing import Site, check, compare, merge_columns
from protofed.data.tables import Moments, RawColumn, fit, moments, own, pool_moments
from protofed.errors import ConfigError, DataError, ProtofedError
from protofed.options import build_options

HEADER = "age,sex,pulse,label\n"


def rows(n, start=0, ages=(30.0, 2.5)):
    """Return ``n`` rows; ages run from the first number in steps of the second."""
    return "".join(f"{ages[0] + ages[1] * i},{'fm'[i % 2]},{60 + i},{i % 2}\n" for i in range(start, start + n))


@pytest.fixture
def sites(tmp_path):
    """Return a federation folder of two clients with tables, whose names a user would choose."""
    for name, ages in (("Köln", (30.0, 2.5)), ("north clinic", (60.0, -1.0))):
        folder = tmp_path / "clients" / name
        folder.mkdir(parents=True)
        (folder / "train.csv").write_text(HEADER + rows(12, 0, ages), encoding="utf-8")
        (folder / "test.csv").write_text(HEADER + rows(4, 12, ages), encoding="utf-8")
    return tmp_path


def fed(root, **more):
    return load(DataOptions(source="path", path=str(root), **more), "dirichlet", None, 0)


def spoil(root, text, file="train.csv"):
    path = root / "clients" / "Köln" / file
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def refused(root, *expected, **more):
    with pytest.raises(ProtofedError) as caught:
        fed(root, **more)
    message = str(caught.value)
    assert "\n" not in message
    for part in expected:
        assert part in message


# Reading.


def test_typed_columns_of_a_federation(sites):
    data = fed(sites, standardise="none")
    assert [c.name for c in data.clients] == ["Köln", "north clinic"]
    assert data.table.inputs == ("age", "sex=f", "sex=m", "pulse")
    assert data.input_shape == (4,)
    assert data.clients[0].train.x.dtype == torch.float32
    assert data.clients[0].train.x[1].tolist() == [32.5, 0, 1, 61]
    assert data.clients[0].train.y[:3].tolist() == [0, 1, 0]


def test_csv_and_parquet_give_the_same_samples(sites):
    expected = fed(sites).clients[0]
    for split in ("train", "test"):
        path = sites / "clients" / "Köln" / f"{split}.csv"
        pq.write_table(csv.read_csv(path), path.with_suffix(".parquet"))
        path.unlink()
    found = fed(sites).clients[0]
    assert torch.equal(found.train.x, expected.train.x)
    assert torch.equal(found.test.x, expected.test.x)
    assert found.table == expected.table


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_delimiters_and_decimal_commas(sites, delimiter):
    expected = fed(sites).clients[0].train.x
    text = (HEADER + rows(12)).replace(",", delimiter).replace(".", ",")
    spoil(sites, b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert torch.equal(fed(sites).clients[0].train.x, expected)


def test_the_index_of_a_data_frame_is_never_a_feature(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": [1.0, 2, 3, 4], "label": [0, 1, 0, 1]}, index=[7, 5, 3, 1])
    for name, options in (("plain", {}), ("named", {"index": "patient"})):
        own_index = frame.rename_axis(options.get("index"))
        own_index.to_parquet(tmp_path / f"{name}.parquet")
        assert set(pq.read_schema(tmp_path / f"{name}.parquet").names) > {"age", "label"}
        assert load_pool(DataOptions(source="path", path=str(tmp_path / f"{name}.parquet")), 0).x.shape == (4, 1)
    frame.to_csv(tmp_path / "unnamed.csv")
    assert load_pool(DataOptions(source="path", path=str(tmp_path / "unnamed.csv")), 0).x.shape == (4, 1)
    # Without pandas' metadata its usual names are known.
    table = pa.table({"__index_level_0__": [9, 8], "age": [1.0, 2.0], "label": [0, 1]})
    pq.write_table(table, tmp_path / "bare.parquet")
    assert load_pool(DataOptions(source="path", path=str(tmp_path / "bare.parquet")), 0).x.tolist() == [[1], [2]]


def test_one_table_divided_by_a_column_of_ids(tmp_path):
    text = "ward,age,patient,label\n" + "".join(f"{'ab'[i % 2]},{i * 7 % 20},p{i},{i // 10}\n" for i in range(30))
    (tmp_path / "t.csv").write_text(text)
    options = DataOptions(
        source="path", path=str(tmp_path / "t.csv"), clients=0, options={"id_column": "ward"}, drop=("patient",)
    )
    data = load(options, "natural", None, 0)
    assert len(data.clients) == 2
    assert data.table.inputs == ("age",)
    with pytest.raises(
        DataError, match=r"'patient' looks like an identifier.* data\.drop=patient .* data\.keep=patient"
    ):
        load_pool(DataOptions(source="path", path=str(tmp_path / "t.csv"), options={"id_column": "ward"}), 0)


def test_declared_categories_of_numbers(sites):
    spoil(sites, (HEADER + rows(12)).replace(",60,", ",61.0,"))
    data = fed(sites, categories={"pulse": []})
    assert data.table.columns[2].categories[:3] == ("60", "61", "62")
    assert data.clients[0].train.x[:2, 4].tolist() == [1, 1]  # 61.0 and 61 are one category
    order = [str(n) for n in range(60, 80)][::-1]
    assert fed(sites, categories={"pulse": order}).table.columns[2].categories == tuple(order)


# Statistics.


def test_standardisation_over_sites_equals_pooled_standardisation(sites):
    """(x - m) / s with m and s over all training samples, as scikit-learn's StandardScaler computes them."""
    from sklearn.preprocessing import StandardScaler

    plain, data = fed(sites, standardise="none"), fed(sites, standardise="federated")
    scaler = StandardScaler().fit(torch.cat([c.train.x for c in plain.clients])[:, [0, 3]].double().numpy())
    numbers = [data.table.columns[0], data.table.columns[2]]
    assert np.allclose([c.mean for c in numbers], scaler.mean_, rtol=1e-14)
    assert np.allclose([c.scale for c in numbers], scaler.scale_, rtol=1e-14)
    for mine, other in zip(data.clients, plain.clients, strict=True):
        expected = torch.from_numpy(scaler.transform(other.test.x[:, [0, 3]].double().numpy())).float()
        assert torch.allclose(mine.test.x[:, [0, 3]], expected, atol=1e-6)
        assert torch.equal(mine.test.x[:, 1:3], other.test.x[:, 1:3])
        assert mine.table == data.table


def test_each_site_by_itself_is_the_default_of_tables(sites):
    data = fed(sites)
    assert data.table.standardise == "site"
    for client in data.clients:
        numbers = client.train.x[:, [0, 3]].double()
        assert torch.allclose(numbers.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-6)
        assert torch.allclose(numbers.std(0, correction=0), torch.ones(2, dtype=torch.float64), atol=1e-6)
    assert data.clients[0].table.columns[0].mean == pytest.approx(30 + 2.5 * 5.5)
    assert data.clients[1].table.columns[0].mean == pytest.approx(60 - 5.5)


def test_statistics_come_from_training_samples_only(sites):
    before = fed(sites, validation_fraction=0.25, standardise="federated")
    spoil(sites, HEADER + "1000,f,1000,0\n", "test.csv")
    after = fed(sites, validation_fraction=0.25, standardise="federated")
    assert after.table == before.table
    trained = torch.cat([c.train.x for c in before.clients])[:, [0, 3]].double()
    assert torch.allclose(trained.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-6)


@given(
    st.lists(st.lists(st.floats(-1e3, 1e3), min_size=0, max_size=9), min_size=1, max_size=5).filter(
        lambda sites: any(sites)
    ),
    st.sampled_from([0.0, 1.0, 1e6]),
)
def test_sums_over_sites_are_those_of_all_values(values, offset):
    """Also far from zero, where raw sums of squares would lose what they have in common with the mean squared."""
    parts = [torch.tensor(site, dtype=torch.float64)[:, None] + offset for site in values]
    mean, scale = pool_moments([moments(part)[0] for part in parts])
    everything = torch.cat(parts).flatten().tolist()
    exact = math.fsum(everything) / len(everything)
    deviation = math.sqrt(math.fsum((v - exact) ** 2 for v in everything) / len(everything))
    assert mean == pytest.approx(exact, rel=1e-14, abs=1e-12)
    if deviation > 1e-6 * abs(exact) + 1e-9:
        assert scale == pytest.approx(deviation, rel=1e-9)
    assert pool_moments([moments(part)[0] for part in parts[::-1]]) == (mean, scale)


def test_constant_columns_and_absent_values_keep_their_scale():
    assert pool_moments([Moments(3, 0.1, 1e-34), Moments(2, 0.1, 0.0)])[1] == 1.0
    assert pool_moments([Moments(), Moments()]) == (0.0, 1.0)
    table = own(fit([RawColumn("a")], [[Moments()]], "site", "mean"), [Moments()])
    assert table.apply(torch.tensor([[5.0], [float("nan")]])).tolist() == [[5.0], [0.0]]


def test_missing_values(sites):
    text = (HEADER + rows(12)).replace("30.0,f,60,0", ",?,NA,0")
    spoil(sites, text)
    refused(sites, "Köln/train.csv: column 'age', row 2 has no value", "data.missing=mean or indicator")
    data = fed(sites, missing="mean")
    assert data.input_shape == (4,)
    assert data.clients[0].train.x[0].tolist() == [0, 0, 0, 0]
    data = fed(sites, missing="indicator")
    assert data.table.inputs == ("age", "age missing", "sex=f", "sex=m", "sex missing", "pulse", "pulse missing")
    assert data.clients[0].train.x[0].tolist() == [0, 1, 0, 0, 1, 0, 1]
    assert data.clients[1].train.x[:, [1, 4, 6]].sum() == 0  # the other site has the same inputs
    plain = fed(sites, missing="mean", standardise="none").clients[0]
    assert plain.train.x[0, 0] == plain.train.x[1:, 0].mean()


def test_raw_values_that_give_the_same_inputs(sites):
    spoil(sites, (HEADER + rows(12)).replace("30.0,f,60,0", ",?,NA,0"))
    for missing in ("mean", "indicator"):
        client = fed(sites, missing=missing).clients[0]
        raw = torch.tensor([[31.5, 0, 60], [math.nan, 1, 61], [40, math.nan, math.nan], [1, 2, 3]]).double()
        for x in (client.train.x, client.test.x, client.table.apply(raw)):
            assert torch.allclose(client.table.apply(client.table.restore(x)), x, atol=1e-6)
    assert client.table.restore(client.table.apply(raw))[2].isnan().tolist() == [False, True, True]
    assert client.table.restore(client.table.apply(raw))[3].tolist() == pytest.approx([1, 2, 3], abs=1e-4)


def test_a_category_that_only_one_site_has(sites):
    spoil(sites, (HEADER + rows(12)).replace("55.0,f", "55.0,x"))
    data = fed(sites)
    assert data.table.inputs == ("age", "sex=f", "sex=m", "sex=x", "pulse")
    assert data.clients[1].train.x[:, 3].sum() == 0
    declared = {"sex": ["f", "m"]}
    refused(sites, "Köln/train.csv: column 'sex': unknown category 'x'", "Valid: f, m", categories=declared)


def test_series_and_vectors_are_standardised_on_request(tmp_path):
    """A channel of a series has one mean over samples and steps."""
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        for split in ("train", "test"):
            x = rng.normal(size=(12, 2, 30)).astype(np.float32) * [[[3.0], [0.1]]] + [[[100.0], [-5.0]]]
            write_npz(tmp_path / "clients" / name / f"{split}.npz", x, np.arange(12) % 3)
    plain = fed(tmp_path)
    assert plain.table is None
    data = fed(tmp_path, standardise="federated")
    assert data.input_shape == (2, 30)
    x = torch.cat([c.train.x for c in data.clients]).double()
    assert torch.allclose(x.mean((0, 2)), torch.zeros(2, dtype=torch.float64), atol=1e-5)
    assert torch.allclose(x.transpose(0, 1).flatten(1).std(1, correction=0), torch.ones(2).double(), atol=1e-5)
    site = fed(tmp_path, standardise="site").clients[1].train.x.double()
    assert torch.allclose(site.mean((0, 2)), torch.zeros(2, dtype=torch.float64), atol=1e-5)


def test_images_are_not_standardised(federation):
    with pytest.raises(ConfigError, match=r"data.standardise=site is for tables.*transforms.mean"):
        fed(federation, standardise="site")
    with pytest.raises(ConfigError, match="are for tables"):
        fed(federation, missing="mean")


# Plain data.

COLUMN = {"name": "a", "kind": "number", "mean": 0, "scale": 1, "fill": 0, "categories": [], "indicator": False}


def test_a_table_is_plain_data(sites):
    spoil(sites, (HEADER + rows(12)).replace("30.0,f", ",f"))
    data = fed(sites, missing="indicator")
    table = data.clients[0].table
    assert Table.from_dict(json.loads(json.dumps(table.to_dict()))) == table
    columns = {"pulse": [60, 61], "sex": ["f", None], "age": [None, 32.5], "other": [0, 0]}
    assert torch.equal(table.apply(table.encode(columns))[0], data.clients[0].train.x[0])
    for wrong, expected in (
        ({"age": [1], "sex": ["f"]}, "lacks the column 'pulse'; it has age, sex"),
        ({"age": ["old"], "sex": ["f"], "pulse": [1]}, "column 'age', row 0: 'old' is not a number"),
        ({"age": [1], "sex": ["q"], "pulse": [1]}, "column 'sex', row 0: unknown category 'q'"),
        ({"age": [math.inf], "sex": ["f"], "pulse": [1]}, "not a finite number"),
    ):
        with pytest.raises(DataError, match=expected):
            table.encode(wrong)


@pytest.mark.parametrize(
    "change",
    [
        {"standardise": "all"},
        {"columns": []},
        {"columns": [{"kind": "number"}]},
        {"more": 1},
        *({"columns": [COLUMN | odd]}
          for odd in (
              {"scale": 0}, {"scale": float("inf")}, {"mean": float("nan")}, {"mean": "0"}, {"kind": "unknown"},
              {"name": ""}, {"name": "a\n"}, {"categories": ["x"]}, {"indicator": 1},
              {"kind": "category", "categories": ["x", "x"]}, {"kind": "category", "categories": ["x"] * 10**4},
          )),
    ],
)  # fmt: skip
def test_a_table_from_elsewhere_is_read_strictly(change):
    good = fit([RawColumn("a")], [[Moments()]], "none", "mean").to_dict()
    assert Table.from_dict(good)
    with pytest.raises(ValueError, match=r".+"):
        Table.from_dict({**good, **change})


# Refusals.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HEADER + rows(11) + "old,m,60,1\n", ["column 'age', row 13", "text 'old' in a column of numbers"]),
        (HEADER + rows(11) + "1e31,m,60,1\n", ["column 'age', row 13", "1e+31"]),
        (HEADER + rows(2) + "1,2\n", ["line 4: expected 4 columns, got 2"]),
        ("age,sex,label\n1,f,0\n2,m,1\n", ["lacks the column 'pulse'", "test.csv has"]),
        ("age,sex,pulse,bmi,label\n1,f,60,20,0\n2,m,61,21,1\n", ["has the column 'bmi', which", "test.csv lacks"]),
        ("age,sex,pulse\n1,f,0\n", ["cannot identify the label column"]),
        (HEADER + rows(11) + "1,m,60,\n", ["column 'label', row 13 has no value"]),
        (HEADER.replace("pulse", "age") + rows(3), ["several columns have the same name"]),
        (HEADER + "young,f,60,0\nold,m,61,1\n", ["column 'age' holds", "data.categories.age=[]"]),
        ("", ["is empty"]),
        (b"age,sex,pulse,label\n1,\xfc,2,0\n", ["UTF-8"]),
        (HEADER.replace("age", '"a\x07ge"') + rows(3), ["a column cannot be used"]),
    ],
)
def test_bad_tables_are_refused_in_one_line(sites, text, expected):
    spoil(sites, text)
    refused(sites, "Köln/", *expected)


def test_a_constant_label_is_refused(sites):
    for name in ("Köln", "north clinic"):
        for split in ("train", "test"):
            path = sites / "clients" / name / f"{split}.csv"
            path.write_text("".join(line[:-1] + "1\n" if line[-1].isdigit() else f"{line}\n"
                                    for line in path.read_text().splitlines()))  # fmt: skip
    refused(sites, "the label column is constant (all samples are '1'): set data.label_column")
    fed(sites, label_column="sex")  # a column that varies


def test_options_of_columns_that_do_not_exist(sites):
    refused(sites, "unknown dropped column 'patient'", drop=("patient",))
    refused(sites, "data.categories.wing", "no such column", categories={"wing": []})
    with pytest.raises(ConfigError, match=r"categories.sex must be a list of different categories"):
        build_options(DataOptions, {"categories": {"sex": ["f", "f"]}}, "data")


def sites_of(**columns):
    return [Site(name, columns=(column,)) for name, column in columns.items()]


def test_agreement_names_who_differs():
    options = DataOptions()
    with pytest.raises(DataError, match="south: column 'a' holds categories, but numbers at north"):
        check(sites_of(north=RawColumn("a"), south=RawColumn("a", "category", ("x",))), options)
    many, more = (RawColumn("a", "category", tuple(f"{c}{n:03}" for n in range(200))) for c in "cd")
    with pytest.raises(DataError, match="south: brings the categories of column 'a' to more than 256"):
        check(sites_of(north=many, south=more), options)
    unknown = sites_of(north=RawColumn("a", "unknown"), south=RawColumn("a", "category", ("x",)))
    assert compare(unknown, options) == []
    assert merge_columns(unknown, options) == (RawColumn("a", "category", ("x",)),)


@pytest.mark.parametrize("encoding", ["xyz", "rot13", "undefined", "a\0b"])
def test_an_encoding_that_is_none_is_refused_though_no_file_needs_it(encoding):
    with pytest.raises(ValueError, match="unknown text encoding"):
        DataOptions(encoding=encoding)
    assert DataOptions(encoding="utf-16").encoding == "utf-16"
