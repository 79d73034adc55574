"""Script of the process that decodes files from outside for :mod:`protofed.data.apart`.

It takes one line of JSON per request from its standard input, after which encoded images may follow, and answers
in frames: a letter, a length, and as many bytes. A table is a sequence of Arrow streams (``T``), of which the first
has no rows, but the schema; an array is announced in JSON (``H``), and its bytes follow (``T``). The last frame is
empty (``Z``), says what is wrong (``E``, JSON), or that memory did not suffice (``M``).
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import resource
import select
import struct
import sys
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

from protofed.untrusted import limits
from protofed.untrusted.reading import open_ordinary

FRAME = struct.Struct("<cQ")
_IDLE = 20  #: Seconds without a request after which the process ends
_PORTION = 64 * limits.MiB  #: Bytes of a frame of a table, unless a single row has more
_PIECE = 2**20  #: Bytes of a frame of an array in an archive
_LARGE = 4096  #: Bytes of an encoded image from which threads gain more than the interpreter lock costs
THREADS = min(8, os.cpu_count() or 1)  #: Images that are decoded at the same time
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")  #: Formats that are decoded, whatever the file name
GREY = frozenset({"1", "L", "LA"})  #: Modes of images without colour
_MODE = {1: "L", 3: "RGB"}


_Frames = Iterator[tuple[bytes, Any]]  #: Kinds and contents of frames


class UnusableError(ValueError):
    """Raised with a text that the user is to see, and the image that it concerns."""

    def __init__(self, text: str, place: int = 0) -> None:
        super().__init__(text)
        self.place = place


def _parquet(file: BinaryIO, names: list[str] | None = None) -> Iterator[Any]:
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


def _excel(file: BinaryIO) -> Iterator[Any]:
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


_DELIMITERS = ",;\t|"
_HEADER_BYTES = 2**20
_BLOCK_BYTES = 2**22
_QUOTED = re.compile(rb'"[^"]*"')
_ROW = re.compile(r"Row #(\d+): (Expected \d+ columns, got \d+)")


def _csv(file: BinaryIO, encoding: str) -> Iterator[Any]:
    """Yield all columns as texts; the schema's metadata have the delimiter."""
    import pyarrow as pa
    from pyarrow import csv

    if encoding != "utf-8":
        file = _in_utf8(file, encoding)
    header = file.readline(_HEADER_BYTES)
    file.seek(0)
    counts = Counter(chr(byte) for byte in _QUOTED.sub(b"", header))
    delimiter = max(_DELIMITERS, key=lambda character: counts[character])
    if counts[delimiter] >= limits.COLUMNS:
        raise UnusableError(f"has more than {limits.COLUMNS} columns")
    # The names come first, because types are given by name.
    read = csv.ReadOptions(use_threads=False, block_size=max(_BLOCK_BYTES, 2 * len(header)))
    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    try:
        names = csv.open_csv(file, read, parse, csv.ConvertOptions(strings_can_be_null=True)).schema.names
        file.seek(0)
        convert = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
        source = csv.open_csv(file, read, parse, convert)
        yield _empty(source.schema.with_metadata({"delimiter": delimiter}))
        yield from source
    except (pa.ArrowException, ValueError, OSError) as error:
        raise UnusableError(_reason(str(error))) from None


def _in_utf8(file: BinaryIO, encoding: str) -> BinaryIO:
    content = file.read()
    try:
        return io.BytesIO(content.decode(encoding).encode())
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UnusableError(f"is not text in {encoding}, in line {line}: set another data.encoding") from None


def _reason(text: str) -> str:
    """Return why a CSV file cannot be read, without its content."""
    if re.search("utf-?8", text, re.IGNORECASE):
        return "is not text in UTF-8: save it in that encoding, or set data.encoding, such as cp1252 of Excel"
    if "Empty CSV" in text:
        return "is empty: expected a header and rows"
    if "straddling" in text:
        return f"has a row of more than {_BLOCK_BYTES} bytes"
    if found := _ROW.search(text):
        row, numbers = found.groups()
        return f"line {row}: {numbers[0].lower()}{numbers[1:]}"
    return "not a readable CSV file"


def _npz(file: BinaryIO, names: list[str], needed: list[str]) -> _Frames:
    """Yield the arrays of some names."""
    with zipfile.ZipFile(file) as archive:
        members = {}
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in members:
                raise UnusableError(f"holds several arrays called {name[:80]!r}")
            members[name] = member
        if len(members) > limits.MEMBERS:
            raise UnusableError(f"holds {len(members)} arrays, more than {limits.MEMBERS}")
        for name in needed:
            if name not in members:
                raise UnusableError(f"no array {name!r}; it holds {', '.join(sorted(members)) or 'nothing'}")
        for name, member in members.items():
            if name in names:
                yield from _array(archive, name, member)


def _array(archive: zipfile.ZipFile, name: str, member: zipfile.ZipInfo) -> _Frames:
    import numpy as np

    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UnusableError(f"{name}: is compressed by an unusual method: save it with numpy.savez_compressed")
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        # Headers of later versions may have any length, and plain arrays do not need them.
        if version != (1, 0):
            raise UnusableError(
                f"{name}: has a header of version {version[0]}.{version[1]}: expected a plain array"
            )
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=10_000)
        if dtype.kind not in "biufUS" or dtype.subdtype is not None:
            kind = "objects, which are never unpickled" if dtype.hasobject else str(dtype)[:60]
            raise UnusableError(f"{name}: not a readable .npz file (holds {kind}, not numbers or text)")
        if len(shape) > limits.DIMENSIONS or any(length < 0 for length in shape):
            raise UnusableError(f"{name}: has the impossible shape {shape}")
        size, left = math.prod(shape) * dtype.itemsize, member.file_size - stream.tell()
        if size != left:
            raise UnusableError(f"{name}: announces {size} bytes ({dtype} of shape {shape}), but {left} follow")
        about = {"name": name, "shape": shape, "dtype": dtype.str, "order": "F" if fortran else "C"}
        yield b"H", json.dumps(about).encode()
        while portion := stream.read(min(_PIECE, left)):
            left -= len(portion)
            yield b"T", portion
        if left or stream.read(1):  # reaching the end makes zipfile compare the checksum
            raise EOFError


def _images(payloads: list[bytes], channels: int, resize: int, size: list[int] | None) -> _Frames:
    """Yield images as one array, ``(n, H, W)`` or ``(n, H, W, 3)``, and the places of grey among coloured ones."""
    import numpy as np

    def decode(place: int) -> Any:
        return _image(payloads[place], place, channels, resize)

    if len(payloads[0]) < _LARGE:
        images = [decode(place) for place in range(len(payloads))]
    else:
        with ThreadPoolExecutor(THREADS) as pool:
            images = [*pool.map(decode, range(len(payloads)))]
    h, w = size or images[0].shape[:2]
    grey = [place for place, image in enumerate(images) if image.ndim == 2]
    coloured = len(grey) < len(images)
    out = np.empty((len(images), h, w, *(3,) * coloured), dtype=np.uint8)
    for place, image in enumerate(images):
        if image.shape[:2] != (h, w):
            found = "{}×{}".format(*image.shape)
            raise UnusableError(f"image of {found} pixels, but others have {h}×{w}: set data.options.resize", place)
        out[place] = image[..., None] if coloured and image.ndim == 2 else image
    yield b"H", json.dumps({"shape": out.shape, "grey": grey * coloured}).encode()
    yield b"T", out.reshape(-1)


def _image(encoded: bytes, place: int, channels: int, resize: int) -> Any:
    """Return one image, ``(H, W)`` or ``(H, W, 3)``."""
    import numpy as np
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
            mode = image.mode
            if not 0 < image.width * image.height <= limits.PIXELS:
                raise UnusableError(
                    f"image of {image.height}×{image.width} pixels: at most {limits.PIXELS} are read", place
                )
            if image.format == "JPEG" and encoded.count(b"\xff\xda") > limits.SCANS:
                raise UnusableError(f"image of more than {limits.SCANS} scans: save it anew", place)
            if mode.startswith(("I", "F")):
                raise UnusableError(f"image with more than 8 bits per channel ({mode}): save it with 8 bits", place)
            target = _MODE[channels or (1 if mode in GREY else 3)]
            if resize:
                image.draft(target, (resize, resize))  # lets a JPEG decoder skip unneeded resolution
            picture = image.convert(target) if image.mode != target else image
            if resize:
                picture = ImageOps.fit(picture, (resize, resize), Image.Resampling.BILINEAR)
            return np.asarray(picture)
    except (UnusableError, MemoryError):
        raise
    except Image.DecompressionBombError:
        raise UnusableError(f"image of more than {limits.PIXELS} pixels, the maximum", place) from None
    except Exception as error:  # PIL raises many types for a damaged file
        raise UnusableError(f"not a readable image ({type(error).__name__})", place) from None


_TABLES: dict[str, Callable[..., Iterator[Any]]] = {"parquet": _parquet, "Excel": _excel, "CSV": _csv}


def _frames(batch: Any) -> Iterator[Any]:
    """Yield a batch as streams of moderate size, with extension types as their storage types."""
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
    """Limit the further processor time and memory of this process (memory on Linux only)."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 1 + seconds, resource.RLIM_INFINITY))
    status = Path("/proc/self/status")
    if status.exists():
        used = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmData"))
        resource.setrlimit(resource.RLIMIT_DATA, (1024 * used + memory, resource.RLIM_INFINITY))


def _find_frames(form: str, payloads: list[bytes], asked: dict[str, Any]) -> _Frames:
    if form == "image":
        yield from _images(payloads, **asked)
    else:
        with open_ordinary(Path(asked.pop("path"))) as file:
            if form == ".npz":
                yield from _npz(file, **asked)
                return
            schema = asked.pop("schema")
            for batch in _TABLES[form](file, **asked):
                for frame in _frames(batch):
                    yield b"T", frame
                if schema:
                    break


def _answer(asked: dict[str, Any], questions: BinaryIO, answers: BinaryIO) -> None:
    def send(kind: bytes, content: Any = b"") -> None:
        answers.write(FRAME.pack(kind, len(memoryview(content))))
        answers.write(content)
        answers.flush()

    form = asked.pop("form")
    try:
        _limit(asked.pop("memory"), asked.pop("seconds"))
        payloads = [questions.read(length) for length in asked.pop("lengths")]
        for kind, content in _find_frames(form, payloads, asked):
            send(kind, content)
        send(b"Z")
    except MemoryError:
        send(b"M")
    except UnusableError as error:
        send(b"E", json.dumps([str(error)[: limits.REASON], error.place]).encode())
    except Exception as error:  # libraries raise what they come across in damaged files
        send(b"E", json.dumps([f"not a readable {form} file ({type(error).__name__})", 0]).encode())


def main() -> None:
    """Answer requests until there are none."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may stand among the answers
    warnings.simplefilter("ignore")
    while select.select([sys.stdin], [], [], _IDLE)[0] and (line := sys.stdin.buffer.readline()):
        _answer(json.loads(line), sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
