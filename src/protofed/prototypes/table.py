"""Class prototypes as a table: a row for every class, and a mask of the classes that have a prototype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class Prototypes(NamedTuple):
    """One vector per class, ``(K, d)``, and which classes have one; the others' rows are zero."""

    rows: Tensor
    present: Tensor

    @classmethod
    def none(cls, num_classes: int, width: int, dtype: torch.dtype = torch.float32) -> Prototypes:
        """Return a table in which no class has a prototype."""
        return cls(torch.zeros(num_classes, width, dtype=dtype), torch.zeros(num_classes, dtype=torch.bool))

    @classmethod
    def received(cls, rows: Tensor, classes: Tensor, num_classes: int) -> Prototypes:
        """Return the table of the ``(k, d)`` prototypes in a message."""
        table = rows.new_zeros(num_classes, *rows.shape[1:])
        present = torch.zeros(num_classes, dtype=torch.bool, device=rows.device)
        table[classes] = rows
        present[classes] = True
        return cls(table, present)

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Prototypes:
        """Undo :meth:`tensors`."""
        return cls(tensors["prototypes"], tensors["present"])

    def tensors(self) -> dict[str, Tensor]:
        """Return the table as states and files hold it: ``prototypes`` and ``present``."""
        return {"prototypes": self.rows, "present": self.present}

    def to_send(self) -> tuple[Tensor, Tensor]:
        """Return the ``(k, d)`` rows of the classes that have one, and those ``(k,)`` classes, ascending."""
        classes = self.present.nonzero().squeeze(-1)
        return self.rows[classes], classes

    def only(self, classes: Tensor) -> Prototypes:
        """Return the table with the prototypes of the ``(K,)`` bool ``classes`` alone."""
        return Prototypes(self.rows.where(classes.unsqueeze(-1), 0.0), self.present & classes)

    def scaled(self, factor: float) -> Prototypes:
        """Return the table with every row multiplied by ``factor``."""
        return self._replace(rows=factor * self.rows)

    def merged(self, new: Prototypes) -> Prototypes:
        """Return the table with the rows of ``new`` where it has any; other classes keep theirs."""
        rows = torch.where(new.present.unsqueeze(-1), new.rows.to(self.rows.dtype), self.rows)
        return Prototypes(rows, self.present | new.present)
