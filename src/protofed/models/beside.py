"""A client's own network beside fixed features."""

from __future__ import annotations

from torch import Tensor

from protofed.models.core import Output, SplitModel


class Beside(SplitModel):
    """A network that takes a part of each sample; another part are the features.

    Weights have the names that they have in the network alone.

    Args:
        features: None for those of the network.
        inputs: Columns.
        shape: Of one of its samples.
        centred: Values ``v`` in [0, 1] become ``2v - 1``, as the engine hands 8-bit images to models.
    """

    def __init__(
        self, own: SplitModel, features: slice | None, inputs: slice, shape: tuple[int, ...], *, centred: bool
    ) -> None:
        super().__init__(own.extractor, own.head, head_dropout=own.head_dropout)
        self.scale = own.scale
        self.beside, self.inputs, self.shape, self.centred = features, inputs, shape, centred
        if features is not None:
            self.feature_dim = features.stop - features.start

    @property
    def fixed(self) -> bool:
        """Return whether training leaves the features as they are."""
        return self.beside is not None or super().fixed

    def forward(self, x: Tensor) -> Output:
        """Return features ``(B, d)`` and logits ``(B, K)`` of a batch ``(B, Σ parts)``."""
        own = x[:, self.inputs].reshape(-1, *self.shape)
        output = super().forward(2 * own - 1 if self.centred else own)
        return output if self.beside is None else Output(x[:, self.beside], output.logits)
