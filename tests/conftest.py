"""What all tests share: where real data lie, one thread, a small federation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import protofed  # noqa: F401  before torch computes: it asks MKL for results that can be repeated

REPOSITORY = Path(__file__).resolve().parents[1]


def data_root() -> Path | None:
    """Return the folder with real data: ``PROTOFED_DATA``, or ``shared/data`` beside the repository."""
    candidates = [Path(os.environ["PROTOFED_DATA"])] if os.environ.get("PROTOFED_DATA") else []
    candidates.append(REPOSITORY.parent / "shared" / "data")
    return next((path for path in candidates if path.is_dir()), None)


def real_data(name: str) -> Path:
    """Return the folder of a real data set, or skip the test that asks for it."""
    root = data_root()
    if root is None or not (root / name).exists():
        pytest.skip(f"needs real data: no {name!r} in PROTOFED_DATA or ../shared/data")
    return root / name


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tests run in parallel processes and use tiny models."""
    torch.set_num_threads(1)
