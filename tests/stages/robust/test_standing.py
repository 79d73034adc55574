"""Whose refusals count, and who may come back."""

from __future__ import annotations

from typing import Any

import pytest

from protofed.rounds.standing import Standing
from protofed.runs.findings import Findings
from protofed.runs.records import Absence, Refusal, RoundRecord

NAMES = ["a", "b", "c", "d"]
POISONED = {"out_of_proportion": ["d"]}


def round_of(number: int, damaged: str = "", diverged: str = "", missing: str = "", **robust: Any) -> RoundRecord:
    refused = [Refusal(c, "", "") for c in damaged] + [Refusal(c, "", "", diverged=True) for c in diverged]
    missing_clients = [Absence(c, "training", "") for c in missing]
    return RoundRecord(number, NAMES, refused=refused, missing=missing_clients, robust=Findings(**robust))


@pytest.mark.parametrize(
    ("rounds", "limit", "left_out"),
    [
        ([{"damaged": "a"}], 2, ""),
        ([{"damaged": "a"}, {"damaged": "a"}], 2, "a"),
        ([{"damaged": "a"}, {"damaged": "a"}, *[{}] * 99], 2, "a"),  # for good
        ([{"damaged": "a", "diverged": "b"}] * 8, 0, ""),  # without a limit everybody is asked
        ([{"diverged": "a"}], 2, ""),
        ([{"diverged": "a"}, {"diverged": "a"}], 2, "a"),
        ([{"diverged": "a"}, {"diverged": "a"}, {"missing": "a"}], 2, "a"),
        ([{"diverged": "a"}, {"diverged": "a"}, {"missing": "a"}, {"missing": "a"}], 2, ""),  # it has rested
        ([{"diverged": "a"}, {}, {"diverged": "a"}], 2, ""),  # who recovers starts anew
        ([{"diverged": "a"}, {"missing": "a"}, {"diverged": "a"}], 2, "a"),  # who is missing has not recovered
        ([POISONED, *[{"diverged": "a"}] * 18], 1, ""),  # what a poisoned broadcast caused counts against nobody
        ([POISONED, {}, {"diverged": "a"}], 1, "a"),  # until the client has recovered
        ([POISONED, {"damaged": "a"}], 1, "a"),
        ([{"diverged": "abc"}], 1, ""),  # what happens to most is nobody's fault
        ([{"diverged": "ab"}], 1, "ab"),
    ],
)
def test_who_is_asked_next(rounds, limit, left_out):
    standing = Standing()
    for number, what in enumerate(rounds, start=1):
        standing.note(round_of(number, **what), NAMES)
    assert standing.able(NAMES, len(rounds) + 1, limit) == [n for n in NAMES if n not in left_out]
