"""A federation folder: the data, and optionally the settings, of each client."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protofed.compute.seeding import generator
from protofed.data import checks
from protofed.data.images import check_inside, read_class_folders, read_npz, visible
from protofed.data.local import PathOptions, data_path
from protofed.data.options import Columns, DataOptions, resolve_options
from protofed.data.partition import apportion, hold_out, limit_training, subset
from protofed.data.pool import Listing
from protofed.data.preparing import Agreed, prepare_alone, raw_parts
from protofed.data.tables import RawColumn
from protofed.data.tabular import SUFFIXES, read_csv, read_parquet
from protofed.errors import ConfigError, DataError, unknown_name
from protofed.samples import ClientData, FederatedData, Samples
from protofed.untrusted.decoding import Settings, decode
from protofed.untrusted.limits import Budget
from protofed.untrusted.reading import read_toml, reason

FORMS = (".parquet", *SUFFIXES, ".npz")  #: Suffixes of files that hold the samples of a site


@dataclass(frozen=True)
class _Part:
    """One split of one client before it is read."""

    client: str
    split: str
    listing: Listing


def is_federation(data: DataOptions) -> bool:
    """Return whether the data are a federation folder: with a folder ``clients``, or with sites in it."""
    return data.source == "path" and (_options(data).sites or (data_path(data) / "clients").is_dir())


def read_federation(data: DataOptions, seed: int) -> tuple[FederatedData, tuple[RawColumn, ...] | None]:
    """Read ``clients/<name>/{train,test}`` and, where present, ``validation`` and ``client.toml``.

    With ``data.options.sites``, the folder itself holds the sites, each as a file or a folder. A site without test
    samples, or with a single file of any name, has ``data.test_fraction`` of its samples held out.

    Each split is a ``.parquet`` or ``.csv`` file, an ``.npz`` file with ``x`` and ``y``, or a folder of class
    folders with images. Clients are ordered by name. The number of classes ``K`` is ``data.classes``, or else the
    number of names in ``federation.toml``, or else of those stored in the files, or else the largest label plus 1.
    """
    root, options = data_path(data), _options(data)
    sites = _site_paths(root) if options.sites else {folder.name: folder for folder in _client_folders(root)}
    budget = data.budget()
    found = {name: _open(path, data, options, budget) for name, path in sites.items()}
    parts = [_Part(name, split, item) for name, splits in found.items() for split, item in splits]
    listings = [p.listing for p in parts]
    names = dict.fromkeys(name for item in listings for name in item.names)
    for name in data.drop:
        if names and name not in names:
            raise DataError(f"{listings[0].where}: {unknown_name('dropped column', name, list(names)[:40])}")
    labels, class_names = checks.encode(listings, data, _class_names(root))
    checks.check_classes(listings, labels)
    chosen = _choose(parts, labels, data.samples, seed)
    x = [checks.features(part.listing, rows) for part, rows in zip(parts, chosen, strict=True)]
    x, columns, notes = raw_parts(listings, x, data)
    samples: dict[str, dict[str, Samples]] = {name: {} for name in sites}
    for part, value, y, rows in zip(parts, x, labels, chosen, strict=True):
        samples[part.client][part.split] = Samples(value, y[rows])
    clients = tuple(_client(name, path, samples[name], data, seed) for name, path in sites.items())
    return FederatedData(clients, len(class_names), class_names, tuple(x[0].shape[1:]), notes=notes), columns


@dataclass(frozen=True)
class RawClient:
    """One client of a network before its samples are prepared."""

    federated: FederatedData
    columns: tuple[RawColumn, ...] | None  #: None if there is nothing to prepare
    named: bool  #: Labels are class names rather than numbers
    declared: bool  #: Classes are known without the labels, by ``data.classes`` or from the files


def load_client(
    folder: Path, data: DataOptions, seed: int, classes: tuple[str, ...] = (), agreed: Agreed | None = None
) -> tuple[FederatedData, bool]:
    """Read one client's folder as a federation of one client.

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
    options = _options(data)
    parts = [_Part(folder.name, split, item) for split, item in _open(folder, data, options, data.budget())]
    listings = [part.listing for part in parts]
    counted = replace(data, classes=len(classes) or data.classes)
    labels, class_names = checks.encode(listings, counted, classes)
    x, columns, notes = raw_parts(listings, [checks.features(i, torch.arange(len(i))) for i in listings], data)
    samples = {part.split: Samples(value, y) for part, value, y in zip(parts, x, labels, strict=True)}
    client = _client(folder.name, folder, samples, data, seed)
    own = {name for item in listings for name in item.names}
    for name in data.drop:  # other sites may have it; but a misspelt one would leave in what was to be left out
        if name not in own and (close := get_close_matches(name.casefold(), map(str.casefold, own), 1)):
            raise DataError(f"{folder}: unknown dropped column {name!r}: did you mean {close[0]!r}?")
    notes += checks.absent("data.drop", data.drop if own else (), own)
    named = any(checks.rename_classes(item, data.labels).labels.dtype.kind in "US" for item in listings)
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


def _site_paths(root: Path) -> dict[str, Path]:
    """Return the files and folders in a folder that are sites, by name."""
    if not root.is_dir():
        raise DataError(f"{root}: not a folder: data.options.sites=true needs one with a file or folder per site")
    found: dict[str, Path] = {}
    for path in visible(root):
        if path.is_dir() or path.suffix.lower() in FORMS:
            check_inside(path, root)
            name = path.name if path.is_dir() else path.stem
            if name in found:
                raise DataError(f"{path}: {found[name].name} is the same site: keep one of them, or rename one")
            found[name] = path
    if not found:
        raise DataError(f"{root}: holds no site: expected a file ({', '.join(FORMS)}) or a folder per site")
    checks.client_names(found, str(root))
    return found


def _options(data: DataOptions) -> PathOptions:
    return resolve_options(PathOptions, data.options if data.source == "path" else None, "data.options")


def _open(folder: Path, data: DataOptions, options: PathOptions, budget: Budget) -> list[tuple[str, Listing]]:
    """Return the splits of a site; ``all`` for samples that are still to be split."""
    if options.sites:
        alone = [folder] if folder.is_file() else [p for p in visible(folder) if p.suffix.lower() in FORMS]
        if not folder.is_file() and not alone and not (folder / "train").exists():
            alone = [folder]  # of class folders
        if len(alone) == 1 and alone[0].stem != "test":
            check_inside(alone[0], folder.parent)
            return [("all", _open_split(alone[0], data, options, budget))]
    found = []
    for split in ("train", "test", "validation"):
        forms = [*(folder / f"{split}{suffix}" for suffix in FORMS), folder / split]
        present = [f for f in forms if f.exists() or f.is_symlink()]
        if len(present) > 1:
            raise DataError(f"{present[0]}: {present[1].name} exists too: keep one form of a split")
        if present:
            check_inside(present[0], folder)
            found.append((split, _open_split(present[0], data, options, budget)))
        elif split != "validation":
            holds = ", ".join(p.name for p in visible(folder)) or "nothing"
            others = ", ".join(f"{split}{suffix}" for suffix in FORMS[1:])
            raise DataError(f"{forms[0]}: missing (nor {others} or {split}/); the folder holds {holds}")
    return found


def _open_split(path: Path, data: DataOptions, options: PathOptions, budget: Budget) -> Listing:
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return read_npz(path, budget)
    columns = replace(Columns.of(data, "", options.resize), anywhere=True)
    if suffix in FORMS:
        read = read_parquet if suffix == ".parquet" else read_csv
        return read([path], columns, str(path), budget)
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


def _client(name: str, folder: Path, samples: dict[str, Samples], data: DataOptions, seed: int) -> ClientData:
    if "all" in samples:
        parts = hold_out(samples["all"].y, data.test_fraction, generator(seed, "split", name))
        train, test = (samples["all"].at(rows) for rows in parts)
        samples = {"train": train, "test": test}
    train, validation = samples["train"], samples.get("validation")
    if validation is None and data.validation_fraction:
        kept, held = hold_out(train.y, data.validation_fraction, generator(seed, "validation", name))
        train, validation = train.at(kept), train.at(held)
    rows = limit_training(train.y, data, seed, name)
    if len(rows) < len(train):
        train = train.at(rows)
    (name,) = checks.client_names([name], str(folder))
    settings = {} if folder.is_file() else client_settings(folder)
    client = ClientData(name, train, samples["test"], validation, settings)
    checks.check_validation(client, str(folder))
    return client


def client_settings(folder: Path) -> dict[str, Any]:
    """Return the settings in a client's ``client.toml``; empty if the file does not exist."""
    path = folder / "client.toml"
    try:
        return dict(decode(_toml(path), Settings, error=ValueError, exact=True))
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
