"""FedTSP with frozen text targets: against a naive reference, and names that cannot be embedded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import naive
import protofed
from naive import build, cosine, same, same_nets, uneven
from protofed.data import text
from protofed.errors import ConfigError
from protofed.methods import Batch
from protofed.methods.fedtsp import turn
from support import SMALL_RUN, K, federated, visited

pytest.importorskip("wordllama", reason="wordllama is not installed: pip install 'protofed[text]'")
WEIGHT, SCALE = 0.5, 7.0
NAMES = ("cat", "kitten", "lorry", "3")


def named(data, names=NAMES):
    return replace(data, class_names=names)


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


@given(st.integers(0, 2**31), st.integers(1, 8), st.integers(1, 12))
def test_a_turn_keeps_angles_and_a_projection_makes_nothing_longer(seed, e, d):
    rows = torch.randn(5, e, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = rows @ turn(seed, e, d)
    assert found.shape == (5, d)
    if d >= e:
        same(found @ found.T, rows @ rows.T)
    else:
        same(turn(seed, e, d).T @ turn(seed, e, d), torch.eye(d, dtype=torch.float64))
        assert bool((found.norm(dim=-1) <= rows.norm(dim=-1) + 1e-9).all())


@pytest.fixture(scope="module")
def plain():
    """A federation whose features are the samples themselves."""
    return build("fedtsp", named(uneven()), model__name="identity", model__options={}, method__scale=SCALE)


@given(seed=st.integers(0, 2**31), n=st.integers(1, 5), scale=st.sampled_from([0.0, 1e-3, 1e3]))
def test_neither_lengths_nor_the_order_of_classes_matter(plain, seed, n, scale):
    """Gradients of features of length 0 are finite."""
    source, method, c = torch.Generator().manual_seed(seed), plain.method, visited(plain)["ann"]
    x = torch.randn(n, 6, generator=source, dtype=torch.float64)
    y, order = torch.randint(0, K, (n,), generator=source), torch.randperm(K, generator=source)
    t = method.directions(6)

    def contrast(x, y, t):
        return method.loss(c.model, Batch(x, y), {"prototypes": t}, c.state)[0]["contrast"]

    moved = (scale * x).requires_grad_()
    found = contrast(moved, order.argsort()[y], t[order])
    same(found, contrast(x, y, t) if scale else torch.full_like(found, K).log())
    assert bool(torch.autograd.grad(found, moved)[0].isfinite().all())


def test_names_that_are_alike_or_numbers():
    with pytest.raises(ConfigError, match="classes 'cat' and 'cat' have the same embedding: rename one"):
        build("fedtsp", named(uneven(), ("cat", "dog", "cat", "3")))
    for names, told in (("0123", "0, 1, 2 and 1 more"), (("-1", "1.0", "2,5", "10"), "-1, 1.0, 2,5 and 1 more")):
        with pytest.raises(
            ConfigError,
            match=rf"^fedtsp turns the names of classes into targets, but the classes are called {told}: give "
            r"names with data\.labels={0 = \"cat\", 1 = \"dog\", …}$",
        ):
            build("fedtsp", named(uneven(), tuple(names)))


def test_digits_are_taken_once_their_classes_have_names(tmp_path):
    """Nothing is left of a run that is refused."""
    options = SMALL_RUN | {"method.name": "fedtsp", "rounds": 1}
    with pytest.raises(ConfigError, match=r"classes are called 0, 1, 2 and 7 more: give names with data\.labels="):
        protofed.run("quickstart", options, out=tmp_path / "run")
    assert not any(tmp_path.iterdir())
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    named = options | {"data.labels": {str(digit): word for digit, word in enumerate(words)}}
    assert protofed.run("quickstart", named, out=tmp_path / "run").finished


def test_the_package_is_named_where_it_is_missing(monkeypatch, tmp_path):
    """Before a run begins, so that nothing is left of it."""
    monkeypatch.setattr(text, "find_spec", lambda name: None)
    text._static.cache_clear()
    text._known.clear()
    missing = r"^text needs the package wordllama: pip install 'protofed\[text\]'$"
    try:
        with pytest.raises(ConfigError, match=missing):
            build("fedtsp", federated(*uneven().clients))
        options = SMALL_RUN | {"method.name": "fedtsp", "data.source": "breast_cancer"}
        with pytest.raises(ConfigError, match=missing):
            protofed.run("quickstart", options, out=tmp_path / "run")
        assert not any(tmp_path.iterdir())
    finally:
        monkeypatch.undo()
        text._static.cache_clear()
