"""Files of few bytes that take much memory or time to read are refused, and the process that reads them goes on."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from openpyxl import Workbook
from PIL import Image

from hostile.bounds import bounded, refused
from protofed.data import DataOptions, apart, load_pool, reader
from protofed.data.images import decode
from protofed.errors import DataError
from protofed.untrusted import limits
from protofed.untrusted.limits import Budget

SHEET, STYLES = "xl/worksheets/sheet1.xml", "xl/styles.xml"


def book(path: Path, part: str, old: bytes, new: bytes) -> None:
    """Write an Excel file with a change to one of its parts."""
    made = Workbook()
    made.active.append(["age", "label"])
    made.active.append([1, "y"])
    made.save(path)
    with zipfile.ZipFile(path) as given:
        members = {name: given.read(name) for name in given.namelist()}
    assert old in members[part]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as written:
        for name, content in members.items():
            written.writestr(name, content.replace(old, new) if name == part else content)


def read(path: Path, **more: object) -> object:
    return load_pool(DataOptions(source="path", path=str(path), **more), 0)


ROWS = {
    "a million columns": b"<row r='3'>" + b"<c t='inlineStr'><is><t>a</t></is></c>" * 10**6 + b"</row>",
    "one cell far away": b"<row r='1048576'><c r='XFD1048576'><v>1</v></c></row>",
    "deeply nested": b"<row r='3'>" + b"<c>" * 10**6 + b"</c>" * 10**6 + b"</row>",
}


@pytest.mark.parametrize("name", ROWS)
def test_sheets(name, tmp_path):
    book(tmp_path / "a.xlsx", SHEET, b"</sheetData>", ROWS[name] + b"</sheetData>")
    assert (tmp_path / "a.xlsx").stat().st_size < 200_000
    with bounded(10, 100):
        message = refused(lambda: read(tmp_path / "a.xlsx"), DataError)
    assert re.search("a.xlsx: .*(delete empty|not a readable|more than 16384 columns)", message), message


def test_styles_are_not_read(tmp_path):
    book(tmp_path / "a.xlsx", STYLES, b"</fonts>", b"<font><name val='a'/></font>" * 800_000 + b"</fonts>")
    with bounded(10, 100):
        assert apart.read_table("Excel", tmp_path / "a.xlsx", Budget(1)).to_pydict() == {
            "age": ["1"],
            "label": ["y"],
        }


def test_rows_that_are_no_bytes_in_the_file(tmp_path):
    zeros = pa.chunked_array([pa.array(np.zeros(10**6, np.int64))] * 40)
    pq.write_table(pa.table({"x": zeros, "label": zeros}), tmp_path / "a.parquet", compression="zstd")
    assert (tmp_path / "a.parquet").stat().st_size < 400_000
    with bounded(20, 500):
        message = refused(lambda: read(tmp_path / "a.parquet"), DataError)
    assert "a.parquet: its 364115 bytes take more than 0.36 GB of memory: write fewer rows per file" in message


def black(side: int, mode: str = "L") -> bytes:
    file = io.BytesIO()
    Image.new(mode, (side, side)).save(file, "PNG")
    return file.getvalue()


def decoded(payloads: list[bytes], **options: int) -> torch.Tensor:
    return decode(payloads.__getitem__, torch.arange(len(payloads)), "image {}".format, Budget(1), **options)


def test_images_are_decoded_in_the_process_and_it_outlives_bad_ones(tmp_path):
    assert decoded([black(4)] * 600).shape == (600, 1, 4, 4)
    (process,) = apart._running
    for bad, told in (
        (b"no image", "not a readable image"),
        (black(5), "image of 5×5 pixels, but others have 4×4: set data.options.resize"),
        (black(2**13 + 1), "at most 67108864"),
    ):
        message = refused(lambda bad=bad: decoded([black(4)] * 300 + [bad]), DataError)
        assert message.startswith("image 300: ")
        assert told in message
    assert apart._running == [process]
    with bounded(10, 100):
        assert decoded([black(2**13)] * 2, resize=8).shape == (2, 1, 8, 8)


def test_images_that_take_more_memory_than_the_process_has(monkeypatch):
    assert decoded([black(4)]).shape == (1, 1, 4, 4)
    monkeypatch.setattr(limits, "READER_BYTES", 2**26)
    monkeypatch.setattr(limits, "IMAGE_MEMORY", 0)
    large = black(2**13, "RGB")
    with bounded(10, 200):
        message = refused(lambda: decoded([large], resize=8), DataError)
    assert re.fullmatch(r"image 0: takes more than .* GB of memory.*: save them anew, with fewer pixels", message)
    monkeypatch.undo()
    assert decoded([black(4)]).shape == (1, 1, 4, 4)


def test_an_archive_expands_to_what_it_announces(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((10**6, 50), np.float32), y=np.zeros(10**6, np.int64))
    assert (tmp_path / "a.npz").stat().st_size < 10**6
    with bounded(20, 400):
        assert len(apart.read_arrays(tmp_path / "a.npz", Budget(1), ["x"], [])["x"]) == 10**6
        message = refused(lambda: read(tmp_path / "a.npz", max_gb=0.1), DataError)
    assert message.endswith("a.npz: x: needs 0.2 GB of memory, but only 0.1 of data.max_gb = 0.1 is left")


@pytest.mark.slow
def test_time_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "READER_SECONDS", 0)
    monkeypatch.setattr(limits, "EXPANSION", 2**20)
    row = b"<row>" + b"<c><v>1.5</v></c>" * 20 + b"</row>"
    book(tmp_path / "a.xlsx", SHEET, b"</sheetData>", row * 400_000 + b"</sheetData>")
    message = refused(lambda: read(tmp_path / "a.xlsx"), DataError)
    assert "bytes take more than 0 s: delete empty rows" in message
    message = refused(lambda: decoded([black(2**13)] * 50, resize=8), DataError)
    assert message == "image 1: and 48 further images take more than 3 s: save them anew, with fewer pixels"


@pytest.fixture
def ordinary(tmp_path):
    pq.write_table(pa.table({"x": [1.0, 2.0], "label": [0, 1]}), tmp_path / "a.parquet")
    return tmp_path / "a.parquet"


def test_one_process_reads_many_files_and_errors_do_not_end_it(ordinary, tmp_path):
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    (tmp_path / "a\nb\udc80.parquet").write_bytes(ordinary.read_bytes())
    read(ordinary)
    (process,) = apart._running
    refused(lambda: read(tmp_path / "b.parquet"), DataError)
    assert len(apart.read_table("parquet", tmp_path / "a\nb\udc80.parquet", Budget(1), names=["x"])) == 2
    refused(lambda: read(ordinary, max_gb=1e-8), DataError)  # in the middle of an answer
    assert apart._running != [process]
    assert len(apart.read_table("parquet", ordinary, Budget(1), names=["x"])) == 2


def test_a_process_that_ended_is_begun_again(ordinary):
    read(ordinary)
    os.kill(apart._running[0].pid, signal.SIGKILL)
    refused(lambda: read(ordinary), DataError)
    read(ordinary)
    apart._end()
    code = "from protofed.data import reader; reader._IDLE = 0; reader.main()"
    idle = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    apart._running.append(idle)
    assert idle.wait() == 0
    read(ordinary)


def test_a_fork_begins_its_own(ordinary):
    read(ordinary)
    if not (child := os.fork()):
        try:
            apart.read_table("parquet", ordinary, Budget(1), names=["x"])
            apart._end()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    read(ordinary)


def test_the_process_begins_with_little(ordinary):
    code = (
        "import runpy, sys\n"
        f"runpy.run_path({reader.__file__!r}, run_name='__main__')\n"
        "print({name for name in ('torch', 'pandas', 'datasets') if sys.modules.get(name)}, file=sys.stderr)"
    )
    asked = {"form": "parquet", "path": str(ordinary), "names": ["x"], "schema": False}
    line = json.dumps({**asked, "memory": 2**28, "seconds": 9, "lengths": []}).encode()
    ran = subprocess.run([sys.executable, "-c", code], input=line, capture_output=True, check=True)
    assert ran.stdout.endswith(reader.FRAME.pack(b"Z", 0))
    assert ran.stderr == b"set()\n"
