"""What reports and audits say of privacy is what the records of the rounds say."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import protofed
from protofed.analysis import write_report
from protofed.analysis.report import tables
from protofed.runs.spent import Spent
from protofed_lab.audit.auditing import audit_run
from protofed_lab.audit.report import guarantee
from support import SMALL_RUN, few

PRIVATE = {**SMALL_RUN, "method.name": "fedproto", "robust.rule": "none", "data.clients": 4}


@few("mode", ["client", "sample"], 1)
def test_the_report_has_epsilon_after_every_round(mode, tmp_path):
    run = protofed.run("quickstart", {**PRIVATE, "privacy.mode": mode, "privacy.noise": 2.0}, out=tmp_path / "r")
    table = tables.privacy(run)
    assert table is not None
    assert table.head[1] == "ε"
    shown = [[cell.text for cell in row] for row in table.rows]
    costs = [record.privacy for record in run.rounds]
    assert [row[:2] for row in shown] == [[str(n), f"{c.epsilon:.3g}"] for n, c in enumerate(costs, start=1)]
    assert shown[0][1] != shown[1][1]
    page = write_report([run.directory], tmp_path / "page.html").read_text()
    assert page.count("Cost of privacy") == 1
    assert all(f">{row[1]}</td>" in page for row in shown)


@given(st.integers(0, 300))
def test_the_table_of_many_rounds_is_short_and_has_the_last(rounds):
    costs = [Spent("client", float(n), 1e-5, 1.0, 1.0, 1.0, n) for n in range(1, rounds + 1)]
    run = SimpleNamespace(rounds=[SimpleNamespace(round=cost.releases, privacy=cost) for cost in costs])
    table = tables.privacy(run)
    if not rounds:
        assert table is None
        return
    shown = [int(row[0].text) for row in table.rows]
    assert shown == sorted(set(shown))
    assert (shown[0], shown[-1]) == (1, rounds)
    assert len(shown) <= tables.STEPS + 2
    assert [row[1].text for row in table.rows] == [f"{n:.3g}" for n in shown]


@pytest.mark.slow
@few(("mode", "without"), [("client", {"privacy.noise": 0}), ("sample", {"privacy.epsilon": math.inf})], 1)
def test_without_noise_nothing_claims_protection(mode, without, tmp_path):
    chosen = {**PRIVATE, "privacy.mode": mode, **without}
    run = protofed.run("quickstart", chosen, out=tmp_path / "r")
    assert tables.privacy(run) is None
    assert "Cost of privacy" not in write_report([run.directory], tmp_path / "page.html").read_text()
    audit = audit_run(run.directory)
    assert audit.to_dict()["privacy"] is None
    assert audit.protections == ()
    assert "ε = ∞" in guarantee(audit)


@pytest.mark.slow
def test_an_audit_attacks_what_a_codec_lets_through(tmp_path):
    """Rounding hides nothing, and the page says that messages are rounded."""
    found = {}
    for codec in ("float32", "int8"):
        run = protofed.run("quickstart", {**PRIVATE, "wire.codec": codec}, out=tmp_path / codec)
        audit = audit_run(run.directory)
        found[codec] = {(f.key, f.observer): f.value for f in audit.findings}
        rounded = f"Messages are rounded to {codec} (wire.codec)."
        assert (rounded in audit.protections) is (codec == "int8")
    assert found["int8"].keys() == found["float32"].keys()
    (classes,) = [value for (key, _), value in found["int8"].items() if key == "classes"]
    assert classes == 1
    assert found["int8"] != found["float32"], "the attacked upload is the rounded one"
