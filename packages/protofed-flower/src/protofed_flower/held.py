"""Uploads that stay at a node: what a client keeps between the stages of secure aggregation.

It rests in Flower's context, which the node keeps between messages, in its memory, and never sends. A node that is
restarted forgets it, and falls silent in this round. What it must not forget is which uploads have been added up:
new keys and masks would hide the same upload, and of two sums the difference could be that. So this is on disk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from flwr.app import ConfigRecord, RecordDict
from msgspec import Struct

from protofed.errors import ConfigError, PayloadError, refusal
from protofed.stages.secure import Offer
from protofed.untrusted import claims, limits
from protofed.untrusted.decoding import decode, parse, within
from protofed_flower import trust
from protofed_flower.messages import Job, Values
from protofed_flower.peers import TRUSTING, KnownPeers, Peers, digest
from protofed_flower.roster import read_signed
from protofed_flower.state import reveal, revealed

if TYPE_CHECKING:
    from protofed_flower.protocol import Stage

SETTINGS = ("roster", "authority", "key")  #: Files that a node needs for secure aggregation, in ``--node-config``


def check_agreement(config: Mapping[str, Any], name: str, secure: bool) -> None:
    """Check that a node and a run agree on secure aggregation, before any training."""
    if secure:
        peers_of(config, name)
    elif "roster" in config:
        raise refusal(
            "secure",
            "secure.aggregation",
            "secure.aggregation=false, but this node has a roster, and its uploads leave it in sums only: set "
            "secure.aggregation=true, or take the roster out of --node-config",
        )


def log_ends(config: Mapping[str, Any]) -> None:
    """Warn in a node's log of a roster and an authority's certificate that end soon."""
    roster, authority = (Path(str(config.get(setting, ""))).expanduser() for setting in SETTINGS[:2])
    if "authority" in config:
        trust.log_certificates(authority)
        if "roster" in config:
            trust.log_end(roster, read_signed(roster, authority).until)


def peers_of(config: Mapping[str, Any], name: str) -> Peers:
    """Return a node's knowledge of the other clients of a round."""
    if not {"client-dir", "state-dir"} & config.keys():
        return TRUSTING  # a simulation, whose nodes and server are one program
    missing = [setting for setting in SETTINGS if setting not in config]
    if missing:
        raise refusal(
            "secure",
            text=f"secure aggregation: the node has no {missing[0]} to know the other clients by: add "
            + " ".join(f'{setting}="FILE"' for setting in missing)
            + " to --node-config",
        )
    roster, authority, key = (Path(str(config[setting])).expanduser() for setting in SETTINGS)
    private, found = trust.load_key(key), read_signed(roster, authority)
    if name not in found.keys:
        raise refusal("secure", text=f"{roster}: does not list {name}: ask the authority for one that does")
    if found.keys[name] != private.public_key():
        raise refusal("secure", text=f"{roster}: lists {name} with another key than {key}: correct one of them")
    try:
        fewest = decode(dict(config), _Fewest, error=ValueError)
    except ValueError as error:
        raise ConfigError(f"{error} (in --node-config)") from None
    return KnownPeers(private, found.keys, found.federation, fewest.least_peers, fewest.least_threshold)


class _Fewest(Struct, rename="kebab"):
    least_peers: Annotated[int, within(least=limits.SUMMED - 1, most=limits.CLIENTS)] = limits.SUMMED - 1
    least_threshold: Annotated[int, within(least=limits.SUMMED, most=limits.CLIENTS)] = limits.SUMMED


def check(folder: Path | None, job: Job) -> None:
    """Check that a client has not revealed shares in this round or a later one.

    Of the sums over two groups of clients, the difference could be one client's upload.

    Args:
        folder: None for a node of a simulation, which hides nothing.
    """
    if folder is not None and job.round <= revealed(folder / job.client).get(job.run, 0):
        raise PayloadError(
            f"the upload of round {job.round} has been added up, and is not offered twice", code="repeated"
        )


def keep(state: RecordDict, job: Job, offer: bytes, architecture: str) -> bytes:
    """Keep a client's offer for the stages of the round; the server is sent no bytes instead.

    Args:
        architecture: That the server assigned; "own" if the client's own file names it.
    """
    from protofed_flower.protocol import SecureClient

    begun = SecureClient(job.client, *Offer.of(offer), _visit(job, architecture)).state
    state[_place(job.client)] = ConfigRecord({**begun, "run": job.run, "round": job.round})
    return b""


def answer(
    state: RecordDict, request: Mapping[str, Any], folder: Path | None, known: Callable[[str], Peers]
) -> Values:
    """Return a client's answer to a stage, and keep what it knows afterwards; ``known`` returns its peers."""
    from protofed_flower.protocol import STAGES, SecureClient

    name, wanted = request.get("client"), request.get("stage")
    found = state.get(_place(name)) if isinstance(name, str) else None
    if not isinstance(found, ConfigRecord):
        raise PayloadError(f"client: no upload of {claims.clean(name, 80)} is kept here")
    if wanted not in STAGES:
        raise PayloadError(f"stage: must be {', '.join(STAGES)}, not {claims.clean(wanted, 40)}")
    client = SecureClient.of(dict(found), known(str(name)))
    stage: Stage = wanted
    try:
        result = client.answer(stage, request)
    except PayloadError as error:
        error.code = "stage" if error.code == PayloadError.code else error.code
        raise
    if stage == "unmask" and folder is not None:
        reveal(folder / client.name, client.state["run"], client.state["round"])
    state[_place(client.name)] = ConfigRecord(client.state)
    return result


def _visit(job: Job, architecture: str) -> bytes:
    """Return a digest of what the server must have told all clients of a round alike.

    With another fixed point, another order of the classes, another network or another broadcast for each, it could
    tell from a sum whose part is whose.
    """
    common = {**parse(job.summary, "summary"), "place": architecture}
    told = json.dumps(common, sort_keys=True), str(job.message is not None), job.message or b""
    return digest("visit", job.run, job.round, job.config, *told)


def _place(client: str) -> str:
    return f"protofed.secure.{client}"
