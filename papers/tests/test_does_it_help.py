"""The study of docs/does-it-help.md: its tool, and its tables against the committed figures of every run."""

from __future__ import annotations

import re
import sys
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from conftest import REPOSITORY
from protofed.methods import methods
from protofed.models import build, parameter_count
from protofed.trained.paired import Sampled, two_level
from support import script


@pytest.fixture(scope="module")
def tool():
    return script(REPOSITORY / "papers/tools/does_it_help.py")


def test_the_pages_are_made_of_the_committed_figures(tool, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["does_it_help.py", "--check"])
    tool.main()
    others = {"leaderboard", "demo"}  # made by other tools
    assert set(tool.studies()) | others == {path.stem for path in tool.STUDY.glob("*.csv")}


def main_page() -> str:
    """Return the text of the page as one line."""
    return " ".join((REPOSITORY / "docs/does-it-help.md").read_text().split())


PROTOTYPES = ("fedproto", "fedtgp", "tinyproto", "gfpl")


def verdicts(tool, settings, labels) -> Counter[str]:
    """Count the verdicts of some arms, in each setting, on the best control that is like them."""
    found: Counter[str] = Counter()
    for arms in settings:
        for arm in arms:
            control, unlike = tool.control_of(arm, arms)
            if arm.label in labels and control is not None and not unlike:
                found[tool.relation(tool.apart(arm, control, tool.final))] += 1
    return found


def test_prototypes_are_counted_as_the_findings_say(tool):
    page = main_page()
    studies = {name: tool.study(name) for name in tool.studies()}
    assert verdicts(tool, studies.values(), PROTOTYPES) == {"equal": 8, "inconclusive": 13, "worse": 3}
    assert "In 24 untuned comparisons with the same network, loss and rule they were never better, 8 times" in page
    assert "equivalent, 3 times [worse](../papers/studies/many-clients.md), and 13 were inconclusive" in page

    board = script(REPOSITORY / "papers/tools/leaderboard.py")
    scenarios = [board.arms(board.read(), name) for name in board.scenarios(board.recipe())]
    assert verdicts(tool, scenarios, PROTOTYPES) == {"better": 1, "equal": 6, "inconclusive": 21, "worse": 4}
    assert "(../papers/studies/leaderboard.md), 1 of 32 was better, 6 equivalent, 4 worse, 21 inconclusive" in page

    pairs = [{arm.label: arm for arm in arms} for arms in scenarios]
    beside = Counter(tool.relation(tool.apart(a["beacon"], a["local_lda"], tool.final)) for a in pairs)
    assert (beside["better"], beside["worse"]) == (4, 0)
    assert "It beats `local_lda` in four of [eight scenarios](../papers/studies/leaderboard" in page
    fixed = [tool.against(a["fedlda"], a["local_lda"]) for a in pairs]
    assert min(float(text.split()[0]) for text in fixed) == 0.4  # never worse

    closed = {}
    for name, arms in studies.items():
        found = {arm.label: arm for arm in arms}
        if "fedlda" in found:
            difference = tool.apart(found["fedlda"], found["local_lda"], tool.own(arms))
            closed[name.removesuffix("-fair").replace("-200", "")] = tool.relation(difference)
    assert Counter(closed.values()) == {"better": 9}
    assert "in all nine settings" in page

    fair = [arms for name, arms in studies.items() if name.endswith("-fair")]
    tuned = verdicts(tool, fair, [f"{label}-balanced" for label in (*PROTOTYPES, "protonorm")])
    assert tuned == {"better": 4, "equal": 18, "inconclusive": 11, "worse": 2}
    assert "Of 35 comparisons with values tuned in two settings, 4 were better" in page
    assert "18 equivalent, 2 worse and 11 inconclusive. None of the four beat the *untuned* fixed target" in page


def test_what_was_run_in_full_and_what_tuning_gains():
    referee = script(REPOSITORY / "papers/tools/referee.py")
    full = {
        where
        for cell, where, _, _, printed in referee.reproduced_cells()
        if (cell["scale"], cell["metric"]) == ("full", "accuracy_percent") and "head" not in where and printed
    }
    paper = (REPOSITORY / "paper/paper.md").read_text().replace("\n", " ")
    assert round(575 / len(full)) == 7  # of all that are printed
    assert "About one in seven of the accuracies that the four papers print was run in full" in paper
    gained = Counter()
    for arms in (referee.study(name) for name in referee.about() if name.endswith("-fair")):
        for arm in (arms[f"{name}-balanced"] for name in (*PROTOTYPES, "protonorm")):
            control = max(
                (arms[f"{c}-balanced"] for c in ("local", "fixed_etf")), key=lambda c: referee.mean(c, "final")
            )
            if referee.verdict(referee.apart(arm, control, "final")) == "better":
                gained[referee.verdict(referee.apart(arm, arms["untuned-fixed_etf-balanced"], "final"))] += 1
    assert (gained.total(), gained["better"]) == (4, 0)
    assert "None of the four gained over the fixed target without tuning" in paper


def test_bytes_are_compared_in_one_codec(tool):
    page = main_page()
    for name, suffix in (("scarce", ""), ("sizes", "-int8")):
        arms = {arm.label: arm for arm in tool.study(name)}
        beacon = arms["beacon-8-16-16-int8" if suffix else "beacon"]
        assert round(beacon.bytes / arms[f"fedproto{suffix}"].bytes, 1) == 1.8
    assert "At one codec `beacon` sends 1.8 times FedProto's bytes" in page
    for K in (4, 10):
        tiny = build("tiny", input_shape=(1, 28, 28), num_classes=K, d=256)
        assert parameter_count(tiny) == 3648 + 257 * K
    assert "3,648 and 257 per class" in page
    assert not any("int8" in label for label, *_ in tool.points(tool.drawn_arms()))


def test_an_arm_that_equals_its_controls_rarely_seems_to_differ(tool):
    """What the page says of the best of several controls, by 2,000 simulations of five seeds."""
    page = main_page()
    draw, rates = np.random.default_rng(0), {}
    for controls in (2, 5):
        found: Counter[str] = Counter()
        for _ in range(2000):
            arm, *others = draw.standard_normal((1 + controls, 5))
            found[tool.relation(list(arm - max(others, key=np.mean)))] += 1
        rates[controls] = [100 * found[word] / 2000 for word in ("better", "worse")]
    assert rates[2] == pytest.approx([0.8, 4.2], abs=1.2)
    assert rates[5] == pytest.approx([0.2, 7.6], abs=1.2)
    assert "equals two controls is *better* in 0.8 % of simulations of five seeds and *worse* in 4.2 %" in page
    assert "one that equals five (*of any kind*), in 0.2 and 7.6 %" in page


def test_what_five_seeds_find_and_one_seed_reports():
    """A gain as large as its deviation; and none, between methods right on 95 % of 800 samples, by one seed."""
    chance = stats.nct.sf(stats.t.ppf(0.975, 4), 4, 5**0.5)
    assert chance == pytest.approx(0.4, abs=0.005)
    assert "find a true gain of one point in 40 % of cases" in main_page()
    draw, seen = np.random.default_rng(0), 0
    for moved in draw.normal(0, 0.015, 2000):
        one, other = (draw.random(800) < 0.95 + sign * moved / 2 for sign in (1, -1))
        counts = 800, int(one.sum()) - int(other.sum()), int((one != other).sum())
        seen += two_level([Sampled.difference(*counts)]).low > 0
    assert seen / 2000 == pytest.approx(1 / 8, abs=0.02)
    assert "one comparison in eight reports a gain that does not exist" in main_page()


def test_the_page_is_short_and_the_paper_counts_the_methods():
    """Every finding has at most two lines of 150 characters."""
    text = (REPOSITORY / "docs/does-it-help.md").read_text()
    assert len(text.split()) <= 1500
    findings = re.findall(r"^\d\. \*\*.*(?:\n   .*)*", text, flags=re.M)
    shown = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(own.split())) for own in findings]
    assert [own[0] for own in shown] == [*"12345678"]
    assert max(map(len, shown)) <= 300
    assert f"{len([*methods()])} methods" in (REPOSITORY / "paper/paper.md").read_text().replace("\n", " ")


def test_an_arm_is_compared_with_a_control_that_computes_as_much(tool):
    def arm(label: str, value: float):
        scores = tool.Scores(value, None, None, None, None, None)
        return tool.Arm(label, {s: tool.Measured({"head": scores}, 0.0, 1.0) for s in (0, 1)})

    found = [arm(n, v) for n, v in {"local": 0.6, "fixed_etf": 0.5, "local-balanced": 0.7, "unshared": 0.9}.items()]
    for label, expected in {
        "fedproto": ("local", ""),
        "fedproto-balanced": ("local-balanced", ""),
        "beacon-int8": ("unshared", ""),
        "fedlc-tiny": ("unshared", "other networks"),
        "unshared": ("unshared", ""),
    }.items():
        control, unlike = tool.control_of(arm(label, 0.8), found)
        assert (control.label, unlike) == expected
    assert tool.control_of(arm("fedlda", 0.8), found) == (None, "")
    assert tool.control_of(arm("fedproto", 0.8), found[2:])[1] == "other loss"


def test_saved_figures_are_read_back(tool, tmp_path):
    head = tool.Scores(0.5, None, 0.625, 0.25, 0.0, None)
    other = tool.Scores(0.75, 0.7, 0.8, None, None, 1 / 3)
    runs = {seed: tool.Measured({"head": head, "local": other}, 1234.5, 2.0) for seed in (3, 1)}
    arms = [tool.Arm("local", runs), tool.Arm("fedproto", {1: tool.Measured({"head": other}, 0.0, 0.001)})]
    tool.save(arms, tmp_path / "study.csv")
    again = tool.arms_of([tmp_path / "study.csv"])
    assert [(arm.label, arm.runs) for arm in again] == [(arm.label, arm.runs) for arm in arms]
    assert list(again[0].runs) == [1, 3]
    rows = tool.table(again).splitlines()
    assert rows[3].startswith("| local | 2 | 50.0 ± 0.0 | the control |")
    assert rows[4].startswith("| fedproto | 1 | 75.0 | `local` | +25.0 | inconclusive |")
