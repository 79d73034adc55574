"""Codecs that round real numbers, except in fields that are :attr:`~protofed.wire.schema.Field.exact`."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protofed.errors import DivergedError, PayloadError
from protofed.wire.codec import Codec, codecs

FLOAT16_LIMIT = 65504.0

Floats = npt.NDArray[np.float32]


@codecs.register("float16")
class Float16(Codec):
    """Two bytes per number.

    The error is at most 2⁻¹¹ (0.05 %) of a number, or 3e-8 if that is more. NaN and infinity are encoded as they
    are, because the receiver refuses them and knows the sender.
    """

    number, dtype, memory = 3, "<f4", torch.float32
    summary = "2 bytes per number, magnitudes up to 65504, error at most 0.05 %"

    def real_size(self, shape: tuple[int, ...]) -> int:
        """Return two bytes per number."""
        return 2 * math.prod(shape)

    def encode_real(self, name: str, tensor: Tensor) -> bytes:
        """Round to the nearest float16 numbers."""
        numbers = self.array(tensor)
        largest = np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0)
        if largest > FLOAT16_LIMIT:
            raise DivergedError(
                f"{name}: float16 holds magnitudes up to {FLOAT16_LIMIT:g}: choose wire.codec=float32"
            )
        return numbers.astype("<f2").tobytes()

    def decode_real(self, name: str, data: memoryview, shape: tuple[int, ...]) -> Tensor:
        """Return the numbers as float32."""
        return torch.from_numpy(np.frombuffer(data, "<f2").astype("<f4")).reshape(shape)


@codecs.register("int8")
class Int8(Codec):
    """One byte per number, and a float32 scale per row: ``scale · q`` with ``-127 ≤ q ≤ 127``.

    A row comprises all entries with the same first index, such as a prototype or a filter of a convolution. A
    vector or a single number is one row. The scale is the row's largest magnitude divided by 127, and the error is
    at most half the scale, 0.4 % of that magnitude. Rows without a magnitude above 1.5e-36 become 0.

    On the wire, the scales of all rows precede their integers.
    """

    number, dtype, memory = 4, "<f4", torch.float32
    summary = "1 byte per number and 4 per row, error at most 0.4 % of the row's largest magnitude"

    def real_size(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of the integers, and four per row."""
        rows, numbers = _rows(shape)
        return rows * (4 + numbers)

    def encode_real(self, name: str, tensor: Tensor) -> bytes:
        """Return scales and integers; the scale of a row that is not finite is not finite either."""
        numbers = self.array(tensor)
        rows = numbers.reshape(_rows(numbers.shape))
        scales = _scales(np.abs(rows).max(axis=1, initial=0.0))
        usable = np.isfinite(scales) & (scales > 0)
        steps = np.zeros(rows.shape, np.float64)
        np.divide(rows, scales[:, None], out=steps, where=usable[:, None])
        return scales.tobytes() + np.rint(steps, out=steps).astype("i1").tobytes()

    def decode_real(self, name: str, data: memoryview, shape: tuple[int, ...]) -> Tensor:
        """Return the numbers as float32."""
        rows, numbers = _rows(shape)
        scales = np.frombuffer(data, "<f4", rows)
        if not (usable := np.isfinite(scales) & (scales >= 0)).all():
            error = PayloadError if (scales < 0).any() else DivergedError
            raise error(f"{name}: the scale of a row must be finite and not negative, not {scales[~usable][0]}")
        found = np.frombuffer(data[4 * rows :], "i1").reshape(rows, numbers).astype("<f4")
        with np.errstate(over="ignore"):  # an infinite product is refused with the field's name
            found *= scales[:, None]
        return torch.from_numpy(found).reshape(shape)


def _rows(shape: tuple[int, ...]) -> tuple[int, int]:
    return (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))


def _scales(largest: Floats) -> Floats:
    """Return the ``(r,)`` scales of rows, of which ``largest`` has the magnitudes.

    Scales are rounded down to 17 of float32's 24 bits. Each product with an integer up to 127 is then exact, so a
    decoded row encodes to the same bytes again and exceeds neither the magnitudes nor the limit of the original.
    """
    scales = largest.astype("<f4") / np.float32(127)
    scales[scales < np.finfo(np.float32).tiny] = 0
    return (scales.view("<u4") & np.uint32(0xFFFFFF80)).view("<f4")
