"""One record changes what is summed by no more than the accountant counts, for every method that may be protected.

Neighbours are as in :mod:`protofed.stages.privacy.accounting`: a record is there, or contributes zero to every sum.
"""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch

pytest.importorskip("dp_accounting", reason="uv pip install '.[privacy]'")

from protofed import methods
from protofed.errors import ConfigError
from protofed.methods.contract import Batch, Upload
from protofed.rounds.loop import Federation
from protofed.runs.records import RoundRecord
from protofed.samples import Samples
from protofed.stages.privacy import ClientPrivacy
from protofed.visits.private import Noise, Private, private_counts, private_statistics, sum_clipped
from support import build, federated, few, stage, uploads
from support import client as client_of

CLIP = 0.3
OPTIONS = {"tinyproto": {"method__mu": 0.2}}


def made(method: str, mode: str, noise: float = 0.0) -> Federation:
    chosen = {"privacy__mode": mode, "privacy__noise": noise, "privacy__clip": CLIP, "rounds": 2}
    data = federated(*(client_of(name, [0, 1, 2, 3] * 5) for name in ("ann", "bob", "cid")))
    return build(method, data, execution__executor="sequential", **chosen, **OPTIONS.get(method, {}))


@cache
def protected(mode: str) -> tuple[str, ...]:
    """Return the methods that are not refused, and that send anything."""
    found = []
    for name in methods.methods():
        try:
            if made(name, mode).method.upload_schema is not None:
                found.append(name)
        except ConfigError:
            continue
    return tuple(found)


def opened(method: str):
    """Return a federation, one of its clients as its method sees it in the first round, and its samples."""
    federation = made(method, "sample")
    trainer, roster = federation.executor.trainer, federation.executor.clients
    local = trainer.open(roster, "ann", 1)
    trainer.receive(local, federation.open(["ann"], 1).messages["ann"])
    torch.manual_seed(1)
    x = roster["ann"].train.x
    # Wild and dull samples, one that is not finite, and one of zeros.
    x = x * torch.logspace(-3, 4, len(x))[:, None]
    x[3], x[4] = torch.nan, 0.0
    return federation, local, Samples(x, roster["ann"].train.y)


def test_the_registry_has_methods_to_protect():
    assert {"fedavg", "fedproto", "beacon", "protonorm"} <= set(protected("sample"))
    assert {"fedavg", "fedproto", "beacon", "protonorm"} <= set(protected("client"))


@few("step", [0.0, 2.0**-20], 1)
@few("method", protected("sample"), 5)
def test_one_sample_changes_a_sum_of_gradients_by_the_norm_at_most(method, step):
    federation, local, data = opened(method)
    updates = [u for phase in federation.method.round(1).phases if not phase.local_only for u in phase.updates]
    assert updates
    for update in updates:
        chosen = {n: p for n, p in local.model.named_parameters() if update.trainable(n)}

        def total(rows: list[int], update=update, chosen=chosen) -> torch.Tensor:
            batch = Batch(data.x[rows], data.y[rows])
            sums, _ = sum_clipped(local.model, update, chosen, batch, local, CLIP, step)
            return torch.cat([sums[n].detach().flatten() for n in sorted(sums)])

        everything = list(range(len(data)))
        whole = total(everything)
        assert bool(whole.isfinite().all())
        longest = 0.0
        for row in everything:
            rest = total([other for other in everything if other != row])
            if step:
                alone = total([row])
                assert all(torch.equal((t / step).round() * step, t) for t in (whole, rest, alone))
                assert float(alone.norm()) <= CLIP
                # The last bits of a float32 gradient depend on how many are computed together.
                assert float((whole - rest - alone).norm()) < 1e-4 * CLIP
            longest = max(longest, float((whole - rest).double().norm()))
        assert 0.5 * CLIP < longest <= CLIP * (1 + 1e-4)


@pytest.mark.parametrize("secret", [False, True])
@pytest.mark.parametrize("method", protected("sample"))
def test_one_sample_changes_all_statistics_together_by_what_is_counted(method, secret, monkeypatch):
    """Divided by their bounds, by √T: the noise of each is the multiplier times √T times its bound."""
    federation, local, data = opened(method)
    statistics = federation.method.statistics
    if statistics is None or statistics.when != "after" or federation.method.upload_schema is None:
        return
    spreads = {}

    def told(self, total, deviation):
        spreads[tuple(total.shape)] = deviation
        return total

    monkeypatch.setattr(Noise, "add", told)
    finite = Samples(data.x.nan_to_num(0.0), data.y)
    private = Private(CLIP, 1.0, 0.7, 1e-9, secret=secret)

    def all_of(rows: list[int]) -> dict[str, torch.Tensor]:
        part = Samples(finite.x[rows], finite.y[rows])
        return private_statistics(local.model, federation.method, local, part, private)

    everything = list(range(len(finite)))
    whole = all_of(everything)
    if not whole:
        return
    for row in everything:
        rest = all_of([other for other in everything if other != row])
        parts = [float((whole[n] - rest[n]).double().norm()) / (0.7 if whole[n].dim() > 1 else 1.0) for n in whole]
        assert math.hypot(*parts) <= math.sqrt(len(whole)) * (1 + 1e-4)
        assert max(parts) <= 1 + 1e-4
    for shape, deviation in spreads.items():
        bound = 0.7 if len(shape) > 1 else 1.0
        assert deviation == pytest.approx(1e-9 * math.sqrt(len(whole)) * bound)


def test_one_sample_changes_the_numbers_of_samples_by_one(monkeypatch):
    drawn = [
        private_counts(torch.tensor(counts), Private(1.0, 1.0, 1.0, 0.0), torch.Generator())
        for counts in ([5, 3, 0], [5, 2, 0])
    ]
    assert float((drawn[0] - drawn[1]).double().norm()) == 1


@few("grid", [False, True], 1)
@pytest.mark.parametrize("method", protected("client"))
def test_one_client_changes_a_sum_of_contributions_by_the_norm_at_most(method, grid, monkeypatch):
    federation = made(method, "client", 1.0)
    hiding, totals = stage(federation, ClientPrivacy), []

    class Silent(Noise):
        def add(self, total, deviation):
            return total

    def keep(total, *_):
        totals.append(total.clone())

    monkeypatch.setattr(hiding, "source", lambda round_number: Silent(None if grid else torch.Generator()))
    monkeypatch.setattr(hiding, "stand_for_all", keep)
    opened, record = federation.open(federation.names, 1), RoundRecord(1, [])
    hiding.account(record)
    schema = federation.method.upload_schema
    sent = uploads(federation)
    random = torch.Generator().manual_seed(2)
    for scale in (1e-3, 1.0, 1e5):
        wild = [
            Upload(
                one.client,
                {
                    n: t * (scale * torch.rand((), generator=random)) if schema.fields[n].kind == "real" else t
                    for n, t in one.payload.items()
                },
            )
            for one in sent
        ]
        totals.clear()
        for left in (None, *range(len(wild))):
            rest = [one for number, one in enumerate(wild) if number != left]
            list(hiding(iter(rest), opened, record))
        whole, *others = totals
        assert whole.dtype == torch.float64
        for rest in others:
            assert float((whole - rest).norm()) <= CLIP * (1 if grid else 1 + 1e-9)
            if grid:
                step = Noise(None).step(CLIP)
                assert torch.equal((whole / step).round() * step, whole)
