"""Schemas of messages: named tensors with symbolic shapes and rules for their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

Payload = dict[str, Tensor]

Kind = Literal["real", "label", "count"]


@dataclass(frozen=True)
class Field:
    """One named tensor.

    A field with bounds of its own is ``exact``.
    """

    shape: tuple[int | str, ...]  #: Numbers or symbols, e.g. ``("k", "d")``
    #: ``real``: finite floating-point numbers (the codec chooses their width); ``label``: int64 classes in ``[0,
    #: K)``, two bytes each on the wire; ``count``: int64 in ``[0, 2**32)``, four bytes each
    kind: Kind = "real"
    parameter: bool = True  #: The papers count it as a communicated parameter (they do not count labels and counts)
    unique: bool = True  #: For labels: each class occurs at most once, in ascending order
    minimum: float | None = None  #: Smallest allowed value
    #: Largest allowed magnitude, so that one diverged client cannot overflow the numbers of all others
    limit: float = 1e9
    #: Each class's row is a sum over the sender's samples of that class (``n_ij`` times a mean), so that rows of
    #: different clients are comparable only after division by ``n_ij``. The first dimension is that of the labels,
    #: or ``K``
    sums: bool = False
    #: Each of K rows without labels describes the sender's samples of a class, as ``sums`` do
    by_class: bool = False
    #: For real numbers in an upload, the count by which the server weights them in its mean over clients; ``""``
    #: for the plain mean, and for the plain sum of a field of sums over samples
    weight: str = ""
    #: For counts in an upload: they are numbers of the sender's training samples, which the server caps at the
    #: numbers the client described before training
    described: bool = True

    @property
    def exact(self) -> bool:
        """Return whether lossy codecs send it in float32.

        Rounding could move a number beyond its bound. Besides, bounded fields are variances or mixture weights, and
        small ones must not become 0.
        """
        return self.minimum is not None or self.limit != Field.limit


@dataclass(frozen=True)
class Schema:
    """The tensors of one message, in the order in which they are encoded."""

    fields: Mapping[str, Field]
    num_classes: int  #: ``K``, which bounds labels
    sizes: Mapping[str, int] = field(default_factory=dict)  #: Of symbols known to both sides, e.g. ``{"d": 512}``
    #: Largest value of each symbol that varies between messages, e.g. ``{"k": 10}``
    limits: Mapping[str, int] = field(default_factory=dict)

    def parameters(self, payload: Payload) -> int:
        """Return the number of values in ``payload`` that the papers count as communicated parameters."""
        return sum(payload[name].numel() for name, f in self.fields.items() if f.parameter and f.kind == "real")


def prototype_schema(
    num_classes: int,
    width: int | str,
    sizes: Mapping[str, int],
    *,
    sums: bool = False,
    counted: bool = False,
    **more: Field,
) -> Schema:
    """Return the schema of ``k`` class prototypes, i.e. their labels and ``(k, width)`` values.

    Args:
        width: Size or symbol of the second dimension, e.g. ``"d"``.
        sums: Prototypes are multiplied by the sender's number of samples of the class.
        counted: That number is sent as well; the server weights prototypes by it.
    """
    fields = {
        "classes": Field(("k",), "label", parameter=False),
        "prototypes": Field(("k", width), sums=sums, weight="counts" if counted and not sums else ""),
        **({"counts": Field(("k",), "count", parameter=False)} if counted else {}),
        **more,
    }
    return Schema(fields, num_classes, sizes=sizes, limits={"k": num_classes})


def weight_schema(weights: Mapping[str, Tensor], num_classes: int, **more: Field) -> Schema:
    """Return the schema of a set of weights."""
    fields = {
        # BatchNorm divides by the root of its running variances.
        name: Field(tuple(tensor.shape), minimum=0.0 if name.endswith("running_var") else None)
        for name, tensor in weights.items()
    }
    return Schema({**fields, **more}, num_classes)
