"""FML: against a naive reference, its limit cases, and models it has to refuse."""

from __future__ import annotations

import pytest
import torch

import naive
from naive import build, same_nets, uneven
from protofed.errors import ConfigError, ModelError
from support import K, client, degenerate, federated, few, one_line, visited

ALPHA, BETA, CLIP = 0.3, 0.6, 0.4
MEME = {"method__auxiliary": "mlp", "method__auxiliary_options": {"hidden": [], "relu_features": True}}


def memes(federation, name):
    return naive.net(visited(federation)[name].model.extras["meme"])


def losses(own, meme, batch, scale):
    """``L_l = α·CE_l + (1−α)·KL(p_m‖p_l)`` and ``L_m = β·CE_m + (1−β)·KL(p_l‖p_m)``."""
    zl, zm = ([naive.logits(w, x) for x, _ in batch] for w in (own, meme))
    pl, pm = ([naive.probabilities(z) for z in zs] for zs in (zl, zm))
    ce_l, ce_m = (
        naive.mean([naive.cross_entropy(z, y) for z, (_, y) in zip(zs, batch, strict=True)]) for zs in (zl, zm)
    )
    to_l = naive.mean([naive.divergence(p, q) for p, q in zip(pm, pl, strict=True)])
    to_m = naive.mean([naive.divergence(p, q) for p, q in zip(pl, pm, strict=True)])
    return ALPHA * ce_l + scale * (1 - ALPHA) * to_l, BETA * ce_m + scale * (1 - BETA) * to_m


def local_step(own, meme, batch, htfl):
    """One SGD step of both networks from the same point."""
    scale = 1 / K if htfl else 1.0
    if htfl:  # both networks minimise the sum
        (a, b), _ = naive.step([own, meme], lambda w: sum(losses(*w, batch, scale)))
        return naive.clipped(own, a, CLIP), naive.clipped(meme, b, CLIP)
    (a,), _ = naive.step([own], lambda w: losses(w[0], meme, batch, scale)[0])
    (b,), _ = naive.step([meme], lambda w: losses(own, w[0], batch, scale)[1])
    return a, b


@few("weighting", ["uniform", "samples"], 1)
@few("preset", ["official", "htfl"], 1)
def test_two_rounds(preset, weighting, monkeypatch):
    monkeypatch.setattr("protofed.methods.fml.HTFL_CLIP", CLIP)
    data = uneven()
    federation = build(
        "fml",
        data,
        method__alpha=ALPHA,
        method__beta=BETA,
        method__preset=preset,
        method__weighting=weighting,
        method__auxiliary_d=3,
        **MEME,
    )
    own = {c.name: naive.own_net(federation, c.name) for c in data.clients}
    meme = [t.clone() for t in federation.server.values()]
    assert [tuple(t.shape) for t in meme] == [(3, 6), (3,), (K, 3), (K,)]
    for number, record in enumerate(federation.run(), start=1):
        sent = {}
        for c in data.clients:
            w, m = own[c.name], meme
            for batch in naive.rounds_of(c.train, c.name, number):
                w, m = local_step(w, m, batch, preset == "htfl")
            own[c.name], sent[c.name] = w, m
        meme = naive.averaged(sent, data, weighting)
        same_nets(list(federation.server.values()), meme)
        for c in data.clients:
            same_nets(naive.own_net(federation, c.name), own[c.name])
            same_nets(memes(federation, c.name), meme)
        for rule, nets in (("head", own), ("global_model", dict.fromkeys(own, meme))):
            hits = [
                sum(int(naive.logits(nets[c.name], x.double()).argmax()) == int(y) for x, y in pairs(c.test))
                / len(c.test)
                for c in data.clients
            ]
            assert record.accuracy.clients[rule] == hits


def pairs(samples):
    return list(zip(samples.x, samples.y, strict=True))


def test_what_is_not_detached_trains_both():
    """Without cross-entropy of its own, a network still moves its teacher if nothing is held fixed."""
    for preset, moves in (("official", False), ("htfl", True)):
        federation = build("fml", method__alpha=0.0, method__beta=1.0, method__preset=preset, rounds=1)
        lonely = build("fml", method__alpha=1.0, method__beta=1.0, rounds=1)
        list(federation.run())
        list(lonely.run())
        same = all(
            torch.allclose(a, b) for a, b in zip(federation.server.values(), lonely.server.values(), strict=True)
        )
        assert same is not moves


def test_any_models_and_a_meme_of_ones_choice():
    data = federated(client("ann", [0, 1, 2]), client("bob", [1, 3, 3], d=3), client("cid", [1] * 5, model="mlp"))
    federation = build("fml", data, method__auxiliary="support:WithBatchNorm", method__auxiliary_d=8)
    record = list(federation.run())[-1]
    size = 6 * 8 + 8 + 2 * 8 + 8 * K + K
    assert record.parameters == {"up": 3 * (size + 2 * 8), "down": 3 * (size + 2 * 8)}
    assert f"has {size:,} parameters" in federation.method.notes()[0]
    assert any("running_var" in n for n in federation.server)
    private = build("fml", method__auxiliary="support:WithBatchNorm", method__share_buffers=False)
    assert not any("running" in n for n in private.server)


def test_degenerate_clients():
    federation = build("fml", degenerate(), model__d=2, method__auxiliary="support:WithBatchNorm")
    list(federation.run())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"auxiliary": "cnn2"}, ModelError, "method.auxiliary, the meme of fml: cnn2 takes images"),
        ({"auxiliary": "mpl"}, ConfigError, "the meme of fml: unknown architecture 'mpl': did you mean 'mlp'"),
        ({"auxiliary": "mlp", "auxiliary_options": {"hiden": 3}}, ConfigError, "did you mean 'hidden'"),
    ],
)
def test_bad_options(options, error, message):
    with one_line(error, message):
        build("fml", **{f"method__{n}": v for n, v in options.items()})
