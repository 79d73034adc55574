"""Files of few bytes that take much memory or time to read are refused, and the process that reads them goes on."""

from __future__ import annotations

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
from openpyxl import Workbook

from hostile.bounds import bounded, refused
from protofed.data import DataOptions, apart, load_pool, reader
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
        assert apart.read("Excel", tmp_path / "a.xlsx", Budget(1)).to_pydict() == {"age": ["1"], "label": ["y"]}


def test_rows_that_are_no_bytes_in_the_file(tmp_path):
    zeros = pa.chunked_array([pa.array(np.zeros(10**6, np.int64))] * 40)
    pq.write_table(pa.table({"x": zeros, "label": zeros}), tmp_path / "a.parquet", compression="zstd")
    assert (tmp_path / "a.parquet").stat().st_size < 400_000
    with bounded(20, 500):
        message = refused(lambda: read(tmp_path / "a.parquet"), DataError)
    assert "a.parquet: its 364115 bytes take more than 0.36 GB of memory: write fewer rows per file" in message


def stream(path: Path, table: pa.Table, **options: object) -> None:
    with (
        pa.OSFile(str(path), "wb") as file,
        pa.ipc.new_stream(file, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as out,
    ):
        out.write_table(table)


def test_compressed_streams(tmp_path):
    stream(tmp_path / "a.arrow", pa.table({"x": np.arange(10)}), compression="zstd")
    assert len(apart.read("Arrow", tmp_path / "a.arrow", Budget(1))) == 10
    stream(tmp_path / "b.arrow", pa.table({"x": np.zeros(10**8)}), compression="zstd")
    with bounded(20, 400):
        message = refused(lambda: apart.read("Arrow", tmp_path / "b.arrow", Budget(9)), DataError)
    assert "GB of memory: save the data set again" in message


@pytest.mark.slow
def test_time_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "READER_SECONDS", 0)
    monkeypatch.setattr(limits, "EXPANSION", 2**20)
    row = b"<row>" + b"<c><v>1.5</v></c>" * 20 + b"</row>"
    book(tmp_path / "a.xlsx", SHEET, b"</sheetData>", row * 400_000 + b"</sheetData>")
    message = refused(lambda: read(tmp_path / "a.xlsx"), DataError)
    assert "bytes take more than 0 s: delete empty rows" in message


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
    assert len(apart.read("parquet", tmp_path / "a\nb\udc80.parquet", Budget(1), ["x"])) == 2
    refused(lambda: read(ordinary, max_gb=1e-8), DataError)  # in the middle of an answer
    assert apart._running != [process]
    assert len(apart.read("parquet", ordinary, Budget(1), ["x"])) == 2


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
            apart.read("parquet", ordinary, Budget(1), ["x"])
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
    line = json.dumps({**asked, "memory": 2**28, "seconds": 9}).encode()
    ran = subprocess.run([sys.executable, "-c", code], input=line, capture_output=True, check=True)
    assert ran.stdout.endswith(reader.FRAME.pack(b"Z", 0))
    assert ran.stderr == b"set()\n"
