"""The wire: what goes in comes out, and nothing else comes out."""

from __future__ import annotations

import contextlib
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protofed.errors import ConfigError, PayloadError
from protofed.methods.schema import Field, Schema, prototype_schema, weight_schema
from protofed.wire import check_structure, check_values, get_codec

D, K = 3, 6
SCHEMA = prototype_schema(K, "d", {"d": D}, counts=Field(("k",), "count", parameter=False))
FLOAT32 = get_codec("float32")


def payload(classes=(0, 2, 5)):
    k = len(classes)
    return {
        "classes": torch.tensor(classes, dtype=torch.int64),
        "prototypes": torch.arange(k * D, dtype=torch.float32).reshape(k, D) / 7,
        "counts": torch.arange(k) + 1,
    }


@given(st.sets(st.integers(0, K - 1)), st.sampled_from(["float32", "float64"]), st.integers(0, 2**32))
def test_round_trip_and_size(classes, name, seed):
    codec = get_codec(name)
    width = {"float32": 4, "float64": 8}[name]
    sent = payload(sorted(classes))
    noise = torch.randn(len(classes), D, generator=torch.Generator().manual_seed(seed), dtype=codec.memory)
    sent["prototypes"] = noise
    message = codec.encode(sent, SCHEMA)
    k = len(classes)
    # A header of 8 bytes, 2 per label, 4 per count: the overhead the documentation states.
    assert len(message) == 8 + k * (2 + 4) + k * D * width
    assert SCHEMA.parameters(sent) == k * D
    received = codec.decode(message, SCHEMA)
    assert received.keys() == sent.keys()
    for field in sent:
        assert torch.equal(received[field], sent[field])


def test_weights_round_trip_without_overhead_but_the_header():
    weights = {"w": torch.randn(4, 5), "b": torch.randn(5), "scale": torch.tensor(2.0)}
    schema = weight_schema(weights, K)
    message = FLOAT32.encode(weights, schema)
    assert len(message) == 4 + 4 * (20 + 5 + 1)
    assert all(torch.equal(FLOAT32.decode(message, schema)[n], w) for n, w in weights.items())


def check(broken):
    """Encoding checks structure; values are checked where they arrive."""
    check_structure(broken, SCHEMA)
    check_values(broken, SCHEMA)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"prototypes": torch.full((3, D), torch.nan)}, "prototypes: contains NaN"),
        ({"prototypes": torch.full((3, D), torch.inf)}, "prototypes: contains infinite values"),
        ({"prototypes": torch.full((3, D), -1e10)}, "prototypes: magnitudes may be at most 1e.09, found 1e.10"),
        ({"prototypes": torch.zeros(3, D + 1)}, "prototypes: d must be 3"),
        ({"prototypes": torch.zeros(2, D)}, "prototypes: k must be 3"),
        ({"prototypes": torch.zeros(3, D, dtype=torch.int64)}, "prototypes: must be real, not int64"),
        ({"prototypes": torch.zeros(3)}, "prototypes: must have shape"),
        ({"classes": torch.tensor([0, 2, 6])}, "classes: unknown class 6"),
        ({"classes": torch.tensor([2, 0, 5])}, "classes: classes must be distinct and ascending"),
        ({"classes": torch.tensor([0, 0, 5])}, "classes: classes must be distinct and ascending"),
        ({"counts": torch.tensor([1, 2, -3])}, "counts: counts must lie in"),
        ({"extra": torch.zeros(1)}, "extra: not part of the schema"),
    ],
)
def test_what_breaks_the_schema_is_named(change, expected):
    broken = {**payload(), **change}
    with pytest.raises(PayloadError, match=expected):
        check(broken)


def test_values_are_checked_on_arrival():
    broken = {**payload(), "prototypes": torch.full((3, D), torch.nan)}
    with pytest.raises(PayloadError, match="prototypes: contains NaN"):
        FLOAT32.decode(FLOAT32.encode(broken, SCHEMA), SCHEMA)


def test_a_missing_field_is_named():
    with pytest.raises(PayloadError, match="counts: missing"):
        FLOAT32.encode({n: t for n, t in payload().items() if n != "counts"}, SCHEMA)


@given(st.data())
def test_damaged_messages_are_refused(data):
    message = FLOAT32.encode(payload(), SCHEMA)
    cut = data.draw(st.integers(0, len(message) - 1))
    with pytest.raises(PayloadError, match="message: "):
        FLOAT32.decode(message[:cut], SCHEMA)
    with pytest.raises(PayloadError, match="message: "):
        FLOAT32.decode(message + bytes(data.draw(st.integers(1, 9))), SCHEMA)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_give_one_line_errors_or_a_valid_payload(noise):
    for message in (noise, b"PF\x01\x01" + noise):
        with contextlib.suppress(PayloadError):
            check_values(FLOAT32.decode(message, SCHEMA), SCHEMA)


def test_foreign_messages_are_refused():
    with pytest.raises(PayloadError, match="not a protofed message"):
        FLOAT32.decode(pickle.dumps({"prototypes": [1.0]}), SCHEMA)
    with pytest.raises(PayloadError, match="codec 2, expected 1"):
        FLOAT32.decode(get_codec("float64").encode(payload(), SCHEMA), SCHEMA)
    announced = b"PF\x01\x01" + (10**9).to_bytes(4, "little")
    with pytest.raises(PayloadError, match="k may be at most 6"):
        FLOAT32.decode(announced, SCHEMA)


def test_more_classes_than_labels_are_refused():
    with pytest.raises(PayloadError, match="at most 65536 classes"):
        FLOAT32.encode({"w": torch.zeros(1)}, Schema({"w": Field((1,))}, 70000))


def test_unknown_codec():
    with pytest.raises(ConfigError, match="did you mean 'float32'"):
        get_codec("float23")
