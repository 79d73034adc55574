"""Script of the process that decodes files from outside for :mod:`protofed.data.apart`.

It takes one line of JSON per file from its standard input, and answers in frames: a letter, a length, and as many
bytes. Frames of tables (``T``) are Arrow streams, complete in themselves; the last frame of an answer is empty
(``Z``), says what is wrong (``E``), or that memory did not suffice (``M``). The first table has no rows, but the
schema.
"""

from __future__ import annotations

import json
import os
import resource
import select
import struct
import sys
import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

from protofed.untrusted import limits
from protofed.untrusted.reading import open_ordinary

FRAME = struct.Struct("<cQ")
_IDLE = 20
"""Seconds without a request after which the process ends."""
_PORTION = 64 * limits.MiB
"""Bytes of a frame of a table, unless a single row has more."""


class UnusableError(ValueError):
    """Raised with a text that the user is to see."""


def _parquet(file: BinaryIO, names: list[str] | None) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    most = limits.METADATA_BYTES
    with pq.ParquetFile(file, thrift_string_size_limit=most, thrift_container_size_limit=most) as source:
        metadata, schema = source.metadata, source.schema_arrow
        if metadata.num_columns > limits.COLUMNS or metadata.num_rows > limits.SAMPLES:
            raise UnusableError(
                f"announces {metadata.num_rows} rows of {metadata.num_columns} columns: at most {limits.SAMPLES} "
                f"and {limits.COLUMNS} are read"
            )
        kept = schema if names is None else pa.schema([schema.field(name) for name in names], schema.metadata)
        yield _empty(kept)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        width = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)
        rows = 0
        step = max(1, min(2**16, _PORTION // max(1, width)))
        for batch in source.iter_batches(step, columns=names, use_threads=False):
            rows += len(batch)
            yield batch
        if rows != metadata.num_rows:
            raise UnusableError(f"announces {metadata.num_rows} rows but holds {rows}")


def _arrow(file: BinaryIO, names: list[str] | None) -> Iterator[Any]:
    import pyarrow as pa

    with pa.ipc.open_stream(file) as source:
        if len(source.schema.names) > limits.COLUMNS:  # which decodes them
            raise UnusableError(f"has more than {limits.COLUMNS} columns")
        yield _empty(source.schema)
        rows = 0
        for batch in source:
            batch.validate(full=True)
            rows += len(batch)
            if rows > limits.SAMPLES:
                raise UnusableError(f"announces more than {limits.SAMPLES} rows")
            yield batch


def _excel(file: BinaryIO, names: list[str] | None) -> Iterator[Any]:
    """Yield the first sheet as texts, as a CSV file would have them; its first row has the names."""
    import pyarrow as pa
    from python_calamine import load_workbook

    rows = [
        [*map(_text, row)] for row in load_workbook(file).get_sheet_by_index(0).to_python(skip_empty_area=False)
    ]
    while rows and not any(rows[-1]):
        rows.pop()
    if not rows:
        raise UnusableError("its first sheet is empty: expected a header and rows")
    width = max(place for row in rows for place, cell in enumerate(row, 1) if cell)
    if width >= limits.COLUMNS:
        raise UnusableError(f"has more than {limits.COLUMNS} columns")
    header, *rest = (row[:width] for row in rows)
    if sum(map(bool, header)) < 2 <= width and (full := next((n for n, row in enumerate(rest, 2) if all(row)), 0)):
        title = f" ({next(filter(None, header))[:40]!r})" if any(header) else ""
        raise UnusableError(f"the header is in row {full}, below a title{title}: delete the rows above it")
    if not all(header):
        raise UnusableError(f"column {header.index('') + 1} of the first sheet has no name in the first row")
    columns = [_column([row[place].encode() for row in rest]) for place in range(width)]
    yield pa.RecordBatch.from_arrays(columns, header)


def _empty(schema: Any) -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _column(texts: list[bytes]) -> Any:
    """Return texts in UTF-8 as an array, without ``pyarrow.array``, which imports pandas, for half a second."""
    import pyarrow as pa

    ends = struct.pack(f"={len(texts) + 1}i", 0, *accumulate(map(len, texts)))
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(ends), pa.py_buffer(b"".join(texts)))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value.isoformat() if hasattr(value, "year") else str(value)


_FORMS = {"parquet": _parquet, "Arrow": _arrow, "Excel": _excel}


def _frames(batch: Any) -> Iterator[Any]:
    """Yield a batch as streams of moderate size, with columns of extension types as what they store."""
    import pyarrow as pa

    columns = [c.storage if isinstance(c.type, pa.BaseExtensionType) else c for c in batch.columns]
    fields = [pa.field(name, c.type) for name, c in zip(batch.schema.names, columns, strict=True)]
    plain = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, batch.schema.metadata))
    step = max(1, len(plain) * _PORTION // max(1, plain.nbytes))
    for start in range(0, max(1, len(plain)), step):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, plain.schema) as stream:
            if len(plain):
                stream.write_batch(plain.slice(start, step))
        yield sink.getvalue()


def _limit(memory: int, seconds: int) -> None:
    """Limit what the process takes from now on; only Linux limits memory."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 1 + seconds, resource.RLIM_INFINITY))
    status = Path("/proc/self/status")
    if status.exists():
        used = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmData"))
        resource.setrlimit(resource.RLIMIT_DATA, (1024 * used + memory, resource.RLIM_INFINITY))


def _answer(asked: dict[str, Any], answers: BinaryIO) -> None:
    def send(kind: bytes, content: Any = b"") -> None:
        answers.write(FRAME.pack(kind, len(memoryview(content))))
        answers.write(content)
        answers.flush()

    try:
        _limit(asked["memory"], asked["seconds"])
        with open_ordinary(Path(asked["path"])) as file:
            for batch in _FORMS[asked["form"]](file, asked["names"]):
                for frame in _frames(batch):
                    send(b"T", frame)
                if asked["schema"]:
                    break
        send(b"Z")
    except MemoryError:
        send(b"M")
    except UnusableError as error:
        send(b"E", str(error)[: limits.REASON].encode())
    except Exception as error:  # libraries raise what they come across in damaged files
        send(b"E", f"not a readable {asked['form']} file ({type(error).__name__})".encode())


def main() -> None:
    """Answer requests until there are none."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may stand among the answers
    while select.select([sys.stdin], [], [], _IDLE)[0] and (line := sys.stdin.buffer.readline()):
        _answer(json.loads(line), answers)


if __name__ == "__main__":
    main()
