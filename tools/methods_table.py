"""Regenerate the table in docs/study/traffic.md: ``python tools/methods_table.py``."""

from __future__ import annotations

from pathlib import Path

from protofed.experiments.capabilities import method_table

DOCS = Path(__file__).resolve().parents[1] / "docs/study/traffic.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->"


def main() -> None:
    """Write the table between its two markers."""
    before, _, rest = DOCS.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"{DOCS} has no markers for the table"
    DOCS.write_text(before + BEGIN + method_table() + "\n" + END + after)


if __name__ == "__main__":
    main()
