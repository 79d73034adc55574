"""``protofed ui``: run directories in the browser, finished or still being written."""

from __future__ import annotations

import threading
from pathlib import Path


def open_runs(directory: Path, *, host: str, port: int | None, browser: bool) -> None:
    """Serve the runs below ``directory`` until Ctrl-C; nothing is written, and nothing outside is read."""
    from protofed.apps.ui import shell
    from protofed.apps.ui.runs.library import Library

    library = Library(directory)

    def site() -> None:
        from protofed.apps.ui.runs.pages import register

        register(library)

    def ready() -> None:
        # While the web framework is loaded.
        threading.Thread(target=library.refresh, daemon=True).start()

    shell.serve(site, title="protofed ui", host=host, port=port, browser=browser, ready=ready)
