"""A look at a split without training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from protofed.config.schema import apply_overrides, load_recipe, resolve
from protofed.experiments.loading import load_data
from protofed.samples import FederatedData

_LONGEST = 12  #: Characters of a class name in a table


def inspect_split(
    recipe: str | Path, overrides: Mapping[str, Any], out: Path, width: int = 120
) -> tuple[list[Table], list[Path]]:
    """Return tables of all samples per client and class, and draw them at ``out`` (PNG and SVG)."""
    from protofed.analysis.figures import draw_split, save_figure

    experiment = resolve(apply_overrides(load_recipe(recipe), overrides))
    federated = load_data(experiment)
    counts = federated.class_counts()
    tables = _tables(federated, counts.tolist(), f"{experiment.recipe}: samples per client and class", width)
    tables[-1].caption, tables[-1].caption_justify = "\n".join(federated.remarks()) or None, "left"
    figure = draw_split(counts, [c.name for c in federated.clients], list(federated.class_names))
    return tables, save_figure(figure, out)


def _tables(federated: FederatedData, counts: list[list[int]], title: str, width: int) -> list[Table]:
    """Return one table with as many classes as fit, and further ones with the rest."""
    sizes = [
        (len(c.train), len(c.test), sum(1 for n in row if n))
        for c, row in zip(federated.clients, counts, strict=True)
    ]
    totals = [sum(column) for column in zip(*counts, strict=True)]
    overall = (sum(s[0] for s in sizes), sum(s[1] for s in sizes), sum(1 for n in totals if n))
    longest = min(24, max(len(c.name) for c in federated.clients))
    columns = [
        (name[:_LONGEST], [row[k] for row in counts], totals[k]) for k, name in enumerate(federated.class_names)
    ]
    heads = ("train", "test", "classes")
    blocks: list[list[int]] = [[]]
    used = longest + 4 + sum(max(len(h), len(str(overall[k]))) + 3 for k, h in enumerate(heads))
    for k, (name, _, total) in enumerate(columns):
        needed = max(len(name), len(str(total))) + 3
        if used + needed > width and blocks[-1]:
            blocks.append([])
            used = longest + 4
        blocks[-1].append(k)
        used += needed
    tables = []
    for number, block in enumerate(blocks):
        table = Table(title=title if not number else None, title_justify="left")
        table.add_column("client", min_width=longest, overflow="fold")
        beside = heads if not number else ()
        for heading in (*beside, *(columns[k][0] for k in block)):
            table.add_column(heading, justify="right", no_wrap=True)
        for i, client in enumerate(federated.clients):
            cells = [str(columns[k][1][i]) if columns[k][1][i] else "[dim]·[/]" for k in block]
            table.add_row(client.name, *map(str, sizes[i][: len(beside)]), *cells)
        table.add_section()
        table.add_row("all", *map(str, overall[: len(beside)]), *(str(columns[k][2]) for k in block))
        tables.append(table)
    return tables
