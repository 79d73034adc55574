"""Examples in docstrings are tested: modules without any need not be imported to find none."""

from pathlib import Path


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out what has no example."""
    return True if collection_path.suffix == ".py" and ">>>" not in collection_path.read_text() else None
