"""TinyProto's own file: what goes up, how the server reduces it, and what its base is left to do."""

from __future__ import annotations

import itertools

import pytest
import torch

from protofed.errors import ConfigError
from protofed.methods.contract import Upload
from support import K, build, few, one_line, uploads, visited

D = 5


@few(
    ("base", "options"),
    [
        ("fedproto", {}),
        ("fedproto", {"aggregation": "weighted"}),
        ("fedproto", {"aggregation": "paper", "prototypes": "during"}),
        ("fedtgp", {"prototypes": "during"}),
        ("protonorm", {"patience": 2}),
    ],
    1,
)
def test_tinyproto_without_its_two_parts_is_its_base(base, options):
    bare = {"method__cps": False, "method__scaling": False, "method__base_options": options}
    wrapped = build("tinyproto", method__base=base, rounds=3, **bare)
    alone = build(base, rounds=3, **{f"method__{name}": value for name, value in options.items()})
    for a, b in zip(wrapped.run(), alone.run(), strict=True):
        assert a.accuracy == b.accuracy
        assert a.losses == b.losses
        assert a.bytes == b.bytes


@few("cps", [True, False], 1)
@few(
    ("scaling", "reduction"), [(True, None), (True, "sum"), (True, "mean"), (True, "compensated"), (False, None)], 2
)
def test_tinyproto_server_by_loops(cps, scaling, reduction):
    """``C_j = μ·Σ n_ij ĉ_ij``, its mean over clients (Eq. 10), or the plain mean (Eq. 9), within the masks."""
    federation = build(
        "tinyproto",
        method__cps=cps,
        method__scaling=scaling,
        method__reduction=reduction,
        method__s=2,
        method__rho=0.5,
        rounds=1,
    )
    method = federation.method
    received = uploads(federation)
    state, diagnostics = method.aggregate(federation.server, iter(received), 1)
    mu = 0.5 / method.task.class_size if scaling else 1.0
    assert method.task.class_size == sum([9, 7, 11]) / K
    lengths = []
    for j in range(K):
        own = []
        for name, c in visited(federation).items():
            if c.state["present"][j]:
                n = int(c.train.counts(K)[j]) if scaling else 1
                mask = method.masks[j] if cps else torch.ones(D, dtype=torch.bool)
                own.append(n * c.state["prototypes"][j].double() * mask)
                lengths.append(float((mu * own[-1]).norm()))
                assert len(received[federation.names.index(name)].payload["prototypes"][0]) == (2 if cps else D)
        total = sum(own)
        if not scaling or reduction == "mean":
            total = total / len(own)
        torch.testing.assert_close(state["prototypes"][j].double(), mu * total, rtol=1e-5, atol=1e-6)
    # The lengths of the clients' prototypes, however these are reduced.
    assert diagnostics["local_norm_mean"] == pytest.approx(sum(lengths) / len(lengths), rel=1e-5)


def test_compensated_sums_do_not_shrink_with_participation():
    """``C_j = μ·(|𝒩_j| / |𝒩_j present|)·Σ_present n_ij ĉ_ij``, with those known so far to hold class j."""
    held = {"ann": [0, 1, 2], "bob": [1, 2], "cid": [1, 3]}
    g = torch.Generator().manual_seed(0)
    rows = {name: torch.randn(len(classes), D, generator=g) for name, classes in held.items()}
    plain, method = (
        build("tinyproto", method__cps=False, method__mu=0.25, method__reduction=r).method
        for r in ("sum", "compensated")
    )
    state, known = method.server_state(), set()
    for round_number, present in enumerate((["ann"], ["bob", "cid"], ["ann", "bob", "cid"], ["cid"]), start=1):
        sent = [Upload(n, {"classes": torch.tensor(held[n]), "prototypes": rows[n]}) for n in present]
        before = state
        state = method.aggregate(state, iter(sent), round_number).state
        known |= set(present)
        for j in range(K):
            here = [rows[n][held[n].index(j)] for n in present if j in held[n]]
            if here:
                holders = sum(j in held[n] for n in known)
                expected = 0.25 * holders / len(here) * sum(here)
                torch.testing.assert_close(state["prototypes"][j], expected)
            else:
                assert torch.equal(state["prototypes"][j], before["prototypes"][j])
        if len(present) == len(held):
            total = plain.aggregate(plain.server_state(), iter(sent), 1).state
            assert torch.equal(state["prototypes"], total["prototypes"])


@pytest.mark.parametrize("present", [1, 2, 3])
def test_over_all_draws_of_clients_compensated_sums_average_to_the_full_sum(present):
    """Where ``sum`` shrinks to the share of those present whatever their counts are."""
    held = {"ann": [0, 1, 2], "bob": [1, 2], "cid": [1, 2, 3], "dan": [0, 2]}
    g = torch.Generator().manual_seed(1)
    rows = {n: 10 * torch.rand(1, generator=g) * torch.rand(len(c), D, generator=g) for n, c in held.items()}
    sent = [Upload(n, {"classes": torch.tensor(held[n]), "prototypes": rows[n]}) for n in held]
    for reduction in ("sum", "compensated"):
        method = build("tinyproto", method__cps=False, method__mu=1.0, method__reduction=reduction).method
        full = method.aggregate(method.server_state(), iter(sent), 1).state
        for j in range(K):
            drawn = [
                method.aggregate(full, iter(some), 2).state["prototypes"][j]
                for some in itertools.combinations(sent, present)
                if any(j in held[upload.client] for upload in some)
            ]
            average = torch.stack(drawn).mean(0)
            if reduction == "compensated":
                torch.testing.assert_close(average, full["prototypes"][j])
            elif sum(j in classes for classes in held.values()) > present:
                assert bool((average < 0.95 * full["prototypes"][j]).all())


@pytest.mark.parametrize(
    ("options", "enough"),
    [
        ({}, True),
        ({"base": "protonorm"}, True),
        ({"base": "fedtgp"}, False),  # it trains on every single upload
        ({"reduction": "compensated"}, False),  # the server has to know who holds a class
        ({"base": "protonorm", "reduction": "compensated"}, False),
        ({"base_options": {"classes": "own"}}, False),
    ],
)
def test_tinyproto_says_whether_sums_are_enough(options, enough):
    method = build("tinyproto", **{f"method__{name}": value for name, value in options.items()}).method
    assert (method.declared.aggregation == "sums") is enough


def test_where_sums_are_enough_the_sum_of_all_uploads_gives_the_same():
    """What secure aggregation would hand to the server: one upload, and the number of reporters is not needed."""
    for base in ("fedproto", "protonorm"):
        federation = build("tinyproto", method__base=base, method__s=2)
        method, received = federation.method, uploads(federation)
        expected = method.aggregate(federation.server, iter(received), 1).state
        total = torch.zeros(K, 2)
        for upload in received:
            total[upload.payload["classes"]] += upload.payload["prototypes"]
        one = Upload("all", {"classes": torch.arange(K), "prototypes": total})
        found = method.aggregate(federation.server, iter([one]), 1).state
        torch.testing.assert_close(found["prototypes"], expected["prototypes"])


def test_alignment_before_masking_keeps_length_and_masks():
    """Targets are γ long and lie in the coordinates sent; masked afterwards, they are shorter."""
    lengths = {}
    for masking in ("after", "before"):
        federation = build(
            "tinyproto", method__base="protonorm", method__s=3, method__gamma=4.0, method__masking=masking, rounds=2
        )
        list(federation.run())
        method = federation.method
        table = next(iter(visited(federation).values())).received["prototypes"]
        assert not bool(table[~method.masks].any())
        lengths[masking] = table.norm(dim=1)
    torch.testing.assert_close(lengths["before"], torch.full((K,), 4.0))
    assert bool((lengths["after"] < 3.99).all())


def test_tinyproto_passes_options_to_its_base():
    federation = build(
        "tinyproto", method__base="protonorm", method__gamma=3.0, method__base_options={"patience": 20}
    )
    assert federation.method.base.options.gamma == 3.0
    assert federation.method.base.options.patience == 20
    assert build("tinyproto", method__base="fedtgp").method.base.options.lambda_ == 10.0
    for base, options in {
        "fedproto": {"distance": "l1", "classes": "own"},
        "fedtgp": {"server_epochs": 3, "margin_cap": 2.0},
        "protonorm": {"regulariser": "prototypes", "alignment": False},
    }.items():
        dotted = {f"method__base_options__{name}": value for name, value in options.items()}  # as on a command line
        method = build("tinyproto", method__base=base, **dotted).method
        assert {name: getattr(method.base.options, name) for name in options} == options
        assert method.declared.personal is (options.get("classes") == "own")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scaling": False, "reduction": "sum"}, r"set method\.scaling=true"),
        ({"base": "fedtgp", "reduction": "mean"}, r"nothing is reduced: leave out method\.reduction"),
        ({"masking": "before"}, "needs base=protonorm and cps=true"),
        ({"base": "protonorm", "cps": False, "masking": "before"}, "needs base=protonorm and cps=true"),
        ({"gamma": 2.0, "base_options": {"gamma": 3.0}}, r"method\.gamma and method\.base_options\.gamma are one"),
        ({"base_options": {"lambda": -1.0}}, r"method\.base_options\.lambda must be at least 0"),
        ({"base_options": {"base": "fedproto"}}, "unknown option of method.base_options 'base'"),
    ],
)
def test_options_without_effect_are_refused(options, message):
    with one_line(ConfigError, message):
        build("tinyproto", **{f"method__{name}": value for name, value in options.items()})
