"""FedTSP with frozen text targets: against a naive reference, and names that cannot be embedded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import naive
from naive import build, same_nets, uneven
from protofed.data import text
from protofed.errors import ConfigError
from support import K, federated

pytest.importorskip("wordllama", reason="wordllama is not installed: pip install 'protofed[text]'")
WEIGHT, SCALE = 0.5, 7.0
NAMES = ("cat", "kitten", "lorry", "3")


def named(data, names=NAMES):
    return replace(data, class_names=names)


def cosine(a, b):
    lengths = (a @ a).sqrt() * (b @ b).sqrt()
    return a @ b / lengths if float(lengths.detach()) else (a @ b) * 0


def loss(w, batch, t):
    total = []
    for x, y in batch:
        f = naive.features(w, x)
        contrast = naive.cross_entropy(torch.stack([SCALE * cosine(f, t[c]) for c in range(K)]), y)
        total.append(naive.cross_entropy(naive.head(w, f), y) + WEIGHT * contrast)
    return naive.mean(total)


def test_two_rounds():
    data = named(uneven())
    federation = build("fedtsp", data, method__lambda=WEIGHT, method__scale=SCALE)
    t = federation.method.directions(naive.D)
    own = {c.name: naive.own_net(federation, c.name) for c in data.clients}
    for number, record in enumerate(federation.run(), start=1):
        assert record.bytes == {"up": 0, "down": 0}
        hits = []
        for c in data.clients:
            for batch in naive.rounds_of(c.train, c.name, number):
                (own[c.name],), _ = naive.step([own[c.name]], lambda n, b=batch: loss(n[0], b, t))
            same_nets(naive.own_net(federation, c.name), own[c.name])
            found = [naive.features(own[c.name], x.double()) for x in c.test.x]
            guesses = [max(range(K), key=lambda y, f=f: float(cosine(f, t[y]))) for f in found]
            hits.append(sum(a == b for a, b in zip(guesses, c.test.y.tolist(), strict=True)) / len(c.test))
        assert record.accuracy.clients["global"] == hits


@pytest.mark.parametrize("d", [5, 256, 300])
def test_targets_keep_the_angles_between_names(d):
    """Exactly from 256 numbers on; below that, as a projection does."""
    method = build("fedtsp", named(uneven()), model__d=d).method
    t = method.directions(d)
    texts = torch.nn.functional.normalize(text.embed(NAMES).double(), dim=-1)
    torch.testing.assert_close(t.norm(dim=-1), torch.ones(K, dtype=torch.float64))
    if d >= 256:
        torch.testing.assert_close(t @ t.T, texts @ texts.T)
        assert float(t[0] @ t[1]) > float(t[0] @ t[2])
    assert torch.equal(t, method.directions(d))


def test_names_that_are_alike_or_missing():
    with pytest.raises(ConfigError, match="classes 'cat' and 'cat' have the same embedding: rename one"):
        list(build("fedtsp", named(uneven(), ("cat", "dog", "cat", "3"))).run())
    federation = build("fedtsp", named(uneven()))
    bare = type(federation.method)(federation.method.options, replace(federation.method.task, classes=()))
    with pytest.raises(
        ConfigError, match=r"^fedtsp needs the names of the classes, which these data do not have: give them, e\."
    ):
        bare.directions(5)


def test_the_package_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setattr(text, "find_spec", lambda name: None)
    text._static.cache_clear()
    text._known.clear()
    try:
        with pytest.raises(
            ConfigError, match=r"^text needs the package wordllama: pip install 'protofed\[text\]'$"
        ):
            list(build("fedtsp", federated(*uneven().clients)).run())
    finally:
        monkeypatch.undo()
        text._static.cache_clear()
