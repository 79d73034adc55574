"""Parquet files that nobody should trust: name → what is written, and what the refusal says."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.files import png

Writer = Callable[[Path], object]
STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def table(metadata: object = None, label: Any = (0, 1, 2), **columns: Any) -> Writer:
    """Return a writer of a table of three images, or of ``columns``."""

    def write(path: Path, **options: Any) -> None:
        labels = label if isinstance(label, (pa.Array, pa.ChunkedArray)) else pa.array(label)
        if not columns:
            images = [{"bytes": png(i), "path": None} for i in range(len(labels))]
            columns["image"] = pa.array(images, STRUCT)
        found = pa.table({**columns, "label": labels})
        if metadata is not None:
            text = metadata if isinstance(metadata, (str, bytes)) else json.dumps(metadata)
            found = found.replace_schema_metadata({"huggingface": text})
        pq.write_table(found, path, **options)

    return write


def classes(names: object) -> dict[str, Any]:
    """Return metadata in the hub's form."""
    return {"info": {"features": {"label": {"_type": "ClassLabel", "names": names}}}}


def _bomb(path: Path) -> None:
    """300 MB in 1.5 kB: one image that stands for 300 rows."""
    same = [{"bytes": bytes(10**6), "path": None}] * 50
    image = pa.chunked_array([pa.array(same, STRUCT)] * 6)
    table(image=image, label=pa.array(np.zeros(300, int)))(path, compression="zstd")


def _page_bomb(path: Path) -> None:
    image = pa.array([{"bytes": bytes(4 * 10**7), "path": None}] * 3, STRUCT)
    table(image=image)(path, compression="zstd", use_dictionary=False)


def _many_rows(path: Path) -> None:
    zeros = pa.array(np.zeros(10**6, np.int64))
    table(x=pa.chunked_array([zeros] * 20), label=pa.chunked_array([zeros] * 20))(path)


def _long_row(path: Path) -> None:
    lists = pa.ListArray.from_arrays([0, 2 * 10**7, 2 * 10**7, 2 * 10**7], pa.array(np.zeros(2 * 10**7, np.int32)))
    table(x=lists)(path)


def _twins(path: Path) -> None:
    labels = pa.array([0, 1])
    pq.write_table(pa.Table.from_arrays([labels, labels, labels], ["label", "x", "x"]), path)


def patched(write: Writer, change: Callable[[bytearray], object]) -> Writer:
    """Return a writer of what ``write`` writes, with ``change`` made to its bytes."""

    def written(path: Path) -> None:
        write(path)
        content = bytearray(path.read_bytes())
        change(content)
        path.write_bytes(bytes(content))

    return written


def _page_header(content: bytearray) -> None:
    """The first page of three large images announces 2 GB."""
    # Type 0 (data), then the unpacked size as a zigzag number of five bytes.
    at = content.index(b"\x15\x00\x15", 4) + 3
    end = next(i for i in range(at, at + 5) if content[i] < 128) + 1
    content[at:end] = b"\xfe" * (end - at - 1) + b"\x7f"


def _footer(size: int) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        content[-8:-4] = struct.pack("<I", size)

    return change


def _rows(content: bytearray) -> None:
    """The summary announces another number of rows: 3 becomes 60."""
    (length,) = struct.unpack("<I", content[-8:-4])
    at = content.index(b"\x16\x06", len(content) - 8 - length)
    content[at + 1] = 120


NESTED = pa.array([1.0, 2.0, 3.0])
for _ in range(20):
    NESTED = pa.FixedSizeListArray.from_arrays(NESTED, 1)

PARQUET: dict[str, tuple[Writer, str]] = {
    "nothing": (lambda p: p.write_bytes(b""), "not a readable parquet"),
    "noise": (lambda p: p.write_bytes(b"PAR1" + bytes(range(256)) * 9 + b"PAR1"), "not a readable parquet"),
    "half": (patched(table(), lambda c: c.__delitem__(slice(0, len(c) // 2))), "not a readable parquet"),
    "long summary": (patched(table(), _footer(2**32 - 1)), "not a readable parquet"),
    "no summary": (patched(table(), _footer(0)), "not a readable parquet"),
    "other rows": (patched(table(), _rows), "announces 60 rows but holds 3"),
    "bomb": (_bomb, "GB of memory"),
    "page bomb": (_page_bomb, "GB of memory"),
    "page header": (
        patched(lambda p: table(x=pa.array(np.arange(3.0)))(p, use_dictionary=False), _page_header),
        "not a readable parquet|GB of memory",
    ),
    "many rows": (_many_rows, "GB of memory"),
    "long row": (_long_row, "GB of memory"),
    "missing label": (table(label=[0, None, 1]), "row 1 has no value"),
    "missing image": (table(image=pa.array([None] * 3, STRUCT)), "row 0: no image bytes"),
    "a path for an image": (
        table(image=pa.array([{"bytes": None, "path": "/etc/passwd"}] * 3, STRUCT)),
        "paths to image files are not followed",
    ),
    "paths only": (table(image=pa.array([{"path": "/etc/passwd"}] * 3)), "neither numbers nor text"),
    "texts for images": (table(image=pa.array(["/etc/passwd"] * 3)), "holds a table"),
    "numbers for bytes": (table(image=pa.array([{"bytes": 1, "path": "a"}] * 3)), "neither numbers nor text"),
    "lists of images": (table(image=pa.array([[b"a"], [b"b"], [b"c"]])), "neither images nor"),
    "not an image": (table(image=pa.array([b"a", b"b", b"c"])), "row 0: not a readable image"),
    "missing number": (table(x=pa.array([1.0, None, 2.0])), "has no value"),
    "missing list": (table(x=pa.array([[1.0], None, [2.0]])), "neither images nor"),
    "lists of other lengths": (table(x=pa.array([[1.0], [1.0, 2.0], []])), "the list of row 1 has 2 entries"),
    "empty lists": (table(x=pa.array([[], [], []], pa.list_(pa.float32()))), "samples of 0 numbers"),
    "nested lists": (table(x=NESTED), "neither images nor"),
    "dates": (table(x=pa.array([1, 2, 3], pa.timestamp("s"))), "neither numbers nor text"),
    "infinite": (table(x=pa.array([1.0, float("inf"), 2.0])), "row 1 is inf"),
    "twins": (_twins, "same name"),
    "label 2**62": (table(label=[0, 2**62, 1]), "column 'label', row 1: label 4611686018427387904"),
    "label -1": (table(label=[0, -1, 1]), "column 'label', row 1: label -1"),
    "label NaN": (table(label=[0.0, float("nan"), 1.0]), "column 'label', row 1: label nan"),
    "label beyond int64": (table(label=pa.array([0, 2**64 - 1, 1], pa.uint64())), "label 18446744073709551615"),
    "label table": (table(label=[{"a": 1}] * 3), "expected whole numbers or names"),
    "label list": (table(label=[[1], [2], [3]]), "expected whole numbers or names"),
    "label bytes": (table(label=[b"a", b"b", b"c"]), "several columns could|expected whole numbers|cannot tell"),
    "label date": (table(label=pa.array([1, 2, 3], pa.date32())), "expected whole numbers or names"),
    "label of two lines": (table(label=["a", "b\nc", "d"]), "control characters"),
    "label with a null": (table(label=["a", "b\0c", "d"]), "control characters"),
    "long label": (table(label=["a", "b" * 10**6, "d"]), "of 1000000 characters"),
    "long label in a dictionary": (
        table(label=pa.array(["a", "b" * 10**6, "d"]).dictionary_encode()),
        "of 1000000 characters",
    ),
    "no label": (
        lambda p: pq.write_table(pa.table({"a\nb\x1b[2J": [1], "c": [2]}), p),
        "cannot identify the label",
    ),
    "thousands of columns": (
        lambda p: pq.write_table(pa.table({f"c{i}": pa.array([1]) for i in range(17_000)}), p),
        "of 17000 columns",
    ),
    "classes of numbers": (table(classes([1, 2, 3])), "not a list of names"),
    "classes of another kind": (table(classes({"a": 1})), "not a list of names"),
    "many classes": (table(classes([str(i) for i in range(70_000)])), "70000 classes, more than 65536"),
    "long class": (table(classes(["a" * 10**6])), "of 1000000 characters"),
    "class with escape codes": (table(classes(["a\x1b[2J"])), "control characters"),
    "long metadata": (table(" " * (17 * 2**20)), "bytes of metadata, more than|not a readable parquet"),
}

HARMLESS: dict[str, Writer] = {
    "metadata are no JSON": table("{"),
    "metadata are nested deeply": table("[" * 10**5),
    "metadata are a list": table("[1, 2]"),
    "features are a list": table({"info": {"features": [1]}}),
    "features are numbers": table({"info": {"features": {"label": 3}}}),
    "metadata hold a bad number": table('{"info": {"features": {"label": 1e999}}}'),
    "metadata are not UTF-8": table(b'{"info": "\xff"}'),
    "a dictionary of labels": table(label=pa.array(["a", "b", "a"]).dictionary_encode()),
}
"""What of it is broken is not needed."""
