"""The encoder as a step of data preparation: features are computed once and kept on disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

from protofed.data.options import memory_gb
from protofed.errors import ConfigError, DataError
from protofed.models.encoders import Encoder, EncoderOptions, build_encoder, choose_encoder
from protofed.samples import Encoding, FederatedData, Samples
from protofed.storage.cache import cache_folder, keep, read_kept, remove_kept
from protofed.text import duration, size

BLOCK = 4096  #: Samples whose features are written together
LONG = 5.0  #: Seconds after which a long computation is announced
log = logging.getLogger("protofed")


def encode(
    federated: FederatedData, options: EncoderOptions, weights_dir: str = "", *, kept: bool = True
) -> FederatedData:
    """Return the data of all clients as vectors, or as they are if there is no encoder."""
    if not options.name:
        return federated
    texts = federated.table.texts if federated.table else ()
    views = federated.table.views if federated.table else 1
    encoder = build_encoder(options, federated.input_shape, weights_dir, texts=texts, views=views)
    width = encoder.width
    parts = [
        (f"{client.name}: {name} samples", part)
        for client in federated.clients
        for name in ("train", "test", "validation")
        if (part := getattr(client, name)) is not None
    ]
    needed = 8 * width * sum(len(part) for _, part in parts)  # float32, once by sample and once by client
    if needed > memory_gb() * 1e9 / 2:
        raise ConfigError(
            f"encoder.name={options.name}: {width} numbers per sample need {size(needed)}, more than half "
            "of the memory: set encoder.dim, e.g. 512"
        )
    for where, part in parts:
        _check_finite(part.x, where)
    x, folder = [part.x for _, part in parts], cache_folder("features") if kept else None
    name = choose_encoder(options, federated.input_shape, texts)
    features = iter(_features(encoder, x, name, folder))
    encoded = federated.map(lambda samples: Samples(next(features), samples.y))
    eight_bit = any(part.x.dtype == torch.uint8 for _, part in parts)
    return replace(
        encoded,
        input_shape=(width,),
        encoding=Encoding(encoder.key, federated.input_shape, eight_bit),
        notes=(
            *federated.notes,
            f"Samples are {width} fixed features, the same for all clients (encoder.name={name}).",
        ),
        tests=federated.test_hash(),
    )


def _check_finite(x: Tensor, where: str) -> None:
    if x.is_floating_point() and not bool(x.isfinite().all()):
        row = int((~x.flatten(1).isfinite().all(1)).nonzero()[0])
        raise DataError(f"{where}: sample {row} has values that are not finite: fill them in, or leave it out")


def _features(encoder: Encoder, parts: Sequence[Tensor], name: str, folder: Path | None) -> list[Tensor]:
    """Return the features of each part's samples; equal samples are computed once."""
    places: dict[bytes, int] = {}
    sources: list[tuple[int, int]] = []
    order: list[int] = []
    for number, x in enumerate(parts):
        for row, values in enumerate(x.numpy()):
            place = places.setdefault(blake2b(values.tobytes(), digest_size=16).digest(), len(places))
            if place == len(sources):
                sources.append((number, row))
            order.append(place)
    features = torch.empty(len(places), encoder.width)
    if folder is not None:
        shape = "x".join(map(str, encoder.input_shape))
        kind = str(parts[0].dtype).removeprefix("torch.") if parts else ""
        folder = folder / f"{encoder.key}-{shape}-{kind}-{encoder.width}"
    known = _read(folder, places, features)
    missing = [place for place in range(len(places)) if not known[place]]
    keys = list(places)
    start = time.monotonic()
    told = False
    for first in range(0, len(missing), BLOCK):
        block = missing[first : first + BLOCK]
        x = torch.stack([parts[number][row] for number, row in (sources[place] for place in block)])
        done = 0
        for values in encoder.batches(x):
            features[torch.tensor(block[done : done + len(values)])] = values
            done += len(values)
            passed = time.monotonic() - start
            if passed > LONG and not told:
                told = True
                left = passed * (len(missing) / (first + done) - 1)
                log.warning("encoder %s: %s more for %d samples", name, duration(left), len(missing) - first - done)
        digests = bytearray(b"".join(keys[place] for place in block))
        rows = torch.frombuffer(digests, dtype=torch.uint8).reshape(-1, 16)
        folder = keep(folder, {"rows": rows, "features": features[torch.tensor(block)]})
    if not bool(features.isfinite().all()):
        raise DataError(f"encoder {name}: gives features that are not finite")
    every = torch.tensor(order, dtype=torch.int64).split([len(x) for x in parts])
    return [torch.from_numpy(features.numpy()[rows.numpy()]) for rows in every]


def _read(folder: Path | None, places: dict[bytes, int], features: Tensor) -> list[bool]:
    """Fill in the features that are in the cache, and return which are."""
    known = [False] * len(places)
    for path, found in read_kept(folder):
        rows, values = found.get("rows", features[:0]), found.get("features")
        shape = *rows.shape[:1], features.shape[1]
        if values is None or rows.ndim != 2 or values.dtype != features.dtype or values.shape != shape:
            remove_kept(path)
            continue
        at = {places.get(digest.tobytes(), -1): row for row, digest in enumerate(rows.numpy())}
        at.pop(-1, None)
        features[list(at)] = values[list(at.values())]
        for place in at:
            known[place] = True
    return known
