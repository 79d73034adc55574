"""Secure aggregation as two machines that exchange plain values: a client and a server, without a network.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, for a server that
may deviate from the protocol. In five stages

1. ``keys``: clients send two public keys, signed for this round;
2. ``shares``: each client checks the signatures, divides its mask seed ``b`` and the private key of its pairwise
   masks among all, so that any ``threshold`` of them can restore either, and sends each its shares in a sealed box;
3. ``masked``: each sends its vector, with its share of noise if there is to be any, plus a mask from ``b`` and, for
   every other client, one that cancels with that client's;
4. ``survivors``: each signs the list of the clients whose vectors arrived, and all else that it knows of the round;
5. ``unmask``: if ``threshold`` clients signed the same, each reveals, for every client, its share of ``b`` if that
   client's vector arrived, or of the key if it did not, and never of both.

Whose signatures count is up to :class:`~protofed_flower.peers.Peers`; in a simulation, no one signs.

Keys, key agreement, sealed boxes and Shamir's shares are Flower's (``flwr.common.secure_aggregation``). Its masks
are not: they come from a generator with a seed of 32 bits. Ours are the key stream of AES-256.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeVar, cast

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt, generate_shared_key
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, generate_key_pairs, public_key_to_bytes

from protofed.engine import RoundRecord
from protofed.errors import PayloadError
from protofed.stages.privacy import NO_NOISE, OwnNoise, Vector
from protofed.stages.secure import Conduct, SecureAggregationError, SecureSum, Summed, require_enough
from protofed.untrusted import claims
from protofed.untrusted.decoding import take
from protofed_flower.peers import TRUSTING, Peers, digest

Stage = Literal["keys", "shares", "masked", "survivors", "unmask"]
SENT: dict[Stage, str] = {
    "keys": "sent keys",
    "shares": "sent shares",
    "masked": "sent vectors",
    "survivors": "signed the list of survivors",
    "unmask": "unmasked",
}
"""A client's progress after each stage."""
STAGES = tuple(SENT)
Values = dict[str, Any]  #: Contents of a message: text, numbers, bytes, and lists of these
Ask = Callable[[Stage, Mapping[str, Values]], Iterable[tuple[str, "Values | str"]]]
"""Sends each client its request of a stage; yields names with answers, or with the reason why there is none."""
T = TypeVar("T")

SEED = 32  #: Bytes of a mask seed
SCALAR = 48  #: Bytes of a private key of the curve P-384
DIGEST = 32  #: Bytes of a commitment
SESSION = 16
NAME_LENGTH = 256
LARGEST_KEY = 1024
LARGEST_BOX = 4096
LARGEST_SHARE = 512
LARGEST_SIGNATURE = 512
_CURVE = ec.SECP384R1()


# Masks.


def mask(key: bytes, length: int) -> Vector:
    """Return the key stream of AES-256 in counter mode for a 32-byte key, used for one mask only."""
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(8 * length)), dtype="<u8").astype(np.uint64)


def derived(secret: bytes, purpose: str, session: bytes) -> bytes:
    """Return a key of 32 bytes for one purpose in one round."""
    info = b"protofed secure aggregation\0" + purpose.encode() + b"\0" + session
    return HKDF(hashes.SHA256(), 32, salt=None, info=info).derive(secret)


def commitment(seed: bytes, session: bytes, name: str) -> bytes:
    """Return a client's commitment to its mask seed, by which the shares of others can be checked."""
    return digest("mask seed", session, name, seed)


def _private(scalar: bytes) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(scalar, "big"), _CURVE)


def _public(key: bytes) -> ec.EllipticCurvePublicKey:
    try:
        found = bytes_to_public_key(key)
        if not isinstance(found, ec.EllipticCurvePublicKey) or found.curve.name != _CURVE.name:
            raise ValueError("not a key of the curve P-384")
        if public_key_to_bytes(found) != key:  # PEM lets text of any length stand before and after it
            raise ValueError("expected a key and nothing else")
    except Exception as error:  # cryptography raises many kinds, and all mean the same
        raise PayloadError(f"keys: one cannot be read ({claims.clean(error, 80)})") from None
    return found


def _agree_secret(own: ec.EllipticCurvePrivateKey, other: bytes) -> bytes:
    return generate_shared_key(own, _public(other))


def _pairwise(own: ec.EllipticCurvePrivateKey, other: bytes, session: bytes, length: int) -> Vector:
    return mask(derived(_agree_secret(own, other), "pairwise mask", session), length)


# Reading.


def take_list(values: Mapping[str, Any], name: str, kind: type[T], most: int, largest: int) -> list[T]:
    """Return a list of texts or bytes of a message."""
    items = values.get(name)
    if not isinstance(items, list) or len(items) > most:
        raise PayloadError(f"{name}: must be a list of at most {most}")
    if not all(isinstance(item, kind) and len(cast(bytes, item)) <= largest for item in items):
        raise PayloadError(f"{name}: must hold {kind.__name__} of at most {largest} characters")
    return items


def take_bytes(values: Mapping[str, Any], name: str, size: int) -> bytes:
    """Return the bytes of a message that have a known size."""
    content = take(values, name, bytes)
    if len(content) != size:
        raise PayloadError(f"{name}: must have {size} bytes, not {len(content)}")
    return content


def _session(values: Mapping[str, Any], expected: bytes) -> None:
    if take(values, "session", bytes) != expected:
        raise PayloadError("session: belongs to another round")


def _order(names: Sequence[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(sorted(names))}


# The client.


class SecureClient:
    """A client in one round of secure aggregation.

    Every stage is answered once. A request that is out of order, of another round, with keys that their owners did
    not sign, or for both the mask seed and the key of one client is refused.

    Args:
        visit: Digest of the request that the vector answers, the same for all clients of the round.

    Attributes:
        state: Everything that it knows, as plain values, with which :meth:`of` continues in another process.
    """

    def __init__(
        self, name: str, vector: Vector, noise: OwnNoise = NO_NOISE, visit: bytes = b"", peers: Peers = TRUSTING
    ) -> None:
        content = vector.astype("<u8").tobytes()
        self.state: Values = {"name": name, "vector": content, "noise": noise.to_bytes()}
        self.state |= {"visit": visit, "stage": 0}
        self.peers = peers

    @classmethod
    def of(cls, state: Values, peers: Peers) -> SecureClient:
        """Return the client that another process left as ``state``."""
        client = cls.__new__(cls)
        client.state, client.peers = dict(state), peers
        return client

    @property
    def name(self) -> str:
        """The client."""
        return str(self.state["name"])

    def answer(self, stage: Stage, request: Mapping[str, Any]) -> Values:
        """Return the answer to the server's request of a stage."""
        if STAGES.index(stage) != self.state["stage"]:
            asked = "has been answered" if STAGES.index(stage) < self.state["stage"] else "is out of order"
            raise PayloadError(f"secure aggregation: stage {stage} {asked} in this round")
        if stage != "keys":
            _session(request, self.state["session"])
        answer: Values = getattr(self, f"_{stage}")(request)
        self.state["stage"] += 1
        return {**answer, "session": self.state["session"]}

    def _keys(self, request: Mapping[str, Any]) -> Values:
        """Stage 1: two new pairs of keys, signed for this round alone."""
        session, threshold = take_bytes(request, "session", SESSION), take(request, "threshold", int)
        if 8 * take(request, "length", int) != len(self.state["vector"]):
            raise PayloadError("length: the server expects another vector than this client's")
        self.peers.check_threshold(threshold)
        self._noise().share(threshold)  # refuses a threshold that leaves no noise
        context = digest("round", self.peers.federation, self.state["visit"], session, threshold)
        self.state |= {"session": session, "threshold": threshold, "context": context}
        for which in ("pairwise", "sealing"):
            private, public = generate_key_pairs()
            scalar = private.private_numbers().private_value.to_bytes(SCALAR, "big")
            self.state |= {f"{which}_private": scalar, f"{which}_public": public_key_to_bytes(public)}
        own = {which: self.state[f"{which}_public"] for which in ("pairwise", "sealing")}
        return {**own, "signature": self.peers.sign(digest("keys", context, self.name, *own.values()))}

    def _shares(self, request: Mapping[str, Any]) -> Values:
        """Stage 2: shares of the mask seed and of the pairwise key, in a box for each other client."""
        s = self.state
        names = take_list(request, "names", str, 100_000, NAME_LENGTH)
        pairwise = take_list(request, "pairwise", bytes, len(names), LARGEST_KEY)
        sealing = take_list(request, "sealing", bytes, len(names), LARGEST_KEY)
        signatures = take_list(request, "signatures", bytes, len(names), LARGEST_SIGNATURE)
        threshold = s["threshold"]
        if len(set(names)) != len(names) or not len(names) == len(pairwise) == len(sealing) == len(signatures):
            raise PayloadError("names: each client must be listed once, with two keys and a signature")
        if not len(names) < 2 * threshold or len(names) < threshold:
            raise PayloadError(
                f"threshold: {threshold} of {len(names)} clients: must be more than half, and not more than all"
            )
        if len({*pairwise, *sealing}) != 2 * len(names):
            raise PayloadError("keys: two of them are the same")
        listed = dict(zip(names, zip(pairwise, sealing, signatures, strict=True), strict=True))
        if listed.pop(self.name, ())[:2] != (s["pairwise_public"], s["sealing_public"]):
            raise PayloadError(f"keys: those of {self.name} are not its own")
        self.peers.check_names(list(listed))
        for name, (*keys, signature) in listed.items():
            if not self.peers.signed(name, digest("keys", s["context"], name, *keys), signature):
                raise PayloadError(
                    f"keys: {name} did not sign those in its name for this round with the same configuration, "
                    "broadcast and threshold",
                    code="unlike",
                    names=[name],
                )
        seed = secrets.token_bytes(SEED)
        of_seed, of_key = (create_shares(one, threshold, len(names)) for one in (seed, s["pairwise_private"]))
        shares = dict(zip(names, zip(of_seed, of_key, strict=True), strict=True))
        own = _private(s["sealing_private"])
        boxes = [
            encrypt(_agree_secret(own, key), _sealed(s["session"], self.name, name, *shares[name]))
            for name, (_, key, _) in listed.items()
        ]
        s |= {"names": names, "pairwise": pairwise, "sealing": sealing, "seed": seed}
        s |= {"own_shares": [*shares[self.name]]}
        return {"to": [*listed], "boxes": boxes, "commitment": commitment(seed, s["session"], self.name)}

    def _masked(self, request: Mapping[str, Any]) -> Values:
        """Stage 3: the vector plus all masks, once the others' boxes are here."""
        s = self.state
        senders = take_list(request, "from", str, len(s["names"]), NAME_LENGTH)
        boxes = take_list(request, "boxes", bytes, len(senders), LARGEST_BOX)
        keys = dict(zip(s["names"], zip(s["pairwise"], s["sealing"], strict=True), strict=True))
        known = set(senders) <= keys.keys() - {self.name} and len(set(senders)) == len(senders)
        if not known or len(boxes) != len(senders):
            raise PayloadError("from: must list other clients of the round, each once, with a box")
        if len(senders) + 1 < s["threshold"]:
            raise PayloadError(f"from: {len(senders) + 1} clients are left of the {s['threshold']} needed")
        own = _private(s["sealing_private"])
        shares = [
            self._open_box(sender, box, _agree_secret(own, keys[sender][1]))
            for sender, box in zip(senders, boxes, strict=True)
        ]
        length = len(s["vector"]) // 8
        total = np.frombuffer(s["vector"], dtype="<u8").astype(np.uint64)
        total = total + self._noise().draw(s["threshold"], length)
        total = total + mask(derived(s["seed"], "own mask", s["session"]), length)
        place, private = _order(s["names"]), _private(s["pairwise_private"])
        for sender in senders:
            shared = _pairwise(private, keys[sender][0], s["session"], length)
            total = total + shared if place[self.name] < place[sender] else total - shared
        s |= {"senders": senders, "seed_shares": [b for b, _ in shares], "key_shares": [k for _, k in shares]}
        s |= {"vector": b"", "noise": b"", "seed": b"", "pairwise_private": b""}  # no longer needed
        return {"masked": total.astype("<u8").tobytes()}

    def _noise(self) -> OwnNoise:
        return OwnNoise.of(self.state["noise"])

    def _open_box(self, sender: str, box: bytes, key: bytes) -> tuple[bytes, bytes]:
        """Return the two shares in a box."""
        try:
            plain = decrypt(key, box)
        except Exception:  # cryptography raises many kinds, and all mean the same
            raise PayloadError(f"boxes: that of {sender} cannot be opened", names=[sender]) from None
        head = _head(self.state["session"], sender, self.name)
        body = plain[len(head) :]
        if not plain.startswith(head) or len(body) < 4:
            raise PayloadError(
                f"boxes: that of {sender} is of another round, or for another client", names=[sender]
            )
        size = int.from_bytes(body[:4], "big")
        return body[4 : 4 + size], body[4 + size :]

    def _survivors(self, request: Mapping[str, Any]) -> Values:
        """Stage 4: a signature of who is left and of all that led there."""
        s = self.state
        everybody = sorted([self.name, *s["senders"]])
        arrived = take_list(request, "arrived", str, len(everybody), NAME_LENGTH)
        lost = take_list(request, "lost", str, len(everybody), NAME_LENGTH)
        if both := sorted(set(arrived) & set(lost)):
            raise PayloadError(f"survivors: {both[0]} is listed as arrived and as lost: refused")
        if sorted([*arrived, *lost]) != everybody:
            raise PayloadError("survivors: must name each client of the round once")
        if self.name not in arrived:
            raise PayloadError(f"survivors: counts {self.name} as lost, which is here: refused")
        if len(arrived) < s["threshold"]:
            raise PayloadError(f"survivors: {len(arrived)} vectors arrived of the {s['threshold']} needed: refused")
        # The listed keys and the senders of boxes as well: the server might have told clients of different ones.
        listed = sorted(zip(s["names"], s["pairwise"], s["sealing"], strict=True))
        known = [len(listed), *itertools.chain(*listed), len(everybody), *everybody, *sorted(arrived)]
        outcome = digest("survivors", s["context"], *known)
        s |= {"arrived": arrived, "lost": lost, "outcome": outcome}
        return {"signature": self.peers.sign(outcome)}

    def _unmask(self, request: Mapping[str, Any]) -> Values:
        """Stage 5: a share of the mask seed of each client whose vector arrived, of the key of each other."""
        s = self.state
        signers = take_list(request, "signers", str, len(s["arrived"]), NAME_LENGTH)
        signatures = take_list(request, "signatures", bytes, len(signers), LARGEST_SIGNATURE)
        if len(signatures) != len(signers) or len(set(signers)) != len(signers):
            raise PayloadError("signers: must list clients of the round, each once, with a signature")
        known = zip(signers, signatures, strict=True)
        agreed = sum(n in s["arrived"] and self.peers.signed(n, s["outcome"], signature) for n, signature in known)
        if agreed < s["threshold"]:
            raise PayloadError(
                f"unmask: {agreed} clients signed the list of survivors that {self.name} was given, of the "
                f"{s['threshold']} needed: refused"
            )
        place = {name: number for number, name in enumerate(s["senders"])}
        seeds = [s["own_shares"][0] if n == self.name else s["seed_shares"][place[n]] for n in s["arrived"]]
        return {"seeds": seeds, "keys": [s["key_shares"][place[n]] for n in s["lost"]]}


def _head(session: bytes, sender: str, receiver: str) -> bytes:
    return b"\0".join([session, sender.encode(), receiver.encode(), b""])


def _sealed(session: bytes, sender: str, receiver: str, of_seed: bytes, of_key: bytes) -> bytes:
    return _head(session, sender, receiver) + len(of_seed).to_bytes(4, "big") + of_seed + of_key


# The server.


class SecureServer:
    """The server in one round of secure aggregation.

    Args:
        threshold: Clients without which the sum cannot be read; more than half.
        absent: Reason for each that was asked and has no upload.

    Attributes:
        present: The clients that have answered so far.
        gone: Those that sent shares and no vector.

    Raises:
        SecureAggregationError: If there are fewer clients than the threshold.
    """

    def __init__(
        self, names: Sequence[str], threshold: int, length: int, absent: Mapping[str, str] | None = None
    ) -> None:
        self.session = secrets.token_bytes(SESSION)
        self.threshold, self.length = threshold, length
        self.lost: dict[str, str] = {}
        self.absent = {n: why for n, why in (absent or {}).items() if n not in names}
        self.present = list(names)
        self.answers: dict[Stage, dict[str, Values]] = {stage: {} for stage in STAGES}
        self.arrived: list[str] = []
        self.gone: list[str] = []
        self._check("have uploads")

    def _check(self, what: str) -> None:
        require_enough(len(self.present), self.threshold, what, {**self.absent, **self.lost})

    def requests(self, stage: Stage) -> dict[str, Values]:
        """Return the request of a stage, each once and in order, for every client that is still there."""
        if stage == "masked":
            boxes = self.answers["shares"]
            senders = {name: [n for n in self.present if n != name] for name in self.present}
            return {
                name: {"session": self.session, "from": others, "boxes": [boxes[n]["boxes"][name] for n in others]}
                for name, others in senders.items()
            }

        def answered(stage: Stage, value: str) -> list[Any]:
            return [self.answers[stage][name][value] for name in self.present]

        asked: Values = {"session": self.session}
        if stage == "keys":
            asked |= {"threshold": self.threshold, "length": self.length}
        elif stage == "shares":
            asked |= {"names": [*self.present], "signatures": answered("keys", "signature")}
            asked |= {which: answered("keys", which) for which in ("pairwise", "sealing")}
        elif stage == "survivors":
            asked |= {"arrived": [*self.arrived], "lost": [*self.gone]}
        else:
            asked |= {"signers": [*self.present], "signatures": answered("survivors", "signature")}
        return {name: dict(asked) for name in self.present}

    def take(self, stage: Stage, name: str, answer: Mapping[str, Any]) -> None:
        """Take a client's answer; nothing of an invalid one is kept."""
        _session(answer, self.session)
        self.answers[stage][name] = getattr(self, f"_{stage}")(name, answer)

    def _keys(self, name: str, answer: Mapping[str, Any]) -> Values:
        pair = [take(answer, "pairwise", bytes), take(answer, "sealing", bytes)]
        _public(pair[0]), _public(pair[1])
        others = {own[which] for own in self.answers["keys"].values() for which in ("pairwise", "sealing")}
        if others & {*pair} or pair[0] == pair[1]:
            raise PayloadError("keys: another client has one of them")
        return {"pairwise": pair[0], "sealing": pair[1], **self._survivors(name, answer)}

    def _shares(self, name: str, answer: Mapping[str, Any]) -> Values:
        to = take_list(answer, "to", str, len(self.present), NAME_LENGTH)
        boxes = take_list(answer, "boxes", bytes, len(self.present), LARGEST_BOX)
        if sorted(to) != sorted({*self.present} - {name}) or len(boxes) != len(to):
            raise PayloadError("boxes: there must be one for each other client")
        return {"boxes": dict(zip(to, boxes, strict=True)), "commitment": take_bytes(answer, "commitment", DIGEST)}

    def _masked(self, name: str, answer: Mapping[str, Any]) -> Values:
        content = take_bytes(answer, "masked", 8 * self.length)
        return {"masked": np.frombuffer(content, dtype="<u8").astype(np.uint64)}

    def _survivors(self, name: str, answer: Mapping[str, Any]) -> Values:
        signature = take(answer, "signature", bytes)
        if len(signature) > LARGEST_SIGNATURE:
            raise PayloadError(f"signature: must have at most {LARGEST_SIGNATURE} bytes, not {len(signature)}")
        return {"signature": signature}

    def _unmask(self, name: str, answer: Mapping[str, Any]) -> Values:
        seeds = take_list(answer, "seeds", bytes, len(self.arrived), LARGEST_SHARE)
        keys = take_list(answer, "keys", bytes, len(self.gone), LARGEST_SHARE)
        if len(seeds) != len(self.arrived) or len(keys) != len(self.gone):
            raise PayloadError("seeds: there must be a share for each client")
        return dict(zip([*self.arrived, *self.gone], [*seeds, *keys], strict=True))

    def lose(self, name: str, reason: str) -> None:
        """Go on without a client."""
        self.lost[name] = reason

    def close(self, stage: Stage) -> None:
        """End a stage: clients without an answer are no longer asked."""
        before, answered = self.present, self.answers[stage]
        self.present = [n for n in before if n not in self.lost and n in answered]
        if stage == "masked":
            self.arrived, self.gone = self.present, [n for n in before if n not in self.present]
        self._check(SENT[stage])

    def total(self) -> Vector:
        """Return the sum of the vectors that arrived.

        Raises:
            SecureAggregationError: If the shares do not restore the secrets that their owners committed to, even
                without those of any one client.
        """
        keys, sent = self.answers["keys"], self.answers["shares"]

        def committed(name: str, seed: bytes) -> bool:
            return bool(commitment(seed, self.session, name) == sent[name]["commitment"])

        def own_key(name: str, scalar: bytes) -> bool:
            return bool(public_key_to_bytes(_private(scalar).public_key()) == keys[name]["pairwise"])

        total = np.zeros(self.length, dtype=np.uint64)
        for name in self.arrived:
            seed = self._restore(name, "mask seed", committed)
            own = mask(derived(seed, "own mask", self.session), self.length)
            total = total + self.answers["masked"][name]["masked"] - own
        place = _order(list(keys))
        for name in self.gone:
            key = _private(self._restore(name, "key", own_key))
            for other in self.arrived:
                shared = _pairwise(key, keys[other]["pairwise"], self.session, self.length)
                # What the others added or took away for the lost client, and it did not.
                total = total - shared if place[other] < place[name] else total + shared
        return total

    def _restore(self, name: str, what: str, fits: Callable[[str, bytes], bool]) -> bytes:
        """Return a client's secret; who sent a share that does not fit is lost, if the others suffice."""
        answers = self.answers["unmask"]
        for without in (None, *answers):
            shares = [answer[name] for sender, answer in answers.items() if sender != without]
            if len(shares) < self.threshold:
                continue
            with suppress(Exception):  # damaged shares raise many kinds
                secret = combine_shares(shares[: self.threshold])
                if fits(name, secret):
                    if without is not None:
                        self.lose(without, f"its share of {name}'s {what} does not fit: one of the two made it so")
                    return secret
        raise SecureAggregationError(
            f"secure aggregation: the shares of {name}'s {what} do not fit: {name}, or one of those who sent them "
            f"({', '.join(answers)}), made them so"
        )


def conduct(server: SecureServer, ask: Ask) -> Vector:
    """Go through all stages and return the sum of the vectors that arrived."""
    for stage in STAGES:
        for name, answer in ask(stage, server.requests(stage)):
            if isinstance(answer, str):
                server.lose(name, answer)
                continue
            try:
                server.take(stage, name, answer)
            except PayloadError as error:
                server.lose(name, str(error))
        server.close(stage)
    return server.total()


def over(ask: Ask) -> Conduct:
    """Return what runs the protocol with clients that ``ask`` reaches."""

    def conducted(
        stage: SecureSum, names: Sequence[str], threshold: int, absent: Mapping[str, str], record: RoundRecord
    ) -> Summed:
        def counted(step: Stage, requests: Mapping[str, Values]) -> Iterator[tuple[str, Values | str]]:
            for request in requests.values():
                record.add_traffic("down", size_of(request), 0)
            for name, answer in ask(step, requests):
                if not isinstance(answer, str):
                    record.add_traffic("up", size_of(answer), stage.reals if step == "masked" else 0)
                yield name, answer

        server = SecureServer(names, threshold, stage.length, absent)
        try:
            total = conduct(server, counted)
        finally:
            for name, reason in server.lost.items():
                record.lose(name, f"secure aggregation: {reason}", "aggregation")
        return Summed(total, len(server.arrived), threshold)

    return conducted


def here(clients: Mapping[str, SecureClient]) -> Ask:
    """Return an ``ask`` for clients of this process."""

    def ask(stage: Stage, requests: Mapping[str, Values]) -> Iterator[tuple[str, Values | str]]:
        for name, request in requests.items():
            try:
                yield name, clients[name].answer(stage, request)
            except PayloadError as error:
                yield name, str(error)

    return ask


def size_of(values: Mapping[str, Any]) -> int:
    """Return the bytes of a message's texts, bytes and numbers."""
    return sum(_size(item) for value in values.values() for item in (value if isinstance(value, list) else [value]))


def _size(item: object) -> int:
    return len(item.encode() if isinstance(item, str) else item) if isinstance(item, (str, bytes)) else 8
