"""Pages of measured figures, against the committed figures of every run."""

from __future__ import annotations

import csv
import re
import sys

import pytest

from conftest import REPOSITORY
from support import script

STUDY = REPOSITORY / "docs/study"


@pytest.fixture(scope="module")
def tool():
    return script(REPOSITORY / "tools/measurements.py")


def test_the_pages_are_made_of_the_committed_figures(tool, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["measurements.py", "--check"])
    tool.main()


def test_every_table_stands_on_a_page(tool):
    shown = set(re.findall(r"^\{\{(.+)\}\}$", (STUDY / "measurements.toml").read_text(), re.M))
    assert shown == set(tool.MADE) | {path.stem for path in (STUDY / "tables").glob("*.csv")}


def test_a_page_that_differs_is_found(tool, monkeypatch):
    path, text = next(iter(tool.pages().items()))
    monkeypatch.setattr(tool, "pages", lambda: {path: text.replace("1", "2")})
    monkeypatch.setattr(sys, "argv", ["measurements.py", "--check"])
    with pytest.raises(SystemExit, match=r"is out of date: run python tools/measurements\.py"):
        tool.main()


def test_the_readme_shows_the_committed_figures():
    assert script(REPOSITORY / "tools/closed_forms.py").first() in (REPOSITORY / "README.md").read_text()


def test_what_security_says_of_attackers_that_see_uploads():
    rows = list(csv.DictReader((STUDY / "tables/colluding.csv").read_text().splitlines()))
    attacks = [name for name in rows[0] if name[0] in "14"]
    by_global, by_head, method = {}, [], ""
    for row in rows:
        method = row["method"] or method
        values = {a: [int(n) for n in row[a].strip("*").split(" / ")] for a in [*attacks, "none"]}
        best = by_global.setdefault(method, {"before": values["none"]})["before"]
        lost = {a: best[0] - values[a][0] for a in attacks}
        by_global[method][row["rule"]] = [max(v for a, v in lost.items() if a[0] == n) for n in "14"]
        if row["rule"] == "clip":
            by_head += [best[1] - values[a][1] for a in attacks]
    clip = {m: worst["clip"] for m, worst in by_global.items()}
    least = {m: min(w[1] for r, w in worst.items() if r != "before") for m, worst in by_global.items()}
    # The page rounds differences, the table has differences of rounded figures.
    assert max(one for one, _ in clip.values()) == pytest.approx(3.7, abs=1)
    for (method, (_, four)), (said, holds) in zip(clip.items(), [(39, 24), (24, 9), (3, 2), (11, 11)], strict=True):
        assert four == pytest.approx(said, abs=1), method
        assert least[method] == pytest.approx(holds, abs=1), method
    assert max(by_head) <= 1


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
    said = (REPOSITORY / "docs/security.md").read_text()
    for words in ("at most 1.5 points", "8 to 13\n  points better", "up to 15 points, and\n  8 without"):
        assert words in said
