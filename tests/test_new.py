"""``protofed new method``: the file runs, and its own test passes."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from protofed.cli.main import app
from protofed.errors import ConfigError
from support import script


def test_a_new_method_passes_its_own_test(tmp_path):
    result = CliRunner().invoke(app, ["new", "method", "fed_mine", "--in", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert f"method.name={tmp_path / 'fed_mine.py'}:FedMine" in result.output.replace("\n", "")
    tests = {name: test for name, test in vars(script(tmp_path / "test_fed_mine.py")).items() if "test_" in name}
    assert len(tests) == 3
    for name, test in tests.items():
        test(tmp_path / name)


@pytest.mark.parametrize("name", ["class", "Fed", "fed-mine", "1fed", "a/b", ""])
def test_a_name_that_is_no_module_is_refused(name, tmp_path):
    result = CliRunner().invoke(app, ["new", "method", name, "--in", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over(tmp_path):
    (tmp_path / "test_mine.py").write_text("mine")
    result = CliRunner().invoke(app, ["new", "method", "mine", "--in", str(tmp_path)])
    assert "is there already" in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["test_mine.py"]
