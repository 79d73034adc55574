"""Feature and concept shift: transforms by which a simulation makes domains of one's own data.

A domain is a client, or a group of clients of ``partition=domain``. Its transform is drawn once, from the seed, the
option and the domain's name, and applies to all samples of its clients, for training and for tests; so it depends
neither on the order of the clients nor on what computes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from protofed.compute.seeding import generator
from protofed.data.tables import RawColumn, moments
from protofed.data.transforms import rotate
from protofed.errors import ConfigError
from protofed.options import Options, option
from protofed.samples import ClientData, FederatedData, Samples
from protofed.text import few

_IMAGES = ("rotation", "blur", "invert")  #: Options for images alone
_SHOWN = 8  #: Domains that a note names


@dataclass(frozen=True)
class ShiftOptions(Options):
    """Feature and concept shift of a simulation: every client, or group of partition=domain, is a domain."""

    rotation: float = option(0.0, "images: a domain's angle in degrees, uniform in ±rotation", least=0, most=180)
    blur: float = option(0.0, "images: σ of a Gaussian blur in pixels, uniform in 0 … blur", least=0, most=32)
    invert: float = option(0.0, "images: share of the domains whose images are negatives", least=0, most=1)
    gain: float = option(
        0.0,
        "factor (1 + gain)^u with u uniform in ±1: one of all images (contrast), or one of each channel of series "
        "and of each column of numbers (a unit)",
        least=0,
        most=1000,
    )
    offset: float = option(
        0.0,
        "summand, uniform in ±offset: of the range of brightness, one for images; of the standard deviation over "
        "all samples, one for each channel or column of numbers",
        least=0,
        most=1000,
    )
    noise: float = option(
        0.0, "σ of Gaussian noise, uniform in 0 … noise, in the units of offset", least=0, most=1000
    )
    swap: float = option(0.0, "concept shift: share of the domains at which classes are swapped", least=0, most=1)
    swap_classes: int = option(
        2, "classes of a domain's own that are swapped there, in a drawn cycle (0 = all)", least=0
    )

    @property
    def used(self) -> tuple[str, ...]:
        """Names of the options that change samples."""
        given = (f.name for f in fields(self) if f.name != "swap_classes")
        return tuple(name for name in given if getattr(self, name))

    def check(self, x: Tensor, columns: Sequence[RawColumn] | None) -> None:
        """Refuse options that do not suit samples of the shape and type of ``x``."""
        if self.swap_classes == 1:
            raise ConfigError("shift.swap_classes = 1: swapping takes two classes, or 0 for all")
        shape = tuple(x.shape[1:])
        for name in self.used:
            if name in _IMAGES and len(shape) != 3:
                raise ConfigError(
                    f"shift.{name} is for images of channels, rows and columns, and samples have the shape "
                    f"{shape}: use shift.gain, shift.offset or shift.noise"
                )
            if name != "swap" and not (x.dtype == torch.uint8 or x.is_floating_point()):
                raise ConfigError(f"shift.{name} is for images, series and numbers, and samples are neither")
            if name != "swap" and columns is not None and not any(c.kind == "number" for c in columns):
                raise ConfigError(
                    f"shift.{name} is for columns of numbers, and these data have none: use shift.swap"
                )


def shift_domains(
    federated: FederatedData,
    columns: Sequence[RawColumn] | None,
    options: ShiftOptions,
    seed: int,
    domains: Mapping[str, str],
) -> FederatedData:
    """Return the samples of all clients as their domains have them.

    Args:
        columns: Of a table, of which only numbers are shifted.
        domains: Name of the domain, by client; those without one are domains of their own.
    """
    if not options.used:
        return federated
    clients = federated.clients
    options.check(clients[0].train.x, columns)
    members: dict[str, list[ClientData]] = {}
    for client in clients:
        members.setdefault(domains.get(client.name) or client.name, []).append(client)
    draws = _Draws(options, seed, sorted(members), _Scale.of(clients, columns))
    K = federated.num_classes
    held = {name: torch.stack([c.train.counts(K) for c in own]).sum(0) > 0 for name, own in members.items()}
    labels = {name: draws.labels(name, classes) for name, classes in held.items()}
    found = {
        client.name: _shift_client(client, draws, name, labels[name])
        for name, own in members.items()
        for client in own
    }
    swapped = [name for name, new in labels.items() if not torch.equal(new, torch.arange(len(new)))]
    given = ", ".join(f"shift.{name}={getattr(options, name):g}" for name in options.used)
    where = f"; classes are swapped at {few(swapped, _SHOWN)}" if swapped else ""
    notes = (*federated.notes, f"Samples are shifted in {len(members)} domains ({given}){where}.")
    return replace(federated, clients=tuple(found[client.name] for client in clients), notes=notes)


@dataclass(frozen=True)
class _Scale:
    """Units of offsets and noise."""

    #: ``(C, 1, …)`` or one number: range of brightness of images, else standard deviation of each channel
    unit: Tensor
    ends: Tensor  #: Sum of the least and the largest brightness of images, like ``unit``
    numeric: Tensor  #: ``(C,)`` bool, the channels or columns that are numbers

    @classmethod
    def of(cls, clients: Sequence[ClientData], columns: Sequence[RawColumn] | None) -> _Scale:
        """Return the units of training samples."""
        parts = [client.train.x for client in clients]
        shape, images = parts[0].shape[1:], parts[0].dim() == 4
        numeric = torch.tensor([column.kind == "number" for column in columns or [RawColumn("")] * shape[0]])
        if parts[0].dtype == torch.uint8:
            return cls(torch.tensor(255.0), torch.tensor(255.0), numeric)
        x = torch.cat(parts)
        if images and len(x):
            return cls(x.max() - x.min(), x.max() + x.min(), numeric)
        deviations = [math.sqrt(m.squares / max(1, m.number)) for m in moments(x)]
        unit = torch.tensor(deviations, dtype=torch.float64).view(-1, *[1] * (len(shape) - 1))
        return cls(unit, torch.zeros(()), numeric)


class _Draws:
    """The transforms of all domains."""

    def __init__(self, options: ShiftOptions, seed: int, domains: Sequence[str], scale: _Scale) -> None:
        self.options, self.seed, self.scale = options, seed, scale
        self.inverted = self._some("invert", domains, options.invert)
        self.swapped = self._some("swap", domains, options.swap)

    def _source(self, *scope: str) -> torch.Generator:
        return generator(self.seed, "shift", *scope)

    def _uniform(self, what: str, domain: str, *shape: int) -> Tensor:
        """Return numbers in -1 … 1, float64."""
        return 2 * torch.rand(shape, generator=self._source(what, domain), dtype=torch.float64) - 1

    def _some(self, what: str, domains: Sequence[str], share: float) -> frozenset[str]:
        """Return a share of the domains, rounded to a whole number of them."""
        ranked = sorted(domains, key=lambda domain: float(self._uniform(what, domain)))
        return frozenset(ranked[: round(share * len(domains))])

    def labels(self, domain: str, held: Tensor) -> Tensor:
        """Return the new class of each class, ``(K,)`` int64.

        Args:
            held: ``(K,)`` bool, the classes that occur in the domain.
        """
        new, number = torch.arange(len(held)), self.options.swap_classes
        if domain in self.swapped:
            own = held.nonzero().flatten()
            cycle = own[torch.randperm(len(own), generator=self._source("classes", domain))][: number or len(own)]
            new[cycle] = cycle.roll(1)
        return new

    def features(self, x: Tensor, domain: str, *place: str) -> Tensor:
        """Return samples ``(n, *shape)`` as a domain has them, of the same type."""
        options = self.options
        eight_bit = x.dtype == torch.uint8
        if not len(x) or options.used == ("swap",):
            return x
        value = x.to(torch.float32 if eight_bit else torch.float64)
        if options.rotation:
            angle = options.rotation * self._uniform("rotation", domain)
            value = rotate(value, angle.expand(len(x)), "bilinear")
        if options.blur:
            value = blur(value, options.blur * float(self._uniform("blur", domain).abs()))
        if domain in self.inverted:
            value = self.scale.ends - value
        if options.gain:
            value = value * (1 + options.gain) ** self._levels("gain", domain, x).to(value.dtype)
        if options.offset:
            summand = options.offset * self.scale.unit * self._levels("offset", domain, x)
            value = value + summand.to(value.dtype)
        if options.noise:
            deviation = options.noise * self.scale.unit * float(self._uniform("noise", domain).abs())
            drawn = torch.randn(x.shape, generator=self._source("noise of samples", *place), dtype=value.dtype)
            value = value + deviation.to(value.dtype) * drawn
        if eight_bit:
            return value.round().clamp(0, 255).to(torch.uint8)
        numeric = self.scale.numeric.view(-1, *[1] * (x.dim() - 2))
        return torch.where(numeric, value.to(x.dtype), x)

    def _levels(self, what: str, domain: str, x: Tensor) -> Tensor:
        """Return numbers in -1 … 1: one for images, or one for each channel of series and column of tables."""
        shape = () if x.dim() == 4 else (x.shape[1], *[1] * (x.dim() - 2))
        return self._uniform(what, domain, *shape)


def blur(x: Tensor, deviation: float) -> Tensor:
    """Blur images ``(n, C, H, W)`` by a Gaussian, cut off after three standard deviations; edges are continued."""
    if not deviation:
        return x
    rows, columns = (_smoother(side, deviation).to(x.dtype) for side in x.shape[2:])
    return rows @ x @ columns.mT


def _smoother(side: int, deviation: float) -> Tensor:
    """Return the ``(side, side)`` matrix of a blur along one axis."""
    reach = math.ceil(3 * deviation)
    steps = torch.arange(-reach, reach + 1)
    weights = (-0.5 * (steps.double() / deviation).square()).exp()
    place = (torch.arange(side)[:, None] + steps).clamp(0, side - 1)
    return torch.zeros(side, side, dtype=torch.float64).scatter_add_(
        1, place, (weights / weights.sum()).expand(side, -1)
    )


def _shift_client(client: ClientData, draws: _Draws, domain: str, labels: Tensor) -> ClientData:
    def part(split: str, given: Samples) -> Samples:
        return Samples(draws.features(given.x, domain, client.name, split), labels[given.y])

    validation = None if client.validation is None else part("validation", client.validation)
    return replace(client, train=part("train", client.train), test=part("test", client.test), validation=validation)
