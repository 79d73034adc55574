"""Requests that these pages accept: those of their own pages, and of no other site.

Other sites that are open in the same browser can send requests to this machine, too. A browser says on whose behalf
it asks (``Origin``, ``Sec-Fetch-Site``) and by which name it found the way (``Host``); what comes from elsewhere is
refused, requests and WebSockets alike, before any page is built.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADERS = (
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
)
"""Sent with every answer: no other site shows these pages in a frame or loads parts of them."""


def known_names(host: str) -> frozenset[str]:
    """Return the names by which pages may be asked for when they are served at the address ``host``.

    Numeric addresses are always good (see :class:`OwnPages`): what must not pass is a name of somebody else's that
    was made to point here.
    """
    own = {"localhost", host.lower()}
    if not is_loopback(host):
        own |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    return frozenset(own)


def is_loopback(host: str) -> bool:
    """Return whether an address is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class OwnPages:
    """Refuses what other sites ask for; an ASGI application around another.

    Args:
        names: By which the application may be asked for, beside numeric addresses.
        local: Numeric addresses must be this machine's own.
    """

    def __init__(self, app: App, names: Iterable[str], local: bool) -> None:
        self._app = app
        self._names = frozenset(names)
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or open one WebSocket."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        reason = self.refusal(scope["headers"], websocket=scope["type"] == "websocket")
        if not reason:
            await self._app(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": reason})
        else:
            body = f"refused: {reason}\n".encode()
            head = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 403, "headers": [*head, *HEADERS]})
            await send({"type": "http.response.body", "body": body})

    def refusal(self, headers: Iterable[tuple[bytes, bytes]], *, websocket: bool) -> str:
        """Return why a request with these headers is refused; ``""`` if it is not."""
        fields: dict[str, list[str]] = {}
        for name, value in headers:
            fields.setdefault(name.decode("latin1").lower(), []).append(value.decode("latin1"))
        hosts, origins = fields.get("host", []), fields.get("origin", [])
        if len(hosts) != 1 or not self._is_own(hosts[0]):
            return "these pages are not served under that name"
        if any(_place(origin) != hosts[0].lower() for origin in origins) or len(origins) > 1:
            return "another site asks"
        site = fields.get("sec-fetch-site", ["none"])
        # A link that somebody follows to a page is no request of the site that has the link.
        followed = fields.get("sec-fetch-mode") == ["navigate"] and fields.get("sec-fetch-dest") == ["document"]
        if any(s not in ("same-origin", "none") for s in site) and (websocket or not followed):
            return "another site asks"
        return ""

    def _is_own(self, host: str) -> bool:
        try:
            parts = urlsplit(f"//{host}")
            name = parts.hostname or ""
            if parts.netloc != host or parts.username is not None or parts.port == 0:
                return False
            if name in self._names:
                return True
            address = ipaddress.ip_address(name)
            return address.is_loopback or not self._local
        except ValueError:
            return False


def _place(origin: str) -> str:
    """Return the host and port of a site; what is none, such as ``null``, equals no host."""
    scheme, separator, place = origin.lower().partition("://")
    return place if separator and scheme in ("http", "https") else " "


def _with_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] in ("http.response.start", "websocket.accept"):
            present = {name.lower() for name, _ in message.get("headers", ())}
            added = [(name, value) for name, value in HEADERS if name not in present]
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        await send(message)

    return sending
