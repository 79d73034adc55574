"""Whatever arrives: a payload that satisfies the schema, or one line that names what is wrong."""

from __future__ import annotations

import itertools
import struct
import tracemalloc

import pytest
import torch
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from protofed.errors import PayloadError
from protofed.methods import Task, get
from protofed.wire.codec import COMPRESSED, codecs, get_codec
from protofed.wire.compression import COMPRESSIONS
from protofed.wire.lossy import Float16
from protofed.wire.schema import Field, Schema
from protofed.wire.validate import check_structure, check_values

pytestmark = pytest.mark.fast

K, D = 9, 4
SCHEMA = Schema(
    {
        "classes": Field(("k",), "label", parameter=False),
        "prototypes": Field(("k", "d")),
        "stds": Field(("c", "d"), minimum=0.0),
        "origin": Field(("c",), "label", parameter=False, unique=False),
        "counts": Field(("k",), "count", parameter=False),
        "kernel": Field((2, 1, 3)),
        "temperature": Field(()),
    },
    K,
    sizes={"d": D},
    limits={"k": K, "c": 40},
)
HUGE = Schema({"prototypes": Field(("k", 50))}, K, limits={"k": 10**6})  #: Of which 200 MB may be announced
HEADER = 4 + 4 * 2
ALL = list(itertools.product(codecs, COMPRESSIONS))
USUAL = [("float32", "none"), ("int8", "zstd"), ("float16", "none")]

every_codec = pytest.mark.parametrize(
    "codec", [pytest.param(get_codec(*c), id="-".join(c), marks=[pytest.mark.slow] * (c not in USUAL)) for c in ALL]
)


@st.composite
def payloads(draw):
    """Valid payloads; ``stds`` compress well, the others do not."""
    classes = sorted(draw(st.sets(st.integers(0, K - 1))))
    k, c = len(classes), draw(st.integers(0, 40))
    noise = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    return {
        "classes": torch.tensor(classes, dtype=torch.int64),
        "prototypes": torch.randn(k, D, generator=noise),
        "stds": torch.ones(c, D),
        "origin": torch.randint(K, (c,), generator=noise),
        "counts": torch.randint(2**32, (k,), generator=noise),
        "kernel": torch.randn(2, 1, 3, generator=noise),
        "temperature": torch.randn((), generator=noise),
    }


def explained(error, schema=SCHEMA):
    name, _, reason = str(error).partition(": ")
    assert name in {"message", *schema.fields}, error
    assert reason
    assert "\n" not in reason
    return error


def arrives(codec, message, schema=SCHEMA):
    """Return the valid payload, or the error that says in one line what is wrong with which field."""
    try:
        received = codec.decode(message, schema)
    except PayloadError as error:
        return explained(error, schema)
    check_structure(received, schema)
    check_values(received, schema)
    assert all(t.dtype == (codec.memory if t.is_floating_point() else torch.int64) for t in received.values())
    return received


def refused(codec, message, schema=SCHEMA):
    error = arrives(codec, message, schema)
    assert isinstance(error, PayloadError)
    return str(error)


def sizes(k, c):
    return struct.pack("<2I", c, k)  # in alphabetical order


@every_codec
@given(noise=st.binary(max_size=600), compressed=st.booleans(), k=st.integers(0, K), c=st.integers(0, 3))
def test_random_bytes(codec, noise, compressed, k, c):
    arrives(codec, noise)
    kind = bytes([codec.number | COMPRESSED * compressed])
    arrives(codec, b"PF\x01" + kind + noise)
    header = b"PF\x01" + kind + sizes(k, c)
    arrives(codec, header + noise)
    arrives(codec, header + zstandard.ZstdCompressor().compress(noise))
    # Noise of the right length passes everything but the rules on values.
    plain = b"PF\x01" + bytes([codec.number]) + sizes(k, c)
    body = codec.largest(Schema(SCHEMA.fields, K, {"d": D}, {"k": k, "c": c})) - HEADER
    whole = (noise * (1 + body // max(1, len(noise))))[:body].ljust(body, b"\0")
    arrives(codec, plain + whole)
    if codec.compression == "zstd":
        arrives(codec, header[:3] + bytes([codec.number | COMPRESSED]) + sizes(k, c) + zstandard.compress(whole))


@every_codec
@given(payload=payloads(), data=st.data())
def test_truncated_and_extended(codec, payload, data):
    message = codec.encode(payload, SCHEMA)
    assert not isinstance(arrives(codec, message), PayloadError)
    cut = data.draw(st.integers(0, len(message) - 1))
    assert refused(codec, message[:cut]).startswith("message: ")
    assert refused(codec, message + data.draw(st.binary(min_size=1, max_size=40))).startswith("message: ")
    assert refused(codec, message + message).startswith("message: ")


@every_codec
@given(payload=payloads(), data=st.data())
def test_flipped_bits(codec, payload, data):
    message = bytearray(codec.encode(payload, SCHEMA))
    for place in data.draw(st.lists(st.integers(0, 8 * len(message) - 1), min_size=1, max_size=8)):
        message[place // 8] ^= 1 << place % 8
    arrives(codec, bytes(message))


@every_codec
@given(payload=payloads(), data=st.data())
def test_other_codecs_and_versions(codec, payload, data):
    name = data.draw(st.sampled_from([n for n in codecs if n != type(codec).__name__.lower()]))
    other = get_codec(name, data.draw(st.sampled_from(COMPRESSIONS)))
    assert f"codec {other.number}, expected {codec.number}" in refused(codec, other.encode(payload, SCHEMA)) or (
        "at most" in refused(codec, other.encode(payload, SCHEMA))
    )
    message = bytearray(codec.encode(payload, SCHEMA))
    message[2] = data.draw(st.integers(0, 255).filter(lambda version: version != 1))
    assert "not a protofed message of version 1" in refused(codec, bytes(message))


@every_codec
@given(payload=payloads(), k=st.integers(0, 2**32 - 1) | st.integers(0, 12), c=st.integers(0, 2**32 - 1))
def test_wrong_sizes_in_the_header(codec, payload, k, c):
    message = bytearray(codec.encode(payload, SCHEMA))
    same = bytes(message[4:12]) == sizes(k, c)
    message[4:12] = sizes(k, c)
    result = arrives(codec, bytes(message))
    assert isinstance(result, PayloadError) != same


@every_codec
@given(k=st.integers(10**4, 10**6), sent=st.binary(max_size=100))
def test_announced_but_not_sent(codec, k, sent):
    """Up to 200 MB, which the schema allows: nothing is reserved for what is not there."""
    for kind, body in ((codec.number, sent), (codec.number | COMPRESSED, zstandard.compress(sent))):
        message = b"PF\x01" + bytes([kind]) + struct.pack("<I", k) + body
        tracemalloc.start()
        try:
            assert refused(codec, message, HUGE).startswith("message: ")
            assert tracemalloc.get_traced_memory()[1] < 2**20
        finally:
            tracemalloc.stop()


@pytest.fixture(scope="module")
def bomb():
    return zstandard.compress(bytes(200_000_000))


def without_size(data):
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


@every_codec
@pytest.mark.parametrize("kind", ["honest", "lying", "silent", "two frames", "wide window"])
def test_a_bomb_does_not_go_off(codec, bomb, kind):
    """6 kB that become 200 MB are refused for what they say, or stopped where they exceed it."""
    expected = codec.largest(HUGE) // 100 - 8
    k = expected // codec.real_size((1, 50))
    expected = codec.real_size((k, 50))
    lie = bomb.replace(struct.pack("<I", 200_000_000), struct.pack("<I", expected), 1)
    assert zstandard.get_frame_parameters(lie).content_size == expected
    frames = {
        "honest": bomb,
        "lying": lie,
        "silent": without_size(bytes(expected)),
        "two frames": zstandard.compress(bytes(expected)) + bomb,
        # Not a single segment: 4 bytes of size follow a window of 2 GB.
        "wide window": b"\x28\xb5\x2f\xfd\x80\xa8" + struct.pack("<I", expected) + bytes(9),
    }
    message = b"PF\x01" + bytes([codec.number | COMPRESSED]) + struct.pack("<I", k) + frames[kind]
    tracemalloc.start()
    try:
        assert refused(codec, message, HUGE).startswith("message: ")
        assert tracemalloc.get_traced_memory()[1] < expected + 2**20
    finally:
        tracemalloc.stop()


@every_codec
def test_too_long_is_refused_before_anything_else(codec):
    allowed = codec.largest(SCHEMA)
    assert refused(codec, bytes(allowed + 1)) == f"message: has {allowed + 1} bytes, at most {allowed} are allowed"
    assert "at most" not in refused(codec, bytes(allowed))


SPECIAL = st.sampled_from(
    [torch.nan, torch.inf, -torch.inf, 3e38, -3e38, 1e9, 1.001e9, 65504.0, 65520.0, 1e-40, -0.0]
)


@every_codec
@given(payload=payloads(), field=st.sampled_from(["prototypes", "stds", "kernel", "temperature"]), data=st.data())
def test_numbers_out_of_bounds(codec, payload, field, data):
    numbers = payload[field].double().flatten().round(decimals=2)  # none so near a bound that rounding decides
    if len(numbers):
        for place in data.draw(st.sets(st.integers(0, len(numbers) - 1), min_size=1)):
            numbers[place] = data.draw(SPECIAL)
    if data.draw(st.booleans()):
        numbers *= 1e9
    payload[field] = numbers.reshape(payload[field].shape)
    single = numbers.float()
    too_large = single.isfinite() & (single.abs() > 65504)
    if type(codec) is Float16 and field != "stds" and too_large.any():
        with pytest.raises(PayloadError, match=f"^{field}: float16 holds magnitudes up to 65504"):
            codec.encode(payload, SCHEMA)
        return
    result = arrives(codec, codec.encode(payload, SCHEMA))
    valid = not len(numbers) or bool(numbers.isfinite().all() & (numbers.abs() <= 1e9).all())
    if field == "stds":
        valid = valid and bool((numbers >= 0).all())
    assert isinstance(result, PayloadError) != valid
    if not valid:
        assert str(result).startswith(f"{field}: ")


@every_codec
@given(payload=payloads(), classes=st.lists(st.integers(0, 2**16 - 1) | st.integers(0, K), max_size=K))
def test_classes_unknown_doubled_or_descending(codec, payload, classes):
    k = len(classes)
    payload |= {
        "classes": torch.tensor(classes, dtype=torch.int64),
        "prototypes": torch.zeros(k, D),
        "counts": torch.zeros(k, dtype=torch.int64),
    }
    result = arrives(codec, codec.encode(payload, SCHEMA))
    if sorted(set(classes)) == classes and all(j < K for j in classes):
        assert not isinstance(result, PayloadError)
    else:
        assert str(result).startswith("classes: ")


DTYPES = [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32]
DTYPES += [torch.float64, torch.complex64]


@every_codec
@given(payload=payloads(), field=st.sampled_from(sorted(SCHEMA.fields)), dtype=st.sampled_from(DTYPES))
def test_wrong_dtypes_are_refused_before_they_are_sent(codec, payload, field, dtype):
    payload["counts"] %= 100
    payload[field] = payload[field].to(dtype)
    floating = SCHEMA.fields[field].kind == "real"
    if dtype.is_floating_point == floating and not dtype.is_complex and dtype != torch.bool:
        assert not isinstance(arrives(codec, codec.encode(payload, SCHEMA)), PayloadError)
    else:
        with pytest.raises(PayloadError, match=f"^{field}: must be {SCHEMA.fields[field].kind}, not "):
            codec.encode(payload, SCHEMA)


def test_a_small_message_does_not_become_a_large_one():
    """Zeros shrink ten thousandfold: 33 kB could claim 1.3 GB at whoever decodes them."""
    codec = get_codec("float32", "zstd")
    task = Task(num_classes=10, feature_dim=160, rounds=2, seed=0, class_size=10.0, clients=1000)
    schema = get("gfpl")(get("gfpl").Options(), task).broadcast_schema
    c = min(schema.limits["c"], 2**16)
    body = bytes(2 * c) + bytes(4 * c) + bytes(2 * 4 * c * 160)
    bomb = b"PF\x01" + bytes([1 | 0x80]) + struct.pack("<I", c) + zstandard.ZstdCompressor().compress(body)
    tracemalloc.start()
    with pytest.raises(PayloadError, match=r"message: \d+ bytes announce \d+, at most \d+ are allowed"):
        codec.decode(bomb, schema)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(bomb) < 40_000
    assert peak < 2**20


def test_a_payload_that_shrinks_too_much_is_sent_as_it_is():
    codec = get_codec("float32", "zstd")
    schema = Schema({"w": Field((2**20,))}, 4)
    message = codec.encode({"w": torch.zeros(2**20)}, schema)
    assert len(message) == 4 + 2**22
    assert torch.equal(codec.decode(message, schema)["w"], torch.zeros(2**20))


def test_a_client_expects_no_more_components_than_all_clients_can_report():
    task = Task(num_classes=10, feature_dim=160, rounds=2, seed=0, class_size=10.0, clients=3)
    method = get("gfpl")(get("gfpl").Options(), task)
    assert method.broadcast_schema.limits["c"] == 3 * method.upload_schema.limits["c"]
