"""Make the table of docs/methods.md anew: ``python benchmarks/methods_table.py``."""

from __future__ import annotations

from pathlib import Path

from protofed.experiments.capabilities import method_table

DOCS = Path(__file__).resolve().parents[1] / "docs" / "methods.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->"

before, _, rest = DOCS.read_text().partition(BEGIN)
_, found, after = rest.partition(END)
assert found, f"{DOCS} has no place for the table"
DOCS.write_text(before + BEGIN + method_table() + "\n" + END + after)
