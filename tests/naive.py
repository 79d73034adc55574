"""What the naive references of methods share: two-layer networks in double precision, trained sample by sample.

A network is a list ``[W1, b1, W2, b2]``: ``f(x) = relu(W1 x + b1)``, ``g(f) = W2 f + b2``. Losses are written with
loops over samples and classes; only their derivatives are left to autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from protofed.compute.seeding import generator
from protofed.experiments.assemble import assemble
from protofed.rounds.loop import Federation
from protofed.samples import FederatedData
from support import client, experiment, federated, visited

D, LR, BATCH, SEED = 5, 0.1, 4, 3
Net = list[Tensor]


def uneven() -> FederatedData:
    """Return three clients: a class that one alone holds, one with a single sample of a class, odd sizes."""
    return federated(
        client("ann", [0, 0, 0, 0, 0, 1, 1, 2, 2], [0, 1, 2, 2, 0]),
        client("bob", [1, 1, 1, 1, 2, 2, 3], [1, 2, 3, 3, 1]),
        client("cid", [1, 0, 0, 0, 2], [0, 1, 1]),
    )


def build(method: str, data: FederatedData | None = None, **options: object) -> Federation:
    """Return a federation of such networks in double precision, from model to message."""
    chosen = {
        "seed": SEED,
        "model__options": {"hidden": [], "relu_features": True},
        "training__lr": LR,
        "training__batch_size": BATCH,
        "wire__codec": "float64",
        "execution__precision": "fp64",
        **options,
    }
    return assemble(experiment(method, **chosen), data or uneven())[0]


def net(module: torch.nn.Module) -> Net:
    """Return a copy of a two-layer network's parameters."""
    return [p.detach().clone() for p in module.parameters()][:4]


def own_net(federation: Federation, name: str) -> Net:
    """Return a copy of a client's own network."""
    model = visited(federation)[name].model
    return net(model.extractor) + net(model.head)


def features(w: Net, x: Tensor) -> Tensor:
    """Return ``f(x)`` of one sample."""
    return torch.stack([(w[0][i] @ x + w[1][i]).clamp(min=0) for i in range(len(w[0]))])


def head(w: Net, f: Tensor) -> Tensor:
    """Return ``g(f)`` of one feature vector."""
    return torch.stack([w[-2][j] @ f + w[-1][j] for j in range(len(w[-2]))])


def logits(w: Net, x: Tensor) -> Tensor:
    """Return ``g(f(x))`` of one sample."""
    return head(w, features(w, x))


def probabilities(z: Tensor) -> Tensor:
    """Return the softmax."""
    e = (z - z.max().detach()).exp()
    return e / e.sum()


def cross_entropy(z: Tensor, y: int) -> Tensor:
    """Return ``−log p_y``."""
    return -probabilities(z)[y].log()


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """Return ``KL(p‖q) = Σ_k p_k log(p_k/q_k)``."""
    return sum((p[k] * (p[k] / q[k]).log() for k in range(len(p))), torch.zeros((), dtype=p.dtype))


def step(parts: list[Net], loss: Callable[[list[Net]], Tensor], lr: float = LR) -> tuple[list[Net], float]:
    """Return networks after one step of gradient descent, and the loss before it."""
    leaves = [[t.clone().requires_grad_() for t in part] for part in parts]
    value = loss(leaves)
    flat = [t for part in leaves for t in part]
    gradients = iter(torch.autograd.grad(value, flat, allow_unused=True))
    stepped = [[_moved(t, next(gradients), lr) for t in part] for part in leaves]
    return stepped, float(value.detach())


def _moved(t: Tensor, gradient: Tensor | None, lr: float) -> Tensor:
    return t.detach() if gradient is None else t.detach() - lr * gradient


def clipped(before: Net, after: Net, limit: float) -> Net:
    """Shorten a network's step to ``lr·limit``."""
    steps = [a - b for a, b in zip(after, before, strict=True)]
    length = sum(float(s.square().sum()) for s in steps) ** 0.5 / LR
    return [b + s * min(1.0, limit / (length + 1e-6)) for b, s in zip(before, steps, strict=True)]


def rounds_of(samples, name: str, number: int, epochs: int = 1) -> Iterator[list[tuple[Tensor, int]]]:
    """Yield a client's mini-batches of a round, as lists of samples."""
    for epoch in range(epochs):
        order = torch.randperm(len(samples), generator=generator(SEED, "shuffle", number, name, 0, epoch)).tolist()
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            yield [(samples.x[i].double(), int(samples.y[i])) for i in chosen]


def mean(values: list[Tensor]) -> Tensor:
    """Return the mean of scalars or tensors."""
    return sum(values[1:], values[0]) / len(values)


def averaged(sent: Mapping[str, Net], data: FederatedData, weighting: str) -> Net:
    """Return the mean of the clients' networks, by their samples or all alike."""
    shares = [len(c.train) if weighting == "samples" else 1 for c in data.clients]
    parts = zip(*(sent[c.name] for c in data.clients), strict=True)
    return [sum(n * t for n, t in zip(shares, part, strict=True)) / sum(shares) for part in parts]


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """``a·b / (‖a‖·‖b‖)``, 0 for a vector of length 0."""
    lengths = (a @ a).sqrt() * (b @ b).sqrt()
    return a @ b / lengths if float(lengths.detach()) else (a @ b) * 0


def same(found: Tensor, expected: Tensor) -> None:
    """Check equality up to the rounding of double precision."""
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def same_nets(found: Net, expected: Net) -> None:
    """Check that two networks are equal."""
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        same(a, b)


def bhattacharyya(mean_a: Tensor, var_a: Tensor, mean_b: Tensor, var_b: Tensor) -> Tensor:
    """Return the Bhattacharyya distance of Gaussians with diagonal covariances (GFPL Eq. 8)."""
    average = (var_a + var_b) / 2
    unlike = (average.log() - (var_a.log() + var_b.log()) / 2).sum(-1) / 2
    return ((mean_a - mean_b).square() / average).sum(-1) / 8 + unlike.clamp(min=0.0)
