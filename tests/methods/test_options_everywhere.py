"""Options of the prototype methods give the same numbers in every executor and on nodes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import torch

from protofed.experiments.assemble import assemble
from protofed.storage.snapshots import flatten
from protofed.visits.executor import Fused
from support import degenerate, experiment, federated, few, held_out, ordinary

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


def outcome(variant, executor, data=None, **overrides):
    method, options = chosen(variant, **overrides)
    federation = assemble(
        experiment(method, execution__executor=executor, **options), data or validated(ordinary())
    )[0]
    with closing(federation.executor):
        records = [{k: v for k, v in r.to_dict().items() if k != "seconds"} for r in federation.run()]
        tensors = {}
        for name in federation.names:
            tensors |= {f"{name}.{n}": t for n, t in flatten(federation.executor.clients.snapshot(name)).items()}
    return federation, records, tensors


@few("variant", VARIANTS, 6)
def test_fused(variant):
    exact = {"execution__precision": "fp64", "wire__codec": "float64"}
    _, records, tensors = outcome(variant, "sequential", **exact)
    federation, others, theirs = outcome(variant, "fused", **exact)
    assert isinstance(federation.executor, Fused)
    assert not federation.executor.refused
    for a, b in zip(records, others, strict=True):
        assert b["accuracy"] == a["accuracy"]
        assert b["parameters"] == a["parameters"]
        assert b["losses"] == pytest.approx(a["losses"], rel=1e-6, abs=1e-9)
    assert tensors.keys() == theirs.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(theirs[name], tensor, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant", ["gfpl batch", "fedproto Eq. 8", "tinyproto compensated", "tinyproto masking", "beacon validation"]
)
def test_workers(variant):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _, records, tensors = outcome(variant, "sequential", execution__threads=1)
        _, others, theirs = outcome(variant, "workers", execution__threads=1, execution__workers=2)
    finally:
        torch.set_num_threads(threads)
    assert records == others
    assert tensors.keys() == theirs.keys()
    for name, tensor in tensors.items():
        assert torch.equal(theirs[name], tensor), name


@few("variant", VARIANTS, 6)
def test_degenerate_clients(variant):
    """One class, one sample, no training data, no test data."""
    federation, records, tensors = outcome(
        variant, "sequential", validated(degenerate()), participation__fraction=1.0
    )
    assert not any(record["refused"] for record in records)
    assert all(
        t.isfinite().all() for t in [*tensors.values(), *federation.server.values()] if t.is_floating_point()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant", ["gfpl batch heads", "protonorm own", "tinyproto compensated", "beacon validation", "beacon alone"]
)
def test_nodes(variant, tmp_path: Path):
    pytest.importorskip("flwr", reason="flwr is not installed: pip install 'protofed[flower]'")
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
