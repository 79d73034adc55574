"""Audit several methods on one recipe and print the table of docs/privacy.md.

python tools/audit_table.py fed-mnist7k rounds=2 --methods fedproto,fedavg --out runs/audits
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import protofed
from protofed.audit import audit_run
from protofed.audit.report import write_audit
from protofed.experiments.config import every_method, parse_overrides

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


def main() -> None:
    """Run and audit the methods; runs that exist are not repeated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--methods", default=",".join(every_method()))
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    for method in given.methods.split(","):
        folder = given.out / method
        if not (folder / "audit.json").is_file():
            overrides = {**parse_overrides(given.overrides), "method.name": method}
            protofed.run(given.recipe, overrides, out=folder, resume=True)
            write_audit(audit_run(folder), folder / "audit.html")
    print("| method |", " | ".join(COLUMNS.values()), "|")
    print("|---|", "---:|" * len(COLUMNS), sep="")
    for method in given.methods.split(","):
        tree = json.loads((given.out / method / "audit.json").read_text())
        found = {f["key"]: f for f in reversed(tree["findings"])}
        print(f"| `{method}` |", " | ".join(_cell(found.get(key)) for key in COLUMNS), "|")


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
