"""Global prototypes that are trained, not averaged: the server sides of FedTGP, its hinge variant, and FedORGP.

Zhang, Liu, Hua and Cao, *FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for
Data and Model Heterogeneity in Federated Learning*, AAAI 2024. Guo, Luan, Li, Zhao and Jiang, *FedORGP: Guiding
Heterogeneous Federated Learning with Orthogonality Regularization on Global Prototypes*, 2025.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.compute.seeding import generator as seeded_generator
from protofed.prototypes.alignment import NUDGE
from protofed.prototypes.geometry import exact, pairwise_distances, unit_vectors, working
from protofed.prototypes.means import average_by_label

MIN_DISTANCE = 1e-6
"""Floor on a distance, hence 1e-12 on its square: below it the gradient is 0 instead of NaN or unbounded."""


Objective = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""``objective(p, P, own)`` of uploads ``(b, d)``, prototypes ``(K, d)`` and one-hot classes ``(b, K)``: the sum of
the uploads' losses, and the gradient of their mean by ``P``."""


class PrototypeNetwork(NamedTuple):
    """The trainable prototypes ``P_j = F(e_j)``: one embedding per class through Linear – ReLU – Linear."""

    embedding: Tensor
    hidden_weight: Tensor
    hidden_bias: Tensor
    output_weight: Tensor
    output_bias: Tensor

    def prototypes(self) -> Tensor:
        """Return the ``(K, d)`` prototypes of all classes."""
        hidden = F.linear(self.embedding, self.hidden_weight, self.hidden_bias).relu()
        return F.linear(hidden, self.output_weight, self.output_bias)


class TrainedPrototypes(NamedTuple):
    """``(K, d)`` global prototypes, the state for the next round, and ``(epochs,)`` mean losses."""

    prototypes: Tensor
    network: PrototypeNetwork
    losses: Tensor


def prototype_network(K: int, d: int, generator: torch.Generator, dtype: torch.dtype) -> PrototypeNetwork:
    """Return trainable prototypes drawn from a CPU generator.

    Embeddings are standard normal; weights and biases uniform on ``±1/√d``, as torch initialises them.
    """
    bound = d**-0.5

    def uniform(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype).uniform_(-bound, bound, generator=generator)

    embedding = torch.randn(K, d, generator=generator, dtype=dtype)
    return PrototypeNetwork(embedding, uniform(d, d), uniform(d), uniform(d, d), uniform(d))


def adaptive_margin(prototypes: Tensor, labels: Tensor, K: int, cap: float = 100.0) -> float:
    """Return FedTGP's margin ``δ = min(max_c gap_c, τ)`` of one round's uploads, with ``τ`` the ``cap``.

    ``Q_c`` is the plain mean of class c's uploads and ``gap_c = min_{c'≠c} ‖Q_c − Q_c'‖`` over reported classes.
    It is one scalar for all classes, the cap with a single reported one.
    """
    Q, counts = average_by_label(working(prototypes), labels, K)
    Q = Q[counts > 0]
    if len(Q) < 2:
        return float(cap)
    gaps = pairwise_distances(Q).fill_diagonal_(torch.inf).amin(1)
    return min(float(gaps.max()), float(cap))


def train_prototypes(
    network: PrototypeNetwork,
    prototypes: Tensor,
    labels: Tensor,
    objective: Objective,
    *,
    epochs: int = 100,
    lr: float = 0.01,
    batch_size: int = 32,
    generator: torch.Generator,
) -> TrainedPrototypes:
    """Train the global prototypes for ``S = epochs`` passes over one round's uploads ``(n, d)``.

    Plain SGD without momentum over shuffled mini-batches. The network's gradient is written out by hand, and the
    steps update copies of the parameters in place: the same numbers as autograd and ``torch.optim.SGD``, without
    their overhead.
    """
    K = len(network.embedding)
    state = PrototypeNetwork(*(parameter.detach().clone() for parameter in network))
    n = len(prototypes)
    uploads = prototypes.detach().to(state.embedding)
    targets = F.one_hot(labels.to(uploads.device), K).to(uploads.dtype)
    losses = uploads.new_zeros(epochs)
    for epoch in range(epochs):
        order = torch.randperm(n, generator=generator).to(uploads.device)
        shuffled = zip(uploads[order].split(batch_size), targets[order].split(batch_size), strict=True)
        for p, own in shuffled:
            losses[epoch] += _step(state, p, own, objective, lr)
    return TrainedPrototypes(state.prototypes(), state, losses / n)


def _step(state: PrototypeNetwork, p: Tensor, own: Tensor, objective: Objective, lr: float) -> Tensor:
    """Make one SGD step in place and return the summed loss before it.

    Shapes: ``p`` (b, d) uploads, ``own`` (b, K) one-hot classes; ``dX`` is the gradient of the mean loss by X.
    """
    e, W1, b1, W2, b2 = state
    H = torch.addmm(b1, e, W1.T).relu_()
    P = torch.addmm(b2, H, W2.T)
    loss, dP = objective(p, P, own)
    dH = (dP @ W2).mul_(H > 0)
    de = dH @ W1
    W2.addmm_(dP.T, H, alpha=-lr)
    b2.sub_(dP.sum(0), alpha=lr)
    W1.addmm_(dH.T, e, alpha=-lr)
    b1.sub_(dH.sum(0), alpha=lr)
    e.sub_(de, alpha=lr)
    return loss


def contrast(margin: float) -> Objective:
    """Return FedTGP's adaptive-margin contrastive objective with ``δ = margin``.

    The loss of an upload ``p`` of class ``y`` with ``D_c = ‖p − P_c‖`` is ::

        ℓ = −log [ e^{−(D_y + δ)} / (e^{−(D_y + δ)} + Σ_{c≠y} e^{−D_c}) ]

    that is, cross-entropy on the logits ``−(D_c + δ·1[c = y])`` over all K classes. Where an upload coincides with
    a global prototype, that distance contributes no gradient.
    """

    def objective(p: Tensor, P: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        D = pairwise_distances(p, P).clamp_(min=MIN_DISTANCE)
        log_probability = D.add(own, alpha=margin).neg_().log_softmax(1)
        # logits = −D − δ·own, so dD = (own − softmax)/b; and ∇_P ‖p − P‖ = (P − p)/D, or 0 at the floor.
        pull = (own - log_probability.exp()).div_(D).div_(len(p)).mul_(D > MIN_DISTANCE)
        dP = (P * pull.sum(0).unsqueeze(1)).addmm_(pull.T, p, alpha=-1.0)
        return -(log_probability * own).sum(), dP

    return objective


def orthogonality(attraction: float, separation: float) -> Objective:
    """Return FedORGP's objective (Eq. 3 to 5), ``λ_s`` being ``attraction`` and ``γ`` ``separation``.

    The loss of an upload ``p`` of class ``y`` is ``λ_s·(1 − cos(p, P_y)) + γ/(K − 1)·Σ_{c≠y} |cos(p, P_c)|``: its
    own prototype should point the same way, all others be orthogonal.
    """

    @torch.enable_grad()
    def objective(p: Tensor, P: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        leaf = P.detach().requires_grad_()
        cosines = F.normalize(p) @ F.normalize(leaf).T
        apart = 1 - (cosines * own).sum(1)
        others = (cosines.abs() * (1 - own)).sum(1) / max(1, len(P) - 1)
        losses = attraction * apart + separation * others
        (dP,) = torch.autograd.grad(losses.mean(), leaf)
        return losses.detach().sum(), dP

    return objective


@dataclass(frozen=True)
class HingePrototypes:
    """``(K, d)`` prototypes ``g``, zero where a class has no upload, and the objective, which never rises."""

    prototypes: Tensor
    present: Tensor
    losses: list[float]


def pair_margins(means: Tensor, margin: float) -> Tensor:
    """Return ``(K, K)`` margins of ``(K, d)`` class means, larger for pairs that are harder to tell apart.

    ::

        m_jk = margin · 2 D̄² / (D̄ + D_jk),    D_jk = ‖Q_j − Q_k‖,    D̄ = mean of D_jk over pairs

    A pair at the average distance gets ``margin·D̄``, a coinciding pair twice that, a remote one little. The rule
    follows the features' scale, so that one setting serves all models.
    """
    distances = pairwise_distances(means)
    K = len(means)
    average = distances.sum() / max(K * (K - 1), 1)
    margins = margin * 2 * average**2 / (average + distances).clamp(min=MIN_DISTANCE**2)
    return margins.fill_diagonal_(0.0)


def hinge_prototypes(
    prototypes: Tensor,
    labels: Tensor,
    K: int,
    *,
    margin: float = 1.0,
    iterations: int = 200,
    tolerance: float = 1e-6,
) -> HingePrototypes:
    """Minimise the hinge variant of the contrastive objective over free vectors ``g``, from the class means.

    This is how a public explanation of FedTGP tells its loss (squared attraction, squared hinge per pair); it is
    not the authors' loss and is offered as a variant only. Margins come from :func:`pair_margins`.

    Deterministic and without a step size: each iteration minimises a quadratic that lies above the objective and
    touches it at the present ``g`` (each ``max(0, m − ‖z‖)`` is at most ``‖z − z'‖``, ``z'`` the present difference
    lengthened to at least m), so the objective never rises. It ends when an iteration lowers the objective by less
    than the share ``tolerance``. Classes whose means coincide part in a fixed, arbitrary way.
    """
    c = exact(prototypes)
    labels = labels.to(c.device)
    means, counts = average_by_label(c, labels, K)
    present = counts > 0
    centre = means[present].mean(0)  # distances from a Gram matrix are accurate around the origin
    Q, n = means[present] - centre, counts[present].double()
    within = float((c - means[labels]).square().sum())  # Σ_j Σ_i ‖Q_j − c_ij‖², which no g can change
    m = pair_margins(Q, margin)
    g = _part(Q, float(m.max()))

    def objective(distances: Tensor) -> float:
        shortfall = (m - distances).clamp_(min=0.0).fill_diagonal_(0.0)
        return within + float((n * (g - Q).square().sum(1)).sum() + shortfall.square().sum())

    # Σ_j n_j‖g_j − Q_j‖² + Σ_{j≠k} ‖(g_j − g_k) − t_jk‖² is least where A g = n Q + 2 Σ_k t_jk, with
    # A = diag(a) − 2·11ᵀ and a = n + 2K, whose inverse is Sherman and Morrison's.
    a = (n + 2 * len(Q)).unsqueeze(1)
    D = _gram_distances(g)
    losses = [objective(D)]
    for _ in range(iterations):
        stretch = (m / D).clamp_(min=1.0).fill_diagonal_(0.0)
        targets = g * stretch.sum(1, keepdim=True) - stretch @ g  # Σ_k t_jk, t_jk = stretch_jk (g_j − g_k)
        g = (n.unsqueeze(1) * Q + 2 * targets) / a
        g += 2 * g.sum(0) / (1 - 2 * a.reciprocal().sum()) / a
        D = _gram_distances(g)
        losses.append(objective(D))
        if losses[-2] - losses[-1] <= tolerance * losses[-2]:
            break
    result = torch.zeros_like(means)
    result[present] = g + centre
    return HingePrototypes(result.to(prototypes), present.to(prototypes.device), losses)


def _gram_distances(g: Tensor) -> Tensor:
    """Return all pairwise distances by one matrix product, floored."""
    gram = g @ g.T
    squares = gram.diagonal()
    squared = squares.unsqueeze(0) + squares.unsqueeze(1) - 2 * gram
    return squared.clamp_(min=MIN_DISTANCE**2).sqrt_()


def _part(Q: Tensor, scale: float) -> Tensor:
    """Return the means with those that coincide with an earlier one moved a little, so that they can separate."""
    closeness = pairwise_distances(Q).masked_fill(torch.ones(len(Q), len(Q), device=Q.device).triu() > 0, torch.inf)
    repeated = closeness.amin(1) <= 1e-6 * scale
    if scale == 0 or not bool(repeated.any()):
        return Q
    random = torch.randn(Q.shape, generator=seeded_generator(0, "parted means"), dtype=torch.float64)
    return torch.where(repeated.unsqueeze(1), Q + NUDGE * scale * unit_vectors(random.to(Q)), Q)
