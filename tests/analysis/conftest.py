"""Run directories below the folder of a test."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rundirs import make_comparison, make_run


@pytest.fixture
def run_at(tmp_path: Path) -> Callable[..., Path]:
    """Make a run at a name below the test's folder."""
    return lambda name="run", method="fedproto", **options: make_run(tmp_path / name, method, **options)


@pytest.fixture
def comparison_at(tmp_path: Path) -> Callable[..., Path]:
    """Make a comparison at a name below the test's folder."""
    return lambda methods, seeds=(0, 1), name="compared", **options: make_comparison(
        tmp_path / name, list(methods), list(seeds), **options
    )
