"""The run format: what is written is read back by the same classes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofed.errors import CheckpointError, DivergedError, PayloadError
from protofed.runs.comparison import ComparisonFile, ListedRun
from protofed.runs.files import read_comparison, read_federation, read_rounds, read_summary
from protofed.runs.findings import Findings
from protofed.runs.records import SCORED, Accuracy, Attack, RoundRecord
from protofed.runs.summary import Outcome, Summary
from protofed.untrusted.decoding import ClassName, decode


def through_json(values):
    return json.loads(json.dumps(values, allow_nan=False))


def full_record() -> RoundRecord:
    """Return a record with every part."""
    scores = [({"head": 3.0, "global": 1.0}, 4), ({"head": 1.0, "global": 2.0}, 2), ({}, 0)]
    unseen = [({"head": 0.0, "global": 1.0}, 4), ({}, 0), ({"head": 0.0, "global": 6.0}, 6)]
    record = RoundRecord(
        2,
        ["ann", "bob"],
        Accuracy.of(scores, ("head", "global")),
        Accuracy.of(scores[:2], ("head", "global")),
        Accuracy.of([({"head": 2.0, "global": 6.0}, 6)] * 3, ("head", "global")),
        Accuracy.of(unseen, ("head", "global")),
        Accuracy.of([({}, 0), ({}, 0), ({"head": 1.0, "global": 2.0}, 4)], ("head", "global")),
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
        "union",
        "unseen",
        "newcomers",
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
    assert not {*SCORED, "robust", "attack"} & set(plain)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("attempts", 0, "attempts: must be at least 1"),
        ("attack", {"clients": "bob"}, "attack.clients: expected a list"),
        ("attack", {"clients": ["bob"], "honest": {"head": "much"}}, "attack.honest.head: expected a number or"),
        ("robust", {"clipped": [{"client": "ann", "vectors": "3"}]}, r"robust.clipped\[0\].vectors: expected"),
        ("robust", {"kept": 3}, "robust.kept: expected text"),
        ("refused", [{"client": "a", "field": "b", "reason": "c", "diverged": 1}], r"refused\[0\].diverged: exp"),
        ("accuracy", {}, "accuracy: must have at least 1 entry"),
        ("validation", [], "validation: expected a table or none"),
        ("union", {"head": 1.0}, "union.head: expected a table"),
        ("unseen", {"head": {"weighted": 0.0}}, "unseen.head lacks 'client_mean'"),
        ("newcomers", {"weighted": {"head": "x"}}, "newcomers.weighted lacks 'weighted'"),
        ("losses", {"total": "x"}, "losses.total: expected a number or none"),
        ("seconds", {"total": 1.0}, "seconds lacks 'training'"),
    ],
)
def test_a_part_of_another_kind(part, value, message):
    with pytest.raises(CheckpointError, match=f"^line 3.*{message}"):
        RoundRecord.from_dict(full_record().to_dict() | {part: value}, "line 3")


RULE = dict.fromkeys(("best", "best_client_mean", "best_client_std", "final", "client_mean", "client_std"), 0.5)
RULE |= {"best_round": 3}


def summary() -> Summary:
    return Summary(
        protofed="0.3.0",
        recipe="",
        method="fedproto",
        exchanges="prototypes",
        seed=3,
        clients=3,
        outcome=Outcome.of([full_record()]),
        peak_memory_bytes=10,
        environment={"torch": "2.5.0"},
        main_rule="global",
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
        "main_rule",
        "rounds",
        "accuracy",
        "communication",
        "seconds",
        "refused",
        "peak_memory_bytes",
        "environment",
    ]
    assert list(written["accuracy"]["head"]) == [
        "best_validated",
        "best_validated_round",
        "best",
        "best_round",
        "best_client_mean",
        "best_client_std",
        "final",
        "client_mean",
        "client_std",
        "rounds_to_convergence",
        "union",
        "unseen",
        "newcomers",
    ]
    assert written["accuracy"]["head"]["newcomers"]["final"] == 0.25
    assert written["accuracy"]["global"]["unseen"] == {
        "best": 0.7,
        "final": 0.7,
        "client_mean": 0.625,  # of the clients that have unseen classes: (1/4 + 6/6) / 2
        "client_std": 0.375,
    }
    assert list(written["communication"]) == [
        "parameters_up_per_round",
        "parameters_up_over_all_rounds",
        "bytes_up_total",
        "parameters_down_per_round",
        "parameters_down_over_all_rounds",
        "bytes_down_total",
    ]
    (tmp_path / "summary.json").write_text(json.dumps(written))
    assert read_summary(tmp_path / "summary.json") == summary()
    assert read_summary(tmp_path / "absent.json") is None


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("rounds", -1, "rounds: must be at least 0"),
        ("accuracy", [], "accuracy: expected a table"),
        ("accuracy", {"head": {"best": 1.0}}, "accuracy.head lacks 'best_round'"),
        ("accuracy", {"head": RULE | {"best_validated": 0.5}}, "accuracy.head: best_validated and .* belong"),
        ("accuracy", {"head": RULE | {"rounds_to_convergence": 0}}, "accuracy.head.rounds_to_conv.*: must be"),
        (
            "accuracy",
            {"head": RULE | {"rounds_to_convergence": True}},
            "accuracy.head.rounds_to_conv.*: expected",
        ),
        ("accuracy", {"head": RULE | {"unseen": {"best": 1.0}}}, "accuracy.head.unseen lacks 'final'"),
        ("accuracy", {"head": RULE | {"union": 0.5}}, "accuracy.head.union: expected a table"),
        ("accuracy", {"head": RULE | {"newcomers": []}}, "accuracy.head.newcomers: expected a table"),
        ("main_rule", "a\nb", "main_rule: expected text of at most 128 characters without control characters"),
        ("communication", {}, "communication lacks 'parameters_up_per_round'"),
        ("seconds", {"total": 1}, "seconds lacks 'training'"),
        ("seed", "x", "seed: expected a whole number"),
        ("method", "a\nb", "method: expected text of at most 128 characters without control characters"),
    ],
)
def test_a_summary_with_a_part_of_another_kind(part, value, message):
    with pytest.raises(CheckpointError, match=f"^summary.json: {message}"):
        Summary.from_dict(summary().to_dict() | {part: value}, "summary.json")


def test_a_summary_of_an_older_version():
    written = summary().to_dict()
    del written["main_rule"]
    with pytest.raises(CheckpointError, match=r"^summary.json: written before version 0\.3: show"):
        Summary.from_dict(written, "summary.json")


def test_the_outcome_before_the_first_evaluation():
    outcome = Outcome.of([RoundRecord(1, ["ann"])])
    assert (outcome.rounds, outcome.accuracy, outcome.communication.sent) == (1, {}, 0)
    assert outcome.communication.parameters_per_round == {"up": 0, "down": 0}


def test_the_best_and_the_best_validated_round():
    def record(number: int, test: float, validation: float) -> RoundRecord:
        parts = [Accuracy.of([({"head": share}, 1)], ("head",)) for share in (test, validation)]
        return RoundRecord(number, ["ann"], *parts)

    head = Outcome.of([record(1, 0.9, 0.1), record(2, 0.9, 0.3), record(3, 0.4, 0.3)]).accuracy["head"]
    assert (head.best, head.best_round) == (0.9, 1)
    assert (head.best_validated, head.best_validated_round) == (0.9, 2)
    assert head.final == 0.4


def test_scores_of_the_last_rounds_alone():
    """Newcomers have no scores in the best round: theirs are from the best round that they took part in."""

    def record(number: int, test: float, newcomers: float | None) -> RoundRecord:
        parts = [v if v is None else Accuracy.of([({"head": v}, 1)], ("head",)) for v in (test, newcomers)]
        return RoundRecord(number, ["ann"], parts[0], newcomers=parts[1])

    rounds = [record(1, 0.9, None), record(2, 0.6, 0.2), record(3, 0.7, 0.3), record(4, 0.5, 0.4)]
    head = Outcome.of(rounds).accuracy["head"]
    assert (head.best_round, head.newcomers.best, head.newcomers.final) == (1, 0.3, 0.4)
    assert Outcome.of(rounds[:1]).accuracy["head"].newcomers is None
    # A run that ends early may lack some in its last round.
    early = Outcome.of([*rounds, record(5, 0.8, None)]).accuracy["head"]
    assert (early.final, early.newcomers.final) == (0.8, 0.4)


def scored(number: int, *clients: tuple[float, int]) -> RoundRecord:
    """Return the record of a round in which clients reached these accuracies on so many samples."""
    return RoundRecord(number, [], Accuracy.of([({"head": a * n}, n) for a, n in clients], ("head",)))


def test_clients_count_alike_in_the_best_and_in_the_last_round():
    """FedProto, Table 1: the mean over devices ± their standard deviation, beside the papers' weighted accuracy."""
    rounds = [scored(1, (0.9, 90), (0.5, 10)), scored(2, (0.4, 90), (1.0, 10)), scored(3, (0.5, 90), (0.7, 10))]
    head = Outcome.of(rounds).accuracy["head"]
    assert (head.best, head.best_round) == (pytest.approx(0.86), 1)
    assert (head.best_client_mean, head.best_client_std) == (pytest.approx(0.7), pytest.approx(0.2))
    assert (head.final, head.client_mean, head.client_std) == (
        pytest.approx(0.52),
        pytest.approx(0.6),
        pytest.approx(0.1),
    )


@pytest.mark.parametrize(
    ("means", "round_number"),
    [
        ([0.5], 1),
        ([0.1, 0.5, 0.6, 0.595], 3),
        ([0.1, 0.6, 0.5, 0.6], 4),  # what was lost again does not count
        ([0.1, 0.592, 0.6, 0.591], 2),
        ([0.1, 0.9, 0.6], None),  # nor does a best that is not kept
        ([0.0, 0.0, 0.0], 1),
    ],
)
def test_rounds_to_convergence(means, round_number):
    records = [scored(number, (mean, 5), (mean, 1)) for number, mean in enumerate(means, start=1)]
    assert Outcome.of(records).accuracy["head"].rounds_to_convergence == round_number


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1)), min_size=1, max_size=12))
def test_rounds_to_convergence_are_what_they_are_said_to_be(rounds):
    """The first evaluated round t with m_s ≥ max m − 0.01 for every evaluated s ≥ t."""
    records = [scored(t, (m, 1)) if there else RoundRecord(t, []) for t, (there, m) in enumerate(rounds, start=1)]
    means = {r.round: r.accuracy.spreads["head"][0] for r in records if r.accuracy}
    kept = [t for t in means if all(means[s] >= max(means.values()) - 0.01 for s in means if s >= t)]
    outcome = Outcome.of(records).accuracy
    assert (outcome["head"].rounds_to_convergence if means else None) == min(kept, default=None)


def test_parameters_of_silent_rounds():
    """GFPL sends in every tenth round only."""
    records = [RoundRecord(number, []) for number in range(1, 21)]
    for number in (10, 20):
        records[number - 1].add_traffic("up", 100, 40)
    records[19].add_traffic("down", 100, 60)
    traffic = Outcome.of(records).communication
    assert traffic.parameters_per_round == {"up": 40, "down": 60}
    assert traffic.parameters_over_all_rounds == {"up": 4, "down": 3}


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
        ("bfloat16", [1], r"bfloat16\[0\]: expected text"),
        ("left_out", [{"client": "ann"}], r"left_out\[0\] lacks 'reason'"),
        (
            "clients",
            [{**dict.fromkeys(("name", "architecture"), "a"), "counts": 1}],
            r"clients\[0\].counts: expected text",
        ),
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


@pytest.mark.parametrize("name", ["a\n", "a\n - at `$.nothing`", "- at `$[3]`\0", "\ud800 - at `$[...]`"])
def test_a_text_that_reads_like_a_place_is_none(name):
    with pytest.raises(CheckpointError, match=r"^f: b\[1\]: class name|^f: b\[1\]: a class name"):
        decode({"a": ["x"], "b": ["y", name]}, dict[str, list[ClassName]], "f")
