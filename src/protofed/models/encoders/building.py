"""Building of encoders, frozen networks among them, and encoding of all samples of a federation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofed.compute.seeding import generator, seeded
from protofed.errors import ConfigError, ModelError, unknown_name
from protofed.models.building import call
from protofed.models.catalogue import Backbone, ImageOptions, architectures
from protofed.models.encoders.contract import EncoderOptions, Places, check_kind, encoders
from protofed.models.preparation import Normalisation, Preparation, prepare, show
from protofed.models.weights import find_weights, load_weights
from protofed.options import build_options, plain


class Frozen(nn.Module):
    """A network whose outputs are features."""

    at_once = 16

    def __init__(
        self, name: str, network: nn.Module, input_shape: tuple[int, ...], preparation: Preparation | None
    ) -> None:
        super().__init__()
        self.network, self.preparation = network.eval(), preparation
        self.colours = 3 if len(input_shape) == 3 and input_shape[0] == 1 else 0
        try:
            with torch.no_grad():
                found = self(torch.zeros(2, *input_shape))
        except (RuntimeError, TypeError, ValueError) as error:
            why = next(iter(str(error).splitlines()), type(error).__name__)
            raise ModelError(f"{name} does not take samples of shape {show(input_shape)} ({why})") from None
        self.width = found.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(n, width)`` features of samples; of grey images as images with three equal channels."""
        if self.colours:
            x = x.expand(-1, self.colours, -1, -1)
        if self.preparation is not None:
            x = self.preparation(x)
        features = self.network(x)
        if not isinstance(features, Tensor) or features.dim() < 2:
            raise TypeError(f"gives {type(features).__name__}, not a tensor of one row per sample")
        return features.flatten(1).float()


def frozen(
    name: str, options: EncoderOptions, input_shape: tuple[int, ...], weights_dir: str, pretrained: bool
) -> Frozen:
    """Return a frozen network."""
    if ":" in name:
        with seeded(options.seed, "encoder"):
            module = call(name, dict(options.options), input_shape=input_shape)
        if options.weights and pretrained:
            load_weights(Backbone(module), find_weights(name, options.weights, weights_dir), (), name)
        return Frozen(name, module, input_shape, None)
    if not options.weights:
        raise ConfigError(f"encoder.name={name} is a network: set encoder.weights to a file")
    entry = architectures.get(name)
    made: Any = build_options(entry.Options, options.options, "encoder.options")
    if not isinstance(made, ImageOptions):
        raise ConfigError(f"encoder.name={name}: its weights are not published: use resnet18 or code of your own")
    shape = (3, *input_shape[1:]) if len(input_shape) == 3 and input_shape[0] == 1 else input_shape
    with seeded(options.seed, "encoder"):
        backbone = entry.make(shape, 1, made)
    if pretrained:
        load_weights(backbone, find_weights(name, options.weights, weights_dir), (), name)
    given = Normalisation(made.mean, made.std) if made.mean else backbone.normalisation
    return Frozen(name, backbone.module, input_shape, prepare(given, made.size, 3, name))


VERSION = 2  #: Version of the features, which invalidates the cache of others


class Encoder(nn.Module):
    """A fixed map from samples, as they are stored, to vectors.

    Args:
        body: Module ``(n, *input_shape) -> (n, width)``.

    Attributes:
        key: Hash of everything that determines the features, 32 hexadecimal digits.
    """

    map: Tensor | None

    def __init__(
        self, body: nn.Module, input_shape: tuple[int, ...], options: EncoderOptions, views: int = 1
    ) -> None:
        super().__init__()
        self.body, self.input_shape, self.views = body, input_shape, views
        own: int = body.width  # type: ignore[assignment]
        self.at_once: int = body.at_once  # type: ignore[assignment]
        if options.dim > own:
            raise ConfigError(f"encoder.dim={options.dim}, but {options.name} gives {own} numbers: at most {own}")
        self.register_buffer("map", orthonormal(own, options.dim, options.seed) if options.dim else None, False)
        self.width, self.unit = views * (options.dim or own), options.unit
        self.key = _key(body, input_shape, options)
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(n, width)`` float32 features of samples ``(n, *input_shape)``; uint8 counts as in [0, 1]."""
        x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
        if self.views > 1:
            x = x.reshape(-1, x.shape[1] // self.views, *x.shape[2:])
        features: Tensor = self.body(x)
        features = features - features.mean(1, keepdim=True) if self.unit else features
        features = features if self.map is None else features @ self.map
        features = F.normalize(features, dim=1) if self.unit else features
        return features.reshape(-1, self.width)

    def batches(self, x: Tensor) -> Iterator[Tensor]:
        """Yield the features of samples, part by part; equal samples have equal features in any batch.

        Every part has the same number of samples and is computed by one thread.
        """
        threads = torch.get_num_threads()

        def part(start: int) -> Tensor:
            with torch.inference_mode():
                own = x[start : start + self.at_once]
                whole = torch.cat([own, own[:1].expand(self.at_once - len(own), *own.shape[1:])])
                features: Tensor = self(whole)
                return features[: len(own)].clone()

        starts = range(0, len(x), self.at_once)
        torch.set_num_threads(1)
        try:
            with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                for first in range(0, len(starts), 8 * threads):  # so that no more than these wait
                    yield from pool.map(part, starts[first : first + 8 * threads])
        finally:
            torch.set_num_threads(threads)


def orthonormal(width: int, dim: int, seed: int) -> Tensor:
    """Return a random matrix ``(width, dim)`` with orthonormal columns."""
    drawn = torch.randn(width, dim, dtype=torch.float64, generator=generator(seed, "encoder map"))
    columns, upper = torch.linalg.qr(drawn)
    signed: Tensor = columns * upper.diagonal().sign()
    return signed.float()


def choose_encoder(options: EncoderOptions, input_shape: tuple[int, ...], texts: Places = ()) -> str:
    """Return the name of the encoder that ``auto`` stands for."""
    if options.name != "auto":
        return options.name
    return "hashing" if texts else "scattering" if len(input_shape) == 3 else "random"


def build_encoder(
    options: EncoderOptions,
    input_shape: tuple[int, ...],
    weights_dir: str = "",
    pretrained: bool = True,
    texts: Places = (),
    views: int = 1,
) -> Encoder:
    """Return an encoder.

    Args:
        views: Number of vectors side by side in each sample, of which features are computed one by one.
    """
    name, whole = choose_encoder(options, input_shape, texts), input_shape
    input_shape = (input_shape[0] // views, *input_shape[1:])
    if name in encoders:
        entry, own = encoders.get(name), dict(options.options)
        if options.weights:
            raise ConfigError(
                f"encoder.weights={options.weights}: {name} has no weights, only frozen networks have"
            )
        check_kind(name, input_shape, entry.kinds, texts)
        if texts:
            own["tokens"] = [number for text in texts for number in text]
        body = entry.make(input_shape, build_options(entry.Options, own, "encoder.options"), options.seed)
    elif ":" in name or name in architectures:
        if texts and ":" not in name:
            check_kind(name, input_shape, ("images",), texts)
        body = frozen(name, options, input_shape, weights_dir, pretrained)
    elif name == "wordllama":
        raise ConfigError(
            "encoder.name=wordllama: its vectors of texts are made where data are read: set data.text=COLUMN "
            "(data.text_as=vectors) and encoder.name=identity"
        )
    else:
        raise ConfigError(unknown_name("encoder", name, ["auto", *encoders, *architectures]))
    return Encoder(body, whole, replace(options, name=name), views)


def width_of(options: EncoderOptions, input_shape: tuple[int, ...], texts: Places = (), views: int = 1) -> int:
    """Return the features per sample of an encoder, without its weights."""
    if options.dim:
        return views * options.dim
    return build_encoder(options, input_shape, pretrained=False, texts=texts, views=views).width


def _key(body: nn.Module, input_shape: tuple[int, ...], options: EncoderOptions) -> str:
    """Return the hash of an encoder; numbers drawn from the seed are left out, which machines round differently.

    Equal options have equal hashes for samples of any shape, as a node knows its columns alone.
    """
    told = {**plain(options), "weights": ""}
    digest = hashlib.sha256(json.dumps([VERSION, told], sort_keys=True, default=list).encode())
    for name, tensor in body.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:32]
