"""Why a node refuses: names that leave it, with the sentences that a server makes of them.

The sentence in which a node says why may hold values of its data, so it stays in the node's log. What leaves is one
of :data:`CODES`, the name of an option, and, if the node's file lets names out, the names that do not fit.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from protofed.errors import ProtofedError
from protofed.untrusted import claims
from protofed.untrusted.decoding import ClassName, decode, parse

log = logging.getLogger("protofed")
LOG = "the node's log has the reason"
CODES = {
    "closed": "is not for a server to set: leave it out of the recipe, or have it written into the node's own file",
    "not allowed": "has a value that [allow] in its node.toml lacks: choose another, or have its operator add it",
    "plan": f"the plan does not fit together there: {LOG}",
    "classes": "its labels are not the classes expected here: list all of them (classes=…), or let the node tell "
    "its names (names = true in its node.toml)",
    "columns": "its columns are not those expected here: list all of them (data.columns), or let the node tell "
    "its names (names = true in its node.toml)",
    "data": f"its data cannot be used as its own file says how to read them: {LOG}",
    "counts": "it withholds numbers of samples that the run needs: choose another method, or have it state them",
    "encoder": "its encoder, or the file of its weights, is another one: give all nodes the same",
    "model": f"its model cannot be built or fed: {LOG}",
    "settings": f"its own settings have a mistake: {LOG}",
    "privacy": "the node requires more protection than the run has: see privacy and epsilon in its node.toml",
    "spent": "the run would cost more ε than the node allows: plan fewer rounds or more noise",
    "bytes": "the run's uploads would be more bytes than allow.bytes in its node.toml has",
    "secure": "secure aggregation, the roster and the plan do not go together there: "
    "one kind of model for all, and a roster that lists every client",
    "peers": "its roster, least-peers or least-threshold ask for other or more clients than the run has",
    "unlike": "another client was told another plan, network, broadcast or threshold",
    "stage": f"a stage of secure aggregation does not go together with the earlier ones: {LOG}",
    "repeated": "the upload of this round has been added up, and is not offered twice",
    "overflow": "a number would overflow the sum: lower secure.fraction_bits",
    "changed": "the server changed it in the course of the run, and a node keeps to what held when it joined",
    "state": "it lacks the client's state of this run: restore it, or have its operator set fresh=true",
    "later": "a later request of the server has replaced this one",
    "full": "it keeps as many runs as it may: have folders of old ones moved away",
    "weights": "the weights sent are made to read single samples",
    "request": f"the request is not one of this version: {LOG}",
    "version": "another version of protofed runs there: install one version on both",
    "disk": "it cannot write what it must keep: its disk is full or read-only",
    "diverged": "the model has diverged",
    "fault": f"something failed there: {LOG}",
}


class _Refusal(Struct):
    error: str
    option: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{0,128}\Z")] = ""
    names: str = "[]"


def refusal_values(client: object, error: Exception) -> dict[str, Any]:
    """Return a refusal as the values of a message; its sentence goes to the node's log."""
    known = error if isinstance(error, ProtofedError) else ProtofedError()
    if isinstance(error, ProtofedError):
        log.warning("%s", error)
    else:
        log.error("%s", claims.clean(f"{type(error).__name__}: {error}"), exc_info=error)
    values: dict[str, Any] = {
        "error": known.code if known.code in CODES else "fault",
        "option": known.option,
        "client": client if isinstance(client, str) else "",
    }
    return {**values, "names": json.dumps(known.names)} if known.names else values


def sentence_of(values: Mapping[str, Any]) -> str:
    """Return what a node's refusal means to the server's operator, in one line."""
    try:
        found = decode(
            {n: values[n] for n in _Refusal.__struct_fields__ if n in values}, _Refusal, error=ValueError
        )
        kind: Any = Annotated[list[ClassName], Meta(max_length=8)]
        names = decode(parse(found.names, "names", 4096), kind, error=ValueError)
    except ValueError:
        return "refused for a reason that cannot be read"
    if found.error not in CODES:
        return "refused for a reason that this version does not know: install one version on both"
    what = f"{found.option}: " if found.option else ""
    told = f" ({', '.join(claims.clean(name, 80) for name in names)})" if names else ""
    return f"refused, {what}{CODES[found.error]}{told}"
