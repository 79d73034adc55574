"""Closed forms ``W = (G + r·I)⁻¹ b``, whose clients choose r by their own samples, each left out in turn."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.methods.contract import Batch, Local, SplitModel, Task, Tensors, Traits
from protofed.methods.parts.gaussian import TIE, likelihoods, voters
from protofed.methods.parts.moments import (
    LARGEST,
    ClosedForm,
    Linear,
    Sums,
    floor,
    solve,
    symmetric,
    triangle,
    within,
)
from protofed.options import Options
from protofed.wire.schema import Field, Payload, Schema

SCALE = 16.0
"""Largest standard deviation of a sample's scores over the classes, as log-likelihoods: they have no unit."""


class Gram(NamedTuple):
    """What a classifier is made of."""

    total: Sums  # sums of all samples
    matrix: Tensor  # ``G``, ``(d, d)``
    unit: float  # ridge of 1


@dataclass(frozen=True)
class RidgeOptions(Options):
    """The ridge."""

    @property
    def ridge(self) -> float | Literal["auto"]:
        """The ridge in its units, or ``auto``."""
        raise NotImplementedError


O = TypeVar("O", bound=RidgeOptions)  # noqa: E741


class Ridged(ClosedForm[O]):
    """Base of these: the classifier of all has the first ridge, and that of a client its own choice.

    Server state, where clients choose: also ``counts`` ``(K,)``, and per sample ``gram`` ``(d·(d + 1)/2,)`` and
    ``unit``.
    """

    usual: ClassVar[float]  #: ridge where no client chooses, in its unit
    ridges: ClassVar[tuple[float, ...]]  #: further ones among which clients choose, in units of the gram's
    #: Whether a sample is part of ``G`` as ``φφᵀ``; otherwise ``G`` is held while it is left out.
    taken: ClassVar[bool]

    def __init__(self, options: O, task: Task) -> None:
        self.chooses = options.ridge == "auto" and task.noise is None
        super().__init__(options, task)

    @classmethod
    def traits(cls, options: O) -> Traits:
        """Clients that choose are sent the sums."""
        found = super().traits(options)
        return replace(found, down="K·d + d·(d+1)/2 + 1") if options.ridge == "auto" else found

    @abstractmethod
    def gather(self, parts: Iterable[Sums]) -> Gram:
        """Return what the classifier of all is made of."""

    def first(self, gram: Gram) -> float:
        """Return the ridge where no client chooses."""
        return (self.usual if self.options.ridge == "auto" else float(self.options.ridge)) * gram.unit

    def scale(self, gram: Gram) -> float:
        """Return the unit of the ridges among which clients choose."""
        return gram.unit

    @property
    def normalised(self) -> bool:
        """Whether columns have unit length."""
        return True

    @property
    def constant(self) -> bool:
        """Whether samples have one more feature, which is 1; then classifiers have a bias."""
        return False

    def solve_ridge(self, gram: Gram, ridge: float) -> Linear:
        """Return the classifier with a ridge."""
        square = float(gram.matrix.diagonal().mean())
        matrix, sums = self.system(gram)
        W = solve(matrix, sums.mT, square, self.task.dtype, ridge).mT
        W = F.normalize(W, dim=-1, eps=1e-300) if self.normalised else W
        bias = W[:, -1] if self.constant else W.new_zeros(len(W))
        return Linear(W[:, : self.task.feature_dim], bias, gram.total.means.present)

    def system(self, gram: Gram) -> tuple[Tensor, Tensor]:
        """Return ``G`` and ``bᵀ``, with a constant feature if there is one."""
        matrix, (counts, sums, _) = gram.matrix, gram.total
        if not self.constant:
            return matrix, sums
        edge = torch.cat([sums.sum(0), counts.sum().view(1)])
        matrix = torch.cat([torch.cat([matrix, edge[:-1].unsqueeze(0)]), edge.unsqueeze(-1)], dim=-1)
        return matrix, torch.cat([sums, counts.unsqueeze(-1).to(sums)], dim=-1)

    def classifier(self, total: Sums) -> Linear:
        """Return the classifier of some samples."""
        gram = self.gather([total])
        return self.solve_ridge(gram, self.first(gram))

    def combine(self, parts: Iterable[Sums]) -> tuple[Sums, Linear]:
        """Return the sums over all clients, and their classifier."""
        if self.task.noise is not None:
            return super().combine(parts)
        gram = self.gather(parts)
        return gram.total, self.solve_ridge(gram, self.first(gram))

    # What crosses the network.

    @cached_property
    def broadcast_schema(self) -> Schema | None:
        """The classifier; or what it is made of."""
        if not self.chooses:
            return super().broadcast_schema
        d = self.task.feature_dim
        fields = {
            "counts": Field(("k",), "count", parameter=False),
            "gram": Field((d * (d + 1) // 2,), limit=LARGEST**2),
            "unit": Field((), limit=LARGEST**2),
        }
        return self.schema({**self.rows("means"), **fields})

    def make_state(self, held: Tensors) -> Tensors:
        """Return the server's state, with what its classifier is made of if clients need it."""
        if not self.chooses:
            return super().make_state(held)
        gram = self.gather(self.parts(held))
        return {**self.conclude(held, gram.total, self.solve_ridge(gram, self.first(gram))), **self._told(gram)}

    def server_state(self) -> Tensors:
        """Start without clients."""
        none = Sums.none(self.task.num_classes, self.task.feature_dim, second=True)
        return {**super().server_state(), **(self._told(Gram(none, none.moment, 0.0)) if self.chooses else {})}

    def _told(self, gram: Gram) -> Tensors:
        n, dtype = gram.total.counts.sum().clamp(min=1), self.task.dtype
        gram_, unit = triangle(gram.matrix) / n, torch.tensor(gram.unit, dtype=torch.float64) / n
        return {"counts": gram.total.counts.long(), "gram": gram_.to(dtype), "unit": unit.to(dtype)}

    def broadcast(self, server: Tensors, round_number: int, client: str | None = None) -> Payload | None:
        """Send the classifier, or what it is made of."""
        message = super().broadcast(server, round_number, client)
        if message is None or not self.chooses:
            return message
        classes = message["classes"]
        rows = {"means": server["prototypes"][classes], "counts": server["counts"][classes]}
        return {"classes": classes, **rows, "gram": server["gram"], "unit": server["unit"]}

    # The client.

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Make the classifiers of all, and with the client's ridge."""
        if not self.chooses:
            return super().receive(local, message)
        own, dtype = self.own_sums(local), self.task.dtype
        gram = self.gather([own]) if message is None else self.gram_in(message)
        chosen = self.solve_ridge(gram, self.chosen(local, own.counts, gram))
        return {**self.solve_ridge(gram, self.first(gram)).tensors(dtype), **chosen.tensors(dtype, "own_")}

    def gram_in(self, message: Payload) -> Gram:
        """Return what a broadcast holds."""
        sent = {name: tensor.cpu().double() for name, tensor in message.items() if name != "classes"}
        K, d, n = self.task.num_classes, self.task.feature_dim, float(sent["counts"].sum())
        classes, none = message["classes"].cpu(), Sums.none(K, d, second=False)
        counts = none.counts.index_copy(0, classes, sent["counts"])
        sums = none.sums.index_copy(0, classes, sent["means"] * sent["counts"].unsqueeze(-1))
        return Gram(Sums(counts, sums, none.moment), symmetric(sent["gram"], d) * n, float(sent["unit"]) * n)

    def chosen(self, local: Local, counts: Tensor, gram: Gram) -> float:
        """Return the ridge under which the client's samples are most likely, the first of nearly equal ones."""
        held = counts.nonzero().squeeze(-1)
        if len(held) < 2 or bool((counts > gram.total.counts + 0.5).any()):
            return self.first(gram)
        features, labels = (part.cpu() for part in local.features())
        some = voters(labels, counts)
        if not len(some):
            return self.first(gram)
        y = torch.searchsorted(held, labels[some])
        ridges = [self.first(gram), *(r * self.scale(gram) for r in self.ridges)]
        scores = torch.stack([self.left_out(features[some].double(), y, held, gram, r) for r in ridges])
        scores = scores * (SCALE / scores.std(-1).mean(-1).clamp(min=1e-300)).view(-1, 1, 1)
        values = likelihoods(scores, y).nan_to_num(nan=-torch.inf)
        return next(r for r, value in zip(ridges, values, strict=True) if value >= values.max() - TIE)

    def left_out(self, x: Tensor, y: Tensor, held: Tensor, gram: Gram, ridge: float) -> Tensor:
        """Return the scores ``(n, K')`` of samples, each by the classifier of all the rest.

        Args:
            y: ``(n,)`` places of their classes in ``held``.
        """
        least = floor(float(gram.matrix.diagonal().mean()), self.task.dtype)
        matrix, sums = self.system(gram)
        x = F.pad(x, (0, len(matrix) - x.shape[1]), value=1.0)
        matrix = matrix + max(ridge, least) * torch.eye(len(matrix), dtype=x.dtype)
        lower, failed = torch.linalg.cholesky_ex(matrix)
        if failed:
            return x.new_full((len(x), len(held)), torch.nan)
        a = torch.cholesky_solve(sums[held].mT, lower).mT
        g = torch.cholesky_solve(x.mT, lower).mT
        own = F.one_hot(y, len(held)).to(x)
        h = (x * g).sum(1, keepdim=True)
        part = x @ a.mT - own * h
        t = 1 / (1 - h).clamp(min=1e-6) if self.taken else torch.zeros_like(h)
        scores = part * (1 + h * t)
        if not self.normalised:
            return scores
        ga, gg = g @ a.mT, g.square().sum(1, keepdim=True)
        squares = a.square().sum(1) - 2 * own * ga + own * gg
        squares = squares + 2 * part * t * (ga - own * gg) + (part * t).square() * gg
        return scores / squares.clamp(min=1e-300).sqrt()

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Scores of the client's own classes with its ridge, and of all."""
        if not self.chooses:
            return super().scores(model, batch, received, state)
        features, own = model(batch.x).features, Linear.named(received, "own_")
        return {
            "head": within(own.scores(features), own.present, state["own"]),
            "global_model": Linear.named(received).scores(features),
        }
