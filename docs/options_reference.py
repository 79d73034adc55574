"""The pages of options, commands, traffic and the API, from the declarations in the code."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

import protofed
from protofed.cli.catalogue import entries
from protofed.cli.main import app
from protofed.config import fitting

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from method_table import method_table

Rows = Iterable[tuple[str, Any, str]]
COMPONENTS = {
    "methods": "method",
    "partitions": "partition",
    "datasets": "data.options",
    "models": "model.options",
    "encoders": "encoder.options",
}
"""Lists of ``protofed list`` whose entries have options, and the prefix with which a recipe sets them."""
PACKAGES = (
    *("analysis", "config", "data", "experiments", "methods"),
    *("models", "prototypes", "rounds", "runs", "stages", "trained", "visits", "wire"),
)


def write(folder: Path) -> None:
    """Write all pages into ``folder``; those that are as they were are left alone."""
    folder.mkdir(exist_ok=True)
    pages = {"options.md": options_page(), "commands.md": commands_page(), "communication.md": communication_page()}
    for package in PACKAGES:
        pages[f"{package}.md"] = api_page(package)
    pages["protofed.md"] = "# protofed\n\n" + _module("protofed.api") + _module("protofed.errors")
    for name, text in pages.items():
        path = folder / name
        if not path.is_file() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


def options_page() -> str:
    """Return every option of a recipe with its default and its description."""
    parts = [
        "# Options",
        "Every option has a dotted name, which a recipe writes as TOML and a command line as `name=value`. This "
        "page is made from the declarations in the code.",
    ]
    parts += ["## What does not go together", fitting.table()]
    for section in entries("options"):
        prefix = "" if section.name == "general" else section.name
        parts += [f"## {section.name}", section.summary, _table(section.options, prefix)]
    for listed, prefix in COMPONENTS.items():
        parts.append(f"## Options of {listed}")
        for entry in entries(listed):
            parts += [f"### {entry.name}", entry.summary]
            if entry.options:
                parts.append(_table(entry.options, prefix))
    return "\n\n".join(parts) + "\n"


def commands_page() -> str:
    """Return every command with what it takes."""
    parts = ["# Commands", "`protofed COMMAND --help` prints the same. This page is made from the command line."]
    lines, sections = ["| command | does |", "|---|---|"], []
    for name, command in _commands(typer.main.get_command(app)):
        does = (command.help or "").strip().splitlines()[0]
        title = f"protofed {name}"
        lines.append(f"| [`{title}`](#{title.replace(' ', '-')}) | {_escaped(does)} |")
        taken = [p for p in command.params if p.name != "help"]
        rows = [(_called(p), _escaped(getattr(p, "help", None) or "")) for p in taken]
        table = ["| takes | meaning |", "|---|---|", *(f"| {called} | {meaning} |" for called, meaning in rows)]
        sections += [f"## `{title}`", does, "\n".join(table) if rows else ""]
    return "\n\n".join([*parts, "\n".join(lines), *filter(None, sections)]) + "\n"


def communication_page() -> str:
    """Return what every method declares that it exchanges and needs, and its measured traffic."""
    return f"# Traffic and requirements\n\n{TRAFFIC}\n\n{method_table()}\n"


TRAFFIC = """*Secure sums*: the server needs only sums over
clients, so that [secure aggregation](../privacy.md#secure-aggregation) applies; *DP*:
[differential privacy](../privacy.md#differential-privacy) can be added. Formulas are for one client and
round, with its classes K_i, all classes K, the model |w|, its extractor |θ|, its head |φ|, an additional shared
network |w_aux|, c components of mixtures or clusters, and K_b classes among the samples that FedL2G draws;
labels and sample counts are left out, as in the papers. Measurements are means over five clients in the second
round of `quickstart` with one architecture (`data.clients=5 model.name=mlp`: d = 64, |w| = 33,738), in float32.
A message also has 4 bytes of header, 4 per varying size, 2 per label and 4 per count. *Varies*: the size
depends on what clients have learned."""


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before}{name} ")
        else:
            yield before + name, command


def _called(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.make_metavar(None)}`"
    return ", ".join(f"`{name}`" for name in parameter.opts)


def _table(rows: Rows, prefix: str = "") -> str:
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for name, default, doc in rows:
        dotted = f"{prefix}.{name}" if prefix else name
        value = "''" if default == "" else str(default)
        lines.append(f"| `{dotted}` | `{value}` | {_escaped(doc)} |")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;").replace("_", "\\_")


def api_page(package: str) -> str:
    """Return the page of a package: its modules in alphabetical order, from their docstrings."""
    root = Path(protofed.__file__).parent / package.replace(".", "/")
    names = sorted(m.name for m in pkgutil.walk_packages([str(root)], f"protofed.{package}."))
    public = [n for n in names if not any(part.startswith("_") for part in n.split("."))]
    # A package shows what its modules define, so everything has one place.
    head = _module(f"protofed.{package}", "   :no-members:\n")
    return f"# protofed.{package}\n\n" + head + "".join(_module(name) for name in public)


def _module(name: str, options: str = "") -> str:
    return f"## {name}\n\n```{{eval-rst}}\n.. automodule:: {name}\n{options}```\n\n"
