"""Pages of measured figures, against the committed figures of every run."""

from __future__ import annotations

import csv
import re
import sys

import pytest

from conftest import REPOSITORY
from support import script

STUDY = REPOSITORY / "papers/studies"


@pytest.fixture(scope="module")
def tool():
    return script(REPOSITORY / "papers/tools/measurements.py")


def test_the_pages_are_made_of_the_committed_figures(tool, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["measurements.py", "--check"])
    tool.main()


def test_every_table_stands_on_a_page(tool):
    shown = set(re.findall(r"^\{\{(.+)\}\}$", (STUDY / "measurements.toml").read_text(), re.M))
    assert shown | set(tool.FILLED) == set(tool.MADE) | {path.stem for path in (STUDY / "tables").glob("*.csv")}


def test_what_security_says_of_attackers_that_see_uploads():
    """Its table of worst cases, in whole points as the figures themselves are."""
    rows = list(csv.DictReader((STUDY / "tables/colluding.csv").read_text().splitlines()))
    attacks = [name for name in rows[0] if name[0] in "14"]
    worst, method, calm = {}, "", 0
    for row in rows:
        values = {a: int(row[a].strip("*").split(" / ")[0]) for a in [*attacks, "none"]}
        if row["method"]:
            method, calm = row["method"], values["none"]
        for number in "14":
            lost = max(calm - value for a, value in values.items() if a[0] == number)
            worst[method, row["rule"].lower().replace("-", " "), number] = str(lost)
    found = re.findall(
        r"^\| `(\w+)`, (one|four) of twenty \| (.*) \|$", (REPOSITORY / "docs/security.md").read_text(), re.M
    )
    assert len(found) == 6
    for rule, number, cells in found:
        of = (rule.replace("_", " "), "1" if number == "one" else "4")
        assert cells.split(" | ") == [worst[m, *of] for m in ("fedproto", "protonorm", "fedtgp", "tinyproto")], rule


def test_what_security_says_of_clients_that_validate():
    rows = list(csv.DictReader((STUDY / "tables/choosing.csv").read_text().splitlines()))
    attacks = list(rows[0])[4:]
    worst = {(r["method"], r["at the server"], r["predicted by"]): max(float(r[a]) for a in attacks) for r in rows}
    calm = {(r["method"], r["at the server"], r["predicted by"]): float(r["no attacker"]) for r in rows}
    validated = [key for key in worst if key[1:] == ("clip", "`validated`")]
    assert max(worst[key] for key in validated) == 1.5
    gains = [calm[key] - calm[key[0], "clip", "`global`"] for key in validated]
    assert (round(min(gains)), round(max(gains))) == (8, 13)
    centred = {key[0]: key for key in worst if key[1:] == ("centred", "`global`")}
    assert round(max(worst[key] for key in centred.values())) == 15
    assert round(max(calm[m, "clip", "`global`"] - calm[key] for m, key in centred.items())) == 8
    assert max(worst[key[0], "clip", "`head`"] for key in validated) == 1.8
    said = " ".join((REPOSITORY / "docs/security.md").read_text().split())
    words = ("at most 1.5 points", "8 to 13 points better", "up to 15 points, and 8 without", "at most 1.8 points")
    assert all(own in said for own in words)
