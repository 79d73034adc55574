"""A look at a split without training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from protofed.experiments.config import apply_overrides, load_recipe, resolve
from protofed.experiments.loading import load_data


def inspect_split(recipe: str | Path, overrides: Mapping[str, Any], out: Path) -> tuple[Table, list[Path]]:
    """Return a client × class table of all samples, and draw it at ``out`` (PNG and SVG).

    Args:
        recipe: Built-in name or TOML file.
        overrides: Dotted names to values.
        out: Path of the drawing, without suffix.

    Raises:
        ProtofedError: For anything wrong with the recipe or the data.
    """
    from protofed.analysis.figures import draw_split, save_figure

    experiment = resolve(apply_overrides(load_recipe(recipe), overrides))
    federated = load_data(experiment)
    counts = federated.class_counts()
    table = Table(title=f"{experiment.recipe}: samples per client and class", title_justify="left")
    longest = max(len(client.name) for client in federated.clients)
    table.add_column("client", min_width=min(longest, 24))
    for heading in ("train", "test", "classes", *federated.class_names):
        table.add_column(heading, justify="right")
    for client, row in zip(federated.clients, counts.tolist(), strict=True):
        present = sum(1 for n in row if n)
        cells = [str(n) if n else "[dim]·[/]" for n in row]
        table.add_row(client.name, str(len(client.train)), str(len(client.test)), str(present), *cells)
    totals = [str(n) for n in counts.sum(0).tolist()]
    sizes = [sum(len(getattr(c, part)) for c in federated.clients) for part in ("train", "test")]
    table.caption, table.caption_justify = "\n".join(federated.remarks()) or None, "left"
    table.add_section()
    table.add_row("all", *map(str, sizes), str(int((counts.sum(0) > 0).sum())), *totals)
    figure = draw_split(counts, [c.name for c in federated.clients], list(federated.class_names))
    return table, save_figure(figure, out)
