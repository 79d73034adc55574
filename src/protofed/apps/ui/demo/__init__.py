"""``protofed demo``: two federations side by side, live."""

from __future__ import annotations


def open_demo(*, host: str, port: int | None, browser: bool) -> None:
    """Serve the demonstration until Ctrl-C, at the usual or next free port by default."""
    from protofed.apps.ui import shell
    from protofed.apps.ui.demo import worker

    def site() -> None:
        from protofed.apps.ui.demo.page import site

        site()

    # What learns takes longest to load: it begins while the server does.
    shell.serve(site, title="protofed demo", host=host, port=port, browser=browser, ready=worker.prepare)
