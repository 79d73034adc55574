"""Fixtures for the tests of ``protofed.data``."""

from pathlib import Path

import pytest

from data.files import write_parquet


@pytest.fixture
def federation(tmp_path: Path) -> Path:
    """Return a federation folder of two clients with parquet files, three classes."""
    for client, labels in (("north", [0, 0, 1]), ("south", [1, 2, 2, 2])):
        write_parquet(tmp_path / "clients" / client / "train.parquet", labels)
        write_parquet(tmp_path / "clients" / client / "test.parquet", labels[-1:])
    return tmp_path
