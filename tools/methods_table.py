"""Make the table of docs/methods.md anew: ``python tools/methods_table.py``."""

from __future__ import annotations

from pathlib import Path

from protofed.experiments.capabilities import method_table

DOCS = Path(__file__).resolve().parents[1] / "docs" / "methods.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->"


def main() -> None:
    """Write the table between its two marks."""
    before, _, rest = DOCS.read_text().partition(BEGIN)
    _, found, after = rest.partition(END)
    assert found, f"{DOCS} has no place for the table"
    DOCS.write_text(before + BEGIN + method_table() + "\n" + END + after)


if __name__ == "__main__":
    main()
