"""A method's inputs: the task, a client during its visit, and a batch of its samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.compute.seeding import generator

if TYPE_CHECKING:
    from protofed.models import Output, SplitModel
else:
    Output = SplitModel = Any  # only annotations name them, so that no architecture has to be imported

__all__ = ["Batch", "Build", "Local", "Output", "SplitModel", "Task", "Tensors"]

Tensors = dict[str, Tensor]


class Batch(NamedTuple):
    """The samples of one step."""

    x: Tensor  #: ``(B, *shape)`` normalised inputs, or ``(B, d)`` features in a phase that trains on features
    y: Tensor  #: ``(B,)`` int64 labels
    weight: Tensor | None = None  #: ``(B,)`` 1 for a sample and 0 for padding, or None if nothing is padded
    #: ``(B,)`` factor of each sample's cross-entropy (``training.class_weights``), or None for 1
    importance: Tensor | None = None

    def mean(self, per_sample: Tensor) -> Tensor:
        """Return the mean of ``(B,)`` values over the real samples of the batch."""
        if self.weight is None:
            return per_sample.mean()
        return (per_sample * self.weight).sum() / self.weight.sum().clamp(min=1)

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """Return the mean cross-entropy of ``(B, K)`` logits, each sample's times its ``importance``."""
        errors = F.cross_entropy(logits, self.y, reduction="none")
        return self.mean(errors if self.importance is None else errors * self.importance)


class Build(Protocol):
    """Builds a network beside the clients' models, which all parties share."""

    def __call__(self, name: str, options: Mapping[str, Any], d: int | None) -> SplitModel:
        """Return the network, with the same initial weights for every party.

        Args:
            name: An architecture or ``package.module:callable``; empty for the experiment's own architecture (the
                first of a group) with its options.
            d: Length of the network's features; None for the experiment's.

        Raises:
            ConfigError, ModelError: If there is no such architecture, or it cannot take the clients' samples.
        """
        ...


@dataclass(frozen=True)
class Task:
    """The facts about the learning problem that every party knows."""

    num_classes: int  #: Number of classes ``K``
    feature_dim: int  #: Length of features ``d``
    rounds: int
    seed: int
    class_size: float  #: Expected number of training samples per class over all clients (mean ``N_j``)
    clients: int = 0  #: Number of clients ``M``; 0 if unknown
    #: Returns a model of the first client's architecture with its initial weights; None if there are no models at
    #: all, as in an analysis of finished runs
    template: Callable[[], SplitModel] | None = None
    #: Returns the number of parameters of each kind of model; None as ``template``
    sizes: Callable[[], Sequence[int]] | None = None
    auxiliary: Build | None = None  #: Builds an auxiliary network; None if there are no models at all
    dtype: torch.dtype = torch.float32
    input_shape: tuple[int, ...] = ()  #: Empty if there are no models at all
    classes: tuple[str, ...] = ()  #: Names of the ``K`` classes; empty if they are not known
    #: Noise multiplier of one upload's :attr:`Protection.dp_statistics`; None without such noise
    noise: float | None = None
    summed: bool = False  #: The server sees uploads added up alone (secure aggregation)
    #: Number of equally long features side by side, of tables standardised in different ways; a classifier is of
    #: one of them
    views: int = 1


@dataclass
class Local:
    """One client during its visit."""

    name: str
    round: int
    model: SplitModel
    counts: Tensor  #: ``(K,)`` int64 training samples per class (``n_ij``)
    state: Tensors  #: The method's state on this client; the method may change it
    received: Tensors  #: The result of :meth:`Method.receive` for the last broadcast
    #: Returns ``(n, d)`` eval-mode features of the training data and their ``(n,)`` int64 labels
    features: Callable[[], tuple[Tensor, Tensor]]
    seed: int
    #: Returns the client's training batches, in order and without augmentation
    training: Callable[[], Iterable[Batch]] = tuple
    validation: Callable[[], Iterable[Batch]] = tuple  #: Returns the client's validation batches
    least_samples: int = 0  #: Least number of training samples of a class that is reported

    def generator(self, purpose: str) -> torch.Generator:
        """Return the random generator that belongs to this client, round and ``purpose``."""
        return generator(self.seed, purpose, self.round, self.name)
