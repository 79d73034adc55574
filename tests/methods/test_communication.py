"""What is sent, against what methods declare and what the papers print, for a federation with uneven classes."""

from __future__ import annotations

import math
import re

import pytest

from protofed.config.schema import every_method
from protofed.experiments.assemble import assemble
from protofed.methods import get
from protofed.methods.contract import sends
from protofed.visits.contract import Missing
from support import K, client, experiment, federated, few, visited

WIDTH = {"float32": 4, "float64": 8}

# Parameters per round of all clients, up and down, as TinyProto's Table 2 and ProtoNorm's supplement print them.
PAPERS = {
    "lg_fedavg": "sum(φ for i in clients) * 2",
    "fml": "M * aux * 2",
    "feddistill": "sum((Ki[i] + K) * K for i in clients)",
    "fedproto": "sum((Ki[i] + K) * d for i in clients)",
    "fedtgp": "sum((Ki[i] + K) * d for i in clients)",
    "tinyproto": "sum((Ki[i] + K) * s for i in clients)",
    "protonorm": "sum((Ki[i] + K) * d for i in clients)",
}


def uneven():
    """Return clients that hold 4, 2 and 1 of K = 4 classes."""
    return federated(client("ann", [0, 1, 2, 3, 0, 1, 2]), client("bob", [1, 1, 3, 3, 1]), client("cid", [0, 0, 0]))


CLASSES = {"ann": 4, "bob": 2, "cid": 1}


def second_round(method: str, codec: str = "float32", **options):
    """Return the federation and its second round: in the first, prototype methods send nothing down."""
    federation, _ = assemble(experiment(method, wire__codec=codec, **options), uneven())
    *_, record = federation.run()
    return federation, record


def sizes(federation) -> dict[str, float]:
    """Return what the symbols of the formulas stand for."""
    model = visited(federation)["ann"].model
    count = {
        part: sum(p.numel() for n, p in model.named_parameters() if n.startswith(part))
        for part in ("extractor.", "head.")
    }
    θ, φ = count["extractor."], count["head."]
    method = federation.method
    shared = getattr(method, "network", None)  # the one of a client's extras that travels
    down = method.broadcast_schema
    fields = down.fields.items() if down else ()
    G = sum(math.prod(f.shape) for n, f in fields if n.startswith("generator.") and f.parameter)
    return {
        "G": G,
        "w": θ + φ,
        "θ": θ,
        "φ": φ,
        "aux": sum(p.numel() for p in shared.parameters()) if shared else 0,
        "K": K,
        "d": 5,
        "s": int(method.masks[0].sum()) if hasattr(method, "masks") else 0,
    }


def value(formula: str, symbols: dict[str, float]) -> float:
    """Return a declared formula's value: ``|θ| + 1 + K·d``."""
    text = formula.replace("·", "*").replace("²", "**2").replace("|w_aux|", "aux").replace("K_i", "Ki")
    return eval(re.sub(r"\|(\w)\|", r"\1", text), {}, symbols)


def fixed(name: str) -> bool:
    """Whether a method's messages have the same size whatever is learned."""
    method = assemble(experiment(name), uneven())[0].method
    return not any(set(s.limits) - {"k"} for s in (method.upload_schema, method.broadcast_schema) if s is not None)


TRAITS = {name: get(name).traits(get(name).Options()) for name in every_method()}
SENDING = [name for name, traits in TRAITS.items() if traits.exchanges != "nothing"]


@pytest.mark.parametrize("name", SENDING)
def test_what_is_sent_is_what_is_declared(name):
    if not fixed(name):
        pytest.skip("its formula has a symbol for what is learned, which the method's own tests know")
    federation, record = second_round(name)
    symbols = sizes(federation)
    kind = federation.method.declared
    for way, formula in (("up", kind.up), ("down", kind.down)):
        expected = sum(value(formula, {**symbols, "Ki": CLASSES[n]}) for n in record.participants)
        assert record.parameters[way] == expected, f"{name} {way}: {formula}"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedproto", {"method__classes": "own"}),
        ("fedlda", {"method__personal": False}),
        ("beacon", {"method__exchange": False}),
        ("gfpl", {"method__pfg": False}),
    ],
)
def test_what_is_declared_follows_options(name, options):
    federation, record = second_round(name, **options)
    symbols, kind = sizes(federation), federation.method.declared
    for way, formula in (("up", kind.up), ("down", kind.down)):
        expected = sum(value(formula, {**symbols, "Ki": CLASSES[n]}) for n in record.participants)
        assert record.parameters[way] == expected, f"{name} {way}: {formula}"
    assert (kind.exchanges == "nothing") == (kind.up == "0")


@few("name", [name for name in PAPERS if name in SENDING], 4)
def test_papers_tables(name):
    federation, record = second_round(name)
    symbols = {**sizes(federation), "Ki": CLASSES, "clients": list(CLASSES), "M": len(CLASSES)}
    assert record.parameters["up"] + record.parameters["down"] == eval(PAPERS[name], symbols)


@few("codec", ["float32", "float64"], 1)
@pytest.mark.parametrize("name", SENDING)
def test_bytes_are_numbers_and_a_stated_header(name, codec):
    """4 bytes per message, 4 per size that varies, 2 per label, 4 per count, and the codec's width per number."""
    federation, _ = second_round(name, codec)
    method, names = federation.method, federation.names
    seen = 0
    for round_number in range(3, 24):
        messages = federation.open(names, round_number).messages
        if not sends(method, round_number):
            continue
        results = [
            r for r in federation.executor.train(names, messages, round_number) if not isinstance(r, Missing)
        ]
        sent = [(messages[n], method.broadcast_schema) for n in names if messages[n] is not None]
        sent += [(result.message, method.upload_schema) for result in results]
        for message, schema in sent:
            payload = federation.codec.decode(message, schema)
            number = {"real": WIDTH[codec], "label": 2, "count": 4}
            body = sum(payload[n].numel() * number[f.kind] for n, f in schema.fields.items())
            assert len(message) == 4 + 4 * len(schema.limits) + body
            counted = schema.parameters(payload)
            real = sum(payload[n].numel() for n, f in schema.fields.items() if f.kind == "real")
            assert counted <= real
            seen += 1
        if seen:
            break
    assert seen
