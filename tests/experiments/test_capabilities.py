"""Methods in the order of what they exchange."""

from __future__ import annotations

from typing import get_args

import pytest

from protofed.analysis.exchange import EXCHANGES
from protofed.config.schema import comparison, every_method
from protofed.errors import ConfigError
from protofed.methods import Exchange, methods


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
