"""Options: their ranges, and the ways in which they are read."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import pytest

from protofed.errors import ConfigError, OptionError
from protofed.options import Options, Range, build_options, fixed, option, option_rows, plain


@dataclass(frozen=True)
class Sample(Options):
    lambda_: float = option(1.0, "a weight", least=0)
    share: float = option(0.5, "a share", above=0, most=1)
    momentum: float = option(0.9, "a momentum", least=0, below=1)
    limit: float | None = option(None, "a limit", above=2)
    sizes: tuple[int, ...] = option((1, 2), "sizes", least=1)
    kind: str | int = option("any", "a name or a number", most=5)
    free: float = option(0.0, "any number")


@dataclass(frozen=True)
class Relative(Sample):
    share: Literal[1] = fixed(1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.free > self.lambda_:
            raise ValueError("free must be at most lambda")


WRONG = [
    ("lambda", -1, "lambda must be at least 0, not -1"),
    ("lambda", math.nan, "lambda must be at least 0, not nan"),
    ("share", 0, "share must be above 0 and at most 1, not 0"),
    ("share", 1.5, "share must be above 0 and at most 1, not 1.5"),
    ("share", math.nan, "share must be above 0 and at most 1, not nan"),
    ("momentum", 1.0, "momentum must be at least 0 and below 1, not 1"),
    ("limit", 2.0, "limit must be above 2, not 2"),
    ("sizes", (3, 0), "sizes must be at least 1, not 0"),
    ("kind", 6, "kind must be at most 5, not 6"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_ranges_hold_however_options_are_made(name, value, message):
    field = "lambda_" if name == "lambda" else name
    with pytest.raises(OptionError) as direct:
        Sample(**{field: value})
    with pytest.raises(OptionError):
        replace(Sample(), **{field: value})
    with pytest.raises(ConfigError) as read:
        build_options(Sample, {name: value}, "method")
    assert str(direct.value) == message
    assert str(read.value) == f"method.{message}"
    assert isinstance(direct.value, ValueError)


def test_ends_that_belong_to_a_range():
    options = Sample(lambda_=0, share=1, momentum=0, limit=None, sizes=(), kind="seven", free=-math.inf)
    assert build_options(Sample, plain(options), "method") == options


def test_a_range_in_words():
    assert [str(r) for r in (Range(), Range(least=1), Range(above=1), Range(most=1), Range(below=1))] == [
        "",
        "at least 1",
        "above 1",
        "at most 1",
        "below 1",
    ]
    assert str(Range(least=0, below=0.5)) == "at least 0 and below 0.5"


def test_lists_show_ranges():
    rows = {name: description for name, _, description in option_rows(Sample)}
    assert rows["lambda"] == "a weight; at least 0"
    assert rows["momentum"] == "a momentum; at least 0 and below 1"
    assert rows["free"] == "any number"


def test_a_relative_may_fix_an_option():
    assert "share" not in {name for name, _, _ in option_rows(Relative)}
    assert "share" not in plain(Relative())
    assert Relative().share == 1
    assert replace(Relative(), lambda_=2.0).share == 1
    with pytest.raises(ConfigError, match="unknown option of method 'share'"):
        build_options(Relative, {"share": 1}, "method")


def test_conditions_between_options_come_after_ranges():
    with pytest.raises(ConfigError, match="method: free must be at most lambda"):
        build_options(Relative, {"free": 2}, "method")
    with pytest.raises(ValueError, match="lambda must be at least 0"):
        Relative(lambda_=-1, free=2)


def test_a_plain_dataclass_has_its_ranges_checked_when_it_is_read():
    @dataclass(frozen=True)
    class Plain:
        x: int = option(1, "a number", least=1)

    with pytest.raises(ConfigError, match=r"method\.x must be at least 1, not 0"):
        build_options(Plain, {"x": 0}, "method")


@dataclass(frozen=True)
class Chosen(Options):
    mean: Literal["samples", "uniform"] = option("samples", "weight of a client: n_i, or 1")
    order: Literal["after", "before"] | None = option(None, "when it is computed")
    told: Literal["mean", "median"] = option("mean", "the mean, or the median")


def test_lists_of_options_name_the_choices_that_their_text_does_not():
    assert [text for _, _, text in option_rows(Chosen)] == [
        "weight of a client: n_i, or 1; one of samples, uniform",
        "when it is computed; one of after, before",
        "the mean, or the median",
    ]
