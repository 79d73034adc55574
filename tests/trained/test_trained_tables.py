"""`protofed predict` reads tables as real sites write them, and gives what the run itself scored."""

from __future__ import annotations

import csv
import io
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import protofed
from protofed import load_run
from protofed.cli.main import main
from protofed.experiments import resolve
from protofed.experiments.loading import load_data
from support import few
from trained.test_trained import command

COLUMNS = ("age", "dose", "sex", "ward", "smoker", "patient", "ill")
ABSENT = ("NA", "", "?", "NaN")
OPTIONS = (
    "data.label_column=ill",
    "data.missing=indicator",
    "data.drop=patient",
    "data.categories.ward=[]",
    'data.categories.sex={Female = "f", Male = "m"}',
    'data.labels={M = "malignant", B = "benign"}',
    "method.name=fedproto",
    "model.name=mlp",
    "model.d=8",
    "rounds=3",
    "execution.executor=sequential",
)


def rows(site: str, split: str) -> list[dict[str, str]]:
    """Return rows with decimals, missing values, codes with leading zeros, truth values and an identifier."""
    draw, words = random.Random(f"{site} {split}"), ("Female", "Male") if site == "Köln" else ("f", "m")
    found = []
    for i in range(60 if split == "train" else 25):
        ill = draw.random() < 0.5
        found.append(
            {
                "age": ABSENT[i % 4] if i % 9 == 4 else f"{draw.randrange(20, 90)}",
                "dose": ABSENT[i % 4] if i % 7 == 3 else f"{draw.gauss(2 * ill, 1):.3f}",
                "sex": ABSENT[i % 4] if i % 8 == 5 else draw.choice(words),
                "ward": draw.choice(("01", "02", "X")),
                "smoker": draw.choice(("true", "false")),
                "patient": f"{draw.randrange(10**6)}",
                "ill": (("B", "M") if site == "Köln" else ("benign", "malignant"))[ill],
            }
        )
    return found


def text(rows, names=COLUMNS, delimiter=";", decimal=",", quoting=csv.QUOTE_MINIMAL, index=False) -> bytes:
    out = io.StringIO()
    write = csv.writer(out, delimiter=delimiter, quoting=quoting, lineterminator="\r\n")
    write.writerow([*([""] if index else []), *names])
    for number, row in enumerate(rows):
        values = [row[n].replace(".", decimal) if n == "dose" else row[n] for n in names]
        write.writerow([*([str(number)] if index else []), *values])
    return out.getvalue().encode()


def typed(rows) -> pa.Table:
    """Return rows as another program would write them to parquet: with types, and null for missing."""
    kinds = {"age": float, "dose": float, "smoker": "true".__eq__}
    columns = {
        n: [None if r[n] in ABSENT else kinds.get(n, str)(r[n]) for r in rows] for n in COLUMNS if n != "patient"
    }
    return pa.table({**columns, "sex": pa.array(columns["sex"]).dictionary_encode()})


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """A run of two sites, one of which writes semicolons, decimal commas and abbreviations."""
    root = tmp_path_factory.mktemp("sites")
    for site, form in (("Köln", (";", ",")), ("north", (",", "."))):
        folder = root / "data" / "clients" / site
        folder.mkdir(parents=True)
        for split in ("train", "test"):
            (folder / f"{split}.csv").write_bytes(text(rows(site, split), COLUMNS, *form))
    words = ("run", "quickstart", "data.source=path", f"data.path={root / 'data'}", *OPTIONS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["protofed", *words, "--out", str(root / "run"), "--quiet"])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code
    return root


def predicted(root, file, monkeypatch, capsys, site="Köln"):
    """Return the classes, the probabilities and the warnings of a command."""
    code, out, told = command(monkeypatch, capsys, "predict", root / "run", site, file, "--rule", "head")
    assert code == 0, told
    found = list(csv.DictReader(io.StringIO(out)))
    return [r["class"] for r in found], [[float(r["p(benign)"]), float(r["p(malignant)"])] for r in found], told


def scored(root, site="Köln"):
    """Return the classes and probabilities of the samples that the run scored, and its accuracy."""
    run = load_run(root / "run")
    clients = load_data(resolve(run.config)).clients
    number, client = next((i, c) for i, c in enumerate(clients) if c.name == site)
    found = run.client(site).predict(client.test.x, "head")
    return found.classes, found.probabilities, run.rounds[-1].accuracy.clients["head"][number]


FORMS = {
    "as the run": {},
    "commas and points": {"delimiter": ",", "decimal": "."},
    "commas, quoted": {"delimiter": ",", "decimal": ".", "quoting": csv.QUOTE_NONNUMERIC},
    "tabs": {"delimiter": "\t"},
    "bars": {"delimiter": "|", "decimal": "."},
    "another order": {"names": COLUMNS[::-1]},
    "no label": {"names": COLUMNS[:5]},
    "an index": {"index": True},
}


@few("form", FORMS, 2)
def test_the_samples_of_a_run_are_predicted_as_it_scored_them(form, sites, tmp_path, monkeypatch, capsys):
    (tmp_path / "new.csv").write_bytes(
        b"\xef\xbb\xbf" * (form == "tabs") + text(rows("Köln", "test"), **FORMS[form])
    )
    classes, probabilities, told = predicted(sites, tmp_path / "new.csv", monkeypatch, capsys)
    expected, exactly, accuracy = scored(sites)
    assert classes == expected
    assert np.array_equal(probabilities, exactly)
    truth = [{"B": "benign", "M": "malignant"}[row["ill"]] for row in rows("Köln", "test")]
    assert np.mean([one == other for one, other in zip(classes, truth, strict=True)]) == pytest.approx(accuracy)
    assert told == ""


def test_typed_parquet_files_and_frames_are_predicted_alike(sites, tmp_path, monkeypatch, capsys):
    for site in ("Köln", "north"):
        table = typed(rows(site, "test"))
        pq.write_table(table.append_column("height", pa.array([1.7] * 25)), tmp_path / "new.parquet")
        classes, probabilities, told = predicted(sites, tmp_path / "new.parquet", monkeypatch, capsys, site)
        assert classes == scored(sites, site)[0]
        assert np.array_equal(probabilities, scored(sites, site)[1])
        assert told.endswith("new.parquet: columns that the run did not have are not used: 'height'\n")
        frame = load_run(sites / "run").predict(site, table.to_pandas(), "head")
        assert np.array_equal(frame.probabilities, probabilities)


@pytest.mark.parametrize("number", [25, 12])
def test_values_in_another_unit_than_in_training_are_told(number, sites, tmp_path, monkeypatch, capsys):
    """Ages in centuries, in one line, as init tells of a site's."""
    centuries = [
        {**r, "age": r["age"] if r["age"] in ABSENT else f"{int(r['age']) / 1000}"} for r in rows("Köln", "test")
    ]
    (tmp_path / "new.csv").write_bytes(
        text([r | {"dose": r["dose"]} for r in centuries[:number]], delimiter=",", decimal=".")
    )
    told = predicted(sites, tmp_path / "new.csv", monkeypatch, capsys)[2]
    assert told.count("\n") == 1
    assert "new.csv: column age: median 0.0" in told
    assert told.endswith("in training: another unit?\n")


def test_what_a_closed_form_has_never_seen_is_unknown(tmp_path, monkeypatch, capsys):
    """The column typical, and no class below the level asked for; other methods have neither."""
    options = {"method.name": "fedlda", "encoder.name": "identity", "data.standardise": "federated"}
    run = protofed.run("hospital-tables", options, out=tmp_path / "run")
    name = run.names[0]
    trained = run.client(name)
    columns = [column.name for column in trained.table.columns]
    middle = [column.mean + 0.1 * column.scale for column in trained.table.columns]
    far = [column.mean + 60 * column.scale for column in trained.table.columns]
    lines = [",".join(columns), *(",".join(map(str, row)) for row in (middle, far))]
    (tmp_path / "new.csv").write_text("\n".join(lines))
    found = {}
    for more in ((), ("--unknown", "0.3")):
        code, out, told = command(
            monkeypatch, capsys, "predict", tmp_path / "run", name, tmp_path / "new.csv", *more
        )
        assert code == 0, told
        found[more] = list(csv.DictReader(io.StringIO(out)))
    plain, asked = found.values()
    assert [float(row["typical"]) for row in plain] == [float(row["typical"]) for row in asked]
    assert float(plain[0]["typical"]) > 0.3 > float(plain[1]["typical"])
    assert "unknown" not in {row["class"] for row in plain}
    assert [asked[0]["class"], asked[1]["class"]] == [plain[0]["class"], "unknown"]


def test_a_row_is_predicted_alike_alone(sites, tmp_path, monkeypatch, capsys):
    """What other rows hold decides neither a column's type nor the name of a category, such as 01."""
    expected = scored(sites)[1]
    for number in (0, 3, 5):  # complete, without a dose, without a sex
        (tmp_path / "one.csv").write_bytes(text([rows("Köln", "test")[number]]))
        found = predicted(sites, tmp_path / "one.csv", monkeypatch, capsys)[1][0]
        assert found == pytest.approx(expected[number], abs=1e-7)  # a batch of one is added up in another order


@few(
    ("spoil", "message"),
    [
        (lambda t: t.replace(b"age", b"years"), "lacks the column 'age'; it has years, dose"),
        (lambda t: t.replace(b"age", b"dose"), "several columns have the same name"),
        (lambda t: t.replace(b"\r\n", b"\r\nold;1;Male;01;true;1;M\r\n", 1), "column 'age', row 2: 'old' is not a"),
        (lambda t: t.replace(b"\r\n", b"\r\n1_0;1;Male;01;true;1;M\r\n", 1), "'age', row 2: '1_0' is not a number"),
        (lambda t: t.replace(b"Male", b"male"), "unknown category 'male': Valid: f, m"),
        (lambda t: t.replace(b"Male", b"M\xe4le"), "UTF-8"),
        (lambda t: t + b"1;2\r\n", "expected 7 columns, got 2"),
        (lambda t: b"", "is empty"),
    ],
    3,
)
def test_other_tables_are_refused_in_one_line(spoil, message, sites, tmp_path, monkeypatch, capsys):
    (tmp_path / "new.csv").write_bytes(spoil(text(rows("Köln", "test"))))
    before = sorted(tmp_path.iterdir())
    arguments = ("predict", sites / "run", "Köln", tmp_path / "new.csv", "--out", tmp_path / "classes.csv")
    code, out, told = command(monkeypatch, capsys, *arguments)
    assert (code, out, told.count("\n")) == (2, "", 1)
    assert message in told
    assert f"{tmp_path / 'new.csv'}: " in told
    assert sorted(tmp_path.iterdir()) == before


def test_missing_values_are_refused_as_the_run_refuses_them(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "data" / "clients" / "ann"
    folder.mkdir(parents=True)
    lines = [f"{a},{'fm'[a % 2]},{a % 3 // 2}" for a in (5, 8, 3, 9, 4, 8, 1, 6)]
    for split in ("train", "test"):
        (folder / f"{split}.csv").write_text("\n".join(["a,sex,label", *lines, ""]))
    options = {"data.source": "path", "data.path": str(tmp_path / "data"), "model.name": "mlp", "rounds": 1}
    protofed.run("quickstart", {**options, "method.name": "local"}, out=tmp_path / "run")
    for line, column in ((",f,1", "a"), ("3,?,1", "sex")):
        (tmp_path / "new.csv").write_text(f"a,sex,label\n4,m,0\n{line}\n")
        code, _, told = command(monkeypatch, capsys, "predict", tmp_path / "run", "ann", tmp_path / "new.csv")
        assert code == 2
        assert told.endswith(f"new.csv: column {column!r}, row 3 has no finite value\n")


def test_columns_of_lists_and_of_images_are_read_as_by_the_run(tmp_path, monkeypatch, capsys):
    """Embeddings, and pictures as the hub stores them."""
    from PIL import Image

    draw = np.random.default_rng(0)

    def picture(y):
        out = io.BytesIO()
        Image.fromarray((draw.random((8, 8)) * 80 + 90 * y).astype("u1")).save(out, "PNG")
        return {"bytes": out.getvalue()}

    for kind, sample, model in (("lists", lambda y: list(draw.random(4) + y), "mlp"), ("images", picture, "cnn2")):
        root = tmp_path / kind
        for name in ("ann", "bob"):
            folder = root / "data" / "clients" / name
            folder.mkdir(parents=True)
            for split, n in (("train", 20), ("test", 8)):
                y = [i % 2 for i in range(n)]
                pq.write_table(pa.table({"x": list(map(sample, y)), "label": y}), folder / f"{split}.parquet")
        options = {"data.source": "path", "data.path": str(root / "data"), "model.name": model, "model.d": 8}
        run = protofed.run("quickstart", {**options, "rounds": 1, "method.name": "local"}, out=root / "run")
        file = root / "data" / "clients" / "ann" / "test.parquet"
        code, out, told = command(monkeypatch, capsys, "predict", root / "run", "ann", file)
        assert code == 0, told
        client = load_data(resolve(run.config)).clients[0]
        found = [row["class"] for row in csv.DictReader(io.StringIO(out))]
        assert found == run.client("ann").predict(client.test.x).classes
