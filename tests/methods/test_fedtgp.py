"""FedTGP diverges where λ·lr is large: the method does it, and recipes keep clear of it (papers/studies)."""

from __future__ import annotations

import itertools

import pytest
import torch

import protofed
from protofed.experiments import load_recipe, recipes, resolve
from protofed.prototypes.contrastive import adaptive_margin, contrast, prototype_network, train_prototypes

K, D, CLIENTS = 5, 8, 4


def margins(cap: float, rounds: int = 16) -> list[float]:
    """Return δ of each round in a federation whose clients go half the way to the global prototypes."""
    source = torch.Generator().manual_seed(0)
    network = prototype_network(K, D, generator=source, dtype=torch.float32)
    labels = torch.arange(K).repeat(CLIENTS)
    centres = 0.2 * torch.randn(K, D, generator=source)
    uploads = centres[labels] + 0.05 * torch.randn(len(labels), D, generator=source)
    found = []
    for _ in range(rounds):
        found.append(adaptive_margin(uploads, labels, K, cap))
        trained = train_prototypes(
            network, uploads, labels, contrast(found[-1]), epochs=50, lr=0.05, batch_size=8, generator=source
        )
        network = trained.network
        uploads = uploads + 0.5 * (trained.prototypes[labels] - uploads)
    return found


@pytest.mark.slow
def test_margin_and_distances_drive_each_other_up_to_the_cap():
    """δ = min(max_c gap_c, τ) follows the uploads, the server separates by more than δ, and uploads follow it."""
    free, capped = margins(100.0), margins(1.3)
    assert free[-1] > 1.6 * free[0]
    assert all(later > 0.9 * earlier for earlier, later in itertools.pairwise(free))
    assert max(capped) == 1.3


@pytest.mark.parametrize("recipe", [name for name in recipes() if "fedtgp" in str(load_recipe(name))])
def test_recipes_keep_the_pull_of_fedtgp_where_steps_are_stable(recipe):
    """One step moves features by the share 2·λ·lr/d of their distance, times the slope of the network."""
    experiment = resolve(load_recipe(recipe), method="fedtgp")
    assert experiment.method_options.lambda_ * experiment.training.lr / experiment.model.d <= 1e-3


@pytest.mark.slow
def test_fedtgp_stays_sound_on_quickstart(tmp_path):
    run = protofed.run("quickstart", {"method.name": "fedtgp", "rounds": 100}, out=tmp_path / "run")
    assert all(record.losses["total"] is not None and not record.refused for record in run.rounds)
    assert run.outcome.accuracy["global"].final > 0.95
