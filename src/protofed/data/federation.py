"""A federation folder: the data, and optionally the settings, of each client."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protofed.compute.seeding import generator
from protofed.data import checks
from protofed.data.arrow import Columns
from protofed.data.delimited import read_csv
from protofed.data.folders import check_inside, read_class_folders, visible
from protofed.data.local import PathOptions
from protofed.data.npz import read_npz
from protofed.data.options import DataOptions, resolve_options
from protofed.data.parquet import read_parquet
from protofed.data.pool import Listing
from protofed.data.preparing import Agreed, prepare, prepare_alone, raw_parts
from protofed.data.splits import apportion, hold_out, limited, subset
from protofed.data.tables import RawColumn
from protofed.errors import ConfigError, DataError, unknown_name
from protofed.samples import ClientData, FederatedData, Samples
from protofed.untrusted.decoding import Settings, decoded
from protofed.untrusted.limits import Budget
from protofed.untrusted.reading import read_toml, reason


@dataclass(frozen=True)
class _Part:
    """One split of one client before it is read."""

    client: str
    split: str
    listing: Listing


def is_federation(path: Path) -> bool:
    """Return whether ``path`` is a federation folder, i.e. contains a folder ``clients``."""
    return (path / "clients").is_dir()


def load_federation(root: Path, data: DataOptions, options: PathOptions, seed: int) -> FederatedData:
    """Read ``root/clients/<name>/{train,test}`` and, where present, ``validation`` and ``client.toml``.

    Each split is a ``.parquet`` or ``.csv`` file, an ``.npz`` file with ``x`` and ``y``, or a folder of class
    folders with images. Clients are ordered by name. The number of classes ``K`` is ``data.classes``, or else the
    number of names in ``federation.toml``, or else of those stored in the files, or else the largest label plus 1.
    """
    folders = _client_folders(root)
    budget = data.budget()
    parts = [_Part(f.name, split, item) for f in folders for split, item in _open(f, data, options, budget)]
    listings = [p.listing for p in parts]
    labels, class_names = checks.encode(listings, data, _class_names(root))
    checks.check_classes(listings, labels)
    chosen = _choose(parts, labels, data.samples, seed)
    x = [checks.features(part.listing, rows) for part, rows in zip(parts, chosen, strict=True)]
    x, columns, notes = raw_parts(listings, x, data)
    samples: dict[str, dict[str, Samples]] = {f.name: {} for f in folders}
    for part, value, y, rows in zip(parts, x, labels, chosen, strict=True):
        samples[part.client][part.split] = Samples(value, y[rows])
    clients = tuple(_client(f, samples[f.name], data, seed) for f in folders)
    federated = FederatedData(clients, len(class_names), class_names, tuple(x[0].shape[1:]), notes=notes)
    return prepare(federated, columns, data)


@dataclass(frozen=True)
class RawClient:
    """One client of a network before its samples are prepared.

    Attributes:
        federated: A federation of one, with raw samples.
        columns: None if there is nothing to prepare.
        named: Labels are class names rather than numbers.
        declared: Classes are known without the labels, by ``data.classes`` or from the files.
    """

    federated: FederatedData
    columns: tuple[RawColumn, ...] | None
    named: bool
    declared: bool


def load_client(
    folder: Path, data: DataOptions, seed: int, classes: tuple[str, ...] = (), agreed: Agreed | None = None
) -> tuple[FederatedData, bool]:
    """Read one client's folder as a federation of one client.

    Args:
        data: Its ``options`` apply only with ``data.source=path``.
        classes: Classes of the federation in order; by default the client's own.
        agreed: By default the client's own.

    Returns:
        The client, and whether its labels are class names rather than numbers.
    """
    raw = read_client(folder, data, seed, classes)
    return prepare_alone(raw.federated, raw.columns, data, agreed, folder), raw.named


def read_client(folder: Path, data: DataOptions, seed: int, classes: tuple[str, ...] = ()) -> RawClient:
    """Read one client's folder without preparing its samples.

    Args:
        classes: Classes of the federation in order; by default the client's own.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder: expected one with train and test")
    options = resolve_options(PathOptions, data.options if data.source == "path" else None, "data.options")
    parts = [_Part(folder.name, split, item) for split, item in _open(folder, data, options, data.budget())]
    listings = [part.listing for part in parts]
    counted = replace(data, classes=len(classes) or data.classes)
    labels, class_names = checks.encode(listings, counted, classes)
    x, columns, notes = raw_parts(listings, [checks.features(i, torch.arange(len(i))) for i in listings], data)
    samples = {part.split: Samples(value, y) for part, value, y in zip(parts, x, labels, strict=True)}
    client = _client(folder, samples, data, seed)
    named = any(item.labels.dtype.kind in "US" for item in listings)
    federated = FederatedData((client,), len(class_names), class_names, tuple(x[0].shape[1:]), notes=notes)
    declared = bool(classes) or (not named and bool(data.classes or any(i.class_names for i in listings)))
    return RawClient(federated, columns, named, declared)


def _client_folders(root: Path) -> list[Path]:
    entries = visible(root / "clients")
    check_inside(root / "clients", root)
    if not entries:
        raise DataError(f"{root / 'clients'}: empty folder: expected one folder per client")
    for entry in entries:
        check_inside(entry, root)
        if not entry.is_dir():
            raise DataError(f"{entry}: not a folder: every entry of clients/ is one client's folder")
    checks.client_names((e.name for e in entries), str(root / "clients"))
    return entries


def _open(folder: Path, data: DataOptions, options: PathOptions, budget: Budget) -> list[tuple[str, Listing]]:
    found = []
    for split in ("train", "test", "validation"):
        forms = [folder / f"{split}.parquet", folder / f"{split}.csv", folder / f"{split}.npz", folder / split]
        present = [f for f in forms if f.exists() or f.is_symlink()]
        if len(present) > 1:
            raise DataError(f"{present[0]}: {present[1].name} exists too: keep one form of a split")
        if present:
            check_inside(present[0], folder)
            found.append((split, _open_split(present[0], data, options, budget)))
        elif split != "validation":
            holds = ", ".join(p.name for p in visible(folder)) or "nothing"
            raise DataError(
                f"{forms[0]}: missing (nor {split}.csv, {split}.npz or {split}/); the folder holds {holds}"
            )
    return found


def _open_split(path: Path, data: DataOptions, options: PathOptions, budget: Budget) -> Listing:
    if path.suffix == ".npz":
        return read_npz(path, budget)
    if path.suffix in (".parquet", ".csv"):
        read = read_csv if path.suffix == ".csv" else read_parquet
        return read([path], Columns.of(data, "", options.resize), str(path), budget)
    return read_class_folders(path, budget, options.resize, path.parent)


def _choose(parts: list[_Part], labels: list[Tensor], samples: int, seed: int) -> list[Tensor]:
    """Return the rows to use from each part: all, or ``samples`` in proportion to the sizes of the parts."""
    sizes = torch.tensor([len(y) for y in labels])
    total = int(sizes.sum())
    if not samples:
        return [torch.arange(len(y)) for y in labels]
    if samples > total:
        raise ConfigError(f"data.samples = {samples}, but the federation has {total} samples")
    share = apportion(sizes.double() * samples / total, samples, sizes, generator(seed, "subset"))
    return [
        subset(y, int(n), generator(seed, "subset", part.client, part.split))
        for part, y, n in zip(parts, labels, share, strict=True)
    ]


def _client(folder: Path, samples: dict[str, Samples], data: DataOptions, seed: int) -> ClientData:
    train, validation = samples["train"], samples.get("validation")
    if validation is None and data.validation_fraction:
        kept, held = hold_out(train.y, data.validation_fraction, generator(seed, "validation", folder.name))
        train, validation = Samples(train.x[kept], train.y[kept]), Samples(train.x[held], train.y[held])
    rows = limited(train.y, data, seed, folder.name)
    if len(rows) < len(train):
        train = Samples(train.x[rows], train.y[rows])
    (name,) = checks.client_names([folder.name], str(folder))
    client = ClientData(name, train, samples["test"], validation, client_settings(folder))
    checks.check_validation(client, str(folder))
    return client


def client_settings(folder: Path) -> dict[str, Any]:
    """Return the settings in a client's ``client.toml``; empty if the file does not exist."""
    path = folder / "client.toml"
    try:
        return dict(decoded(_toml(path), Settings, error=ValueError, exact=True))
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def _class_names(root: Path) -> tuple[str, ...]:
    path = root / "federation.toml"
    content = _toml(path)
    for key in content:
        if key != "classes":
            raise DataError(f"{path}: {unknown_name('key', key, ['classes'])}")
    names = content.get("classes", [])
    if not isinstance(names, list) or any(not isinstance(n, str) for n in names) or len(set(names)) < len(names):
        raise DataError(f"{path}: classes: expected a list of different names, e.g. ['cat', 'dog']")
    return checks.check_names(names, str(path))


def _toml(path: Path) -> dict[str, Any]:
    try:
        if path.is_symlink():
            check_inside(path, path.parent)
        return read_toml(path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({reason(error)})") from None
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
