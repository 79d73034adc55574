"""Comparison of sites before training: identifiers, spellings and abbreviations are refused; skew is not."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import support
from protofed.data import DataOptions, load
from protofed.data.comparing import Site, compare
from protofed.data.tables import RawColumn
from protofed.errors import ConfigError, DataError
from protofed.options import build_options

# By the command, as a user types it.

MODEL = ("model.name=mlp", "model.d=8", "method.name=fedproto", "rounds=1", "execution.executor=sequential")


def write(root, **sites):
    """Write a federation of tables; each site gives its label names, its words for sexes and its kind of file."""
    for number, (site, (labels, sexes, suffix)) in enumerate(sites.items()):
        draw = np.random.default_rng(number)
        folder = root / "clients" / site
        folder.mkdir(parents=True)
        for split, n in (("train", 40), ("test", 15)):
            table = {
                "patient_id": draw.permutation(10**5)[:n].tolist(),
                "age": draw.integers(20, 90, n).tolist(),
                "cells": draw.integers(4000, 11000, n).tolist(),
                "sex": [sexes[i] for i in draw.integers(0, len(sexes), n)],
                "label": [labels[i % len(labels)] for i in range(n)],
            }
            if suffix == "parquet":
                table["label"] = pa.array(table["label"]).dictionary_encode()
                pq.write_table(pa.table(table), folder / f"{split}.parquet")
            else:
                rows = zip(*table.values(), strict=True)
                lines = [";".join(map(str, row)) for row in rows]
                (folder / f"{split}.csv").write_text("\n".join([";".join(table), *lines, ""]))
    return root


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Return a function that types a command about a federation and returns its exit code and messages."""
    monkeypatch.chdir(tmp_path)

    def typed(name, *more):
        words = (name, "quickstart", "data.source=path", f"data.path={tmp_path / 'data'}", *MODEL, *more)
        return support.command(monkeypatch, capsys, *words)

    return typed


def tree(root):
    return {path.relative_to(root): path.is_file() and path.read_bytes() for path in root.rglob("*")}


FIXES = (
    "data.drop=patient_id",
    'data.labels={B = "benign", M = "malignant"}',
    'data.categories.sex={Female = "f", Male = "m"}',
)


@pytest.mark.slow
def test_everything_is_refused_at_once_and_what_is_proposed_works(tmp_path, command):
    write(
        tmp_path / "data",
        ann=(("benign", "malignant"), "fm", "csv"),
        bob=("BM", ("Female", "Male"), "csv"),
        cid=(("benign", "malignant"), "mf", "parquet"),
    )
    before = tree(tmp_path)
    for name, more in (("run", ("--out", str(tmp_path / "run"))), ("inspect", ("--out", str(tmp_path / "seen")))):
        code, _, told = command(name, *more)
        assert code == 2
        assert told.count("\n") == 1
        for part in (
            "ann/train.csv and 5 more: column 'patient_id' looks like an identifier",
            "bob/train.csv and 1 more: column 'sex' has 'Female', 'Male' beside 'f', 'm'",
            "bob/train.csv and 1 more: has the classes 'B', 'M' beside 'benign', 'malignant'",
            "data.drop=patient_id to leave identifiers out, or data.keep=patient_id to use them",
            *FIXES[1:],
        ):
            assert part in told
        assert "age" not in told
        assert "cells" not in told
        assert tree(tmp_path) == before, "nothing is written"
    code, _, told = command("run", "--out", str(tmp_path / "run"), *FIXES)
    assert code == 0, told
    assert "Inputs: 4 from 3 columns" in (tmp_path / "run" / "report.html").read_text()
    kept = ("data.keep=patient_id", *FIXES[1:])
    seen = " ".join(command("inspect", "--out", str(tmp_path / "seen"), *kept)[1].split())
    assert "patient_id, age, cells, sex" in seen


def test_image_folders_and_one_table_are_compared_too(tmp_path, command):
    from PIL import Image

    for site, labels in (("ann", ("Cat", "dog")), ("bob", ("cat", "dog"))):
        for split in ("train", "test"):
            for label in labels:
                folder = tmp_path / "data" / "clients" / site / split / label
                folder.mkdir(parents=True)
                Image.fromarray(np.zeros((8, 8), "u1")).save(folder / "a.png")
    code, _, told = command("inspect")
    assert code == 2
    assert "has the classes 'cat' beside 'Cat'" in told
    # A name with a space, as it is typed.
    lines = [f"{20 + i * i % 60},{['Female', 'Male', 'f', 'm'][i % 4]},{i % 2}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["age,sex at birth,label", *lines, ""]))
    with pytest.raises(DataError, match=r"t.csv: column 'sex at birth' has 'f', 'm' beside") as caught:
        load(DataOptions(source="path", path=str(tmp_path / "t.csv")), "iid", None, 0)
    proposed = str(caught.value).partition(": set ")[2]
    assert proposed == 'data.categories.sex at birth={f = "Female", m = "Male"}'
    assert command("inspect", proposed, f"data.path={tmp_path / 't.csv'}", "data.clients=2")[0] == 0


def test_stored_names_of_classes_are_renamed_too(tmp_path, command):
    for site, names in (("ann", ("benign", "malignant")), ("bob", ("B", "M"))):
        for split in ("train", "test"):
            file = tmp_path / "data" / "clients" / site / f"{split}.npz"
            file.parent.mkdir(parents=True, exist_ok=True)
            np.savez(file, x=np.ones((6, 4), np.float32), y=np.arange(6) % 2, class_names=np.array(names))
    code, _, told = command("inspect")
    assert (code, "its class names differ from those of" in told) == (2, True)
    code, out, told = command("inspect", 'data.labels={B = "benign", M = "malignant"}')
    assert code == 0, told
    assert out.count("malignant") == 1


# Names, as a plain function over what sites state.


def renames(*sites, column=None, **options):
    """Return the proposals of all findings about sites with these names; the sites are called 0, 1, …"""
    described = [
        Site(str(i), tuple(names))
        if column is None
        else Site(str(i), (), (RawColumn("c", "category", tuple(names)),))
        for i, names in enumerate(sites)
    ]
    return {
        f.site: dict(f.renames) or f.problem for f in compare(described, build_options(DataOptions, options, ""))
    }


@pytest.mark.parametrize("column", [None, "c"])
@pytest.mark.parametrize(
    ("sites", "expected"),
    [
        ([["benign", "malignant"], ["B", "M"]], {"1": {"B": "benign", "M": "malignant"}}),
        ([["f", "m"], ["Female", "Male"], ["f", "m"]], {"1": {"Female": "f", "Male": "m"}}),
        ([["Female", "Male"], ["FEMALE", "Male"], ["f", "m", "other"]],
         {"1": {"FEMALE": "Female"}, "2": {"f": "Female", "m": "Male"}}),
        ([["Yes", "No"], ["yes", "no"]], {"1": {"yes": "Yes", "no": "No"}}),
        ([["yes", "no"], ["y", "n"]], {"1": {"y": "yes", "n": "no"}}),
        ([["positive", "negative"], ["pos.", "neg."]], {"1": {"pos.": "positive", "neg.": "negative"}}),
        ([["non-smoker"], ["Non smoker"], ["non_smoker"]],
         {"1": {"Non smoker": "non-smoker"}, "2": {"non_smoker": "non-smoker"}}),
        ([["squamous cell carcinoma", "nevus"], ["SCC", "nevus"]], {"1": {"SCC": "squamous cell carcinoma"}}),
        ([["malignant", "benign"], ["M"]], {"1": {"M": "malignant"}}),
        ([["f", "m", "Female", "Male"]], {"0": {"Female": "f", "Male": "m"}}),
        ([["Grün"], ["Gru\u0308n"]], {"1": {"Gru\u0308n": "Grün"}}),
        ([["no", "yes"], ["0", "1"]], {"1": "{} '0', '1' where others have 'no', 'yes'"}),
    ],
)  # fmt: skip
def test_names_that_mean_the_same(sites, expected, column):
    what = "has the classes" if column is None else "column 'c' has"
    wanted = {k: v.format(what) if isinstance(v, str) else v for k, v in expected.items()}
    assert renames(*sites, column=column) == wanted


@pytest.mark.parametrize(
    "sites",
    [
        ["01234", "56789"],
        [["1", "2"], ["10", "20"], ["01"]],
        [["cat", "dog"], ["car", "bus"], ["horse"]],
        [["A", "0"], ["AB", "B"]],
        [["I", "V"], ["III", "VII"]],
        [["T1", "T2"], ["T1a", "T2b"]],
        [["A+", "A-"], ["A"], ["AB+"]],
        [["<5", ">5"], ["5-10", "510", "5"], ["1.5", "15", "-15"]],
        [["carcinoma"], ["carcinoma in situ"]],
        [["can", "bus"], ["candle", "tree"]],
        [["S", "M", "L"], ["XL", "XXL"]],
        ["abcABC", "aC"],
        [["malignant", "metastasis"], ["M", "0"]],
    ],
)
def test_names_that_do_not_mean_the_same(sites):
    for column in (None, "c"):
        assert renames(*sites, column=column) == {}


def test_a_name_that_is_mapped_to_itself_is_meant():
    sites = [["benign", "malignant"], ["B", "M"]]
    assert renames(*sites, labels={"B": "B", "M": "M"}) == {}
    assert renames(*sites, column="c", categories={"c": {"B": "B", "M": "M"}}) == {}
    assert renames(*sites, column="c", categories={"c": ["B", "M", "benign", "malignant"]}) == {}
    assert compare([Site(str(n), tuple(s)) for n, s in enumerate(sites)], DataOptions(), ["B", "M"]) == []
    for wrong in ({"M": 1}, {"M": ""}, {"M": "malignant", "malignant": "bad"}):
        for options in ({"labels": wrong}, {"categories": {"c": wrong}}):
            with pytest.raises(ConfigError, match=r"must map names|is both a name"):
                build_options(DataOptions, options, "data")


def test_text_of_sites_is_shown_in_one_short_line(tmp_path):
    """Names are not trusted, and many sites and findings do not make a long message."""
    from protofed.data.comparing import check

    odd = "ben\x1b[31m\nign" + "x" * 5000
    sites = [Site(f"site {n}\n", ("f", "m") if n else ("Female", "Male")) for n in range(500)]
    sites += [Site(odd, ("Female", "M\x00ale", "m ale"), None)]
    with pytest.raises(DataError) as caught:
        check(sites, DataOptions())
    assert len(str(caught.value)) < 2000
    assert str(caught.value).isprintable()


@pytest.mark.slow
def test_many_names_take_no_time():
    """A hostile list of classes costs no more than reading it."""
    names = tuple("a" * (n % 120) + f"{n}" for n in range(65536))
    assert compare([Site("a", names), Site("b", names[::-1])], DataOptions()) == []


# Identifiers.


def kinds(tmp_path, **columns):
    """Return the names of the columns of a CSV file that are refused as identifiers."""
    lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    head = ",".join(columns)
    labels = [f"{line},{n % 2}" for n, line in enumerate(lines)]
    (tmp_path / "t.csv").write_text("\n".join([f"{head},label", *labels, ""]))
    try:
        load(DataOptions(source="path", path=str(tmp_path / "t.csv"), missing="mean", clients=2), "iid", None, 0)
    except DataError as error:
        return str(error).partition("data.drop=")[2].partition(" ")[0].split(",")
    return []


DRAW = np.random.default_rng(1)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("patient_id", DRAW.integers(10**7, size=60)),
        ("medical record number", DRAW.integers(10**7, size=60)),
        ("MRN", [*DRAW.integers(10**7, size=59), ""]),
        ("id", np.repeat(DRAW.integers(10**6, size=30), 2)),
        ("Fallnummer", DRAW.integers(10**6, size=60)),
        ("nr", range(60)),
        ("code", DRAW.permutation(300)[:60] + 5000 * 0),
        ("patient", [f"P{i}" for i in range(15)] * 4),
        ("name", [f"Smith {i}" for i in range(60)]),
    ],
)
def test_identifiers(name, values, tmp_path):
    expected = [] if name in ("code", "patient") else [name]
    if name == "medical record number":
        expected = ["medical"]  # the message has the whole name; this test cuts it at the space
    assert kinds(tmp_path, **{name: values}) == expected


def test_ordinary_whole_numbers_are_no_identifiers(tmp_path):
    draw = np.random.default_rng(2)
    for n in (12, 40, 150, 700):
        columns = {
            "age": draw.integers(18, 95, n),
            "leukocytes": draw.integers(4000, 11000, n),
            "platelets": draw.integers(150, 450, n) * 1000,
            "cell_number": draw.integers(10**6, size=n),
            "number_of_cells": draw.integers(10**5, size=n),
            "patient_weight_g": draw.integers(40_000, 120_000, n),
            "birth weight": draw.normal(3400, 500, n).round().astype(int),
            "visits": draw.poisson(8, n),
            "ward_id": draw.integers(1, 8, n),
            "no": draw.integers(0, 50, n),
            "time": np.cumsum(draw.integers(1, 10**5, n)),
            "fluid": draw.normal(size=n).round(3),
        }
        assert kinds(tmp_path, **columns) == []
