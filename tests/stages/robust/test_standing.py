"""Whose refusals count, and who may come back."""

from __future__ import annotations

from typing import Any

from protofed.rounds.standing import Standing
from protofed.runs.findings import Findings
from protofed.runs.records import Absence, Refusal, RoundRecord

NAMES = ["a", "b", "c", "d"]


def round_of(number: int, damaged: str = "", diverged: str = "", missing: str = "", **robust: Any) -> RoundRecord:
    refused = [Refusal(c, "", "") for c in damaged] + [Refusal(c, "", "", diverged=True) for c in diverged]
    missing_clients = [Absence(c, "training", "") for c in missing]
    return RoundRecord(number, NAMES, refused=refused, missing=missing_clients, robust=Findings(**robust))


def test_damaged_uploads_count_for_good():
    standing = Standing()
    for number in (1, 2):
        standing.note(round_of(number, damaged="a"), NAMES)
    for number in (3, 10, 1000):
        assert standing.able(NAMES, number, 2) == ["b", "c", "d"]


def test_without_a_limit_everybody_is_asked():
    standing = Standing()
    for number in range(1, 9):
        standing.note(round_of(number, damaged="a", diverged="b"), NAMES)
    assert standing.able(NAMES, 9, 0) == NAMES


def test_a_diverged_client_rests_and_is_asked_again():
    standing = Standing()
    standing.note(round_of(1, diverged="a"), NAMES)
    assert standing.able(NAMES, 2, 2) == NAMES
    standing.note(round_of(2, diverged="a"), NAMES)
    assert [("a" in standing.able(NAMES, n, 2)) for n in (3, 4, 5)] == [False, False, True]


def test_a_client_that_recovers_starts_anew():
    standing = Standing()
    standing.note(round_of(1, diverged="a"), NAMES)
    standing.note(round_of(2), NAMES)
    standing.note(round_of(3, diverged="a"), NAMES)
    assert standing.able(NAMES, 4, 2) == NAMES


def test_a_missing_client_has_not_recovered():
    standing = Standing()
    standing.note(round_of(1, diverged="a"), NAMES)
    standing.note(round_of(2, missing="a"), NAMES)
    standing.note(round_of(3, diverged="a"), NAMES)
    assert standing.able(NAMES, 4, 2) == ["b", "c", "d"]


def test_what_a_poisoned_broadcast_caused_counts_against_nobody():
    standing = Standing()
    standing.note(round_of(1, out_of_proportion=["d"]), NAMES)
    for number in range(2, 20):
        standing.note(round_of(number, diverged="a"), NAMES)
        assert "a" in standing.able(NAMES, number + 1, 1)


def test_who_recovered_from_a_poisoned_broadcast_is_judged_again():
    standing = Standing()
    standing.note(round_of(1, out_of_proportion=["d"]), NAMES)
    standing.note(round_of(2), NAMES)
    standing.note(round_of(3, diverged="a"), NAMES)
    assert "a" not in standing.able(NAMES, 4, 1)


def test_what_happens_to_most_is_nobodys_fault():
    standing = Standing()
    standing.note(round_of(1, diverged="abc"), NAMES)
    assert standing.able(NAMES, 2, 1) == NAMES


def test_what_happens_to_half_of_them_counts():
    standing = Standing()
    standing.note(round_of(1, diverged="ab"), NAMES)
    assert standing.able(NAMES, 2, 1) == ["c", "d"]


def test_one_damaged_upload_counts_once():
    standing = Standing()
    standing.note(round_of(1, damaged="a"), NAMES)
    assert standing.able(NAMES, 2, 2) == NAMES


def test_damage_counts_even_after_a_poisoned_broadcast():
    standing = Standing()
    standing.note(round_of(1, out_of_proportion=["d"]), NAMES)
    standing.note(round_of(2, damaged="a"), NAMES)
    assert standing.able(NAMES, 3, 1) == ["b", "c", "d"]
