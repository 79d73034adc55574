"""Sums of closed forms from a hostile client: those that no samples have, and those out of all proportion."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from protofed.methods import Method, Task, Upload, get
from protofed.methods.parts.moments import ROUNDED, Sums
from protofed.rounds.stage import Opened
from protofed.runs.findings import Findings
from protofed.runs.records import RoundRecord
from protofed.samples import ClientData, FederatedData, Samples
from protofed.stages.robust import Guard
from protofed.stages.robust.clipping import clip
from protofed.stages.robust.options import RobustOptions
from protofed.stages.robust.vectors import parts_of
from support import build, few

K, D = 3, 6


def drawn(n: int, seed: int, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % K
    return 3 * torch.eye(K, D)[y] + scale * torch.randn(n, D, generator=g), y


@given(st.integers(1, 40), st.integers(0, 99), st.sampled_from([0.0, 1e-3, 1.0, 1e3]))
def test_sums_of_samples_pass_unchanged_even_rounded(n, seed, scale):
    x, y = drawn(n, seed, scale)
    exact = Sums.of(x, y, K, second=True)
    assert exact.possible(ROUNDED) is exact
    rounded = Sums(
        exact.counts, exact.means.rows.float().double() * exact.counts[:, None], exact.moment.float().double()
    )
    assert rounded.possible(ROUNDED) is rounded


@given(st.integers(0, 99), st.sampled_from([-100.0, -1.0, 0.0, 1e9]), st.sampled_from([-1.0, 1.0, 30.0]))
def test_what_is_left_of_a_lie_is_possible(seed, moment, means):
    x, y = drawn(30, seed)
    honest = Sums.of(x, y, K, second=True)
    lie = Sums(honest.counts, means * honest.sums.roll(1, 0), moment * honest.moment)
    left = lie.possible(ROUNDED)
    assert left.possible(ROUNDED) is left
    assert torch.equal(left.sums, lie.sums)
    least = torch.linalg.eigvalsh(honest.plus(left).scatter).amin()
    assert least >= -1e-6 * float(left.moment.diagonal().sum())


def twenty() -> FederatedData:
    clients = []
    for i in range(20):
        own, other = (Samples(*drawn(30, 100 * part + i)) for part in (0, 1))
        clients.append(ClientData(f"c{i:02}", own, other, None, {}))
    return FederatedData(tuple(clients), K, tuple("abc"), (D,))


def accuracy(method: str, **chosen: object) -> float:
    model = {"model__name": "identity", "model__options": {}, "rounds": 1, "evaluation__on": "union"}
    model["robust__rule"] = "clip"
    (record,) = build(method, twenty(), **{**model, **chosen}).run()
    return record.union.weighted["global_model"]


@few("kind", ["sign_flip", "huge", "swapped_labels", "counts", "random"], 1)
@few("method", ["fedlda", "fed3r", "fedncm"], 1)
def test_one_of_twenty_does_little(method, kind):
    attack = {"attack__kind": kind, "attack__clients": ("c07",)}
    assert accuracy(method, **attack) > accuracy(method) - 0.06


def test_it_would_do_much_without_the_bounds():
    flipped = {"attack__kind": "sign_flip", "attack__clients": ("c07",)}
    assert accuracy("fedlda", **flipped, robust__rule="none") < 0.5
    large = {**flipped, "attack__samples": 10**5}
    assert accuracy("fedlda", **large) > accuracy("fedlda") - 0.06
    assert accuracy("fedlda", **large, robust__rule="none") < 0.5


@few("method", ["fedlda", "fed3r", "fedncm"], 1)
def test_clip_changes_nothing_of_honest_clients(method):
    found = [
        build(method, twenty(), model__name="identity", model__options={}, rounds=1, robust__rule=r)
        for r in ("clip", "none")
    ]
    for federation in found:
        list(federation.run())
    assert torch.equal(*(federation.server["weights"] for federation in found))


def clipped(moments: dict[str, torch.Tensor], reference: torch.Tensor | None = None):
    """Return clients' moments after ``clip``, and what it found."""
    schema = get("fedlda")(get("fedlda").Options(), Task(K, D, 1, 0, 10.0)).upload_schema
    (part,) = (part for part in parts_of(schema) if part.name == "moment")
    given = None if reference is None else {"moment": reference}
    uploads = [Upload(name, {"moment": moment}) for name, moment in moments.items()]
    findings = Findings()
    out = clip(iter(uploads), [part], {}, given, RobustOptions(rule="clip"), findings)
    return {u.client: u.payload["moment"] for u in out}, findings


def test_the_broadcast_is_no_origin_of_moments():
    """A small site's differ from the pooled one, which large sites equal, and are no longer than theirs."""
    size = D * (D + 1) // 2
    moments = {f"c{i}": torch.full((size,), 1 + 1e-3 * i) for i in range(5)} | {"small": -torch.ones(size)}
    found, findings = clipped(moments, torch.ones(size))
    assert torch.equal(found["small"], moments["small"])
    assert findings == Findings()


def test_clients_that_leave_a_tensor_empty_lift_no_limit():
    """As where clients have unlike encoders, or a message has two forms: the median is that of the others."""
    size = D * (D + 1) // 2
    none = {f"n{i}": torch.zeros(0) for i in range(8)}
    moments = {f"c{i}": torch.ones(size) for i in range(3)} | {"bad": torch.full((size,), 1e9)}
    found, findings = clipped(none | moments)
    assert float(found["bad"].max()) < 7
    assert all(len(found[name]) == 0 for name in none)
    assert [entry["client"] for entry in findings.to_dict()["clipped"]] == ["bad"]


def uneven(seed: int, small: int = 1) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return samples of honest clients of 1 to 60 samples, of the same classes."""
    return [drawn(n, 10 * seed + i) for i, n in enumerate([small, 2, 3, 5, 9, 12, 20, 30, 60])]


def received(
    samples: list[tuple[torch.Tensor, torch.Tensor]], method: str = "fedlda"
) -> tuple[Method, list[Upload]]:
    kind = get(method)
    made = kind(kind.Options(), Task(K, D, 1, 0, 10.0))
    uploads = []
    for i, (x, y) in enumerate(samples):
        sums = Sums.of(x, y, K, second=made.second)
        rows, classes = sums.means.to_send()
        payload = {"classes": classes, "means": rows.float(), "counts": sums.counts[classes].long()}
        payload |= made.pack_moment(sums) if made.second else {}
        uploads.append(Upload(f"c{i}", {n: t.float() if t.is_floating_point() else t for n, t in payload.items()}))
    return made, uploads


def clipped_sums(method: Method, uploads: list[Upload]) -> tuple[dict[str, Upload], Findings]:
    counts = {u.client: torch.zeros(K, dtype=torch.int64) for u in uploads}
    for upload in uploads:
        counts[upload.client][upload.payload["classes"]] = upload.payload["counts"]
    guard, record = Guard(RobustOptions(rule="clip", weight=0), method, counts), RoundRecord(1, list(counts))
    out = {u.client: u for u in guard(iter(uploads), Opened(1, {}, None), record)}
    return out, record.robust


@few("method", ["fedlda", "fed3r", "fedncm"], 1)
@few("seed", range(6), 3)
def test_small_honest_clients_are_not_shortened(method, seed):
    made, uploads = received(uneven(seed), method)
    found, findings = clipped_sums(made, uploads)
    assert not findings.clipped
    assert all(found[u.client] is u for u in uploads)


def test_a_scatter_is_bounded_where_it_is_wide_alone():
    made, uploads = received(uneven(0))
    payload = dict(uploads[-1].payload)
    own = made.part(payload)
    wide = torch.zeros(D, D, dtype=torch.float64)
    wide[0, 0] = 1000 * float(own.counts.sum())
    payload = made.repack(payload, Sums(own.counts, own.sums, own.moment + wide))
    found, findings = clipped_sums(made, [*uploads[:-1], Upload("c8", payload)])
    assert set(findings.clipped) == {"c8"}
    left = made.part(found["c8"].payload).scatter
    assert left[0, 0] < 20 * own.scatter[0, 0]
    torch.testing.assert_close(left[1:, 1:], own.scatter[1:, 1:], rtol=0.05, atol=3.0)
    torch.testing.assert_close(found["c8"].payload["means"], uploads[-1].payload["means"])


def test_two_clients_are_not_compared():
    made, uploads = received(uneven(1)[-2:])
    found, findings = clipped_sums(made, uploads)
    assert all(found[u.client] is u for u in uploads)
    assert findings == Findings()


DEGENERATE = {
    "all features are zero": [(torch.zeros(9, D), torch.arange(9) % K) for _ in range(4)],
    "one class": [
        (torch.randn(n, D, generator=torch.Generator().manual_seed(n)), torch.zeros(n).long())
        for n in (1, 3, 9, 30)
    ],
    "one sample each": [(torch.eye(K, D)[i % K : i % K + 1], torch.tensor([i % K])) for i in range(7)],
    "nobody shares a class": [(torch.eye(K, D)[i : i + 1].repeat(4, 1), torch.full((4,), i)) for i in range(K)],
    "huge": [(1e6 * torch.randn(9, D), torch.arange(9) % K) for _ in range(4)],
}


@few("case", DEGENERATE, 2)
@few("method", ["fedlda", "fedncm"], 1)
def test_degenerate_sums_stay_finite(case, method):
    made, uploads = received(DEGENERATE[case], method)
    found, _ = clipped_sums(made, uploads)
    assert found.keys() == {u.client for u in uploads}
    for upload in found.values():
        assert all(tensor.isfinite().all() for tensor in upload.payload.values())
