"""``protofed demo``: two federations side by side, live."""

from __future__ import annotations


def open_demo(*, host: str, port: int | None, browser: bool) -> None:
    """Serve the demonstration until Ctrl-C."""
    from protofed.ui import shell

    def site() -> None:
        from nicegui import ui

        @ui.page("/")
        def overview() -> None:
            with shell.page("See it learn", lead="Two federations, the same clients, the same start."):
                shell.chart(
                    {
                        "xAxis": {"type": "value"},
                        "yAxis": {"type": "value"},
                        "series": [{"type": "line", "data": [[0, 1], [1, 2], [2, 1.5]]}],
                    },
                    label="test",
                )

    shell.serve(site, title="protofed demo", host=host, port=port, browser=browser)
