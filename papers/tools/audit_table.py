"""Audit several methods on one recipe and print the tables of studies/attacks.md.

audit_table.py fed-mnist7k rounds=2 --methods fedproto,fedavg --out runs/audits
audit_table.py fed-mnist7k rounds=2 wire.codec=int8 --label int8 --methods fedproto --out runs/audits
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import protofed
from protofed.config.schema import every_method, parse_overrides
from protofed_lab.audit.auditing import audit_run
from protofed_lab.audit.report import write_audit

COLUMNS = {
    "classes": "classes right",
    "counts": "error of n_ij",
    "membership": "membership, AUC",
    "membership_tpr": "caught at 1 %",
    "membership_informed": "AUC, model known",
    "reconstruction": "SSIM",
    "reconstruction_informed": "SSIM, model known",
    "participation_member": "who took part, AUC",
}
BY_SIZE = {
    f"{key}_{least}": f"{words}, {span} samples"
    for least, span in ((1, "1–3"), (4, "4–10"), (11, "11–30"), (31, "31 or more"))
    for key, words in (("membership_best", "AUC"), ("membership_best_tpr", "caught"))
}
CRAFTED = {"verbatim": "read, batch size chosen", "verbatim_pinned": "read, batch size pinned"}
"""Columns of the tables on membership by the number of samples of a class, and on a server that crafts weights."""
PROTECTED = {
    "classes": "classes right",
    "counts": "error of n_ij",
    "membership_best": "membership, AUC",
    "membership_best_1": "AUC, 1–3 samples",
    "membership_best_tpr_1": "caught, 1–3",
    "membership_best_31": "AUC, 31 or more",
    "reconstruction_best": "SSIM",
    "participation_member": "who took part, AUC",
    **CRAFTED,
}
"""Columns of the table on runs with protection."""

BOTH = ("participation_member",)  #: What is the same for every observer


def main() -> None:
    """Run and audit the methods; runs that exist are not repeated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--methods", default=",".join(every_method()))
    parser.add_argument("--label", default="", help="what the overrides protect by, for the rows and their folders")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    methods = given.methods.split(",")
    folders = {m: given.out / "-".join([m, *re.findall(r"\w+", given.label)]) for m in methods}
    for method, folder in folders.items():
        if not (folder / "audit.json").is_file():
            overrides = {**parse_overrides(given.overrides), "method.name": method}
            protofed.run(given.recipe, overrides, out=folder, resume=True)
            write_audit(audit_run(folder), folder / "audit.html")
    trees = {m: json.loads((folder / "audit.json").read_text()) for m, folder in folders.items()}
    for columns in (COLUMNS, BY_SIZE, CRAFTED, PROTECTED):
        print("\n| method |", " | ".join(columns.values()), "|")
        print("|---|", "---:|" * len(columns), sep="")
        for method, tree in trees.items():
            for row, cells in _rows(tree, columns):
                if any(cell != "–" for cell in cells):
                    shown = ", ".join(filter(None, [f"`{method}`", given.label, row]))
                    print("|", shown, "|", " | ".join(cells), "|")


def _rows(tree: dict[str, Any], columns: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield what protects a run and who looks, with the cells of the columns."""
    found = {f["key"]: f for f in reversed(tree["findings"])}
    # Who knows the sender's model; where the upload is the model, everybody.
    informed = "_informed" if "membership_informed" in found else ""
    spent = tree["privacy"] or {"epsilon": None}
    budget = [f"ε = {spent['epsilon']:.3g}"] if spent["epsilon"] else []
    for seen, name in (("", []), ("_outside", ["seen from outside"])):
        keys = [key.replace("_best", "" if seen else informed) for key in columns]
        if not seen or "classes_outside" in found:
            yield (
                ", ".join(budget + name),
                [_cell(found.get(key + seen) or (found.get(key) if key in BOTH else None)) for key in keys],
            )


def _cell(finding: dict[str, Any] | None) -> str:
    if finding is None or finding["value"] is None:
        return "–"
    value, guess = finding["value"], finding["baseline"]
    unit = finding["measure"].startswith(("AUC", "SSIM"))
    shown = [f"{n:.2f}" if unit else f"{100 * n:.0f} %" for n in (value, guess)]
    text = f"{shown[0]} ({shown[1]})"
    return f"**{text}**" if finding["learned"] else text


if __name__ == "__main__":
    main()
