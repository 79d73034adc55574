"""``protofed demo``: two federations side by side, live."""

from __future__ import annotations


def open_demo(*, host: str, port: int | None, browser: bool) -> None:
    """Serve the demonstration until Ctrl-C.

    Args:
        port: Port to listen on; None for the usual one or the next that is free.
        browser: Whether to open the page in a browser.

    Raises:
        ConfigError: If the address cannot be listened on.
    """
    from protofed.apps.ui import shell
    from protofed.apps.ui.demo import worker

    def site() -> None:
        from protofed.apps.ui.demo.page import site

        site()

    # What learns takes longest to load: it begins while the server does.
    shell.serve(site, title="protofed demo", host=host, port=port, browser=browser, ready=worker.prepare)
