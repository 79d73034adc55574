"""Split models: an extractor, a head, and the classifier of a trained one that takes samples as they are stored."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from protofed.errors import ConfigError, DataError, unknown_name
from protofed.models.layers import KeyedUniform
from protofed.models.preparation import Preparation, show

MAPS = ("pool", "linear")


class Output(NamedTuple):
    """The output of one forward pass."""

    features: Tensor  #: ``(B, d)`` vectors, which prototypes average
    logits: Tensor  #: ``(B, K)`` unnormalised


class SplitModel(nn.Module):
    """A classifier in two parts, ``g(f(x))`` (FedProto, Sec. 3.2).

    The names of weights are ``extractor.backbone.…``, ``extractor.map.…``, ``head.weight`` and ``head.bias``.

    Args:
        extractor: ``x -> (B, d)``; see :func:`extractor`.
        head: Linear, ``d -> K``.
        head_dropout: Probability of zeroing a feature of the head's input in training mode; returned features are
            free of that noise.

    Attributes:
        extras: Further networks of a method (projection, auxiliary model).
        scale: Normalisation of the data's images, which every model of an experiment has.
        in_bfloat16: Compute convolutions and linear layers in bfloat16 (autocast). Weights, features and logits,
            and therefore all prototypes, keep their precision.
    """

    in_bfloat16 = False

    def __init__(self, extractor: nn.Module, head: nn.Linear, *, head_dropout: float = 0.0) -> None:
        super().__init__()
        self.extractor = extractor
        self.head = head
        self.extras = nn.ModuleDict()
        self.scale: Preparation | None = None
        self.dropout = nn.Dropout(head_dropout)
        self.feature_dim = head.in_features
        self.num_classes = head.out_features

    @property
    def normalises(self) -> bool:
        """Return whether the backbone comes with a normalisation of its own, which does not count in ``scale``."""
        return any(isinstance(m, Preparation) and m.normalisation for m in self.extractor.children())

    @property
    def fixed(self) -> bool:
        """Return whether training leaves the features as they are."""
        return not any(p.requires_grad for p in self.extractor.parameters())

    @property
    def needs_two_samples(self) -> bool:
        """Return whether there is a BatchNorm layer, so that training batches of one sample must be skipped."""
        return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.modules())

    def classify(self, features: Tensor) -> Tensor:
        """Return logits ``(B, K)`` of features ``(B, d)``, applying the head's dropout in training mode."""
        result: Tensor = self.head(self.dropout(features))
        return result

    def add_noise(self, name: str) -> None:
        """Add a noise source called ``name`` to the extras, for losses that need it; see :class:`KeyedUniform`."""
        self.extras[name] = KeyedUniform()

    def forward(self, x: Tensor) -> Output:
        """Return features ``(B, d)`` and logits ``(B, K)`` of a batch ``(B, *input_shape)``."""
        if self.scale is not None:
            x = self.scale(x)
        if not self.in_bfloat16:
            features = self.extractor(x)
            return Output(features, self.classify(features))
        dtype = self.head.weight.dtype
        with torch.autocast(x.device.type, torch.bfloat16):
            features = self.extractor(x).to(dtype)
            return Output(features, self.classify(features).to(dtype))

    def trace(self, input_shape: Sequence[int]) -> list[tuple[nn.Module, Tensor]]:
        """Run one sample of zeros in eval mode; return the innermost modules it passes, each with its output."""
        steps: list[tuple[nn.Module, Tensor]] = []

        def note(module: nn.Module, _inputs: object, output: object) -> None:
            if isinstance(output, Tensor):
                steps.append((module, output))

        hooks = [m.register_forward_hook(note) for m in self.modules() if not list(m.children())]
        training = self.training
        try:
            with torch.no_grad():
                self.eval()(next(self.parameters()).new_zeros(1, *input_shape))
        finally:
            self.train(training)
            for hook in hooks:
                hook.remove()
        return steps


def extractor(backbone: nn.Module, map_: nn.Module, preparation: nn.Module | None = None) -> nn.Sequential:
    """Compose a feature extractor ``x -> (B, d)``; images pass the ``preparation`` first."""
    first = {} if preparation is None else {"preparation": preparation}
    return nn.Sequential(OrderedDict(first, backbone=backbone, map=map_))


def make_map(kind: str, width: int, d: int) -> nn.Module:
    """Return the map ``(B, width) -> (B, d)``.

    Args:
        kind: ``pool`` averages neighbouring entries (``AdaptiveAvgPool1d``, which repeats entries if ``d > width``
            and does nothing if ``d == width``), as in ProtoNorm and TinyProto. ``linear`` is a learned layer
            with bias.
    """
    if kind not in MAPS:
        raise ConfigError(unknown_name("map", kind, MAPS))
    if kind == "linear":
        return nn.Linear(width, d)
    # A (B, width) tensor is one unbatched signal of B channels, so each row is pooled separately.
    return nn.Identity() if width == d else nn.AdaptiveAvgPool1d(d)


def parameter_count(model: nn.Module) -> int:
    """Return the number of parameters, counting shared ones once and buffers (BatchNorm statistics) not at all."""
    return sum(p.numel() for p in model.parameters())


def parameter_bytes(model: nn.Module) -> int:
    """Return the size of a model's ``state_dict`` in bytes."""
    return sum(t.numel() * t.element_size() for t in model.state_dict().values())


def multiply_adds(model: SplitModel, input_shape: tuple[int, ...]) -> int:
    """Return the number of multiply-adds of convolutions and linear layers in the forward pass of one sample."""
    total = 0
    for module, output in model.trace(input_shape):
        if isinstance(module, (nn.Linear, nn.modules.conv._ConvNd)):
            total += output.numel() * (module.weight.numel() // module.weight.shape[0])
    return total


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
