"""Attacks on sums of fixed features: what is there is found, and noise on one release hides it."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch
import torch.nn.functional as F
from attacking import audited

from protofed.experiments.assemble import assemble
from protofed.samples import ClientData, FederatedData, Samples
from protofed_lab.audit import pictures
from protofed_lab.audit.attacks import SERVER
from protofed_lab.audit.findings import Finding
from protofed_lab.audit.seen import observe
from protofed_lab.audit.sums import sums
from support import experiment, few

K, D, N = 4, 64, 31  # a factor is sent of D/2 samples at most
FIXED = {"model__name": "identity", "model__options": {}, "encoder__name": "identity", "encoder__unit": True}
FIXED |= {"rounds": 1, "robust__rule": "none", "privacy__accountant": "rdp"}
PRIVATE = {"privacy__mode": "sample", "privacy__epsilon": 1.0}


def few_samples(number: int = 4) -> FederatedData:
    """Return clients with fewer samples than features, and a class of one sample each."""
    g, clients = torch.Generator().manual_seed(0), []
    y = torch.cat([torch.tensor([0]), 1 + torch.arange(N - 1) % (K - 1)])
    for i in range(number):
        own, others = (Samples(F.normalize(torch.randn(N, D, generator=g), dim=1), y) for _ in range(2))
        clients.append(ClientData(f"c{i}", own, others, None, {}))
    return FederatedData(tuple(clients), K, tuple("abcd"), (D,))


def findings(method: str = "fedlda", number: int = 4, **chosen: object) -> dict[str, Finding]:
    federation, data = assemble(experiment(method, **FIXED, **chosen), few_samples(number))
    with closing(federation.executor):
        list(federation.run())
        return {f.key: f for f in sums(observe(federation, data))}


@few(("method", "options"), [("fedlda", {}), ("fedlda", {"wire__codec": "float16"}), ("fed3r", {})], 1)
def test_the_span_and_the_features_of_single_samples_are_found(method, options):
    found = findings(method, **options)
    assert found["sums_span"].value == pytest.approx(1, abs=1e-3)
    assert found["sums_span"].learned
    assert found["sums_read"].value == pytest.approx(1 / K)  # the class of one sample of each client
    assert "at 4 of 4 clients" in found["sums_read"].note


def test_means_alone_have_no_span():
    found = findings("fedncm")
    assert found.keys() == {"sums_read"}
    assert found["sums_read"].learned


@pytest.mark.slow
@few("secure", [False, True], 1)
def test_one_noisy_release_hides_them(secure):
    found = findings(number=12, secure__aggregation=secure, **PRIVATE)
    assert found["sums_span"].value == pytest.approx(0.5, abs=0.08)
    assert found["sums_read"].value == 0


@pytest.mark.slow
def test_sums_of_clients_have_no_single_samples_and_a_wider_span():
    found = findings(number=12, secure__aggregation=True)
    assert found["sums_read"].value == 0
    assert 0.5 < found["sums_span"].value < 0.95


def test_an_audit_asks_closed_forms(monkeypatch):
    monkeypatch.setattr(pictures, "STEPS", 1)
    found = audited(experiment("fedlda", **FIXED), few_samples())
    assert {place for place in found if place[0].startswith("sums")} == {
        ("sums_read", SERVER),
        ("sums_span", SERVER),
    }


def test_other_methods_send_no_such_sums():
    federation, data = assemble(experiment("fedproto", rounds=1, robust__rule="none"), few_samples())
    with closing(federation.executor):
        assert sums(observe(federation, data)) == []
