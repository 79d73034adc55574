"""Folders of data as strangers would bring them, made from scikit-learn's tables and by formulas."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits, load_wine

Rows = list[list[Any]]


def _cells(columns: int = 8, seed: int = 0) -> tuple[list[str], Rows]:
    """Return scikit-learn's cell measurements in random order, the diagnosis last."""
    data = load_breast_cancer()
    order = np.random.default_rng(seed).permutation(len(data.target))
    names = [name.replace(" ", "_") for name in data.feature_names[:columns]]
    rows = [[*(round(float(v), 5) for v in data.data[row, :columns]), "MB"[data.target[row]]] for row in order]
    return [*names, "diagnosis"], rows


def write(path: Path, names: Sequence[str], rows: Rows, delimiter: str = ",", comma: bool = False) -> None:
    """Write a CSV file, with a decimal comma if asked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, delimiter=delimiter)
        out.writerow(names)
        for row in rows:
            out.writerow([str(v).replace(".", ",") if comma and isinstance(v, float) else v for v in row])


def _day(number: int) -> date:
    return date(2023, 1, 1) + timedelta(days=int(number))


def hospitals(path: Path) -> None:
    """Four hospitals: decimal commas, columns in another order, gaps, an ID, a date, one with a single class."""
    names, rows = _cells()
    rng = np.random.default_rng(1)
    full = [[f"P{10_000 + i}", _day(rng.integers(700)).isoformat(), *row] for i, row in enumerate(rows)]
    names = ["patient_id", "admitted", *names]
    for row in full[::17]:
        row[4] = ""
    write(path / "north.csv", names, full[:180])
    german = [[r[0], _day(k % 700).strftime("%d.%m.%Y"), *r[2:]] for k, r in enumerate(full[180:330])]
    write(path / "Köln.csv", names, german, ";", comma=True)
    order = [0, 9, 8, 7, 6, 5, 4, 3, 2, 1, 10]
    write(path / "west.csv", [names[i] for i in order], [[r[i] for i in order] for r in full[330:480]])
    write(path / "east.csv", names, [row for row in full[480:] if row[-1] == "B"])


def skewed(path: Path) -> None:
    """Four hospitals with one unit of each column, and from nine to one malignant of ten samples."""
    names, rows = _cells(columns=30)
    rest = {name: [row for row in rows if row[-1] == name] for name in "MB"}
    for site, (size, share) in {"a": (110, 0.9), "b": (90, 0.65), "c": (90, 0.35), "d": (110, 0.1)}.items():
        many = {"M": round(size * share), "B": size - round(size * share)}
        chosen = [rest[name].pop() for name in "MB" for _ in range(many[name]) if rest[name]]
        write(path / f"{site}.csv", names, chosen)


def excel(path: Path) -> None:
    """Three vineyards with Excel files, in each a bottling day and a tasting day."""
    from openpyxl import Workbook

    data = load_wine()
    order = np.random.default_rng(0).permutation(len(data.target))
    path.mkdir(parents=True, exist_ok=True)
    for site, part in zip(("alta", "baixa", "costa"), np.array_split(order, 3), strict=True):
        book = Workbook()
        sheet = book.active
        sheet.append([*data.feature_names, "born", "tasted", "cultivar_class"])
        for row in part:
            born = _day(int(row) * 3)
            sheet.append(
                [
                    *map(float, data.data[row]),
                    born,
                    born + timedelta(days=300 + int(row)),
                    int(data.target[row]) + 1,
                ]
            )
        book.save(path / f"{site}.xlsx")


def one_table(path: Path) -> None:
    """One table of all hospitals with a column that names them."""
    names, rows = _cells(seed=2)
    hospital = ["Nord", "Süd", "Ost", "West"]
    write(path / "registry.csv", ["hospital", *names], [[hospital[i % 4], *row] for i, row in enumerate(rows)])


def federation(path: Path) -> None:
    """A federation folder with training and test samples set aside."""
    names, rows = _cells(seed=3)
    for number, site in enumerate(("a", "b", "c")):
        own = rows[number * 180 : number * 180 + 180]
        write(path / "clients" / site / "train.csv", names, own[:130])
        write(path / "clients" / site / "test.csv", names, own[130:])


def spelt(path: Path) -> None:
    """Answers and sexes spelt in several ways at one site and between sites."""
    names, rows = _cells(seed=4)
    words = {"M": ["Yes", "yes", "YES"], "B": ["No", "no"]}
    rng = np.random.default_rng(2)
    for number, site in enumerate(("lund", "malmö", "ystad")):
        own = []
        for row in rows[number * 180 : number * 180 + 180]:
            answers = words[row[-1]]
            sex = rng.choice([["Female", "Male"], ["female", "male"], ["F", "M"]][number])
            own.append([*row[:-1], sex, answers[int(rng.integers(len(answers)))] if number == 0 else answers[0]])
        write(path / f"{site}.csv", [*names[:-1], "sex", "malignant"], own)


def headers(path: Path) -> None:
    """Columns whose names differ in case and spaces, and one that a single site has."""
    names, rows = _cells(seed=5)
    shouted = [name.upper().replace("_", " ") for name in names]
    write(path / "one.csv", names, rows[:190])
    write(path / "two.csv", names, rows[190:380])
    write(path / "three.csv", [*shouted, "Remark"], [[*row, "ok"] for row in rows[380:]])


def placeholders(path: Path) -> None:
    """Words that stand for a missing number, and a value below the limit of detection."""
    names, rows = _cells(seed=6)
    for row in rows[::11]:
        row[0] = "unknown"
    for row in rows[3::23]:
        row[1] = "-"
    rows[5][2] = "<0.1"
    write(path / "x.csv", names, rows[:280])
    write(path / "y.csv", names, rows[280:])


def units(path: Path) -> None:
    """One of four laboratories measures in millimetres in place of centimetres."""
    names, rows = _cells(seed=7)
    for number in range(4):
        own = [
            [row[0] * 10 if number == 3 else row[0], *row[1:]] for row in rows[number * 140 : number * 140 + 140]
        ]
        write(path / f"lab{number}.csv", names, own)


def pictures(path: Path) -> None:
    """Digits as images of two sizes, grey at two sites and in colour at the third."""
    data = load_digits()
    rng = np.random.default_rng(0)
    for number, site in enumerate(("a", "b", "c")):
        for row in rng.permutation(np.flatnonzero(data.target < 4))[:200]:
            image = Image.fromarray((data.images[row] * 15.9).astype(np.uint8)).resize(
                (16, 16) if number else (20, 16)
            )
            target = path / site / str(data.target[row]) / f"{row}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            (image.convert("RGB") if number == 2 else image).save(target)


def series(path: Path) -> None:
    """Oscillations of three frequencies with one channel each, at three sites."""
    rng = np.random.default_rng(0)
    path.mkdir(parents=True, exist_ok=True)
    for number in range(3):
        y = rng.integers(0, 3, 160)
        t = np.linspace(0, 6, 48)
        x = np.sin((2 + 2 * y[:, None]) * t + rng.uniform(0, 6, (160, 1))) + 0.3 * rng.normal(size=(160, 48))
        np.savez(path / f"station{number}.npz", x=x[:, None].astype(np.float32), y=y)


def parquet(path: Path) -> None:
    """Parquet files with categories, classes numbered from 1, and rows without a label."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = load_wine()
    order = np.random.default_rng(3).permutation(len(data.target))
    path.mkdir(parents=True, exist_ok=True)
    for site, part in zip(("p", "q"), np.array_split(order, 2), strict=True):
        labels = [int(data.target[row]) + 1 for row in part]
        table = {name: data.data[part, i] for i, name in enumerate(data.feature_names)}
        soil = [("clay", "chalk", "sand")[int(row) % 3] for row in part]
        table |= {"soil": pa.array(soil).dictionary_encode(), "class": pa.array([None, *labels[1:]], pa.int64())}
        pq.write_table(pa.table(table), path / f"{site}.parquet")


def visits(path: Path) -> None:
    """American dates, and a column of free text beside measurements."""
    names, rows = _cells(seed=8)
    remarks = {
        "M": "irregular border seen and biopsy advised for patient",
        "B": "smooth border and no further steps",
    }
    rng = np.random.default_rng(4)
    full = []
    for row in rows:
        when = _day(rng.integers(700))
        note = f"{remarks[row[-1]]} number {rng.integers(10_000)} by doctor {rng.integers(10_000)}"
        full.append([*row[:4], f"{when.month}/{when.day}/{when.year}", note, row[-1]])
    names = [*names[:4], "visit_date", "note", "outcome"]
    for number in range(3):
        write(path / f"clinic{number}.csv", names, full[number * 180 : number * 180 + 180])


FOLDERS: dict[str, Callable[[Path], None]] = {
    f.__name__: f
    for f in (
        hospitals,
        excel,
        one_table,
        federation,
        spelt,
        headers,
        placeholders,
        units,
        pictures,
        series,
        parquet,
        visits,
    )
}
"""Folders by name."""
