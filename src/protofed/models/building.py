"""Construction of a model with seeded weights from a name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from protofed.compute.imports import user_module
from protofed.compute.seeding import seeded
from protofed.errors import ConfigError, ModelError, require, unknown_name
from protofed.models.catalogue import ImageOptions, architectures
from protofed.models.core import MAPS, SplitModel, extractor, make_map
from protofed.models.preparation import Normalisation, check_shape, flat_width, prepare, scale_shape
from protofed.models.splitting import split
from protofed.models.weights import check_published, find_weights, load_weights
from protofed.options import build_options


def build(
    name: str,
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    d: int,
    mapping: str = "pool",
    options: dict[str, Any] | None = None,
    seed: int = 0,
    weights_dir: str = "",
    pretrained: bool = True,
    centred: bool = False,
) -> SplitModel:
    """Return a model with initial weights: random ones, and those of the file that the option ``weights`` names.

    The same arguments give the same weights, independent of torch's random state, which is left unchanged.

    Args:
        name: An architecture (see :data:`architectures`), ``package.module:callable`` or ``file.py:callable``. The
            callable receives ``options`` and, if it has such parameters and ``options`` does not set them,
            ``num_classes`` and ``input_shape``; the module it returns is passed through :func:`split`.
        input_shape: ``(C, H, W)`` or ``(F,)``.
        mapping: From the width of the backbone to ``d``: ``pool`` (adaptive average pooling) or ``linear``. Some
            architectures, such as ``mlp`` and ``cnn2``, have their own layer to ``d`` instead.
        weights_dir: Files of weights are found here by name; "" to open them where ``options`` say.
        pretrained: Read that file; not necessary for a model whose weights will be replaced.
        centred: Pixels in [0, 1] arrive as numbers in [-1, 1], as the engine hands 8-bit images to models; matters
            to models that normalise their input.

    Raises:
        ConfigError: If a name, option or map is unknown, or a value has the wrong type.
        ModelError: If the architecture does not accept such samples, the user's module cannot be split, or the
            file of weights is missing, damaged or that of another architecture.
    """
    shape = check_shape(input_shape)
    require(num_classes > 0, f"num_classes must be positive, not {num_classes}")
    require(d > 0, f"d must be positive, not {d}")
    if mapping not in MAPS:
        raise ConfigError(unknown_name("map", mapping, MAPS))
    with seeded(seed, "init"):
        if ":" in name:
            module = call(name, dict(options or {}), num_classes=num_classes, input_shape=shape)
            return split(module, input_shape=shape, d=d, mapping=mapping, num_classes=num_classes)
        entry = architectures.get(name)
        made: Any = build_options(entry.Options, options or {}, name)
        images = made if isinstance(made, ImageOptions) else None
        shape = scale_shape(shape, images.size) if images else shape
        try:
            backbone = entry.make(shape, d, made)
        except RuntimeError as error:  # more memory than there is, or than can be counted
            why = next(iter(str(error).splitlines()), "")
            raise ModelError(f"{name} cannot be built with {dict(options or {})}: {why}") from None
        width = flat_width(backbone.module, shape, name)
        map_ = backbone.map or make_map(mapping, width, d)
        head = nn.Linear(d, num_classes)
    if images is None:
        return SplitModel(extractor(backbone.module, map_), head, head_dropout=backbone.head_dropout)
    if images.weights and pretrained:
        load_weights(backbone, find_weights(name, images.weights, weights_dir), images.fresh, name)
    normalisation = backbone.normalisation if images.weights else None
    if images.mean:
        normalisation = Normalisation(images.mean, images.std)
    preparation = prepare(normalisation, images.size, shape[0], name, centred=centred)
    body = extractor(backbone.module, map_, preparation)
    return SplitModel(body, head, head_dropout=backbone.head_dropout)


def call(path: str, options: dict[str, Any], **offered: Any) -> nn.Module:
    """Return the module that a callable makes."""
    factory = _find(path)
    try:
        signature = inspect.signature(factory)
    except ValueError:  # some built-in callables have none
        signature = None
    if signature is not None:
        options = {k: v for k, v in offered.items() if k in signature.parameters} | options
        try:
            signature.bind(**options)
        except TypeError as error:
            raise ConfigError(f"{path} does not accept the options {sorted(options)}: {error}") from None
    check_published(path, options)
    try:
        module = factory(**options)
    except OSError as error:  # e.g. a download that fails
        raise ModelError(f"{path} cannot be built: {next(iter(str(error).splitlines()), '')}") from error
    if not isinstance(module, nn.Module):
        raise ModelError(f"{path} must return a torch.nn.Module, not {type(module).__name__}")
    return module


def _find(path: str) -> Callable[..., Any]:
    module_name, _, attribute = path.rpartition(":")
    try:
        found: Any = user_module(module_name)
    except (ImportError, OSError, TypeError, ValueError) as error:
        raise ConfigError(
            f"cannot import model {path!r} (package.module:callable or file.py:callable): {error}"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            close = difflib.get_close_matches(part, dir(found), n=1)
            hint = f": did you mean {close[0]!r}?" if close else ""
            raise ConfigError(f"cannot find model {path!r}: no {part!r} in {module_name}{hint}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"model {path!r} is a {type(found).__name__}, not a callable that returns a module")
    result: Callable[..., Any] = found
    return result
