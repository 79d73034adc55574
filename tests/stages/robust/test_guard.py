"""The stage between validation and the method: what it changes, leaves alone, and refuses."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protofed import methods
from protofed.errors import ConfigError
from protofed.methods import Field, Method, Schema, Task, Upload
from protofed.options import build_options
from protofed.rounds.stage import Opened
from protofed.runs.records import RoundRecord
from protofed.stages.robust import Findings, Guard, RobustOptions, clipping
from protofed.stages.robust.pooling import hostile
from protofed.stages.robust.rules import geometric_median, median, trim_mean
from protofed.stages.robust.vectors import limit_counts
from protofed.wire.schema import prototype_schema, weight_schema

K, D = 4, 3


class Prototypes(Method):
    """Class means, perhaps multiplied by sample counts."""

    name = "prototypes"
    summary = "a test"
    sums = False
    more: ClassVar[dict[str, Field]] = {}

    @property
    def upload_schema(self) -> Schema:
        return prototype_schema(K, "d", {"d": D}, sums=self.sums, **self.more)


class Sums(Prototypes):
    """Class means multiplied by sample counts."""

    sums = True


class Counted(Prototypes):
    """Class means with their counts."""

    more: ClassVar = {"counts": Field(("k",), "count", parameter=False)}


class Weights(Method):
    """Two tensors."""

    name = "weights"
    summary = "a test"
    example: ClassVar = {"head.weight": torch.zeros(K, D), "head.bias": torch.zeros(K)}

    @property
    def upload_schema(self) -> Schema:
        return weight_schema(self.example, K, samples=Field((), "count", parameter=False))

    broadcast_schema = upload_schema


TASK = Task(K, D, 3, 0, 5.0)


def guard(kind: type[Method] = Prototypes, clients: int = 5, each: int = 2, **options) -> Guard:
    counts = {f"c{i}": torch.full((K,), each) for i in range(clients)}
    return Guard(build_options(RobustOptions, options, "robust"), kind(None, TASK), counts)


def upload(i: int, rows: dict[int, list[float]], **more: torch.Tensor) -> Upload:
    classes = torch.tensor(sorted(rows), dtype=torch.int64)
    values = torch.tensor([rows[int(c)] for c in classes]).reshape(len(rows), D)
    return Upload(f"c{i}", {"classes": classes, "prototypes": values, **more})


def screened(g: Guard, uploads: list[Upload], reference=None) -> tuple[list[Upload], Findings]:
    record = RoundRecord(1, [])
    return list(g(iter(uploads), Opened(1, {}, reference), record)), record.robust


def same(left: list[Upload], right: list[Upload]) -> bool:
    return [u.client for u in left] == [u.client for u in right] and all(
        torch.equal(a.payload[n], b.payload[n]) for a, b in zip(left, right, strict=True) for n in a.payload
    )


def honest(number: int = 4, seed: int = 0) -> list[Upload]:
    g = torch.Generator().manual_seed(seed)
    base = 3 * torch.randn(K, D, generator=g)
    return [
        upload(i, {c: (base[c] + 0.2 * torch.randn(D, generator=g)).tolist() for c in range(K)})
        for i in range(number)
    ]


def test_none_and_clip_leave_ordinary_uploads_untouched():
    for rule in ("none", "clip"):
        found, findings = screened(guard(rule=rule, norm=9.0, distance=100.0), honest())
        assert same(found, honest())
        assert {n: v for n, v in findings.to_dict().items() if n != "clipped"} == {}


def test_clip_leaves_out_what_is_far_out_of_proportion():
    evil = upload(4, {0: [-1e9, 1e9, 1e9]})
    found, findings = screened(guard(rule="clip"), [*honest(), evil])
    assert [u.client for u in found] == ["c0", "c1", "c2", "c3"]
    assert "times as long as the median" in findings.left_out["c4"]


@pytest.mark.parametrize("rule", ["clip", "median", "trimmed", "geometric_median", "multi_krum"])
@pytest.mark.parametrize("length", [0.0, 0.01])
def test_a_client_with_more_classes_than_others_does_not_set_the_limits(rule, length):
    """It has half of all rows, tiny ones or none: those of the others are not out of proportion for that."""
    ordinary = [upload(i, {i % 2: [1.0, 2.0, 0.1 * i]}) for i in range(4)]
    wordy = upload(4, {c: [length, 0.0, 0.0] for c in range(K)})
    _, findings = screened(guard(rule=rule), [*ordinary, wordy])
    assert not any("as long as the median" in why for why in findings.left_out.values())
    _, findings = screened(guard(rule=rule), [*ordinary[1:], upload(0, {0: [1e6, 0, 0]}), wordy])
    assert "as long as the median" in findings.left_out["c0"]


def test_attackers_who_all_report_one_class_are_trimmed():
    ordinary = [upload(i, {i % 3: [1.0, 0.1 * i, 0.0]}) for i in range(12)]
    evil = [upload(i, {0: [-1.0, 0.0, 0.0]}) for i in range(12, 15)]  # three of 15, and of the seven of class 0
    found, _ = screened(guard(rule="trimmed", clients=15, attackers=0.2), [*ordinary, *evil])
    assert float(found[0].payload["prototypes"][0, 0]) == 1.0


def test_clip_shortens_what_is_somewhat_out_of_proportion():
    ordinary = honest()
    evil = upload(4, {c: (-4 * ordinary[0].payload["prototypes"][c]).tolist() for c in range(K)})
    found, findings = screened(guard(rule="clip"), [*ordinary, evil])
    before = float(evil.payload["prototypes"].norm(dim=1).max())
    assert float(found[4].payload["prototypes"].norm(dim=1).max()) < before / 2
    assert findings.clipped["c4"][0] == K
    middle = median(torch.stack([u.payload["prototypes"] for u in ordinary]).reshape(4, -1)).reshape(K, D)
    assert float((found[4].payload["prototypes"] - middle).norm(dim=1).max()) < 2


def test_two_clients_are_never_judged():
    uploads = [upload(0, {0: [1.0, 0, 0]}), upload(1, {0: [-90.0, 0, 0]})]
    found, findings = screened(guard(rule="clip"), uploads)
    assert same(found, uploads)
    assert findings.left_out == {}


@given(st.permutations(range(5)), st.sampled_from(["none", "clip", "median", "trimmed", "geometric_median"]))
def test_the_order_of_arrival_does_not_matter(order, rule):
    uploads = [*honest(), upload(4, {0: [-9.0, 9, 9], 2: [0.0, 0, 0]})]
    first, _ = screened(guard(rule=rule), uploads)
    other, _ = screened(guard(rule=rule), [uploads[i] for i in order])
    by_name = {u.client: u for u in other}
    for u in first:
        torch.testing.assert_close(u.payload, by_name[u.client].payload, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("median", median),
        ("trimmed", lambda x: trim_mean(x, math.ceil(0.2 * len(x)))),
        ("geometric_median", geometric_median),
    ],
)
def test_pooling_replaces_every_row_of_a_class(rule, value):
    uploads = [*honest(), upload(4, {1: [9.0, 9, 9]})]
    found, _ = screened(guard(rule=rule), uploads)
    for c in range(K):
        rows = torch.cat([u.payload["prototypes"][u.payload["classes"] == c] for u in uploads])
        after = torch.cat([u.payload["prototypes"][u.payload["classes"] == c] for u in found])
        torch.testing.assert_close(after, value(rows).expand_as(after))
    assert [u.payload["classes"].tolist() for u in found] == [u.payload["classes"].tolist() for u in uploads]


def test_sums_are_compared_per_sample():
    """TinyProto multiplies by n_ij: a large client must not look like an attacker."""
    counts = {"c0": torch.full((K,), 1), "c1": torch.full((K,), 30), "c2": torch.full((K,), 2)}
    g = Guard(RobustOptions("median"), Sums(None, TASK), counts)
    rows = [upload(i, {0: [n, 2.0 * n, 0.0]}) for i, n in enumerate((1.0, 30.0, 2.0))]
    found, _ = screened(g, rows)
    assert same(found, rows)
    clip = Guard(RobustOptions("clip", weight=16.0), Sums(None, TASK), counts)
    assert same(screened(clip, rows)[0], rows)


def test_counts_are_capped_at_what_was_described():
    evil = upload(0, {0: [1.0, 1, 1], 3: [1.0, 1, 1]}, counts=torch.tensor([2**32 - 1, 1]))
    found, findings = screened(guard(Counted, rule="none", each=7), [evil])
    assert found[0].payload["counts"].tolist() == [7, 1]
    assert findings.to_dict()["capped"] == [{"client": "c0", "fields": ["counts"]}]
    weights = Upload("c0", {**Weights.example, "samples": torch.tensor(2**32 - 1)})
    found, _ = screened(guard(Weights, rule="none", each=7), [weights])
    assert int(found[0].payload["samples"]) == 7 * K


def test_no_client_is_believed_to_have_many_times_the_median():
    stated = {f"c{i}": torch.tensor([3, 7]) for i in range(4)} | {"big": torch.tensor([2**29, 2**29])}
    found = limit_counts(stated, RobustOptions("none", weight=2.0))
    assert found["big"].tolist() == [10, 10]
    assert all(found[n] is stated[n] for n in ("c0", "c1", "c2", "c3"))
    admitted = RobustOptions("none", admitted={"big": 5000, "c0": 4})
    assert [int(c.sum()) for c in limit_counts(stated, admitted).values()] == [4, 10, 10, 10, 5000]
    assert limit_counts(stated, RobustOptions("none", weight=0.0))["big"].sum() == 2**30
    assert limit_counts({"a": torch.tensor([1]), "b": torch.tensor([99])}, RobustOptions())["b"] == 99, (
        "two clients"
    )


def test_weights_are_limited_in_how_far_they_move():
    start = {"head.weight": torch.full((K, D), 5.0), "head.bias": torch.zeros(K)}
    steps = [0.1, 0.12, 0.08, 0.1, 30.0]
    uploads = [
        Upload(f"c{i}", {n: t + step for n, t in start.items()} | {"samples": torch.tensor(1)})
        for i, step in enumerate(steps)
    ]
    found, findings = screened(guard(Weights, rule="clip"), uploads, start)
    assert same(found[:4], uploads[:4])
    moved = found[4].payload["head.weight"] - start["head.weight"]
    torch.testing.assert_close(moved, torch.full((K, D), 0.6))
    assert list(findings.clipped) == ["c4"]


def test_multi_krum_trusts_nothing_of_a_client_that_is_outvoted_elsewhere():
    """Class 3 is the hostile client's alone: what it says of the other classes gives it away."""
    ordinary = [upload(i, {c: [float(c), 1.0, 0.1 * i] for c in range(3)}) for i in range(4)]
    evil = upload(4, {0: [-3.0, 0, 0], 1: [2.0, -5, 0], 3: [7.0, 7, 7]})
    found, findings = screened(guard(rule="multi_krum"), [*ordinary, evil])
    assert [u.client for u in found] == ["c0", "c1", "c2", "c3"]
    assert list(findings.left_out) == ["c4"]


def test_multi_krum_leaves_out_no_more_than_are_assumed_hostile():
    """Whoever is far out of proportion is one of them."""
    found, findings = screened(guard(rule="multi_krum"), [*honest(), upload(4, {0: [-1e6, 0, 0]})])
    assert [u.client for u in found] == ["c0", "c1", "c2", "c3"]
    assert list(findings.left_out) == ["c4"]


def test_the_number_of_hostile_clients_is_not_raised_by_rounding():
    assert hostile(100, RobustOptions(attackers=0.07)) == 7
    assert hostile(101, RobustOptions(attackers=0.07)) == 8


def test_classes_of_one_client_alone_are_named():
    uploads = [upload(i, {0: [1.0, 0, 0]}) for i in range(3)] + [upload(3, {0: [1.0, 0, 0], 2: [1.0, 0, 0]})]
    assert screened(guard(rule="clip"), uploads)[1].alone == [2]


def test_no_upload_at_all():
    for rule in ("none", "clip", "median", "multi_krum"):
        assert screened(guard(rule=rule), []) == ([], Findings())
        assert len(screened(guard(rule=rule), [upload(0, {})])[0]) <= 1


def test_clipping_from_a_file_equals_clipping_from_memory(monkeypatch):
    uploads = [*honest(), upload(4, {0: [-9.0, 9, 9]})]
    expected, findings = screened(guard(rule="clip"), uploads)
    monkeypatch.setattr(clipping.Spool.__init__, "__defaults__", (40,))
    found, again = screened(guard(rule="clip"), uploads)
    assert same(found, expected)
    assert again == findings


def test_rules_that_the_exchange_does_not_allow_are_refused():
    gfpl = methods.get("gfpl")(methods.get("gfpl").Options(dcs=False), TASK)
    with pytest.raises(ConfigError, match=r"robust.rule=median .* gfpl .* use clip or multi_krum"):
        Guard(RobustOptions("median"), gfpl, {})
    Guard(RobustOptions("multi_krum"), gfpl, {})


@pytest.mark.parametrize(("rule", "clients"), [("multi_krum", 4), ("trimmed", 2)])
def test_more_attackers_than_the_rule_survives(rule, clients):
    with pytest.raises(ConfigError, match=rf"robust.rule={rule} with 1 attackers? needs"):
        guard(rule=rule, clients=clients).check(clients)
