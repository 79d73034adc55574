"""The wire: what goes in comes out, and nothing else comes out."""

from __future__ import annotations

import functools
import runpy
import struct
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protofed.errors import ConfigError, PayloadError
from protofed.methods import methods
from protofed.options import option_rows
from protofed.wire import compression
from protofed.wire.codec import Codec, cast, codecs, get_codec
from protofed.wire.schema import Field, Schema, prototype_schema, weight_schema
from protofed.wire.validate import check_structure, check_values
from support import build, experiment, few, same

pytestmark = pytest.mark.fast

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
        ({"prototypes": torch.full((3, D), -1e10)}, "prototypes: magnitudes may be at most 1e.09"),
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


def test_a_missing_field_is_named():
    with pytest.raises(PayloadError, match="counts: missing"):
        FLOAT32.encode({n: t for n, t in payload().items() if n != "counts"}, SCHEMA)


def test_more_classes_than_labels_are_refused():
    with pytest.raises(PayloadError, match="at most 65536 classes"):
        FLOAT32.encode({"w": torch.zeros(1)}, Schema({"w": Field((1,))}, 70000))


def test_unknown_codec():
    with pytest.raises(ConfigError, match="did you mean 'float32'"):
        get_codec("float23")


# Codecs that round.

FREE = Schema({"x": Field(("r", "w"))}, K, limits={"r": 9, "w": 9})


@st.composite
def tables(draw, largest):
    """Rows of very different sizes, with zeros, and without rows or columns."""
    width = draw(st.integers(0, 6))
    number = st.floats(-largest, largest, width=32) | st.floats(-1, 1, width=32) | st.just(0.0)
    rows = draw(st.lists(st.lists(number, min_size=width, max_size=width), max_size=5))
    return torch.tensor(rows, dtype=torch.float32).reshape(len(rows), width)


def through(codec, x):
    """What arrives of ``x``; it encodes to the same message again."""
    message = codec.encode({"x": x}, FREE)
    received = codec.decode(message, FREE)["x"]
    assert codec.encode({"x": received}, FREE) == message
    assert received.shape == x.shape
    assert received.dtype == torch.float32
    return message, received


@given(tables(65504.0))
def test_float16_is_the_nearest_half(x):
    message, received = through(get_codec("float16"), x)
    assert len(message) == 12 + 2 * x.numel()
    for sent, came in zip(x.flatten().tolist(), received.flatten().tolist(), strict=True):
        assert came == struct.unpack("<e", struct.pack("<e", sent))[0]
        assert abs(came - sent) <= max(abs(sent) * 2**-11, 2**-25)


@given(tables(1e9))
def test_int8_is_within_half_a_step_per_row(x):
    most = 127
    message, received = through(get_codec("int8"), x)
    assert len(message) == 12 + x.shape[0] * (4 + x.shape[1])
    for sent, came in zip(x.tolist(), received.tolist(), strict=True):
        largest = max(map(abs, sent), default=0.0)
        step = largest / most
        for a, b in zip(sent, came, strict=True):
            # Steps are a little shorter than the exact ones; rows below 1.5e-36 become 0.
            nearest = min((q * step for q in range(-most, most + 1)), key=lambda v: abs(v - a))
            assert abs(b - a) <= step / 2 + 1.5e-36
            assert abs(b - a) <= abs(nearest - a) + step * 0.003 + 1.5e-36
            assert abs(b) <= largest


@pytest.mark.parametrize(("shape", "rows"), [((), 1), ((7,), 1), ((4, 7), 4), ((4, 3, 5, 5), 4), ((0, 3), 0)])
def test_int8_has_a_scale_per_prototype_filter_or_vector(shape, rows):
    schema = Schema({"x": Field(shape)}, K)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    message = get_codec("int8").encode({"x": x}, schema)
    assert len(message) == 4 + 4 * rows + x.numel()
    received = get_codec("int8").decode(message, schema)["x"]
    assert received.shape == x.shape
    flat = x.reshape(rows, -1) if rows else x
    for a, b in zip(flat, received.reshape(flat.shape), strict=True):
        assert (a - b).abs().max() <= 0.51 * a.abs().max() / 127


@pytest.mark.parametrize(("name", "most"), [("float16", 0.01), ("int8", 0.01)])
def test_lossy_codecs_take_any_shape(name, most):
    weights = {
        "scale": torch.tensor(-2.5),
        "row": torch.tensor([1.0, -127.0]),
        "empty": torch.zeros(3, 0),
        "kernel": torch.linspace(-1, 1, 24).reshape(2, 3, 2, 2),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "turned": torch.arange(6.0).reshape(2, 3).T,
    }
    schema, codec = weight_schema(weights, K), get_codec(name)
    received = codec.decode(codec.encode(weights, schema), schema)
    for field, tensor in weights.items():
        torch.testing.assert_close(received[field], tensor.float(), rtol=0, atol=most)
    assert codec.largest(schema) == len(codec.encode(weights, schema))


def test_float16_refuses_what_would_become_infinite():
    sent = {**payload(), "prototypes": torch.full((3, D), -65505.0)}
    with pytest.raises(PayloadError, match=r"^prototypes: float16 holds .* 65504: choose wire.codec=fl"):
        get_codec("float16").encode(sent, SCHEMA)


def test_a_codec_that_is_gone_says_what_to_use():
    with pytest.raises(ConfigError, match=r"^codec 'int4' is gone: use int8, of which a message takes twice"):
        get_codec("int4")


def test_casting_converts_real_numbers_alone():
    found = cast({"x": torch.ones(2), "classes": torch.tensor([3])}, torch.float64)
    assert [(t.dtype, t.tolist()) for t in found.values()] == [(torch.float64, [1.0, 1.0]), (torch.int64, [3])]


@pytest.mark.parametrize("scale", [torch.nan, torch.inf, -1.0])
def test_int8_scales_must_make_sense(scale):
    schema = Schema({"x": Field((2, 3))}, K)
    message = b"PF\x01\x04" + struct.pack("<2f", 1.0, scale) + bytes(6)
    with pytest.raises(PayloadError, match=r"^x: the scale of a row must be finite and not negative, not"):
        get_codec("int8").decode(message, schema)


@given(st.sampled_from(sorted(codecs)), st.floats(1e-9, 6e4), st.floats(1, 2), st.integers(0, 99))
def test_valid_numbers_arrive_as_valid_numbers(name, minimum, above, seed):
    """Bounds hold after rounding, to the last digit."""
    limit = minimum * above
    schema = Schema({"x": Field((7, 3), minimum=minimum, limit=limit), "y": Field((7, 3), limit=limit)}, K)
    x = torch.rand(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    x = minimum + (limit - minimum) * x
    x[0], x[1] = minimum, limit
    sent = {"x": x, "y": -x}
    check_values(sent, schema)
    codec = get_codec(name)
    received = codec.decode(codec.encode(sent, schema), schema)
    assert same(received, {n: t.to(codec.memory) for n, t in sent.items()})


def test_small_variances_stay_variances():
    """BatchNorm would multiply a channel by 316 if its variance were rounded to 0."""
    weights = {"norm.running_var": torch.tensor([1e-4, 100.0]), "norm.running_mean": torch.tensor([1e-4, 100.0])}
    schema = weight_schema(weights, K)
    codec = get_codec("int8")
    received = codec.decode(codec.encode(weights, schema), schema)
    assert torch.equal(received["norm.running_var"], weights["norm.running_var"])
    assert received["norm.running_mean"].tolist()[0] == 0
    weights["norm.running_var"][0] = -1
    with pytest.raises(PayloadError, match=r"norm\.running_var: values must be at least 0"):
        codec.decode(codec.encode(weights, schema), schema)


@pytest.mark.parametrize(
    "change", [{"classes": torch.tensor([0, 2, 65539])}, {"counts": torch.tensor([1, 2, -3])}], ids=str
)
def test_integers_never_wrap_around(change):
    with pytest.raises(PayloadError, match=f"{next(iter(change))}: contains integers that do not fit"):
        FLOAT32.encode({**payload(), **change}, SCHEMA)


# Compression.


@pytest.mark.parametrize("name", codecs)
def test_compression_changes_the_length_only(name):
    plain, packed = get_codec(name), get_codec(name, "zstd")
    schema = prototype_schema(K, "d", {"d": 500})
    sent = {"classes": torch.tensor([1, 2]), "prototypes": torch.ones(2, 500)}
    message = packed.encode(sent, schema)
    assert len(message) < 100 < len(plain.encode(sent, schema)) <= packed.largest(schema) == plain.largest(schema)
    assert message == packed.encode(sent, schema)
    assert message[4:8] == plain.encode(sent, schema)[4:8]
    assert same(packed.decode(message, schema), plain.decode(plain.encode(sent, schema), schema))
    with pytest.raises(PayloadError, match=r"^message: compressed, expected wire\.compression=none"):
        plain.decode(message, schema)


def test_what_does_not_get_smaller_is_sent_as_it_is():
    packed = get_codec("float32", "zstd")
    noise = {**payload(), "prototypes": torch.randn(3, D)}
    assert packed.encode(noise, SCHEMA) == FLOAT32.encode(noise, SCHEMA)
    assert same(packed.decode(FLOAT32.encode(noise, SCHEMA), SCHEMA), noise)


def test_zstandard_is_needed_only_by_those_who_choose_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    runpy.run_path(compression.__file__)
    assert same(FLOAT32.decode(FLOAT32.encode(payload(), SCHEMA), SCHEMA), payload())
    with pytest.raises(ConfigError, match=r"needs the package zstandard: pip install 'protofed\[zstd\]'"):
        get_codec("float32", "zstd")


def test_unknown_compression():
    with pytest.raises(ConfigError, match="did you mean 'zstd'"):
        get_codec("float32", "zst")
    with pytest.raises(ConfigError, match=r"wire\.compression must be 'none' or 'zstd'"):
        experiment(wire__compression="gzip")


# Every method's messages.


def often(name):
    """Return options with which a method that sends something every tenth round only sends it soon."""
    known = [row[0] for row in option_rows(methods().get(name).Options)]
    return {"method__start": 2, "method__interval": 1} if "interval" in known else {}


@functools.cache
def traffic(name):
    """What a method sends in a few rounds, as ``(payload, schema)``."""
    sent = []
    with pytest.MonkeyPatch.context() as patch:
        original = Codec.encode

        def record(self, payload, schema):
            sent.append((payload, schema))
            return original(self, payload, schema)

        patch.setattr(Codec, "encode", record)
        own = {"model__name": "support:WithBatchNorm", "model__options": {}} if name == "fedavg" else {}
        records = list(build(name, rounds=3, **often(name), **own).run())
    assert bool(sent) == any(r.bytes["up"] for r in records)
    return sent


@few("packing", compression.COMPRESSIONS, 1)
@few("codec", sorted(codecs, key=lambda name: name not in ("float32", "int8")), 2)
@pytest.mark.parametrize("name", sorted(methods()))
def test_every_method_can_use_every_codec(name, codec, packing):
    wire = get_codec(codec, packing)
    for payload, schema in traffic(name):
        message = wire.encode(payload, schema)
        assert len(message) <= wire.largest(schema)
        received = wire.decode(message, schema)
        assert wire.encode(received, schema) == message
        for field, rule in schema.fields.items():
            if rule.kind != "real":
                assert torch.equal(received[field], payload[field])
            elif rule.exact or codec.startswith("float32"):
                assert torch.equal(received[field], payload[field].to(wire.memory))
            elif payload[field].numel():
                error = (received[field] - payload[field]).abs().max()
                assert error <= payload[field].abs().max() / 254 * 1.001
