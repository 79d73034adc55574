"""A trained model with its preprocessing, which takes samples as they are stored."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from protofed.errors import DataError
from protofed.models.checking import show
from protofed.models.core import SplitModel


class Classifier(nn.Module):
    """A client's model that takes samples as they are stored.

    Attributes:
        input_shape: Of one sample as :meth:`prepare` takes it, ``(C, H, W)`` or ``(F,)``.
        table: Makes the inputs of tables as they are stored: standardised numbers, encoded categories.
        encoder: Makes vectors of the samples.
    """

    def __init__(
        self,
        model: SplitModel,
        class_names: Sequence[str],
        input_shape: Sequence[int],
        *,
        eight_bit: bool,
        table: nn.Module | None = None,
        encoder: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.class_names = tuple(class_names)
        self.input_shape = tuple(input_shape)
        self.eight_bit = eight_bit
        self.table = table
        self.encoder = encoder

    @property
    def input_dtype(self) -> torch.dtype:
        """Type of samples as they are stored: uint8 for images, float64 for tables, else float32."""
        return torch.uint8 if self.eight_bit else torch.float64 if self.table is not None else torch.float32

    def stored(self, x: Tensor) -> Tensor:
        """Return stored samples, such as raw columns ``(n, C)``, as the model was trained on them.

        A category is given by its number, a missing value by NaN.
        """
        return self.prepare(x if self.table is None else self.table(x))

    def prepare(self, x: Tensor) -> Tensor:
        """Return samples, of tables their inputs, as the model was trained on them.

        Args:
            x: ``(n, *input_shape)``. A model for 8-bit images takes uint8, or real numbers in [0, 1] as torchvision
                makes them of images.
        """
        if tuple(x.shape[1:]) != self.input_shape:
            raise DataError(f"samples have the shape {show(tuple(x.shape[1:]))}, not {show(self.input_shape)}")
        dtype = self.model.head.weight.dtype
        if self.encoder is not None:
            vectors: Tensor = self.encoder(x)
            return vectors.to(dtype)
        if not self.eight_bit:
            return x.to(dtype)
        return x.to(dtype) / 127.5 - 1 if x.dtype == torch.uint8 else 2 * x.to(dtype) - 1

    def features(self, x: Tensor) -> Tensor:
        """Return ``(n, d)`` features of stored samples."""
        features: Tensor = self.model(self.stored(x)).features
        return features
