"""Sets of weights whose matrices are sent as factors of low rank if that takes fewer numbers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from protofed.methods.contract import Tensors
from protofed.wire.schema import Field, Payload, Schema


class Factors(NamedTuple):
    """``leftᵀ · diag(values) · right`` is a matrix ``(m, n)`` of rank ``s``."""

    left: Tensor  # ``(s, m)``, its rows orthonormal
    values: Tensor  # ``(s,)``, descending
    right: Tensor  # ``(s, n)``, its rows orthonormal

    def product(self) -> Tensor:
        """Return the matrix."""
        return (self.left.mT * self.values) @ self.right


def factorise(matrix: Tensor, energy: float) -> Factors:
    """Return the truncated singular value decomposition that keeps a share of the energy.

    The rank is the smallest ``s`` with ``Σ_{j≤s} σ_j² ≥ energy·Σ_j σ_j²``: full if that is needed, 0 for a matrix
    of zeros.
    """
    # Eigenvectors of the smaller Gram matrix in float64: several times faster than a decomposition of the matrix.
    # U alone is needed, because U Uᵀ A is the truncated matrix, however small its singular values are.
    tall = matrix.shape[0] > matrix.shape[1]
    a = (matrix.mT if tall else matrix).double()
    squares, vectors = torch.linalg.eigh(a @ a.mT)
    squares, u = squares.flip(0).clamp(min=0), vectors.flip(1)
    rank = 0
    if squares.sum() > 0:
        kept = squares.cumsum(0) >= energy * squares.sum()
        rank = int(kept.int().argmax()) + 1 if kept.any() else len(squares)
    left = u[:, :rank].mT
    right = left @ a
    values = right.norm(dim=1)
    right = right / values.clamp(min=torch.finfo(values.dtype).tiny).unsqueeze(1)
    parts = (right, values, left) if tall else (left, values, right)
    return Factors(*(part.to(matrix.dtype) for part in parts))


class LowRank:
    """The encoding of weights of given shapes.

    Vectors are sent as they are. A matrix ``m×n`` (a kernel ``o×i×k×k`` is one of ``o×(i·k·k)``) is sent as ``s``
    factors of ``s(m + n + 1)`` numbers, or whole if that takes no more: fields ``NAME.left``, ``.values`` and
    ``.right`` of ``s`` rows, and ``NAME.whole`` of 0 or 1.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        self.matrices = {n: (s[0], math.prod(s[1:])) for n, s in self.shapes.items() if len(s) > 1}

    def schema(self, num_classes: int, **more: Field) -> Schema:
        """Return the schema of the weights."""
        fields: dict[str, Field] = {}
        limits: dict[str, int] = {}
        for index, (name, shape) in enumerate(self.shapes.items()):
            if name not in self.matrices:
                fields[name] = Field(shape)
                continue
            m, n = self.matrices[name]
            rank, whole = f"rank{index}", f"whole{index}"
            fields |= {
                f"{name}.left": Field((rank, m)),
                f"{name}.values": Field((rank,)),
                f"{name}.right": Field((rank, n)),
                f"{name}.whole": Field((whole, m, n)),
            }
            limits |= {rank: self.most(name), whole: 1}
        return Schema({**fields, **more}, num_classes, limits=limits)

    def most(self, name: str) -> int:
        """Return the largest rank at which the factors take fewer numbers than the matrix ``name``."""
        m, n = self.matrices[name]
        return (m * n - 1) // (m + n + 1)

    def pack(self, weights: Mapping[str, Tensor], energy: float | None) -> Payload:
        """Return the fields of a message.

        Args:
            energy: Share of each matrix's energy to keep, in (0, 1]; None to send matrices whole.
        """
        payload: Payload = {}
        for name in self.shapes:
            tensor = weights[name].detach()
            payload |= self._pack(name, tensor, energy) if name in self.matrices else {name: tensor}
        return payload

    def _pack(self, name: str, tensor: Tensor, energy: float | None) -> Payload:
        m, n = self.matrices[name]
        matrix = tensor.reshape(m, n)
        factors = Factors(matrix.new_zeros(0, m), matrix.new_zeros(0), matrix.new_zeros(0, n))
        whole = matrix.unsqueeze(0)
        if energy is not None and bool(matrix.isfinite().all()):
            with contextlib.suppress(torch.linalg.LinAlgError):  # type: ignore[attr-defined]
                candidate = factorise(matrix, energy)
                # A singular value may be larger than all entries.
                if len(candidate.values) <= self.most(name) and not bool((candidate.values > Field.limit).any()):
                    factors, whole = candidate, whole[:0]
        return {**{f"{name}.{part}": t for part, t in factors._asdict().items()}, f"{name}.whole": whole}

    def unpack(self, payload: Payload) -> Tensors:
        """Return the weights from the fields of a message."""
        weights: Tensors = {}
        for name, shape in self.shapes.items():
            if name in self.matrices:
                factors = Factors(*(payload[f"{name}.{part}"] for part in Factors._fields))
                weights[name] = (factors.product() + payload[f"{name}.whole"].sum(0)).reshape(shape)
            else:
                weights[name] = payload[name]
        return weights
