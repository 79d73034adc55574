"""The examples in docstrings, read from the modules that have some: pytest's own option imports all others, too."""

from __future__ import annotations

import doctest
import importlib

import pytest

from conftest import REPOSITORY

SOURCE = REPOSITORY / "src"
EXAMPLES = sorted(path for path in SOURCE.rglob("*.py") if ">>> " in path.read_text())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_the_examples_in_docstrings_hold(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    module = importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed
