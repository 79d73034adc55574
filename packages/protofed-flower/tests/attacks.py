"""Attacks of a server on secure aggregation, on clients in this process or at nodes.

``ask`` sends requests to clients, and raises PayloadError where one refuses; ``length`` is that of the vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from protofed_flower.protocol import STAGES, SecureClient, SecureServer, Stage, Values, Vector, conduct

Ask = Callable[[Stage, Mapping[str, Values]], Iterable[tuple[str, Values]]]


def asking(clients: Mapping[str, SecureClient]) -> Ask:
    """Ask clients of this process."""
    return lambda stage, requests: [(name, clients[name].answer(stage, r)) for name, r in requests.items()]


def until(stage: str, names: Sequence[str], threshold: int, length: int, ask: Ask) -> SecureServer:
    """Return the server of a round that has come before a stage."""
    server = SecureServer(names, threshold, length)
    for before in STAGES[: STAGES.index(stage)]:
        for name, answer in ask(before, server.requests(before)):
            server.take(before, name, answer)
        server.close(before)
    return server


def invent(ask: Ask, length: int, invented: Sequence[str], threshold: int) -> Vector:
    """Read ann's vector: the other clients are the server's own, with vectors of zeros."""
    played = {name: SecureClient(name, np.zeros(length, dtype=np.uint64)) for name in invented}

    def both(stage: Stage, requests: Mapping[str, Values]) -> list[tuple[str, Values]]:
        others = {name: request for name, request in requests.items() if name != "ann"}
        return [*ask(stage, {"ann": requests["ann"]}), *asking(played)(stage, others)]

    return conduct(SecureServer(["ann", *played], threshold, length), both)


def split(ask: Ask, length: int, names: Sequence[str]) -> Vector:
    """Read the sum of the first two of five clients, though the threshold is three.

    The others are lost for some clients, and there for some. Each client is told of at least three vectors, its own
    among them. Three clients give shares of the mask seeds of the two, and three others, for each other client,
    shares of its key.
    """
    a, b, c, d, e = names
    lost = {a: [c, d], b: [d, e], c: [d, e], d: [c, e], e: [c]}
    told = {name: {"arrived": [n for n in names if n not in gone], "lost": gone} for name, gone in lost.items()}
    server = until("survivors", names, 3, length, ask)
    requests = {name: {**request, **told[name]} for name, request in server.requests("survivors").items()}
    signatures = {name: answer["signature"] for name, answer in ask("survivors", requests)}
    for name in names:
        signers = told[name]["arrived"]
        proof = {"signers": signers, "signatures": [signatures[n] for n in signers], "session": server.session}
        requests[name] = proof
    shares: dict[str, list[bytes]] = {name: [] for name in names}
    for name, answer in ask("unmask", requests):
        seeds = dict(zip(told[name]["arrived"], answer["seeds"], strict=True))
        keys = dict(zip(told[name]["lost"], answer["keys"], strict=True))
        for other, share in {**keys, a: seeds[a], b: seeds[b]}.items():
            shares[other].append(share)
    server.arrived, server.gone = [a, b], [c, d, e]
    server.answers["unmask"] = {str(i): {name: shares[name][i] for name in names} for i in range(3)}
    return server.total()
