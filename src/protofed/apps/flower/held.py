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
from msgspec import Meta, Struct

from protofed.apps.flower.messages import Job, Values
from protofed.apps.flower.roster import read_signed
from protofed.apps.flower.state import reveal, revealed
from protofed.apps.flower.trust import load_key
from protofed.errors import ConfigError, PayloadError
from protofed.stages.secure.options import FEWEST
from protofed.stages.secure.peers import TRUSTING, KnownPeers, Peers, digest
from protofed.stages.secure.stage import Offer
from protofed.untrusted import claims, limits
from protofed.untrusted.decoding import decoded, parsed

if TYPE_CHECKING:
    from protofed.stages.secure.protocol import Stage

SETTINGS = ("roster", "authority", "key")
"""Files that a node needs for secure aggregation, in ``--node-config``."""


def check_agreement(config: Mapping[str, Any], name: str, secure: bool) -> None:
    """Check that a node and a run agree on secure aggregation, before any training.

    Args:
        secure: Whether the run has secure aggregation.

    Raises:
        ConfigError: If they do not.
    """
    if secure:
        peers_of(config, name)
    elif "roster" in config:
        raise ConfigError(
            "secure.aggregation=false, but this node has a roster, and its uploads leave it in sums only: set "
            "secure.aggregation=true, or take the roster out of --node-config"
        )


def peers_of(config: Mapping[str, Any], name: str) -> Peers:
    """Return what a node takes for true about the other clients of a round.

    Raises:
        ConfigError: If a node of a deployment has no roster, or its roster, authority, key and settings do not fit.
    """
    if not {"client-dir", "state-dir"} & config.keys():
        return TRUSTING  # a simulation, whose nodes and server are one program
    missing = [setting for setting in SETTINGS if setting not in config]
    if missing:
        raise ConfigError(
            f"secure aggregation: the node has no {missing[0]} to know the other clients by: add "
            + " ".join(f'{setting}="FILE"' for setting in missing)
            + " to --node-config"
        )
    roster, authority, key = (Path(str(config[setting])).expanduser() for setting in SETTINGS)
    private, found = load_key(key), read_signed(roster, authority)
    if name not in found.keys:
        raise ConfigError(f"{roster}: does not list {name}: ask the authority for one that does")
    if found.keys[name] != private.public_key():
        raise ConfigError(f"{roster}: lists {name} with another key than {key}: correct one of them")
    try:
        fewest = decoded(dict(config), _Fewest, error=ValueError)
    except ValueError as error:
        raise ConfigError(f"{error} (in --node-config)") from None
    return KnownPeers(private, found.keys, found.federation, fewest.least_peers, fewest.least_threshold)


class _Fewest(Struct, rename="kebab"):
    least_peers: Annotated[int, Meta(ge=FEWEST - 1, le=limits.CLIENTS)] = FEWEST - 1
    least_threshold: Annotated[int, Meta(ge=FEWEST, le=limits.CLIENTS)] = FEWEST


def check(folder: Path | None, job: Job) -> None:
    """Check that a client has not revealed shares in this round or a later one.

    Of the sums over two groups of clients, the difference could be one client's upload.

    Args:
        folder: Folder of the node's clients; None for a node of a simulation, which hides nothing.

    Raises:
        PayloadError: If it has.
        CheckpointError: If the record of it is damaged.
    """
    if folder is not None and job.round <= revealed(folder / job.client).get(job.run, 0):
        raise PayloadError(f"the upload of round {job.round} has been added up, and is not offered twice")


def keep(state: RecordDict, job: Job, offer: bytes) -> bytes:
    """Keep what a client would add to a sum for the stages of the round.

    Args:
        offer: :meth:`~protofed.stages.secure.stage.Offer.to_bytes`.

    Returns:
        What the server is sent instead: no bytes.
    """
    from protofed.stages.secure.protocol import SecureClient

    begun = SecureClient(job.client, *Offer.of(offer), _visit(job)).state
    state[_place(job.client)] = ConfigRecord({**begun, "run": job.run, "round": job.round})
    return b""


def answer(
    state: RecordDict, request: Mapping[str, Any], folder: Path | None, known: Callable[[str], Peers]
) -> Values:
    """Return a client's answer to a stage, and keep what it then knows.

    Args:
        request: The request, with the ``client`` and the ``stage``.
        folder: As for :func:`check`.
        known: Gives, for a client, what it takes for true about the others.

    Raises:
        PayloadError: If the request is refused, or the client has no upload here.
        CheckpointError: As for :func:`check`.
        ConfigError: If the node knows no other clients.
        OutputError: If the node cannot remember that the upload is added up.
    """
    from protofed.stages.secure.protocol import STAGES, SecureClient

    name, wanted = request.get("client"), request.get("stage")
    found = state.get(_place(name)) if isinstance(name, str) else None
    if not isinstance(found, ConfigRecord):
        raise PayloadError(f"client: no upload of {claims.clean(name, 80)} is kept here")
    if wanted not in STAGES:
        raise PayloadError(f"stage: must be {', '.join(STAGES)}, not {claims.clean(wanted, 40)}")
    client = SecureClient.of(dict(found), known(str(name)))
    stage: Stage = wanted
    result = client.answer(stage, request)
    if stage == "unmask" and folder is not None:
        reveal(folder / client.name, client.state["run"], client.state["round"])
    state[_place(client.name)] = ConfigRecord(client.state)
    return result


def _visit(job: Job) -> bytes:
    """Return a digest of what the server must have told all clients of a round alike.

    With another fixed point, another order of the classes or another broadcast for each, it could tell from a sum
    whose part is whose.
    """
    common = parsed(job.summary, "summary")
    common.pop("architectures", None)  # each client's own
    told = json.dumps(common, sort_keys=True), str(job.message is not None), job.message or b""
    return digest("visit", job.run, job.round, job.config, *told)


def _place(client: str) -> str:
    return f"protofed.secure.{client}"
