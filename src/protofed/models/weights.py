"""Initial weights of backbones from files, which are not trusted.

A file is read without running code it may hold and without reserving memory for what it only claims to hold. Every
tensor has to fit the backbone. Only the first convolution, whose input channels follow the data, and the parts that
the user names may differ: they keep their random values. The classifier of a published network is left out.
"""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO

import torch
from torch import Tensor

from protofed.errors import ConfigError, ModelError, ProtofedError
from protofed.models.catalogue import Backbone
from protofed.models.preparation import show
from protofed.storage.files import open_tensors, read_tensors
from protofed.untrusted import limits
from protofed.untrusted.reading import open_ordinary, reason

_ZIP, _LEGACY = b"PK\x03\x04", b"\x80\x02\x8a\x0a"
"""First bytes of files of ``torch.save``, of today and before torch 1.6; no header of safetensors is that long."""
_SAFE_TORCH = (2, 6)
"""First version of torch whose ``weights_only`` keeps code in a file from running (CVE-2025-32434)."""


def find_weights(architecture: str, weights: str, folder: str = "") -> Path:
    """Return the file that an architecture's option ``weights`` means.

    Args:
        weights: File, or name of torchvision's weights, e.g. ``IMAGENET1K_V1``.
        folder: A file is found here by its name; "" to keep the path.

    Raises:
        ModelError: Nothing is downloaded.
    """
    published = _find_addresses(architecture)
    if weights in published:
        return _download(architecture, weights, published[weights])
    path = Path(folder, Path(weights).name) if folder else Path(weights).expanduser()
    if not path.exists():
        names = f", nor one of torchvision's weights ({', '.join(published)})" if published else ""
        raise ModelError(f"{architecture}: weights {str(path)!r} not found on this machine{names}")
    return path


def check_published(path: str, options: Mapping[str, Any]) -> None:
    """Check that one of torchvision's functions will not download the weights it is asked for."""
    module, _, function = path.partition(":")
    if module.partition(".")[0] != "torchvision":
        return
    published = _find_addresses(function)
    wanted = options.get("weights") or ("IMAGENET1K_V1" if options.get("pretrained") else None)
    name = str(wanted).rpartition(".")[2]
    if wanted is not None and name in published:
        _download(path, name, published[name])


def _find_addresses(architecture: str) -> dict[str, str]:
    """Return the addresses of torchvision's weights of an architecture, by name; empty if it has none."""
    from torchvision.models import get_model_weights

    try:
        known = get_model_weights(architecture)
    except ValueError:
        return {}
    return {name: entry.url for name, entry in known.__members__.items()}


def _download(architecture: str, weights: str, url: str) -> Path:
    path = Path(torch.hub.get_dir(), "checkpoints", url.rpartition("/")[2])
    if not path.exists():
        raise ModelError(
            f"{architecture}: torchvision's weights {weights} are not on this machine: put {path.name} into "
            f"{path.parent} (torchvision's documentation has its address), or name another file"
        )
    return path


def load_weights(backbone: Backbone, path: Path, fresh: tuple[str, ...], name: str) -> None:
    """Replace the random weights of a backbone by those of a file; a file that does not fit changes nothing.

    Args:
        fresh: Modules or tensors of the backbone that keep their random weights.
    """
    own = backbone.module.state_dict()
    for part in fresh:
        if not any(_within(tensor, (part,)) for tensor in own):
            parts = dict.fromkeys(tensor.partition(".")[0] for tensor in own)
            raise ConfigError(f"{name}: fresh: {part!r} is not part of the backbone, which has {', '.join(parts)}")
    given = {n: t for n, t in read_weights(path).items() if not _within(n, backbone.removed)}
    chosen = {}
    for tensor, value in own.items():
        if _within(tensor, fresh) or (tensor not in given and tensor.endswith(".num_batches_tracked")):
            continue
        if tensor not in given:
            raise ModelError(f"{path}: does not fit {name}: it lacks {tensor} ({show(value.shape)})")
        other = given[tensor]
        if tensor == f"{backbone.stem}.weight" and _without_channels(other) == _without_channels(value):
            if other.shape != value.shape:
                continue
        elif other.shape != value.shape:
            raise ModelError(
                f"{path}: does not fit {name}: {tensor} is {show(other.shape)}, in the model {show(value.shape)}"
            )
        if other.is_floating_point() != value.is_floating_point() or not bool(other.isfinite().all()):
            raise ModelError(f"{path}: {tensor} has numbers that are not finite, or not of the model's kind")
        chosen[tensor] = other
    if extra := sorted(given.keys() - own.keys()):
        raise ModelError(f"{path}: does not fit {name}: the model has no {extra[0]}")
    with torch.no_grad():
        for tensor, value in chosen.items():
            own[tensor].copy_(value)


def _within(tensor: str, parts: tuple[str, ...]) -> bool:
    return any(tensor == part or tensor.startswith(f"{part}.") for part in parts)


def _without_channels(weight: Tensor) -> tuple[int, ...]:
    return (*weight.shape[:1], *weight.shape[2:])


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file of safetensors or of ``torch.save``, without running code it may hold.

    Args:
        path: A table of tensors by name, or one called ``state_dict`` inside another.
    """
    try:
        with open_ordinary(path, limits.WEIGHTS_BYTES) as file:
            start = file.read(4)
            if start in (_ZIP, _LEGACY):
                content = _read_torch(path, file, zipped=start == _ZIP)
            else:
                with open_tensors(path) as tensors:
                    if (number := len(tensors.keys())) > limits.WEIGHTS:
                        raise ValueError(f"it has {number} tensors, more than {limits.WEIGHTS}")
                content = read_tensors(path)
    except ProtofedError as error:
        raise ModelError(str(error)) from None
    except Exception as error:  # damaged pickles and archives raise almost anything
        why = next(iter(reason(error).splitlines()), "") or type(error).__name__
        raise ModelError(f"{path}: cannot be read ({why})") from None
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping) or not content or not all(map(_is_plain, content, content.values())):
        raise ModelError(f"{path}: holds no weights (a table of tensors by name)")
    return dict(content)


def _is_plain(name: object, value: object) -> bool:
    return (
        isinstance(name, str)
        and isinstance(value, Tensor)
        and value.layout is torch.strided
        and value.device.type == "cpu"
    )


def _read_torch(path: Path, file: BinaryIO, zipped: bool) -> Any:
    """Return the content of a file of ``torch.save``.

    Memory is reserved only for what is there: archives are mapped rather than read, must not be compressed, and no
    number in the description of the tensors may exceed the size of the file.
    """
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < _SAFE_TORCH:
        raise ModelError(f"{path}: torch {torch.__version__} cannot read it safely: convert it to safetensors")
    size = path.stat().st_size
    file.seek(0)
    if zipped:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if any(m.compress_type != zipfile.ZIP_STORED or m.file_size > size for m in members):
                raise ValueError("it is compressed: save it with torch.save")
            descriptions = [m for m in members if m.filename.endswith("/data.pkl")]
            if len(descriptions) != 1:
                raise ValueError("not a file of torch.save")
            with archive.open(descriptions[0]) as pickle:
                _check_pickle(pickle, size)
        return torch.load(str(path), "cpu", weights_only=True, mmap=True)
    for most in (None, None, None, size):  # a mark, a version, facts about the machine that saved it, the tensors
        _check_pickle(file, most)
    file.seek(0)
    return torch.load(file, "cpu", weights_only=True)


def _check_pickle(file: IO[bytes], most: int | None) -> None:
    """Raise ValueError if the pickle that begins here is too long, or has a number above ``most``."""
    start = file.tell()
    for _, argument, position in pickletools.genops(file):
        if position is not None and position - start > limits.TENSOR_HEADER_BYTES:
            raise ValueError(f"its tensors are described in more than {limits.TENSOR_HEADER_BYTES} bytes")
        if most is not None and isinstance(argument, int) and argument > most:
            raise ValueError(f"it claims {argument} of something in {most} bytes")
