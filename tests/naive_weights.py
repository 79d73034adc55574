"""A naive federation in double precision: one sample at a time, gradients by central differences.

Nothing here is shared with the code it is a reference for but the order of samples, which the engine draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from protofed.compute.seeding import generator
from protofed.experiments.assemble import assemble
from protofed.rounds.loop import Federation
from support import client, experiment, federated, visited

LR, BATCH, SEED, STEP = 0.1, 4, 3, 1e-6
Weights = dict[str, np.ndarray]
Sample = tuple[np.ndarray, int]
Loss = Callable[[Weights, Sequence[Sample]], float]

W1, B1, W2, B2 = "extractor.map.linear.weight", "extractor.map.linear.bias", "head.weight", "head.bias"


def three() -> object:
    """Return three clients with different classes; batches of 4, 4 and 1, of 4 and 3, of 4 and 2 samples."""
    return federated(
        client("ann", [0, 0, 0, 0, 0, 1, 1, 2, 2], [0, 1, 2, 2, 0, 3]),
        client("bob", [1, 1, 1, 1, 2, 2, 3], [1, 2, 3, 3, 1]),
        client("cid", [0, 3, 3, 1, 1, 0], [0, 1, 3, 2]),
    )


def build(method: str, data=None, **overrides) -> tuple[Federation, list[Party]]:
    """Return our federation and the naive clients, who begin with the same weights."""
    data = data or three()
    options = {"model__options": {"hidden": [], "relu_features": True}, "training__lr": LR, "seed": SEED}
    precise = {"wire__codec": "float64", "execution__precision": "fp64"}
    federation, _ = assemble(experiment(method, **{**options, **precise, **overrides}), data)
    return federation, [Party(c, visited(federation)[c.name].model) for c in data.clients]


class Party:
    """A naive client."""

    def __init__(self, own, model) -> None:
        self.name = own.name
        self.weights = {n: w.detach().numpy().copy() for n, w in model.named_parameters()}
        self.train, self.test = (
            [(x.double().numpy(), int(y)) for x, y in zip(s.x, s.y, strict=True)] for s in (own.train, own.test)
        )

    def batches(self, round_number: int, phase: int = 0, epoch: int = 0) -> list[list[Sample]]:
        """Return the samples of an epoch in the engine's order."""
        scope = (round_number, self.name, phase, epoch)
        order = torch.randperm(len(self.train), generator=generator(SEED, "shuffle", *scope)).tolist()
        return [[self.train[i] for i in order[s : s + BATCH]] for s in range(0, len(order), BATCH)]

    def epoch(
        self, loss: Loss, trainable: Sequence[str], round_number: int, phase: int = 0, epoch: int = 0
    ) -> float:
        """Train an epoch by plain SGD; return the mean loss per sample."""
        total = 0.0
        for batch in self.batches(round_number, phase, epoch):
            total += loss(self.weights, batch) * len(batch) / len(self.train)
            descend(self.weights, loss, batch, trainable)
        return total

    def accuracy(self, predict: Callable[[np.ndarray], int]) -> float:
        """Return the share of test samples that ``predict`` gets right."""
        return sum(predict(x) == y for x, y in self.test) / len(self.test)

    def accuracy_of(self, scores: Sequence[np.ndarray]) -> float:
        """Return the share of test samples whose class has the largest score."""
        return sum(int(z.argmax()) == y for z, (_, y) in zip(scores, self.test, strict=True)) / len(self.test)


def gradient(weights: Weights, loss: Loss, batch: Sequence[Sample], trainable: Sequence[str]) -> Weights:
    """Return ``∂loss/∂w`` by central differences."""
    found = {}
    for name in trainable:
        found[name] = np.zeros(np.shape(weights[name]))
        for place in np.ndindex(found[name].shape):
            around = []
            for sign in (1, -1):
                moved = {**weights, name: np.array(weights[name])}
                moved[name][place] += sign * STEP
                around.append(loss(moved, batch))
            found[name][place] = (around[0] - around[1]) / (2 * STEP)
    return found


def descend(weights: Weights, loss: Loss, batch: Sequence[Sample], trainable: Sequence[str]) -> None:
    """Do one step of SGD, in place."""
    for name, g in gradient(weights, loss, batch, trainable).items():
        weights[name] = weights[name] - LR * g


def features(w: Weights, x: np.ndarray) -> np.ndarray:
    """``f(x) = relu(W1·x + b1)``."""
    return np.maximum(w[W1] @ x + w[B1], 0)


def logits(w: Weights, x: np.ndarray) -> np.ndarray:
    """``g(f(x)) = W2·f(x) + b2``."""
    return w[W2] @ features(w, x) + w[B2]


def softmax(z: np.ndarray) -> np.ndarray:
    """Return probabilities."""
    e = np.exp(z - z.max())
    return e / e.sum()


def cross_entropy(w: Weights, batch: Sequence[Sample]) -> float:
    """``−(1/B)·Σ log softmax(g(f(x)))_y``."""
    return sum(-math.log(softmax(logits(w, x))[y]) for x, y in batch) / len(batch)


def answer(w: Weights) -> Callable[[np.ndarray], int]:
    """Return ``argmax g(f(x))``."""
    return lambda x: int(logits(w, x).argmax())


def mean(parts: Sequence[Weights], shares: Sequence[float]) -> Weights:
    """``Σ_i (n_i/Σ n)·w_i``, over the names of the first."""
    total = sum(shares)
    return {n: sum(s * p[n] for s, p in zip(shares, parts, strict=True)) / total for n in parts[0]}


def assert_near(found: dict[str, torch.Tensor], expected: Weights) -> None:
    """Compare by name, as exactly as differences allow."""
    for name, value in expected.items():
        np.testing.assert_allclose(found[name].numpy(), value, rtol=1e-6, atol=1e-7, err_msg=name)
