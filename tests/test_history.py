"""The page of the releases' benchmarks: ratios within each file, by release."""

from __future__ import annotations

import json
import sys

from conftest import REPOSITORY
from support import script

HISTORY = REPOSITORY / "tools/history.py"


def results(factor: float, **more) -> dict:
    machine = {"processor": "P", "cores": 2, "gpu": None, "torch": "2.9"}
    return {
        "machine": machine,
        "overhead": [
            {
                "case": "c",
                "ratios": {"bare loop": {"bare loop": 1.0}, "sequential": {"bare loop": factor, "sequential": 1.0}},
            }
        ],
        "peer": [{"case": "c", "ratios": {"workers (2)": 2 * factor}}],
        "scaling": [{"clients": n, "seconds": [n * factor, n, n * factor * (n > 5) + n]} for n in (5, 10)],
        **more,
    }


def test_a_page_of_two_releases(tmp_path, monkeypatch):
    busy = {
        "case": "c",
        "executor": "workers",
        "threads": 0,
        "environment": {},
        "seconds": {"0": [2, 2], "1": [3, 3]},
    }
    (tmp_path / "0.10.0.json").write_text(json.dumps(results(1.25, busy=[busy])))
    (tmp_path / "0.9.0.json").write_text(json.dumps(results(1.5)))
    monkeypatch.setattr(sys, "argv", ["history.py", str(tmp_path)])
    script(HISTORY).main()
    page = (tmp_path / "README.md").read_text().splitlines()
    assert "| ratio | 0.9.0 | 0.10.0 |" in page
    assert "| overhead, c: sequential / bare loop | 1.50 | 1.25 |" in page
    assert "| peer, c, fp32: HtFLlib / workers (2) | 3.00 | 2.50 |" in page
    assert "| busy, c: workers auto threads, beside 1 / beside nothing | – | 1.50 |" in page
    assert any(line.startswith("| scaling: a client of 10 / of 5 |") for line in page)
    assert not any("bare loop / " in line for line in page)
    assert "0.10.0" in (tmp_path / "ratios.svg").read_text()
