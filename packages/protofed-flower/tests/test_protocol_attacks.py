"""Attacks of a server on secure aggregation: each reads a vector of clients that trust it, and none of others.

Clients that trust the server are those of a simulation; until 0.2.0 all clients were.
"""

from __future__ import annotations

import numpy as np
import pytest
from attacks import asking, invent, split, until
from cryptography.hazmat.primitives.asymmetric import ec

from protofed.errors import PayloadError
from protofed_flower.peers import TRUSTING, KnownPeers, Peers, digest
from protofed_flower.protocol import STAGES, SecureClient, SecureServer, conduct, here
from support import few

NAMES = ("ann", "bob", "cid", "dan", "eve")
LENGTH = 6
VISIT = digest("visit", "run", 1)
ZEROS = np.zeros(LENGTH, dtype=np.uint64)
KEYS = {name: ec.generate_private_key(ec.SECP384R1()) for name in NAMES}
PUBLIC = {name: key.public_key() for name, key in KEYS.items()}


def known(name: str, **least: int) -> KnownPeers:
    return KnownPeers(KEYS[name], PUBLIC, "trial", **least)


def vector(name: str) -> np.ndarray:
    return np.random.default_rng(NAMES.index(name)).integers(0, 2**64, LENGTH, dtype=np.uint64)


def client(name: str, peers: Peers | None = None, visit: bytes = VISIT) -> SecureClient:
    return SecureClient(name, vector(name), visit=visit, peers=peers or known(name))


def everyone(trusting: bool, names=NAMES) -> dict[str, SecureClient]:
    return {name: client(name, TRUSTING if trusting else None) for name in names}


def attacked(attack, trusting: bool, *words: object) -> str:
    """Return why a client refused its part in an attack; "" if the server has read what it wanted."""
    try:
        found, wanted = attack(trusting, *words)
    except PayloadError as error:
        return str(error)
    assert np.array_equal(found, wanted)
    return ""


# Clients that there are not.


def played(trusting: bool, invented: list[str], threshold: int):
    victim = client("ann", TRUSTING if trusting else None)
    return invent(asking({"ann": victim}), LENGTH, invented, threshold), vector("ann")


@few(
    ("invented", "threshold", "reason"),
    [
        ([], 1, "threshold: 1 vectors would be enough for a sum, but this node allows no fewer than 3"),
        (["mallory"], 2, "threshold: 2 vectors would be enough"),
        (["mallory", "mia"], 2, "threshold: 2 vectors would be enough"),
        (["mallory", "mia"], 3, "names: mallory is not in this node's roster"),
        (["bob", "mia"], 3, "names: mia is not in this node's roster"),
        (["bob", "cid"], 3, "keys: bob did not sign those in its name for this round"),
        (["bob", "cid", "dan", "eve"], 3, "keys: bob did not sign those in its name"),
    ],
    2,
)
def test_a_server_that_plays_the_other_clients(invented, threshold, reason):
    assert attacked(played, True, invented, threshold) == ""
    assert reason in attacked(played, False, invented, threshold)


@few(
    ("least", "threshold", "reason"),
    [
        ({"least_threshold": 4}, 3, "no fewer than 4 (least-threshold)"),
        ({"least_peers": 5}, 3, "names: 4 other clients, but this node asks for 5 (least-peers)"),
        ({"least_peers": 4, "least_threshold": 3}, 3, ""),
    ],
    1,
)
def test_a_node_sets_its_own_least_numbers(least, threshold, reason):
    clients = everyone(False)
    clients["ann"].peers = known("ann", **least)
    server = SecureServer(list(clients), threshold, LENGTH)
    total = conduct(server, here(clients))
    assert reason in server.lost.get("ann", "")
    counted = NAMES if not reason else NAMES[1:]
    assert np.array_equal(total, sum((vector(n) for n in counted), ZEROS))


# Keys of the server in a client's name.


def substitute(trusting: bool, signature: str):
    """Stand between ann and the others: each of them is shown keys of the server in the others' names."""
    others, played = everyone(trusting, NAMES[:3]), {n: client(n, TRUSTING) for n in ("bob", "cid")}
    victim = others.pop("ann")
    old = SecureServer(list(NAMES[:3]), 3, LENGTH)
    earlier = {n: client(n).answer("keys", old.requests("keys")[n])["signature"] for n in ("bob", "cid")}
    server = SecureServer(["ann", *played], 3, LENGTH)

    def ask(stage, requests):
        for name, request in requests.items():
            answer = (victim if name == "ann" else played[name]).answer(stage, request)
            if stage == "keys" and name != "ann":
                swapped = {"bob": "cid", "cid": "bob"}[name]
                answer["signature"] = {
                    "none": b"",
                    "of an earlier round": earlier[name],
                    "of the client's own keys": others[name].answer("keys", request)["signature"],
                    "of another client": known(swapped).sign(
                        digest("keys", victim.state["context"], name, answer["pairwise"], answer["sealing"])
                    ),
                }[signature]
            yield name, answer

    return conduct(server, ask) - vector("bob") - vector("cid"), vector("ann")


@few("signature", ["none", "of an earlier round", "of the client's own keys", "of another client"], 3)
def test_a_server_that_hands_out_keys_of_its_own(signature):
    assert attacked(substitute, True, signature) == ""
    assert "keys: bob did not sign those in its name" in attacked(substitute, False, signature)


# Lists of survivors that differ.


def shared(trusting: bool):
    return split(asking(everyone(trusting)), LENGTH, NAMES), vector("ann") + vector("bob")


def test_a_server_that_drops_and_returns_clients_to_read_a_sum_of_two():
    assert attacked(shared, True) == ""
    refusal = "unmask: 1 clients signed the list of survivors that ann was given, of the 3 needed: refused"
    assert attacked(shared, False) == refusal


@few("colluders", range(4), 1)
def test_what_remains_is_a_server_with_2t_minus_n_clients(colluders):
    """With n = 5 and t = 4, three colluding clients sign that eve is here, and that she is lost."""
    clients = everyone(False)
    server = until("survivors", NAMES, 4, LENGTH, asking(clients))
    traitors = NAMES[1 : 1 + colluders]
    here_ = {"eve": clients["eve"], **{n: SecureClient.of(clients[n].state, known(n)) for n in traitors}}
    gone = {n: clients[n] for n in NAMES[:4]}
    request = server.requests("survivors")["ann"]
    given = []
    for group, lost in ((here_, []), (gone, ["eve"])):
        told = {**request, "arrived": [n for n in NAMES if n not in lost], "lost": lost}
        signatures = [one.answer("survivors", told)["signature"] for one in group.values()]
        proof = {"session": server.session, "signers": list(group), "signatures": signatures}
        given.append([name for name, one in group.items() if answers(one, proof)])
    assert all(len(names) >= 4 for names in given) == (colluders >= 3)


def answers(one: SecureClient, proof: dict) -> bool:
    try:
        one.answer("unmask", proof)
    except PayloadError:
        return False
    return True


def test_lists_of_clients_that_differ_are_noticed_before_anything_is_unmasked():
    """Ann is told of a round of three, and the others of one of four, of whom one falls silent."""
    clients = everyone(False, NAMES[:4])
    four = SecureServer(list(NAMES[:4]), 3, LENGTH)
    three = SecureServer(list(NAMES[:3]), 3, LENGTH)
    three.session = four.session
    four.lose("dan", "was invited for the others only")

    def step(stage: str) -> None:
        for name in NAMES[: 4 if stage == "keys" else 3]:
            answer = clients[name].answer(stage, (three if name == "ann" else four).requests(stage)[name])
            if stage == "shares":
                answer["boxes"] = dict(zip(answer["to"], answer["boxes"], strict=True))
            three.answers[stage][name] = four.answers[stage][name] = answer
        three.close(stage)
        if stage != "keys":
            four.close(stage)

    with pytest.raises(PayloadError, match="unmask: 1 clients signed the list of survivors that ann was given"):
        list(map(step, STAGES))
    assert clients["ann"].state["stage"] == STAGES.index("unmask")


# What belongs to another round.


@few("other", ["run", "round", "configuration"], 1)
def test_clients_that_were_told_different_things_do_not_add_up(other):
    """With another fixed point for ann, or another broadcast, the sum would show her part of it."""

    def differ(trusting: bool):
        clients = everyone(trusting, NAMES[:3])
        clients["ann"].state |= {
            "visit": digest("visit", other),
            "vector": (vector("ann") % 2**16 << np.uint64(40)).tobytes(),
        }
        for name in ("bob", "cid"):
            clients[name].state["vector"] = (vector(name) % 2**16).tobytes()
        return conduct(SecureServer(list(clients), 3, LENGTH), asking(clients)) >> np.uint64(40), vector(
            "ann"
        ) % 2**16

    assert attacked(differ, True) == ""
    assert "did not sign those in its name for this round with the same configuration" in attacked(differ, False)


def test_a_threshold_of_its_own_for_each_client_is_noticed():
    """With a higher one for the others, they would add less noise than ann's sum needs."""
    clients = everyone(False)
    server = SecureServer(list(clients), 3, LENGTH)
    for name, request in server.requests("keys").items():
        request["threshold"] = 3 if name == "ann" else 4
        server.take("keys", name, clients[name].answer("keys", request))
    server.close("keys")
    with pytest.raises(PayloadError, match="keys: bob did not sign those in its name for this round"):
        clients["ann"].answer("shares", server.requests("shares")["ann"])


def test_answers_of_an_earlier_session_are_of_no_use():
    """The server names a session again after ann has lost it, and repeats what the others said then.

    Their keys are of the same round, and so their owners did sign them for it. But their boxes are not for her new
    keys, nor are their signatures of the survivors.
    """
    clients = everyone(False, NAMES[:4])
    before = until("unmask", list(clients), 3, LENGTH, asking(clients))
    again = SecureServer(list(NAMES[:4]), 3, LENGTH)
    again.session, again.answers = before.session, before.answers
    ann = client("ann")
    for stage in ("keys", "shares"):
        again.take(stage, "ann", ann.answer(stage, again.requests(stage)["ann"]))
    with pytest.raises(PayloadError, match="boxes: that of bob cannot be opened"):
        ann.answer("masked", again.requests("masked")["ann"])


# Rosters.


def test_a_roster_of_another_federation_by_the_same_authority():
    clients = everyone(False, NAMES[:3])
    clients["ann"].peers = KnownPeers(KEYS["ann"], PUBLIC, "another")
    with pytest.raises(PayloadError, match=r"keys: .* did not sign those in its name for this round"):
        conduct(SecureServer(list(clients), 3, LENGTH), asking(clients))


def test_a_name_in_another_form_of_unicode_is_another_name():
    composed, decomposed = "Z\u00fcrich", "Zu\u0308rich"
    peers = KnownPeers(KEYS["ann"], {**PUBLIC, composed: PUBLIC["eve"]}, "trial")
    with pytest.raises(PayloadError, match="is not in this node's roster"):
        invent(asking({"ann": client("ann", peers)}), LENGTH, [composed, decomposed], 3)


def test_a_client_that_is_listed_twice():
    clients = everyone(False, NAMES[:3])
    server = until("shares", list(clients), 3, LENGTH, asking(clients))
    request = server.requests("shares")["ann"]
    for name in ("names", "pairwise", "sealing", "signatures"):
        request[name] = [*request[name], request[name][-1]]
    with pytest.raises(PayloadError, match="names: each client must be listed once"):
        clients["ann"].answer("shares", request)


def test_signatures_of_survivors_count_for_their_own_round_only():
    """Those of the first round are handed to the same clients in the second, which signed nothing in it."""
    before = everyone(False, NAMES[:4])
    earlier = until("unmask", list(before), 3, LENGTH, asking(before)).requests("unmask")["ann"]
    now = {name: client(name, visit=digest("visit", "run", 2)) for name in NAMES[:4]}
    server = until("unmask", list(now), 3, LENGTH, asking(now))
    with pytest.raises(PayloadError, match="unmask: 0 clients signed the list of survivors"):
        now["ann"].answer("unmask", {**earlier, "session": server.session})
