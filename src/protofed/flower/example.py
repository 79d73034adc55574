"""Three hospitals for a trial of a deployment: digits, with classes and an architecture of their own for each."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from protofed.flower.folder import check_new, write_folder

HOSPITALS = {
    "north": (range(5), 'model = "cnn2"\n'),
    "south": (range(3, 8), 'model = "cnn4"\nepochs = 2\n'),
    "west": (range(5, 10), 'model = "mlp"\n'),
}
"""Classes, and what each decides for itself (its ``client.toml``)."""


def create_example(directory: Path) -> list[str]:
    """Write a folder for each hospital with its share of scikit-learn's 1,797 digits; a class is in two at most.

    Args:
        directory: New, or empty.

    Returns:
        A line on each hospital.

    Raises:
        ConfigError: If the directory holds something or cannot be made.
    """
    from sklearn.datasets import load_digits

    check_new(directory, "data are never overwritten")
    digits = load_digits()
    images = (digits.images * 255 / 16).astype(np.uint8)[:, None]  # (n, 1, 8, 8)
    order = np.random.default_rng(0).permutation(len(images))
    files, lines = {}, []
    for number, (name, (classes, settings)) in enumerate(HOSPITALS.items()):
        rows = order[np.isin(digits.target[order], classes) & (order % len(HOSPITALS) == number)]
        cut = len(rows) * 3 // 4
        for part, chosen in (("train", rows[:cut]), ("test", rows[cut:])):
            files[f"{name}/{part}.npz"] = _npz(images[chosen], digits.target[chosen]), 0o644
        files[f"{name}/client.toml"] = settings.encode(), 0o644
        counted = f"{cut} training and {len(rows) - cut} test samples"
        lines.append(f"{directory / name}: {counted} of classes {classes[0]} to {classes[-1]}")
    write_folder(directory, files)
    return lines


def _npz(x: np.ndarray, y: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, x=x, y=y)
    return buffer.getvalue()
