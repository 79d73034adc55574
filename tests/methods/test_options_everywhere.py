"""Options of the prototype methods give the same numbers in every executor and on nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from protofed.visits.executor import Fused
from support import assert_alike, build, degenerate, federated, few, held_out, ordinary, outcome

GFPL = {"start": 2, "interval": 1}
OWN = {"participation__fraction": 0.67}  # of three clients, two take part in a round
VARIANTS = {
    "gfpl batch": ("gfpl", GFPL),
    "gfpl batch heads": (
        "gfpl",
        {**GFPL, "retrain_parts": "heads", "projection_dim": 7, "cross_entropy": 0.5, "distance": "mean"},
    ),
    "gfpl batch, no head": ("gfpl", {**GFPL, "cross_entropy": 0.0}),
    "gfpl batch, no projection": ("gfpl", {**GFPL, "dcs": False}),
    "fedproto Eq. 8": ("fedproto", {"regulariser": "prototypes", "distance": "euclidean", "classes": "own"}),
    "fedproto L1": ("fedproto", {"distance": "l1"}),
    "fedtgp own": ("fedtgp", {"classes": "own", "distance": "l1"}),
    "protonorm own": ("protonorm", {"classes": "own", "regulariser": "prototypes"}),
    "tinyproto compensated": ("tinyproto", {"reduction": "compensated", "base_options": {"classes": "own"}}),
    "tinyproto masking": ("tinyproto", {"base": "protonorm", "masking": "before", "s": 3}),
    "beacon validation": ("beacon", {"fusion": "validation", "hidden": 3}),
    "beacon alone": ("beacon", {"exchange": False, "expert": "etf"}),
    "local balanced": ("local", {"softmax": "balanced"}),
    "fedproto balanced": ("fedproto", {"softmax": "balanced"}),
    "gfpl balanced": ("gfpl", {**GFPL, "softmax": "balanced"}),
    "fixed_etf balanced": ("fixed_etf", {"softmax": "balanced", "gamma": 3.0}),
    "fedmrl balanced": ("fedmrl", {"softmax": "balanced", "auxiliary_d": 3}),
    "fedl2g features": ("fedl2g", {"guides": "features", "warm_up": 1, "study": 4, "quiz": 3}),
    "fedorgp own": ("fedorgp", {"classes": "own", "regulariser": "prototypes"}),
    "fedpft diag": ("fedpft", {"covariance": "diag", "components": 2}),
    "fedproc after": ("fedproc", {"prototypes": "after"}),
}


def validated(data):
    """Return the federation with validation samples at its first client."""
    first, *others = data.clients
    return federated(held_out(first, [0, 1, 2, 1]), *others)


def chosen(variant, **overrides):
    method, options = VARIANTS[variant]
    # Prototypes of length 100 in five dimensions make training chaotic: no two ways of adding stay together.
    gentle = {"gamma": 3.0} if "protonorm" in (method, options.get("base")) else {}
    return method, {f"method__{n}": v for n, v in {**gentle, **options}.items()} | OWN | {"rounds": 4} | overrides


def run(variant, executor, data=None, **overrides):
    method, options = chosen(variant, **overrides)
    return outcome(build(method, data or validated(ordinary()), execution__executor=executor, **options))


@few("variant", VARIANTS, 1)
def test_fused(variant):
    exact = {"execution__precision": "fp64", "wire__codec": "float64"}
    expected, found = run(variant, "sequential", **exact), run(variant, "fused", **exact)
    assert isinstance(found[0].executor, Fused)
    assert not found[0].executor.refused
    for _, _, tensors in (expected, found):
        in_order(tensors)
    assert_alike(expected, found, exact=False)


def in_order(tensors):
    """Sort mixtures by their means: rounding decides the order of components of equal weights."""
    if "server.means" in tensors:
        keys = torch.cat([tensors["server.classes"].unsqueeze(1), tensors["server.means"].round(decimals=6)], 1)
        order = sorted(range(len(keys)), key=lambda i: keys[i].tolist())
        tensors |= {name: rows[order] for name, rows in tensors.items() if name.startswith("server.")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant", ["gfpl batch", "fedproto Eq. 8", "tinyproto compensated", "tinyproto masking", "beacon validation"]
)
def test_workers(variant):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        expected = run(variant, "sequential", execution__threads=1)
        found = run(variant, "workers", execution__threads=1, execution__workers=2)
    finally:
        torch.set_num_threads(threads)
    assert_alike(expected, found, exact=True)


@few("variant", VARIANTS, 1)
def test_degenerate_clients(variant):
    """One class, one sample, no training data, no test data."""
    federation, records, tensors = run(variant, "sequential", validated(degenerate()), participation__fraction=1.0)
    assert not any(record["refused"] for record in records)
    assert all(
        t.isfinite().all() for t in [*tensors.values(), *federation.server.values()] if t.is_floating_point()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant", ["gfpl batch heads", "protonorm own", "tinyproto compensated", "beacon validation", "beacon alone"]
)
def test_nodes(variant, tmp_path: Path):
    pytest.importorskip("protofed_flower", reason="needs protofed-flower")
    from network import FakeGrid, forget, locally, nodes_of, over, wanted, write_folders

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    forget()
    try:
        root = write_folders(tmp_path / "data", validated(ordinary()))
        method, options = chosen(variant)
        experiment = wanted(method, root, execution__executor="sequential", **options)
        local = locally(experiment, tmp_path / "local")
        remote = over(FakeGrid(nodes_of(root, tmp_path / "state")), experiment, tmp_path / "remote")
    finally:
        torch.set_num_threads(threads)
    told = ("accuracy", "losses", "bytes", "participants")
    assert [[getattr(r, k) for k in told] for r in remote.rounds] == [
        [getattr(r, k) for k in told] for r in local.rounds
    ]
    states = [tmp_path / side / "server.safetensors" for side in ("local", "remote")]
    assert [path.exists() for path in states] == [bool(local.rounds[0].bytes["up"])] * 2
    assert len({path.read_bytes() for path in states if path.exists()}) <= 1
