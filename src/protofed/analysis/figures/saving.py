"""Figures as files, and as part of a page."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

from protofed.analysis.style import theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_figure(fig: Figure, path_stem: str | Path) -> list[Path]:
    """Write ``fig`` as PNG and SVG beside ``path_stem``, replacing its suffix; return both paths.

    Files are replaced whole, and the same figure gives the same bytes.
    """
    from protofed.storage.files import write_bytes

    stem = Path(path_stem)
    if stem.suffix in (".png", ".svg"):
        stem = stem.with_suffix("")
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    engine = fig.get_layout_engine()
    try:
        for path in paths:
            write_bytes(path, _render(fig, path.suffix[1:]))
            fig.set_layout_engine("none")  # what is where, which takes most of the time, is now known
    finally:
        fig.set_layout_engine(engine)
    return paths


def inline_svg(fig: Figure, prefix: str, description: str) -> str:
    """Return ``fig`` as an ``<svg>`` element for an HTML page, with ids that ``prefix`` makes unique on it."""
    from html import escape

    text = _render(fig, "svg").decode()
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\1{prefix}-", text[text.index("<svg") :])
    text = re.sub(r"\n\s*", "\n", text.replace("xlink:href", "href"))
    view = re.search(r'viewBox="[^"]*"', text)
    assert view is not None
    width = fig.get_figwidth() * 96
    start = (
        f'<svg {view[0]} role="img" aria-label="{escape(description)}" '
        f'style="max-width:{1.05 * width:.0f}px;stroke-linejoin:round;stroke-linecap:butt">'
    )
    return start + text[text.index(">") + 1 :]


def _render(fig: Figure, kind: str) -> bytes:
    from matplotlib import rcParams
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.BytesIO()
    # Without a date, and without the version of the program, equal figures are equal files.
    with theme():
        # As savefig does, but without drawing everything an additional time before, for the layout alone.
        fig.set_dpi(rcParams["savefig.dpi"])
        if kind == "svg":
            FigureCanvasSVG(fig).print_svg(buffer, metadata={"Date": None, "Creator": None})  # type: ignore[no-untyped-call]
        else:
            FigureCanvasAgg(fig).print_png(buffer, metadata={"Software": None})  # type: ignore[no-untyped-call]
    return buffer.getvalue()
