"""The frame that all pages share: one server on this machine, one look in light and dark.

A set of pages is a function without arguments that registers them; :func:`serve` calls it, then serves::

    def site() -> None:
        @ui.page("/")
        def overview() -> None:
            with shell.page("Runs", links={"Runs": "/"}):
                ui.label("…")
                shell.chart({"series": […]}, label="Accuracy against rounds")

    shell.serve(site, title="protofed ui", host="127.0.0.1", port=None, browser=True)

Looks come from ``static/shell.css``: its variables (``--ink``, ``--soft``, ``--line``, ``--card``, ``--accent`` …)
follow the theme, and its classes are the parts of a page: ``card``, ``soft``, ``eyebrow``, ``figure`` (large
number), ``grid`` (cards side by side). Charts from :func:`chart` follow the theme by themselves: give them colours
of the palette in :mod:`protofed.analysis.style`, which the browser exchanges for lighter ones on a dark ground. No
page asks another host for anything.
"""

from __future__ import annotations

import html
import socket
import threading
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from protofed.analysis.style import PALETTE
from protofed.errors import ConfigError
from protofed_lab.guard import OwnPages, is_loopback, known_names

STATIC = Path(__file__).parent / "static"
ON_DARK = ("#3A9BDC", "#F0792A", "#1FBF94", "#E29CC0", "#F0B429", "#7FCBF5", "#A0A0A0", "#F4F6F8")
"""The palette's colours on a dark ground, one for one; charts exchange them with the theme."""
DEFAULT_PORT = 8520
TRIED = 20  #: Ports tried from the default one on, where the user names none

console = Console()
errors = Console(stderr=True)


def serve(
    site: Callable[[], None],
    *,
    title: str,
    host: str = "127.0.0.1",
    port: int | None = None,
    browser: bool = True,
    ready: Callable[[], None] | None = None,
) -> None:
    """Serve pages until Ctrl-C; print the address first and open it in the browser.

    Args:
        title: Printed with the address.
        host: Any but this machine's own draws a warning.
        port: 0 for any free one; None for the first free one from :data:`DEFAULT_PORT` on.
        ready: Called once the address is printed, before the web framework is loaded.
    """
    with listen(host, port) as listener, suppress(KeyboardInterrupt):
        address = _address(host, listener.getsockname()[1])
        console.print(f"{title}: {address} [dim](Ctrl-C stops it)[/]", highlight=False, soft_wrap=True)
        if not is_loopback(host):
            errors.print(
                f"warning: listening on {host}: anybody who can reach this machine can open these pages, "
                "without a password",
                style="yellow",
                highlight=False,
                soft_wrap=True,
            )
        if ready is not None:
            ready()
        # The listener is open: a browser that comes early waits until the server answers.
        if browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        _run(site, title, host, listener)
    console.print("Stopped.", highlight=False)


def listen(host: str, port: int | None) -> socket.socket:
    """Return a listening socket on ``port``, 0 for any, None for the usual one or the next that is free."""
    candidates = range(DEFAULT_PORT, DEFAULT_PORT + TRIED) if port is None else (port,)
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    except OSError:
        raise ConfigError(f"--host {host}: no such address") from None
    for candidate in candidates:
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((where[0], candidate, *where[2:]))
            listener.listen(128)
        except OSError as error:
            listener.close()
            failure = error
        else:
            return listener
    if port is None:
        raise ConfigError(f"ports {candidates[0]} to {candidates[-1]} are in use: choose one with --port")
    reason = failure.strerror or str(failure)
    raise ConfigError(f"cannot listen on {host}:{port} ({reason}): choose another --port, or 0 for any free one")


@contextmanager
def page(title: str, *, links: Mapping[str, str] | None = None) -> Iterator[None]:
    """Lay out one page: header with name, links by name and theme switch, then what is built in the block."""
    from nicegui import ui

    ui.page_title(f"{title} · protofed")
    colours = ";".join(f"--palette{suffix}:{' '.join(p)}" for suffix, p in (("", PALETTE), ("-dark", ON_DARK)))
    ui.add_head_html(f"<style>:root{{{colours}}}</style>")
    assets("shell.css", "shell.js")
    ui.query(".nicegui-content").classes("shell")
    with ui.element("header").classes("bar"):
        ui.link("protofed", "/").classes("brand")
        with ui.element("nav").classes("links").props('aria-label="Pages"'):
            for name, path in (links or {}).items():
                ui.link(name, path)
        ui.element("span").classes("spring")
        theme = ui.element("button").classes("theme").props('type="button" aria-label="Light or dark"')
        theme.on("click", js_handler="() => protofed.switchTheme()")
        with theme:
            ui.html(_MOON, sanitize=False).props('aria-hidden="true"')
    with ui.element("main").classes("main"):
        ui.html(f"<h1>{html.escape(title)}</h1>", sanitize=False)
        yield


def assets(*names: str, defer: bool = False) -> None:
    """Let the page load style sheets and scripts of ``static``."""
    from nicegui import ui

    for name in names:
        # The address changes when the file does, so that browsers may keep it.
        address = f"/static/{name}?{(STATIC / name).stat().st_mtime_ns:x}"
        script = f'<script{" defer" if defer else ""} src="{address}"></script>'
        ui.add_head_html(script if name.endswith(".js") else f'<link rel="stylesheet" href="{address}">')


def tell(label: Any, text: str) -> None:
    """Show a text; a label without one is hidden."""
    label.set_text(text)
    label.set_visibility(bool(text))


def chart(options: dict[str, Any], *, label: str) -> Any:
    """Return an ECharts chart whose open colours are the theme's, with a label for screen readers."""
    from nicegui import ui

    element = ui.echart({"animation": False, "backgroundColor": "transparent", **options})
    element.props(f'role="img" aria-label="{html.escape(label)}"').classes("chart")
    return element


def _run(site: Callable[[], None], title: str, host: str, listener: socket.socket) -> None:
    import uvicorn
    from fastapi import FastAPI
    from nicegui import app as pages
    from nicegui import ui

    pages.add_static_files("/static", str(STATIC))
    site()
    server = FastAPI(openapi_url=None)
    server.add_middleware(OwnPages, names=known_names(host), local=is_loopback(host))
    ui.run_with(
        server,
        title=title,
        dark=None,
        tailwind=False,
        favicon=STATIC / "mark.svg",
        show_welcome_message=False,
        # Pings follow from it: a browser that is busy for four seconds on a slow machine has not gone.
        reconnect_timeout=10.0,
    )
    config = uvicorn.Config(server, log_level="warning", timeout_graceful_shutdown=1, ws_max_size=2**20)
    uvicorn.Server(config).run(sockets=[listener])


def _address(host: str, port: int) -> str:
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}"


_MOON = (
    '<svg viewBox="0 0 24 24" width="20" height="20"><path fill="currentColor" '
    'd="M12 3a9 9 0 1 0 9 9 7 7 0 0 1-9-9z"/></svg>'
)
