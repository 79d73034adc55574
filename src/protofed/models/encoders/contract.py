"""The contract of encoders: fixed, untrained maps from samples to vectors that all clients share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from protofed.errors import ConfigError
from protofed.models.preparation import show
from protofed.options import NoOptions, Options, named, remote
from protofed.registry import Registry
from protofed.untrusted import limits

Kind = Literal["images", "series", "vectors", "texts"]
"""Kinds of samples: ``(C, H, W)``, ``(C, T)``, ``(F,)``, and ``(F,)`` with tokens."""
Places = Sequence[tuple[int, int]]  #: First input and number of inputs of each text of a sample
KINDS: dict[int, Kind] = {1: "vectors", 2: "series", 3: "images"}  #: Kind of samples by their number of dimensions

LEAST, MOST = 8, 1024  #: Least and most rows and columns of an image


@dataclass(frozen=True)
class EncoderOptions(Options):
    """Fixed features in place of the samples, the same at every client."""

    name: str = named(
        "",
        "none: the samples as they are; auto: scattering for images, hashing for texts, else random; an encoder; "
        "or a frozen network: an architecture or package.module:callable ('' = auto with dim=128 for closed forms, "
        "which train no network, and none for other methods)",
        of="encoders",
    )
    dim: int = remote(
        0,
        "numbers per sample, by a random map with orthonormal columns (0 = all that the encoder has)",
        least=0,
        most=limits.INPUT_SIDE,
    )
    unit: bool = remote(
        False, "subtract the mean of a sample's numbers before the map, and scale the result to length 1"
    )
    seed: int = remote(
        0, "seed of random features and of the map, public and independent of the run's", least=0, most=limits.SEED
    )
    weights: str = named("", "file with the weights of a frozen network", of="weights")
    options: dict[str, Any] = named(
        {}, "options of the encoder, or of the frozen network's architecture", of="encoders"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name and (self.dim or self.unit or self.weights or self.options):
            raise ValueError("dim, unit, weights, options are of an encoder: set encoder.name, e.g. auto")


@dataclass(frozen=True)
class ScatteringOptions(Options):
    """Options of ``scattering``."""

    grid: int = remote(
        4, "rows and columns of averages; fewer where an image has fewer than 4 pixels each", least=1
    )


@dataclass(frozen=True)
class RandomOptions(Options):
    """Options of ``random``."""

    filters: int = remote(200, "random 6 × 6 filters of images", least=1, most=65536)
    waves: int = remote(1000, "random Fourier features of vectors and tables", least=1, most=65536)
    kernels: int = remote(1000, "random convolutions of series", least=1, most=65536)


Make = Callable[[tuple[int, ...], Any, int], Any]


@dataclass(frozen=True)
class NamedEncoder:
    """A named encoder."""

    name: str
    summary: str
    Options: type
    #: Of ``(input_shape, options, seed)``; returns a module ``(n, *input_shape) -> (n, width)`` with fixed numbers,
    #: its ``width``, and ``at_once``, the samples best computed together; pixels are in [0, 1]
    make: Make
    kinds: tuple[Kind, ...]


encoders: Registry[NamedEncoder] = Registry("encoder")


def encoder(
    name: str, summary: str, Options: type = NoOptions, *, kinds: tuple[Kind, ...] = ("images", "series", "vectors")
) -> Callable[[Any], Any]:
    """Return a decorator that registers a function or class as an encoder."""

    def register(make: Any) -> Any:
        encoders.register(name)(NamedEncoder(name, summary, Options, make, kinds))
        return make

    return register


def check_kind(name: str, input_shape: tuple[int, ...], kinds: tuple[Kind, ...], texts: Places = ()) -> None:
    """Check that an encoder suits samples of a shape."""
    if texts and "texts" not in kinds:
        raise ConfigError(
            f"encoder.name={name} is for {' and '.join(kinds)}, and the samples are texts as tokens: use hashing, "
            "or data.text_as=vectors"
        )
    if kinds == ("texts",) and not texts:
        raise ConfigError(
            f"encoder.name={name} is for texts, but the samples are not texts: name their column, "
            "data.text=COLUMN, and set data.text_as=tokens"
        )
    if not texts and KINDS.get(len(input_shape)) not in kinds:
        raise ConfigError(
            f"encoder.name={name} is for {' and '.join(kinds)}, not for samples of shape {show(input_shape)}: use "
            "random or identity"
        )
    sides = input_shape[1:]
    if kinds == ("images",) and not LEAST <= min(sides) <= max(sides) <= MOST:
        raise ConfigError(f"encoder.name={name} takes images of {LEAST} to {MOST} pixels a side, not {show(sides)}")
