"""The run format: what is written is read back by the same classes, also what older versions wrote."""

from __future__ import annotations

import json

import pytest

from protofed.errors import CheckpointError, DivergedError, PayloadError
from protofed.runs import (
    Accuracy,
    Attack,
    ComparisonFile,
    Findings,
    ListedRun,
    Outcome,
    RoundRecord,
    Summary,
    read_comparison,
    read_federation,
    read_rounds,
    read_summary,
)


def through_json(values):
    return json.loads(json.dumps(values, allow_nan=False))


def full_record() -> RoundRecord:
    """Return a record with every part."""
    scores = [({"head": 3.0, "global": 1.0}, 4), ({"head": 1.0, "global": 2.0}, 2), ({}, 0)]
    record = RoundRecord(
        2,
        ["ann", "bob"],
        Accuracy.of(scores, ("head", "global")),
        Accuracy.of(scores[:2], ("head", "global")),
        losses={"prototype": None, "total": 0.5},
        attempts=2,
        robust=Findings(
            clipped={"ann": (3, 0.25)},
            left_out={"bob": "a vector is 1e+10 times as long as the median"},
            capped={"bob": ["counts"]},
            alone=[4],
            out_of_proportion=["ann"],
            kept="prototypes: not finite",
        ),
        attack=Attack(["bob"], {"head": 0.75, "global": 0.25}, {"head": 0.5}),
        diagnostics={"margin": 0.3, "distances": [1, 2.5, None]},
    )
    record.add_traffic("up", 10, 2)
    record.add_traffic("down", 20, 3)
    record.refuse("ann", DivergedError("prototypes: contains NaN"))
    record.refuse("bob", PayloadError("classes: is missing"))
    return record


def test_a_record_is_read_as_it_was_written():
    record = full_record()
    written = through_json(record.to_dict())
    again = RoundRecord.from_dict(written, "line 1")
    assert again == record
    assert json.dumps(again.to_dict()) == json.dumps(written)
    assert again.accuracy.clients["head"] == [0.75, 0.5, None]
    assert again.accuracy.spreads["head"] == (0.625, 0.125)
    assert again.sent == 30


def test_the_keys_of_a_record_and_their_order():
    assert list(full_record().to_dict()) == [
        "round",
        "participants",
        "accuracy",
        "validation",
        "robust",
        "attack",
        "losses",
        "bytes",
        "parameters",
        "seconds",
        "refused",
        "missing",
        "attempts",
        "diagnostics",
    ]
    plain = RoundRecord(1, ["ann"]).to_dict()
    assert not {"accuracy", "validation", "robust", "attack"} & set(plain)


def test_a_record_of_the_first_version():
    counts = {"up": 1, "down": 2}
    seconds = {"training": 0.1, "aggregation": 0.1, "evaluation": 0.1, "total": 0.3}
    refused = [{"client": "ann", "field": "prototypes", "reason": "contains NaN"}]
    old = {"round": 1, "participants": ["ann"], "losses": {}, "bytes": counts, "parameters": counts}
    record = RoundRecord.from_dict(old | {"seconds": seconds, "refused": refused, "diagnostics": {}}, "line 1")
    assert (record.attempts, record.missing, record.robust, record.attack) == (1, [], Findings(), None)
    assert not record.refused[0].diverged


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("attempts", 0, "attempts should be a whole number"),
        ("attack", {"clients": "bob"}, "attack should name its clients"),
        ("attack", {"clients": ["bob"], "honest": {"head": "much"}}, "honest and success should be numbers"),
        ("robust", {"clipped": [{"client": "ann", "vectors": "3"}]}, "robust should be a table of lists"),
        ("robust", {"kept": 3}, "robust should be a table of lists"),
        ("refused", [{"client": "a", "field": "b", "reason": "c", "diverged": 1}], "diverged should be true or"),
        ("accuracy", {}, "accuracy should have weighted"),
        ("validation", [], "validation should have weighted"),
        ("losses", {"total": "x"}, "losses should be numbers"),
        ("seconds", {"total": 1.0}, "seconds should have training"),
    ],
)
def test_a_part_of_another_kind(part, value, message):
    with pytest.raises(CheckpointError, match=f"^line 3.*{message}"):
        RoundRecord.from_dict(full_record().to_dict() | {part: value}, "line 3")


def summary() -> Summary:
    return Summary(
        protofed="0.2.0",
        recipe="",
        method="fedproto",
        exchanges="prototypes",
        seed=3,
        clients=3,
        outcome=Outcome.of([full_record()]),
        peak_memory_bytes=10,
        environment={"torch": "2.5.0"},
    )


def test_a_summary_is_read_as_it_was_written(tmp_path):
    written = through_json(summary().to_dict())
    assert list(written) == [
        "protofed",
        "recipe",
        "method",
        "exchanges",
        "seed",
        "clients",
        "rounds",
        "accuracy",
        "communication",
        "seconds",
        "refused",
        "peak_memory_bytes",
        "environment",
    ]
    assert list(written["accuracy"]["head"])[-2:] == ["selected", "selected_round"]
    assert list(written["communication"]) == [
        "parameters_up_per_round",
        "bytes_up_total",
        "parameters_down_per_round",
        "bytes_down_total",
    ]
    (tmp_path / "summary.json").write_text(json.dumps(written))
    assert read_summary(tmp_path / "summary.json") == summary()
    assert read_summary(tmp_path / "absent.json") is None


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("rounds", -1, "rounds should be a whole number"),
        ("accuracy", [], "accuracy should be a table"),
        ("accuracy", {"head": {"best": 1.0}}, "accuracy.head should have best"),
        ("communication", {}, "communication should have parameters per round"),
        ("seconds", {"total": 1}, "seconds should have training"),
        ("seed", "x", "seed should be a whole number"),
        ("method", "a\nb", "method should be a text without control characters"),
    ],
)
def test_a_summary_with_a_part_of_another_kind(part, value, message):
    with pytest.raises(CheckpointError, match=f"^summary.json: {message}"):
        Summary.from_dict(summary().to_dict() | {part: value}, "summary.json")


def test_the_outcome_before_the_first_evaluation():
    outcome = Outcome.of([RoundRecord(1, ["ann"])])
    assert (outcome.rounds, outcome.accuracy, outcome.communication.sent) == (1, {}, 0)
    assert outcome.communication.parameters_per_round == {"up": 0, "down": 0}


def test_the_best_and_the_selected_round():
    def record(number: int, test: float, validation: float) -> RoundRecord:
        parts = [Accuracy.of([({"head": share}, 1)], ("head",)) for share in (test, validation)]
        return RoundRecord(number, ["ann"], *parts)

    head = Outcome.of([record(1, 0.9, 0.1), record(2, 0.9, 0.3), record(3, 0.4, 0.3)]).accuracy["head"]
    assert (head.best, head.best_round) == (0.9, 1)
    assert (head.selected, head.selected_round) == (0.9, 2)
    assert head.final == 0.4


def test_a_comparison_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "comparison.json"
    runs = [ListedRun("local", "local-seed0", seed=0)]
    written = ComparisonFile(runs, {}, "quickstart", ["local"], [0]).to_dict()
    assert written == {
        "recipe": "quickstart",
        "methods": ["local"],
        "seeds": [0],
        "runs": [{"method": "local", "seed": 0, "directory": "local-seed0"}],
    }
    axes = {"attack": ["none", "one"]}
    grid = ComparisonFile([ListedRun("local", "local_one-seed0", ("one",), 0)], axes, "quickstart", ["local"], [0])
    path.write_text(json.dumps(grid.to_dict()))
    again = read_comparison(path)
    (listed,) = again.runs
    assert (listed.method, listed.directory, listed.values) == ("local", "local_one-seed0", ("one",))
    assert again.axes == axes


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("bfloat16", [1], "bfloat16 should list names of models"),
        ("left_out", [{"client": "ann"}], "left_out should list clients and reasons"),
        ("clients", [{**dict.fromkeys(("name", "architecture"), "a"), "counts": 1}], "client 1 lacks 'parameters'"),
    ],
)
def test_a_federation_with_a_part_of_another_kind(tmp_path, part, value, message):
    path = tmp_path / "federation.json"
    path.write_text(json.dumps({"class_names": ["a"], "clients": [], part: value}))
    with pytest.raises(CheckpointError, match=f"federation.json: {message}"):
        read_federation(path)


def test_rounds_are_read_in_their_order_and_once(tmp_path):
    lines = [json.dumps(full_record().to_dict() | {"round": number}) for number in (3, 1, 3)]
    (tmp_path / "rounds.jsonl").write_text("\n".join(lines) + '\n{"round": 4, "partici')
    assert [record.round for record in read_rounds(tmp_path / "rounds.jsonl")] == [1, 3]
