"""Secure aggregation without a network: sums are right or the round fails, and nobody learns more."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protofed.errors import PayloadError
from protofed.stages.privacy.noise import COARSEST, FINEST, OwnNoise
from protofed.stages.secure.stage import SecureSum
from protofed_flower.protocol import (
    STAGES,
    SecureAggregationError,
    SecureClient,
    SecureServer,
    conduct,
    here,
    mask,
    over,
)
from support import build, few, same

NAMES = ("ann", "bob", "cid", "dan", "eve")


def vectors(clients: int, length: int = 6, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.integers(0, 2**64, length, dtype=np.uint64) for name in NAMES[:clients]}


class Round:
    """A round whose clients fall silent at given stages, and whose messages are kept."""

    def __init__(self, clients: int, threshold: int, silent: dict[str, str] | None = None, length: int = 6) -> None:
        self.vectors = vectors(clients, length)
        self.clients = {n: SecureClient(n, v) for n, v in self.vectors.items()}
        self.server = SecureServer(list(self.clients), threshold, length)
        self.silent = silent or {}
        self.sent: list[tuple[str, str, dict]] = []

    def ask(self, stage, requests):
        for name, answer in here(self.clients)(stage, requests):
            lost = name in self.silent and STAGES.index(self.silent[name]) <= STAGES.index(stage)
            self.sent += [(stage, name, requests[name])] + [(stage, name, answer)] * (not lost)
            yield name, ("fell silent" if lost else answer)

    def run(self) -> np.ndarray:
        return conduct(self.server, self.ask)

    def to(self, stage: str) -> dict[str, dict]:
        """Carry out the stages before one, and return the requests of that one."""
        for before in STAGES[: STAGES.index(stage)]:
            for name, answer in self.ask(before, self.server.requests(before)):
                self.server.take(before, name, answer)
            self.server.close(before)
        return self.server.requests(stage)


@settings(max_examples=12)
@given(
    clients=st.integers(2, 5),
    extra=st.integers(0, 2),
    silent=st.dictionaries(st.sampled_from(NAMES), st.sampled_from(STAGES), max_size=4),
)
def test_the_sum_is_right_or_the_round_fails(clients, extra, silent):
    threshold = min(clients, clients // 2 + 1 + extra)
    silent = {n: s for n, s in silent.items() if n in NAMES[:clients]}
    session = Round(clients, threshold, silent)
    # A vector counts if its sender is there for the first three stages.
    counted = [n for n in session.vectors if silent.get(n) in (None, "survivors", "unmask")]
    answering = [n for n in session.vectors if n not in silent]
    if len(answering) < threshold:
        with pytest.raises(SecureAggregationError, match=r"secure\.threshold"):
            session.run()
        return
    total = sum((session.vectors[n] for n in counted), np.zeros(6, dtype=np.uint64))
    assert np.array_equal(session.run(), total)
    assert session.server.arrived == counted


def test_a_masked_vector_looks_like_noise():
    """Chi-square of the bytes of one masked vector of zeros, and of its difference from another round's."""
    length = 4096
    found = []
    for _ in range(2):
        session = Round(3, 2, length=length)
        session.clients["ann"] = SecureClient("ann", np.zeros(length, dtype=np.uint64))
        session.run()
        found.append(session.server.answers["masked"]["ann"]["masked"])
    for sample in (found[0], found[0] - found[1]):
        seen = np.bincount(np.frombuffer(sample.tobytes(), dtype=np.uint8), minlength=256)
        expected = 8 * length / 256
        chi_square = ((seen - expected) ** 2 / expected).sum()
        assert 160 < chi_square < 370  # 255 degrees of freedom: six standard deviations on either side


def test_no_message_holds_an_unmasked_vector():
    """Nor its mask seed or a private key, though all that the server sees is put together."""
    session = Round(4, 3, {"dan": "masked"})
    secrets = {}
    requests = session.to("masked")
    for name, client in session.clients.items():
        secrets[name] = [client.state["vector"], client.state["seed"], client.state["pairwise_private"]]
        secrets[name].append(client.state["sealing_private"])
    for stage in STAGES[2:]:
        for name, answer in session.ask(stage, requests if stage == "masked" else session.server.requests(stage)):
            if answer == "fell silent":
                session.server.lose(name, answer)
            else:
                session.server.take(stage, name, answer)
        session.server.close(stage)
    session.server.total()
    content = b"".join(
        item if isinstance(item, bytes) else str(item).encode()
        for _, _, values in session.sent
        for value in values.values()
        for item in (value if isinstance(value, list) else [value])
    )
    for name, hidden in secrets.items():
        for secret in hidden:
            assert len(secret) > 16
            assert secret not in content, name


def test_masks_are_the_key_stream_of_aes():
    """NIST SP 800-38A's key for AES-256 in counter mode: its first block is the encryption of the counter."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(bytes(15) + b"\0")
    assert mask(key, 2).tobytes() == block
    assert not np.array_equal(mask(key, 4)[:2], mask(key, 4)[2:])


# What clients refuse.


def refused(session: Round, stage: str, change, match: str, name: str = "ann") -> None:
    request = dict(session.to(stage)[name])
    change(request)
    with pytest.raises(PayloadError, match=match):
        session.clients[name].answer(stage, request)


def test_refuses_to_reveal_both_secrets_of_a_client():
    session = Round(4, 3)
    refused(session, "survivors", lambda r: r["lost"].append("bob"), "bob is listed as arrived and as lost")


@few(
    ("stage", "change", "match"),
    [
        ("shares", lambda r: r.update(session=b"x" * 16), "another round"),
        ("shares", lambda r: r.update(names=r["names"] + ["ann"]), "each client must be listed once"),
        ("shares", lambda r: r["pairwise"].__setitem__(1, r["pairwise"][2]), "two of them are the same"),
        ("shares", lambda r: r["pairwise"].__setitem__(0, b"other"), "not its own"),
        ("masked", lambda r: (r["from"].pop(), r["from"].pop(), r["boxes"].pop(), r["boxes"].pop()), "2 clients"),
        ("masked", lambda r: r["boxes"].reverse(), "cannot be opened"),
        ("survivors", lambda r: (r["arrived"].remove("ann"), r["lost"].append("ann")), "which is here: refused"),
        ("survivors", lambda r: (r["arrived"].remove("bob"),), "each client of the round once"),
        ("survivors", lambda r: r["lost"].extend([r["arrived"].pop(), r["arrived"].pop()]), "2 vectors arrived"),
        ("unmask", lambda r: [r[key].pop() for key in ("signers", "signatures") * 2], "2 clients signed the list"),
        ("unmask", lambda r: r["signers"].__setitem__(0, "bob"), "each once, with a signature"),
    ], 7,
)  # fmt: skip
def test_refuses_dishonest_requests(stage, change, match):
    refused(Round(4, 3), stage, change, match)


def test_a_stage_is_answered_once_and_in_order():
    session = Round(4, 3)
    requests = session.to("unmask")
    session.clients["ann"].answer("unmask", requests["ann"])
    other = {"session": session.server.session, "arrived": ["ann", "cid", "dan"], "lost": ["bob"]}
    for stage in ("survivors", "unmask"):
        with pytest.raises(PayloadError, match="has been answered in this round"):
            session.clients["ann"].answer(stage, other)
    with pytest.raises(PayloadError, match="out of order"):
        SecureClient("ann", vectors(1)["ann"]).answer("masked", requests["ann"])


def test_refuses_a_threshold_that_lets_the_server_ask_two_groups():
    session = Round(4, 3)
    requests = session.server.requests("keys")
    for name, request in requests.items():
        session.server.take("keys", name, session.clients[name].answer("keys", {**request, "threshold": 2}))
    with pytest.raises(PayloadError, match="must be more than half"):
        session.clients["ann"].answer("shares", session.server.requests("shares")["ann"])


# What the server refuses.


def test_shares_of_another_round_are_refused_by_everybody():
    one, two = Round(4, 3), Round(4, 3)
    one.to("masked")
    requests = two.to("masked")
    box = one.server.answers["shares"]["bob"]["boxes"]["ann"]
    requests["ann"]["boxes"][0] = box
    with pytest.raises(PayloadError, match="that of bob cannot be opened"):  # sealed with other keys
        two.clients["ann"].answer("masked", requests["ann"])
    answer = {**two.clients["bob"].answer("masked", requests["bob"]), "session": one.server.session}
    with pytest.raises(PayloadError, match="another round"):
        two.server.take("masked", "bob", answer)


@few(
    ("stage", "change", "match"),
    [
        ("keys", lambda a: a.update(pairwise=b"no key"), "cannot be read"),
        ("shares", lambda a: a.update(commitment=b"x" * 10**6), "commitment: must have 32 bytes, not 1000000"),
        ("keys", lambda a: a.update(sealing=a["pairwise"]), "another client has one"),
        ("keys", lambda a: a.update(signature=b"x" * 513), "must have at most 512 bytes, not 513"),
        ("shares", lambda a: a["boxes"].pop(), "one for each other client"),
        ("shares", lambda a: a.update(boxes=[b"x" * 10**6] * 3), "at most 4096"),
        ("masked", lambda a: a.update(masked=b""), "must have 48 bytes, not 0"),
        ("unmask", lambda a: a["seeds"].pop(), "a share for each client"),
    ],
    5,
)
def test_the_server_refuses_bad_answers(stage, change, match):
    session = Round(4, 3)
    answer = session.clients["ann"].answer(stage, session.to(stage)["ann"])
    change(answer)
    with pytest.raises(PayloadError, match=match):
        session.server.take(stage, "ann", answer)


def test_a_key_that_the_clients_would_refuse_loses_its_sender_alone():
    """PEM lets text stand before a key; all others would have been lost over it."""
    session = Round(5, 4)

    def ask(stage, requests):
        for name, answer in session.ask(stage, requests):
            longer = b"x" * 1500 + b"\n" + answer["pairwise"] if (stage, name) == ("keys", "eve") else b""
            yield name, {**answer, "pairwise": longer} if longer else answer

    total = sum((v for n, v in session.vectors.items() if n != "eve"), np.zeros(6, dtype=np.uint64))
    assert np.array_equal(conduct(session.server, ask), total)
    assert session.server.lost == {"eve": "keys: one cannot be read (expected a key and nothing else)"}


@few("which", ["seeds", "keys"], 1)
def test_wrong_shares_fail_the_round(which):
    session = Round(4, 3, {"dan": "masked"})

    def ask(stage, requests):
        for name, answer in session.ask(stage, requests):
            if stage == "unmask" and name == "bob":
                answer = {**answer, which: [s[:-1] + bytes([s[-1] ^ 1]) for s in answer[which]]}
            yield name, answer

    with pytest.raises(
        SecureAggregationError, match=r"do not fit: \w+, or one of those who sent them \(ann, bob, cid\)"
    ):
        conduct(session.server, ask)


@few(("which", "culprit"), [(w, c) for w in ("seeds", "keys") for c in ("ann", "bob", "eve")], 2)
@few("damage", [lambda s: s[:-1] + bytes([s[-1] ^ 1]), lambda s: b"", lambda s: bytes(len(s))], 1)
def test_wrong_shares_of_one_client_cost_no_round_and_name_it(which, culprit, damage):
    session = Round(5, 3, {"dan": "masked"})

    def ask(stage, requests):
        for name, answer in session.ask(stage, requests):
            if stage == "unmask" and name == culprit:
                answer = {**answer, which: [damage(s) for s in answer[which]]}
            yield name, answer

    total = sum((v for n, v in session.vectors.items() if n != "dan"), np.zeros(6, dtype=np.uint64))
    assert np.array_equal(conduct(session.server, ask), total)
    if culprit != "eve":  # whose shares are not needed
        assert (
            "'s " + ("mask seed" if which == "seeds" else "key") + " does not fit" in session.server.lost[culprit]
        )


# Noise.


def noisy(silent: dict[str, str]) -> tuple[Round, dict[str, OwnNoise]]:
    """Return a round of five clients, three of them needed and one colluding, and the noise of each."""
    session, noises = Round(5, 3, silent), {n: OwnNoise(1e6, 1, seed) for seed, n in enumerate(NAMES)}
    session.clients = {n: SecureClient(n, vector, noises[n]) for n, vector in session.vectors.items()}
    return session, noises


@pytest.mark.parametrize("silent", [{}, {"bob": "keys", "eve": "masked"}, {"ann": "shares", "bob": "unmask"}])
def test_a_sum_has_the_noise_of_all_who_are_in_it(silent):
    session, noises = noisy(silent)
    total = session.run()
    there = [n for n in NAMES if silent.get(n, "unmask") == "unmask"]
    assert session.server.arrived == there
    expected = sum((session.vectors[n] + noises[n].draw(3, 6) for n in there), np.zeros(6, dtype=np.uint64))
    assert np.array_equal(total, expected)
    # The noise of those that are sure not to collude has the variance σ² at least.
    assert (len(there) - 1) * noises["ann"].share(3) ** 2 >= 1e12 * (1 - 1e-9)


def test_fewer_clients_than_the_noise_counts_on_end_the_round():
    session, _ = noisy(dict.fromkeys(("ann", "bob", "cid"), "masked"))
    with pytest.raises(SecureAggregationError, match="2 of the 3 clients needed sent vectors"):
        session.run()


@pytest.mark.parametrize("noise", [OwnNoise(1e6, 3), OwnNoise(FINEST, 1), OwnNoise(COARSEST * 2, 1)])
def test_a_client_whose_noise_would_not_do_takes_no_part(noise):
    client = SecureClient("ann", np.zeros(2, dtype=np.uint64), noise)
    with pytest.raises(PayloadError, match=r"privacy.colluders|secure.fraction_bits"):
        client.answer("keys", {"session": bytes(16), "threshold": 3, "length": 2})


# A federation.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "mode"), [("fedavg", "none"), ("fedproto", "none"), ("fedlda", "none"), ("fedavg", "client")]
)
def test_simulated_sums_are_those_of_the_protocol(method, mode, monkeypatch):
    """Bit for bit, with the traffic: a simulation adds the integers, and the masks of the protocol cancel."""
    noise = {"privacy__mode": mode, **({"privacy__noise": 1.0, "privacy__clip": 0.3} if mode == "client" else {})}

    def outcome():
        federation = build(method, rounds=2, secure__aggregation=True, robust__rule="none", **noise)
        records = [(r.bytes, r.parameters, r.losses, r.accuracy) for r in federation.run()]
        return records, {name: tensor.clone() for name, tensor in federation.server.items()}

    simulated = outcome()
    plain = SecureSum.sum

    def protected(stage, messages, broadcasts, record):
        offers = {name: stage.offer(name, m, broadcasts[name], record.round) for name, m in messages.items()}
        stage.conduct = over(here({name: SecureClient(name, *offer) for name, offer in offers.items()}))
        return plain(stage, messages, broadcasts, record)

    monkeypatch.setattr(SecureSum, "sum", protected)
    records, server = outcome()
    assert (records, server.keys()) == (simulated[0], simulated[1].keys())
    assert same(simulated[1], server)
