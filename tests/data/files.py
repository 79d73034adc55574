"""Small data sets on disk for the tests of ``protofed.data``."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def png(value: int = 0, size: tuple[int, int] = (4, 4), mode: str = "L") -> bytes:
    """Return a PNG of one grey value."""
    buffer = io.BytesIO()
    Image.new(mode, size, value if mode in ("L", "I;16") else (value,) * len(mode)).save(buffer, "PNG")
    return buffer.getvalue()


def write_parquet(
    path: Path,
    labels: Sequence[int | str],
    images: Sequence[bytes | None] | None = None,
    names: Sequence[str] | None = None,
    **columns: Sequence[object],
) -> Path:
    """Write a parquet file in the hub's layout; the image of row ``i`` is grey with value ``10 * label``."""
    if images is None and not columns:
        images = [png(10 * int(label) % 256) for label in labels]
    data: dict[str, object] = {}
    features: dict[str, object] = {}
    if images is not None:
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        data["image"] = pa.array([{"bytes": b, "path": None} for b in images], kind)
        features["image"] = {"_type": "Image"}
    data |= columns
    data["label"] = pa.array(labels, pa.string() if labels and isinstance(labels[0], str) else pa.int64())
    if names is not None:
        features["label"] = {"names": list(names), "_type": "ClassLabel"}
    table = pa.table(data)
    if features:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path


def write_npz(path: Path, x: np.ndarray, y: object, **more: object) -> Path:
    """Write an ``.npz`` file with ``x`` and ``y``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, x=x, y=np.asarray(y), **{k: np.asarray(v) for k, v in more.items()})
    return path


def write_images(folder: Path, classes: dict[str, int], value: int = 0, mode: str = "L") -> Path:
    """Write ``folder/<class>/<i>.png``, as many per class as ``classes`` says."""
    for name, count in classes.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            (folder / name / f"{i}.png").write_bytes(png(value + i, mode=mode))
    return folder
