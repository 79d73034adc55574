"""Data for a trial of a deployment: three hospitals with digits, each with its own classes and architecture."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from protofed.apps.flower.folder import check_new, write_folder
from protofed.data.toys import read_digits

HOSPITALS = {
    "north": (range(5), 'model = "cnn2"\n'),
    "south": (range(3, 8), 'model = "cnn4"\nepochs = 2\n'),
    "west": (range(5, 10), 'model = "mlp"\n'),
}
"""Classes and ``client.toml`` of each hospital."""


def create_example(directory: Path) -> list[str]:
    """Write a folder for each hospital with its share of scikit-learn's 1,797 digits; at most two share a class.

    Returns:
        A line about each hospital.
    """
    check_new(directory, "data are never overwritten")
    images, labels = read_digits()
    images = (images * 255 / 16).astype(np.uint8)[:, None]  # (n, 1, 8, 8)
    order = np.random.default_rng(0).permutation(len(images))
    files, lines = {}, []
    for number, (name, (classes, settings)) in enumerate(HOSPITALS.items()):
        rows = order[np.isin(labels[order], classes) & (order % len(HOSPITALS) == number)]
        cut = len(rows) * 3 // 4
        for part, chosen in (("train", rows[:cut]), ("test", rows[cut:])):
            files[f"{name}/{part}.npz"] = _npz(images[chosen], labels[chosen]), 0o644
        files[f"{name}/client.toml"] = settings.encode(), 0o644
        counted = f"{cut} training and {len(rows) - cut} test samples"
        lines.append(f"{directory / name}: {counted} of classes {classes[0]} to {classes[-1]}")
    write_folder(directory, files)
    return lines


def _npz(x: np.ndarray, y: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, x=x, y=y)
    return buffer.getvalue()
