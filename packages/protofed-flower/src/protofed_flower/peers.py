"""A secure-aggregation client's own knowledge of the others, whatever the server says of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from protofed.errors import PayloadError
from protofed.untrusted import limits

_SIGNED = ec.ECDSA(hashes.SHA384())


def digest(purpose: str, *parts: str | int | bytes) -> bytes:
    """Return a digest for one purpose, in which a length precedes each value, so that no two sequences collide."""
    found = hashlib.sha256()
    for part in ("protofed secure aggregation", purpose, *parts):
        content = part if isinstance(part, bytes) else str(part).encode()
        found.update(len(content).to_bytes(8, "big") + content)
    return found.digest()


class Peers:
    """Peers in a simulation: clients of one program, which trust each other and its server."""

    federation = ""

    def check_threshold(self, threshold: int) -> None:
        """Refuse, with PayloadError, too small a number of vectors that are enough for a sum."""

    def check_names(self, others: Sequence[str]) -> None:
        """Refuse, with PayloadError, a round with too few or unknown other clients."""

    def sign(self, statement: bytes) -> bytes:
        """Return this client's signature of a statement."""
        return b""

    def signed(self, name: str, statement: bytes, signature: bytes) -> bool:
        """Return whether a signature is a client's."""
        return True


TRUSTING = Peers()


class KnownPeers(Peers):
    """Peers whose public keys a client knows from elsewhere than from the server.

    Args:
        least_peers: Fewest other clients in a round.
        least_threshold: Fewest vectors that are enough for a sum.
    """

    def __init__(
        self,
        key: ec.EllipticCurvePrivateKey,
        keys: Mapping[str, ec.EllipticCurvePublicKey],
        federation: str = "",
        least_peers: int = limits.SUMMED - 1,
        least_threshold: int = limits.SUMMED,
    ) -> None:
        self.key, self.keys, self.federation = key, keys, federation
        self.least_peers, self.least_threshold = least_peers, least_threshold

    def check_threshold(self, threshold: int) -> None:
        """Refuse, with PayloadError, a threshold below the client's own."""
        if threshold < self.least_threshold:
            raise PayloadError(
                f"threshold: {threshold} vectors would be enough for a sum, but this node allows no fewer than "
                f"{self.least_threshold} (least-threshold)",
                code="peers",
            )

    def check_names(self, others: Sequence[str]) -> None:
        """Refuse, with PayloadError, fewer peers than this client asks for, or one that is not in the roster."""
        unknown = [name for name in others if name not in self.keys]
        if unknown:
            raise PayloadError(f"names: {unknown[0]} is not in this node's roster", code="peers")
        if len(others) < self.least_peers:
            raise PayloadError(
                f"names: {len(others)} other clients, but this node asks for {self.least_peers} (least-peers)",
                code="peers",
            )

    def sign(self, statement: bytes) -> bytes:
        """Return this client's signature of a statement."""
        return self.key.sign(statement, _SIGNED)

    def signed(self, name: str, statement: bytes, signature: bytes) -> bool:
        """Return whether a signature is a client's."""
        try:
            self.keys[name].verify(signature, statement, _SIGNED)
        except (InvalidSignature, KeyError):
            return False
        return True
