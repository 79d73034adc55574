"""``.npz`` files that nobody should trust: name → what is written, and what the refusal says."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

Writer = Callable[[Path], object]


def header(text: str, version: int = 1) -> bytes:
    """Return the beginning of an ``.npy`` file."""
    raw = text.encode("latin1") + b"\n"
    length = struct.pack("<H" if version == 1 else "<I", len(raw))
    return b"\x93NUMPY" + bytes([version, 0]) + length + raw


def npy(array: object, **options: object) -> bytes:
    """Return an array as an ``.npy`` file."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asanyarray(array), **options)
    return buffer.getvalue()


def described(descr: str, shape: str, data: bytes = bytes(24)) -> bytes:
    """Return an ``.npy`` file with a header as given."""
    return header(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}") + data


def archive(
    x: bytes | None = None, y: bytes | None = None, *, method: int = zipfile.ZIP_STORED, **more: bytes
) -> Writer:
    """Return a writer of an archive with these members; ordinary ``x`` and ``y`` where none are given."""
    members = {"x": x or npy(np.ones((3, 2))), "y": y or npy(np.arange(3)), **more}

    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", method) as file:
            for name, content in members.items():
                file.writestr(f"{name}.npy", content)

    return write


def _bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        with file.open("x.npy", "w") as member:
            member.write(described("'|u1'", "(400, 1000000)", b""))
            for _ in range(400):
                member.write(bytes(10**6))
        file.writestr("y.npy", npy(np.zeros(400, int)))


def _crowded(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for i in range(5_000):
            file.writestr(str(i), b"")


def _twice(path: Path) -> None:
    archive()(path)
    with zipfile.ZipFile(path, "a") as file, np.testing.suppress_warnings() as quiet:
        quiet.filter(UserWarning)
        file.writestr("y.npy", npy(np.zeros(3, int)))


def _changed(old: bytes, new: bytes, last: bool = False) -> Writer:
    def write(path: Path) -> None:
        archive()(path)
        content = path.read_bytes()
        at = content.rindex(old) if last else content.index(old)
        path.write_bytes(content[:at] + new + content[at + len(old) :])

    return write


def _lying_size(path: Path) -> None:
    """The directory says that ``x`` has 100 GB."""
    archive(x=described("'<f8'", "(3, 4000000000)"))(path)
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = struct.pack("<I", 2**32 - 2)
    path.write_bytes(bytes(content))


def _no_names(count: int) -> np.ndarray:
    return np.array([f"class {i}" for i in range(count)])


NPZ: dict[str, tuple[Writer, str]] = {
    "nothing": (lambda p: p.write_bytes(b""), "not a readable .npz"),
    "noise": (lambda p: p.write_bytes(bytes(range(256)) * 40), "not a readable .npz"),
    "half": (lambda p: (archive()(p), p.write_bytes(p.read_bytes()[:200])), "not a readable .npz"),
    "bomb": (_bomb, "needs 0.4 GB of memory"),
    "crowded": (_crowded, "not a readable .npz|arrays, more than"),
    "twice": (_twice, "several arrays called 'y'"),
    "encrypted": (
        _changed(b"PK\x01\x02\x14\x03\x14\0\0\0", b"PK\x01\x02\x14\x03\x14\0\x01\0"),
        "not a readable .npz",
    ),
    "lzma": (archive(method=zipfile.ZIP_LZMA), "unusual method"),
    "bzip2": (archive(method=zipfile.ZIP_BZIP2), "unusual method"),
    "checksum": (
        _changed(bytes([2, 0, 0, 0, 0, 0, 0, 0]), bytes([1, 0, 0, 0, 0, 0, 0, 0]), last=True),
        "not a readable",
    ),
    "lying size": (_lying_size, "announces 96000000000 bytes|not a readable .npz"),
    "outside": (
        lambda p: zipfile.ZipFile(p, "w").writestr("../../x.npy", npy(np.ones((3, 2)))),
        "not a readable|no array 'x'",
    ),
    "huge shape": (archive(x=described("'<f4'", "(1000000000000, 2)")), "announces 8000000000000 bytes"),
    "shape beyond 64 bits": (archive(x=described("'<f4'", "(4611686018427387904, 64)")), "x: announces"),
    "negative shape": (archive(x=described("'<f4'", "(-3, -2)")), "impossible shape"),
    "hundred dimensions": (archive(x=described("'<f4'", "(" + "1, " * 100 + ")", bytes(4))), "impossible shape"),
    "shape of words": (archive(x=described("'<f4'", "('a', 2)")), "not a readable .npz"),
    "code in the header": (archive(x=described("__import__('os').abort()", "(3,)")), "not a readable .npz"),
    "deep header": (archive(x=described("'<f4'", "(" * 4000 + ")" * 4000)), "not a readable .npz"),
    "long header": (archive(x=header(" " * 60_000)), "not a readable .npz"),
    "header of version 2": (archive(x=header("{}", 2)), "header of version 2.0"),
    "endless header": (
        archive(x=b"\x93NUMPY\x02\0\xff\xff\xff\xff" + bytes(10**6), method=zipfile.ZIP_DEFLATED),
        "header of version 2.0",
    ),
    "no header": (archive(x=b"x"), "not a readable .npz"),
    "pickle": (archive(x=npy(np.array([{}, 1, "a"]), allow_pickle=True)), "never unpickled"),
    "pickled labels": (archive(y=npy(np.array([{}, 1, "a"]), allow_pickle=True)), "never unpickled"),
    "structures": (archive(x=npy(np.zeros(3, [("a", "f4"), ("b", "i8")]))), "not a readable .npz"),
    "subarrays": (archive(x=described("('<f4', (2,))", "(3,)")), "not a readable .npz"),
    "complex": (archive(x=npy(np.ones((3, 2), complex))), "not a readable .npz"),
    "dates": (archive(y=npy(np.zeros(3, "M8[s]"))), "not a readable .npz"),
    "words": (archive(x=npy(np.array([["a"]] * 3))), "expected numbers"),
    "a number": (archive(x=npy(3.0)), "x has shape"),
    "samples without numbers": (archive(x=npy(np.zeros((3, 0)))), "samples of 0 numbers"),
    "beyond float32": (archive(x=npy(np.full((3, 2), 1e300))), "features of sample 0 are NaN or infinite"),
    "NaN": (archive(x=npy(np.array([[0.0], [1.0], [np.nan]]))), "features of sample 2 are NaN"),
    "label 2**62": (archive(y=npy(np.array([0, 2**62, 1]))), "sample 1: label 4611686018427387904"),
    "label beyond int64": (
        archive(y=npy(np.array([0, 1, 2**64 - 1], np.uint64))),
        "sample 2: label 18446744073709551615",
    ),
    "label -1": (archive(y=npy(np.array([0, -1, 1]))), "sample 1: label -1"),
    "label -2**63": (archive(y=npy(np.array([0, 1, -(2**63)]))), "sample 2: label -9223372036854775808"),
    "label 65536": (archive(y=npy(np.array([0, 65536, 1]))), "sample 1: label 65536"),
    "label NaN": (archive(y=npy(np.array([0, 1, np.nan]))), "sample 2: label nan"),
    "label 1e300": (archive(y=npy(np.array([0, 1, 1e300]))), r"sample 2: label 1e\+300"),
    "label 0.5": (archive(y=npy(np.array([0, 0.5, 1]))), "sample 1: label 0.5"),
    "labels in rows": (archive(y=npy(np.zeros((3, 1), int))), "one per sample"),
    "long class name": (archive(y=npy(np.array(["a", "b" * 10**5, "c"]))), "of 100000 characters"),
    "class name of two lines": (archive(y=npy(np.array(["a", "b\nrm", "c"]))), "control characters"),
    "class name with a null": (archive(y=npy(np.array(["a", "b\0c", "c"]))), "control characters"),
    "class name in no alphabet": (archive(y=npy(np.array([b"a", b"\xff", b"c"]))), "not UTF-8"),
    "many classes": (archive(class_names=npy(_no_names(70_000))), "70000 classes, more than 65536"),
    "class names of numbers": (archive(class_names=npy(np.arange(3))), "expected a list of names"),
    "one class name": (archive(class_names=npy(np.array("a"))), "expected a list of names"),
    "escape codes": (archive(class_names=npy(np.array(["a", "b", "\x1b[2Jc"]))), "control characters"),
    "ids in rows": (archive(ids=npy(np.zeros((3, 2)))), "one number or name per sample"),
}
