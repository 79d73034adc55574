"""Classes with few samples are not reported, whatever a method sends of them."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch

import support
from protofed.config.schema import every_method
from protofed.experiments.assemble import assemble
from protofed.methods.contract import sends
from protofed.stages.robust.vectors import parts_of
from protofed.stages.secure.stage import SecureSum
from protofed.visits.rare import notes
from support import few

HELD = {"ann": [0] * 2 + [1] * 20, "bob": [1] * 3 + [2] * 20, "cid": [0] * 20 + [3] * 20}


def uploads(method: str, least: int, **options) -> tuple[object, dict[str, dict[str, torch.Tensor]], list[str]]:
    """Return the method, and each client's upload of the second round that sends."""
    data = support.federated(*(support.client(n, labels, labels) for n, labels in HELD.items()))
    experiment = support.experiment(method, privacy__least_samples=least, rounds=12, **options)
    federation, _ = assemble(experiment, data)
    with closing(federation.executor):
        told = notes(federation.method, [m.plan.least_samples for m in federation.executor.clients.values()])
        rounds = [r for r in range(1, 12) if sends(federation.method, r)] if federation.method.upload_schema else []
        found = federation.exchange(federation.names, rounds[0]) if rounds else []
        if found and support.stage(federation, SecureSum) is None:  # the server can go on from them
            federation.method.aggregate(federation.server, iter(found), rounds[0])
        return federation.method, {u.client: u.payload for u in found}, told


@pytest.mark.parametrize("method", every_method())
@few("least", [5, 100], 1)
def test_no_method_reports_a_rare_class(method, least):
    made, found, told = uploads(method, least)
    schema = made.upload_schema
    if schema is None:
        assert told == []
        return
    reporting = False
    for name, payload in found.items():
        counts = torch.bincount(torch.tensor(HELD[name]), minlength=4)
        rare = counts < least
        for part in parts_of(schema):
            if part.layout == "rows":
                reporting = True
                assert not bool(rare[payload[part.labels]].any())
                assert len(payload[part.name]) == len(payload[part.labels])
            elif part.layout == "table":
                reporting = True
                assert not bool(payload[part.name][rare].any())
                assert least > 20 or bool(payload[part.name][~rare].any())
            elif part.field.by_class:
                reporting = True
                assert torch.equal(payload[part.name][rare], made.first_anchors()[rare])
        if "counts" in payload and payload["counts"].shape == (4,):
            reporting = True
            assert not bool(payload["counts"][rare].any())
    assert ("has no effect" in told[0]) is not reporting


def test_secure_sums_leave_rare_classes_out_too():
    _, found, _ = uploads("fedproto", 5, secure__aggregation=True)
    assert 0 not in found["ann"]["classes"]


def test_by_default_a_simulation_reports_all():
    _, found, told = uploads("fedproto", 0)
    assert found["ann"]["classes"].tolist() == [0, 1]
    assert told == []
