"""The data of clients, as tensors in memory."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from protofed.text import few
from protofed.untrusted.decoding import Shape, check_with


def _encoder_key(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch("([0-9a-f]{32})?", value):
        raise ValueError("expected 32 hexadecimal digits")
    return value


if TYPE_CHECKING:
    from protofed.data.tables import Table

    EncoderKey = str
else:
    EncoderKey = check_with(_encoder_key)

_SHOWN = 8  #: Clients that a note names


@dataclass(frozen=True)
class Samples:
    """Labelled samples."""

    x: Tensor  #: ``(n, *shape)``; images as uint8 ``(n, C, H, W)``, anything else as a floating-point type
    y: Tensor  #: ``(n,)`` int64

    def __len__(self) -> int:
        return len(self.y)

    def at(self, rows: Tensor | slice) -> Samples:
        """Return the samples at some positions."""
        return Samples(self.x[rows], self.y[rows])

    def counts(self, num_classes: int) -> Tensor:
        """Return the number of samples of each class, ``(K,)`` int64."""
        return torch.bincount(self.y, minlength=num_classes)

    @property
    def exact(self) -> bool:
        """Return whether :meth:`counts` are exact, rather than the rounded counts that a client disclosed."""
        return True

    def most(self, num_classes: int) -> Tensor:
        """Return the largest possible number of samples of each class, ``(K,)`` int64."""
        return self.counts(num_classes)


@dataclass(frozen=True)
class ClientData:
    """The data and settings of one client."""

    name: str  #: Unique, used in file names (see :func:`protofed.untrusted.claims.client_name`)
    train: Samples  #: May be empty
    test: Samples  #: May be empty
    validation: Samples | None = None  #: Held out from training for model selection
    #: Chosen by the client in its ``client.toml``: any of ``model``, ``d``, ``epochs``, ``batch_size``, ``lr``,
    #: ``counts``
    settings: dict[str, Any] = field(default_factory=dict)
    table: Table | None = None  #: If its samples are a table or standardised

    def map(self, function: Callable[[Samples], Samples]) -> ClientData:
        """Return the same client with ``function`` applied to its training, test and validation samples in turn."""
        train, test = function(self.train), function(self.test)
        validation = None if self.validation is None else function(self.validation)
        return replace(self, train=train, test=test, validation=validation)


@dataclass(frozen=True)
class Encoding:
    """The samples from which an encoder made vectors."""

    key: EncoderKey  #: Hash of the encoder with its weights
    input_shape: Shape  #: Of a sample before
    eight_bit: bool = False  #: Samples were 8-bit images


@dataclass(frozen=True)
class FederatedData:
    """The data of all clients."""

    clients: tuple[ClientData, ...]  #: In a fixed order
    num_classes: int  #: ``K`` over all clients
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]  #: ``(C, H, W)`` or ``(F,)``
    #: If samples are a table or standardised; clients that standardise by themselves complete it with their own
    #: numbers
    table: Table | None = None
    notes: tuple[str, ...] = ()  #: Whole sentences for a report on the treatment of the samples
    encoding: Encoding | None = None  #: None if the samples are as they were
    #: Hash of the test samples as they were, where they have been changed since by what depends on others
    tests: str = ""

    @property
    def eight_bit(self) -> bool:
        """Return whether the samples are 8-bit images, or are not on this machine."""
        samples = next((c.train.x for c in self.clients if c.train.x.dim() > 1), None)
        return samples is None or samples.dtype == torch.uint8

    def test_hash(self) -> str:
        """Return a hash of all clients' test samples as they were; ``""`` if they are not on this machine."""
        if self.tests:
            return self.tests
        found = hashlib.sha256()
        for client in self.clients:
            if not client.test.exact or len(client.test.x) != len(client.test.y):
                return ""
            for part in (client.test.x, client.test.y):
                found.update(part.cpu().contiguous().numpy().tobytes())
        return found.hexdigest()[:16]

    def remarks(self) -> tuple[str, ...]:
        """Return the notes, and the preparation of the samples in words, as whole sentences."""
        return (*self.notes, *self._of_one_class(), self.table.note()) if self.table else self.notes

    def _of_one_class(self) -> tuple[str, ...]:
        held = (self.class_counts() > 0).sum(1).tolist()
        names = [c.name for c, number in zip(self.clients, held, strict=True) if number == 1 < self.num_classes]
        return (
            (f"Of one class alone: {few(names, _SHOWN)} (if that is not meant, set data.label_column).",)
            if names
            else ()
        )

    def class_counts(self) -> Tensor:
        """Return the number of training and test samples per client and class, ``(M, K)`` int64."""
        rows = [c.train.counts(self.num_classes) + c.test.counts(self.num_classes) for c in self.clients]
        return torch.stack(rows) if rows else torch.zeros(0, self.num_classes, dtype=torch.int64)

    def without(self, names: Collection[str]) -> FederatedData:
        """Return the same federation without some clients."""
        return replace(self, clients=tuple(c for c in self.clients if c.name not in names)) if names else self

    def map(self, function: Callable[[Samples], Samples]) -> FederatedData:
        """Return the same federation with ``function`` applied to every split."""
        return replace(self, clients=tuple(client.map(function) for client in self.clients))
