from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from naive import bhattacharyya
from protofed.prototypes import mixtures
from protofed.prototypes.mixtures import Mixture, choose, fit_mixtures, fuse, gaussian, place, sample, shares, stack
from support import few

pytestmark = pytest.mark.fast


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def clusters(n: int = 240, d: int = 5, seed: int = 0) -> torch.Tensor:
    """Samples of four well-separated Gaussians of different widths."""
    g = generator(seed)
    centres = 8 * torch.randn(4, d, generator=g, dtype=torch.float64)
    widths = 0.3 + torch.rand(4, d, generator=g, dtype=torch.float64)
    which = torch.arange(n) % 4
    return centres[which] + widths[which] * torch.randn(n, d, generator=g, dtype=torch.float64)


def mixture(c: int = 3, d: int = 2, seed: int = 0) -> Mixture:
    g = generator(seed)
    weights = torch.rand(c, generator=g, dtype=torch.float64)
    means = torch.randn(c, d, generator=g, dtype=torch.float64)
    return Mixture(weights / weights.sum(), means, 0.5 + torch.rand(c, d, generator=g, dtype=torch.float64))


def log_likelihood(mixture: Mixture, x: torch.Tensor) -> torch.Tensor:
    """Return ``log p(x)`` of each sample."""
    chosen = torch.distributions.Categorical(mixture.weights)
    parts = torch.distributions.Independent(torch.distributions.Normal(mixture.means, mixture.stds), 1)
    return torch.distributions.MixtureSameFamily(chosen, parts, validate_args=False).log_prob(x)


def sklearns(*arguments: Any, **options: Any) -> Any:
    """Return sklearn's mixture, which every process that collects tests would else take seconds to import."""
    from sklearn.mixture import GaussianMixture

    return GaussianMixture(*arguments, **options)


def fit_mixture(x: torch.Tensor, components: int = 4, **options: Any) -> Mixture:
    """Return the mixture of one class, without unused places."""
    weights, *rest = (p[0] for p in fit_mixtures(x, torch.zeros(len(x)).long(), 1, components, **options))
    return Mixture(*(part[weights > 0] for part in (weights, *rest)))


# --- fitting ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_fit_is_as_good_as_sklearns(seed):
    x = clusters(seed=seed)
    fitted = fit_mixture(x, 4, generator=generator(seed), tolerance=1e-6)
    peer = sklearns(4, covariance_type="diag", n_init=3, random_state=seed, tol=1e-6).fit(x.numpy())
    assert float(log_likelihood(fitted, x).mean()) >= peer.score(x.numpy()) - 1e-3
    assert float(fitted.weights.sum()) == pytest.approx(1)


@pytest.mark.parametrize("kind", ["diag", "spherical"])
def test_em_steps_equal_sklearns_from_the_same_start(kind):
    """Given our result as its start, sklearn finds nothing to improve: it is a fixed point of Eq. 5-6."""
    x = clusters(120, 3)
    x[::7] += 2.0  # overlap, so that responsibilities are soft
    fitted = fit_mixture(x, 4, generator=generator(1), iterations=500, tolerance=1e-12, covariance=kind)
    covariances = fitted.stds**2 if kind == "diag" else fitted.stds[:, 0] ** 2
    peer = sklearns(
        len(fitted.weights),
        covariance_type=kind,
        weights_init=fitted.weights.numpy(),
        means_init=fitted.means.numpy(),
        precisions_init=(1 / covariances).numpy(),
        reg_covar=0,
        max_iter=5,
        tol=1e-9,
    ).fit(x.numpy())
    np.testing.assert_allclose(peer.means_, fitted.means, atol=1e-4)
    np.testing.assert_allclose(peer.weights_, fitted.weights, atol=1e-4)
    np.testing.assert_allclose(peer.covariances_, covariances, rtol=1e-3, atol=1e-4)


def test_one_component_is_the_sample_moments():
    x = clusters(50, 3)
    fitted = fit_mixture(x, 1, generator=generator())
    torch.testing.assert_close(fitted.means[0], x.mean(0))
    torch.testing.assert_close(fitted.stds[0], x.std(0, correction=0))


def test_all_classes_at_once_equal_one_at_a_time(monkeypatch):
    x = clusters(97, 4)
    labels = torch.arange(97) % 3
    labels[:40] = 4  # class sizes 40, 19, 19, 19 and none
    monkeypatch.setattr(mixtures, "CHUNK", 19 * 4 * 2)  # several batches
    batch = fit_mixtures(x, labels, 6, 3, generator=generator(8))
    draws = torch.rand(6, 3, mixtures.CANDIDATES, generator=generator(8), dtype=torch.float64)
    for c in (0, 1, 2, 4):
        monkeypatch.setattr(mixtures.torch, "rand", lambda *_, c=c, **__: draws[c : c + 1])
        single = fit_mixture(x[labels == c], 3, generator=generator())
        monkeypatch.undo()
        used = batch.weights[c] > 0
        for field, expected in zip(batch, single, strict=True):
            torch.testing.assert_close(field[c][used], expected)
    for c in (3, 5):
        assert all(field[c].eq(0).all() for field in batch)


@pytest.mark.parametrize(("n", "distinct"), [(1, 1), (2, 2), (3, 3), (9, 1), (9, 2)])
def test_never_more_components_than_distinct_samples(n, distinct):
    values = torch.tensor([[0.0, 0.0], [4.0, 1.0], [-3.0, 9.0]])
    fitted = fit_mixture(values[torch.arange(n) % distinct], 4, generator=generator(), variance_floor=1e-4)
    assert len(fitted.weights) == distinct
    torch.testing.assert_close(fitted.stds, torch.full((distinct, 2), 1e-2))
    means = fitted.means[fitted.means[:, 0].argsort()]
    torch.testing.assert_close(means, values[:distinct][values[:distinct, 0].argsort()])


@given(
    n=st.integers(1, 12),
    d=st.integers(1, 4),
    components=st.integers(1, 5),
    seed=st.integers(0, 1000),
    scale=st.sampled_from([0.0, 1e-8, 1.0, 1e4]),
    offset=st.sampled_from([0.0, 1e3]),
    repeats=st.booleans(),
)
def test_degenerate_features_stay_finite(n, d, components, seed, scale, offset, repeats):
    x = offset + scale * torch.randn(n, d, generator=generator(seed))
    if repeats:
        x[: n // 2] = x[-1]
    fitted = fit_mixture(x, components, generator=generator(seed))
    assert 1 <= len(fitted.weights) <= min(n, components)
    assert all(field.isfinite().all() for field in fitted)
    assert (fitted.stds > 9e-4).all()
    assert float(fitted.weights.sum()) == pytest.approx(1, abs=1e-5)
    assert log_likelihood(fitted, x).isfinite().all()
    assert sample(fitted, 3, generator()).isfinite().all()
    other = fit_mixture(x, components, generator=generator(seed), covariance="spherical")
    assert all(field.isfinite().all() for field in other)


# --- sampling -----------------------------------------------------------------------------------------------


def assert_moments(x, made):
    """Check mean and variance of many samples of a mixture."""
    w = made.weights.unsqueeze(1)
    mean = (w * made.means).sum(0)
    variance = (w * (made.stds**2 + (made.means - mean) ** 2)).sum(0)
    torch.testing.assert_close(x.mean(0), mean, rtol=0, atol=0.02)
    torch.testing.assert_close(x.var(0), variance, rtol=0.03, atol=0)


def test_samples_have_the_mixtures_moments():
    made = mixture(3, 2, seed=4)
    assert_moments(sample(made, 200_000, generator(1)), made)


def test_sampling_a_batch_skips_unused_places():
    far = Mixture(torch.tensor([2.0, 0.0]), torch.tensor([[5.0], [1e9]]), torch.full((2, 1), 1e-3))
    late = Mixture(torch.tensor([0.0, 0.0, 1.0]), torch.tensor([[1e9], [1e9], [-5.0]]), torch.full((3, 1), 1e-3))
    x = sample(stack([far, late]), 50, generator())
    assert x.shape == (2, 50, 1)
    assert (x[0] - 5).abs().max() < 0.1
    assert (x[1] + 5).abs().max() < 0.1
    assert torch.equal(x, sample(stack([far, late]), 50, generator()))


def test_draws_from_uniform_numbers_have_the_mixtures_moments():
    """As losses draw: components by their cumulative shares, noise by the inverse distribution function."""
    made, r = mixture(3, 2, seed=4), 200_000
    numbers = torch.rand(r, 3, generator=generator(1), dtype=torch.float64)
    chosen = choose(shares(made.weights), numbers[:, 0])
    counts = torch.bincount(chosen, minlength=3) / r
    torch.testing.assert_close(counts.double(), made.weights, rtol=0, atol=0.005)
    assert_moments(place(made.means, made.stds, chosen, gaussian(numbers[:, 1:])), made)
    assert gaussian(torch.tensor([0.0, 0.5, 1 - 2**-24])).isfinite().all()


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=9), st.floats(0, 1, exclude_max=True))
def test_a_component_of_weight_0_is_never_chosen(weights, number):
    weights[len(weights) // 2] = 1.0
    given_weights = torch.tensor(weights, dtype=torch.float64)
    chosen = int(choose(shares(given_weights), torch.tensor([number], dtype=torch.float64)))
    assert weights[chosen] > 0


# --- Bhattacharyya distance ---------------------------------------------------------------------------------


def test_distance_equals_equations_7_and_8():
    a, b = mixture(1, 4, seed=1), mixture(1, 4, seed=2)
    mean_a, var_a, mean_b, var_b = a.means[0], a.stds[0] ** 2, b.means[0], b.stds[0] ** 2
    one_by_one = sum(  # Eq. 7 per dimension
        0.25 * (m1 - m2) ** 2 / (v1 + v2) + 0.5 * math.log((v1 + v2) / (2 * math.sqrt(v1 * v2)))
        for m1, v1, m2, v2 in zip(mean_a.tolist(), var_a.tolist(), mean_b.tolist(), var_b.tolist(), strict=True)
    )
    first, second, difference = torch.diag(var_a), torch.diag(var_b), mean_a - mean_b
    average = (first + second) / 2  # Eq. 8 with full matrices
    matrices = difference @ torch.linalg.inv(average) @ difference / 8 + 0.5 * torch.log(
        torch.det(average) / torch.sqrt(torch.det(first) * torch.det(second))
    )
    means, variances = torch.stack([mean_a, mean_b]).numpy(), torch.stack([var_a, var_b]).numpy()
    found = float(mixtures._distances(0, np.array([1]), means, variances)[0])
    assert found == pytest.approx(one_by_one)
    assert found == pytest.approx(float(matrices))
    assert found == pytest.approx(float(bhattacharyya(mean_a, var_a, mean_b, var_b)))


# --- fusion -------------------------------------------------------------------------------------------------


def components(m: int, d: int, spread: float, seed: int = 0):
    g = generator(seed)
    base = 3 * torch.randn(3, d, generator=g, dtype=torch.float64)
    means = base[torch.arange(m) % 3] + spread * torch.randn(m, d, generator=g, dtype=torch.float64)
    return (
        torch.rand(m, generator=g, dtype=torch.float64) + 0.1,
        means,
        0.5 + torch.rand(m, d, generator=g).double(),
    )


def naive_fuse(weights, means, variances, threshold):
    """Algorithm 1 with bare loops, heaviest seed first, nearest candidates first, strict about all members."""
    unused = sorted(range(len(weights)), key=lambda i: -float(weights[i]))
    fused = []

    def distance(i, j):
        return float(bhattacharyya(means[i], variances[i], means[j], variances[j]))

    while unused:
        seed = unused.pop(0)
        members = [seed]
        for p in sorted(unused, key=lambda i: distance(seed, i)):
            if all(distance(p, member) < threshold for member in members):
                members.append(p)
                unused.remove(p)
        w = sum(weights[j] for j in members)
        mean = sum(weights[j] * means[j] for j in members) / w
        variance = sum(weights[j] * (variances[j] + (means[j] - mean) ** 2) for j in members) / w
        fused.append((w, mean, variance.sqrt()))
    return Mixture(*(torch.stack(part) for part in zip(*fused, strict=True)))


@few("spread", [0.01, 0.3, 0.6, 1.0, 2.0], 2)
@few(("m", "d"), [(40, 2), (30, 20), (24, 150)], 1)
def test_fusion_equals_the_loop(m, d, spread):
    given_components = components(m, d, spread * (4 / d) ** 0.5)
    expected = naive_fuse(*given_components, 1.0)
    found = fuse(*given_components)
    for field, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(field, reference, rtol=1e-9, atol=1e-12)


@given(
    seed=st.integers(0, 1000),
    m=st.integers(1, 25),
    d=st.integers(1, 40),
    offset=st.sampled_from([0.0, 1e4]),
    widths=st.sampled_from([0.0, 0.1, 3.0, 1e3]),
)
def test_bounds_are_bounds(seed, m, d, offset, widths):
    _, means, variances = components(m, d, 0.5, seed)
    means, variances = (means + offset).numpy(), (variances**widths).clamp(1e-12, 1e12).numpy()
    rows, widths_of = torch.from_numpy(means), torch.from_numpy(variances)
    exact = bhattacharyya(rows.unsqueeze(1), widths_of.unsqueeze(1), rows, widths_of).numpy()
    everyone = np.arange(m)
    for side in ("lower", "upper"):
        bound = mixtures._Bound(means, variances, means[0], variances[0], side).rows(everyone, first=0)
        beyond = exact < bound if side == "lower" else exact > bound
        assert not (beyond & (abs(exact - bound) > 1e-12 * abs(exact))).any()
        if widths == 0.0:  # equal widths: both are tight
            np.testing.assert_allclose(bound, exact, rtol=1e-6, atol=1e-4)


@given(seed=st.integers(0, 1000), repeats=st.booleans(), ties=st.booleans())
def test_fusion_ignores_the_order_of_arrival(seed, repeats, ties):
    weights, means, variances = components(24, 3, 0.7, seed)
    if ties:
        weights = torch.ones_like(weights)
    if repeats:
        means[::3], variances[::3] = means[0], variances[0]
    order = torch.randperm(24, generator=generator(seed))
    for first, second in zip(
        fuse(weights, means, variances), fuse(weights[order], means[order], variances[order]), strict=True
    ):
        assert torch.equal(first, second)


@pytest.mark.parametrize("threshold", [0.1, 1.0, 10.0, math.inf])
def test_fusion_preserves_weight_and_moments(threshold):
    weights, means, variances = components(30, 4, 0.8)
    fused = fuse(weights, means, variances, threshold)

    def moments(w, mu, var):
        share = (w / w.sum()).unsqueeze(1)
        mean = (share * mu).sum(0)
        return w.sum(), mean, (share * (var + (mu - mean) ** 2)).sum(0)

    before, after = moments(weights, means, variances), moments(fused.weights, fused.means, fused.stds**2)
    for first, second in zip(before, after, strict=True):
        torch.testing.assert_close(first, second)
    assert (threshold == math.inf) == (len(fused.weights) == 1)


def test_fusion_is_strict_about_all_members():
    """0 and 2 are near 1 but not near each other: they never share a cluster, whoever is the seed."""
    means = torch.tensor([[0.0], [2.0], [4.0]])
    apart = bhattacharyya(means[0], torch.ones(1), means[1], torch.ones(1))
    assert float(apart) == pytest.approx(0.5)
    for heaviest in range(3):
        weights = torch.ones(3)
        weights[heaviest] = 2.0
        assert len(fuse(weights, means, torch.ones(3, 1)).weights) == 2
