"""Measure what secure aggregation costs in bytes and seconds, for studies/epsilon.md.

python papers/tools/secure_cost.py

Seconds are those of the processor, so that other programs on the machine do not count.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from cryptography.hazmat.primitives.asymmetric import ec

import protofed
from protofed.runs.records import RoundRecord
from protofed.stages.secure.stage import SecureSum, Summed
from protofed.text import size
from protofed.trained.run import TrainedRun
from protofed_flower import protocol
from protofed_flower.peers import KnownPeers

CASES = {
    "`fedproto`, d = 64, 20 clients": {"method.name": "fedproto"},
    "`fedavg`, `mlp`, 20 clients": {"method.name": "fedavg", "model.name": "mlp"},
}
ROUNDS = 3


class Signing(protocol.SecureClient):
    """A client that signs and checks signatures, as at a node of a deployment."""

    keys: ClassVar[dict[str, ec.EllipticCurvePrivateKey]] = {}
    public: ClassVar[dict[str, ec.EllipticCurvePublicKey]] = {}

    def __init__(self, name: str, *offer: Any) -> None:
        key = self.keys.setdefault(name, ec.generate_private_key(ec.SECP384R1()))
        self.public[name] = key.public_key()
        super().__init__(name, *offer)
        self.peers = KnownPeers(key, self.public)


def measured(chosen: dict[str, Any], secure: bool, client: type[protocol.SecureClient]) -> list[float]:
    """Return the bytes up and down of a round, and the seconds of its aggregation."""
    overrides = {
        **chosen,
        "rounds": ROUNDS,
        "robust.rule": "none",
        "secure.aggregation": secure,
        "execution.executor": "sequential",
    }
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(SecureSum, "sum", _protected(client)):
        run = protofed.run("quickstart", overrides, out=Path(folder) / "run")
        assert isinstance(run, TrainedRun)
        rounds = run.rounds[1:]  # the first sends nothing down, and loads the library
    sent = [statistics.fmean(r.bytes[way] for r in rounds) for way in ("up", "down")]
    return [*sent, statistics.median(r.seconds["aggregation"] for r in rounds)]


def _protected(client: type[protocol.SecureClient]) -> Callable[..., Summed]:
    """Return what adds the uploads of a simulation by the protocol."""
    add = SecureSum.sum

    def protected(stage: SecureSum, messages: Any, broadcasts: Any, record: RoundRecord) -> Summed:
        offers = {n: stage.offer(n, m, broadcasts[n], record.round) for n, m in messages.items()}
        stage.conduct = protocol.over(protocol.here({n: client(n, *offer) for n, offer in offers.items()}))
        return add(stage, messages, broadcasts, record)

    return protected


def main() -> None:
    """Print three rows per case: a round of 20 clients, plain, secure, and secure with signatures."""
    time.perf_counter = time.process_time
    print("| | aggregation | up | down | seconds |")
    print("|---|---|---:|---:|---:|")
    ways = {
        "plain": (False, protocol.SecureClient),
        "secure, without signatures": (True, protocol.SecureClient),
        "secure, with signatures": (True, Signing),
    }
    for title, chosen in CASES.items():
        for way, (secure, client) in ways.items():
            up, down, seconds = measured(chosen, secure, client)
            print(f"| {title} | {way} | {size(up)} | {size(down)} | {seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
