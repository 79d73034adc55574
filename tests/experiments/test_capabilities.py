"""The table of methods in the documentation is the one that is made from them."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from protofed.analysis.exchange import EXCHANGES
from protofed.cli.main import app
from protofed.config.schema import comparison, every_method
from protofed.errors import ConfigError
from protofed.experiments.capabilities import method_table
from protofed.methods import Exchange, methods

DOCS = Path(__file__).resolve().parents[2] / "docs/study/traffic.md"


@pytest.mark.slow
def test_the_documentation_is_up_to_date():
    _, _, rest = DOCS.read_text().partition("<!-- table -->\n")
    written, end, _ = rest.partition("\n<!-- end of table -->")
    assert end
    assert written == method_table(), "make it anew: python tools/methods_table.py"


def test_every_method_is_there_the_least_exchange_first():
    names = every_method()
    assert sorted(names) == sorted(methods())
    kinds = [methods().get(name) for name in names]
    places = [get_args(Exchange).index(kind.traits(kind.Options()).exchanges) for kind in kinds]
    assert places == sorted(places)
    assert get_args(Exchange) == EXCHANGES


def test_all_stands_for_every_method():
    assert list(comparison({"compare": {"methods": ["all"]}}).methods) == every_method()
    with pytest.raises(ConfigError, match="unknown method or variant 'all'"):
        comparison({"compare": {"methods": ["all", "local"]}})


def test_markdown_is_for_methods():
    result = CliRunner().invoke(app, ["list", "models", "--markdown"])
    assert "--markdown is for methods, not for models" in str(result.exception)
