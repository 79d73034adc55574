"""Numbers in JSON texts, which are parsed without a function in Python wherever none of them can be too large."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofed.errors import CheckpointError
from protofed.untrusted.decoding import Number, decode
from protofed.untrusted.reading import parse_json

HUGE = [
    "1e309",
    "-1E+400",
    "2" * 400 + ".5",
    "[1e-5, " + "9" * 310 + ".0]",
    "1.7E999",
    "2" * 290 + "e99",
    "2" * 210 + "e+99",
    "1e" + "0" * 9 + "999",
]


@pytest.mark.parametrize("text", HUGE)
def test_a_number_beyond_the_largest_float_is_refused(text):
    with pytest.raises(ValueError, match="too large a number"):
        parse_json(text)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**63 - 1)))
def test_all_other_numbers_are_read_as_they_are(values):
    assert parse_json(json.dumps(values)) == values


def test_long_fractions_and_tiny_numbers_are_no_large_ones():
    assert parse_json(f"[0.{'3' * 500}, 1e-999, 1e300, {'1' * 209}e99]") == [
        1 / 3,
        0.0,
        1e300,
        float("1" * 209 + "e99"),
    ]


@pytest.mark.parametrize(
    "values",
    [[True], [float("nan")], [1.0, float("inf")], [1e301], ["1"], [[1.0]], None, {}, [1, False]],
)
def test_what_is_no_list_of_numbers(values):
    with pytest.raises(CheckpointError, match=r"expected|must be"):
        decode(values, list[Number | None])


def test_lists_of_numbers():
    assert decode([], list[Number | None]) == []
    assert decode([None], list[Number | None]) == [None]
    assert decode([1, 0.5, None, -1e299], list[Number | None]) == [1, 0.5, None, -1e299]


@pytest.mark.parametrize("text", ['{"a": 1e999}', '["\\ud800"]', "[1]"])
def test_bytes_are_utf_8_or_no_json(text):
    """In UTF-16, which Python's json reads as well, nothing would be looked through for what is refused."""
    with pytest.raises(ValueError, match="utf-8"):
        parse_json(text.encode("utf-16"))


@dataclass(frozen=True)
class Inner:
    undefined: Mapping[str, str]


@dataclass(frozen=True)
class Outer:
    clients: Mapping[str, Inner]


def test_a_fault_in_a_table_within_a_record_in_a_table_is_named():
    """Keys on the way to it are no names of fields."""
    metrics = {"clients": {"north": {"undefined": {}}, "south": {"undefined": {"auroc": [0] * 3}}}}
    with pytest.raises(CheckpointError, match=r"clients\.south\.undefined\.auroc"):
        decode(metrics, Outer, "metrics.json")
