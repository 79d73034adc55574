"""A client: what it is between visits, during one, and what it leaves behind."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from protofed import claims
from protofed.errors import ConfigError, PayloadError, unknown_name
from protofed.optimizers import eager
from protofed.samples import Samples

if TYPE_CHECKING:
    from protofed.models import SplitModel


@dataclass(frozen=True)
class LocalPlan:
    """How a client trains.

    Attributes:
        epochs: Local epochs ``E`` per round.
        batch_size: ``B``; the last batch of an epoch may be smaller.
        optimizer: Name of a class in ``torch.optim``; a fresh one is built in every round.
        settings: Its keyword arguments, at least ``lr``.
    """

    epochs: int = 1
    batch_size: int = 32
    optimizer: str = "SGD"
    settings: Mapping[str, Any] = field(default_factory=lambda: {"lr": 0.01})

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        self.check(self.optimizer, self.settings)

    @staticmethod
    def check(name: str, settings: Mapping[str, Any]) -> None:
        """Raise ConfigError unless ``torch.optim`` has ``name`` and it accepts ``settings``."""
        valid = [n for n in torch.optim.__all__ if inspect.isclass(getattr(torch.optim, n, None))]
        if name not in valid or name == "Optimizer":
            raise ConfigError(unknown_name("optimizer", name, valid))
        accepted = inspect.signature(getattr(torch.optim, name)).parameters
        for setting in settings:
            if setting not in accepted:
                raise ConfigError(unknown_name(f"option of optimizer {name}", setting, accepted))
        try:
            eager(getattr(torch.optim, name))([torch.zeros(1)], **settings)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"optimizer {name}: {error}") from None

    def build(
        self, parameters: Iterable[Tensor], overrides: Mapping[str, Any] | None = None
    ) -> torch.optim.Optimizer:
        """Return a fresh optimiser; ``overrides`` may hold ``name`` and settings."""
        name, settings = self.chosen(overrides or {})
        result: torch.optim.Optimizer = eager(getattr(torch.optim, name))(parameters, **settings)
        return result

    def chosen(self, overrides: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return name and settings of the optimiser; overrides with a ``name`` take nothing from the plan."""
        settings = dict(overrides)
        name = settings.pop("name", None)
        return (self.optimizer, {**self.settings, **settings}) if name is None else (name, settings)


@dataclass(frozen=True)
class Member:
    """A client as the federation knows it between visits.

    Attributes:
        name: Unique.
        train: Training samples, on the device.
        test: Test samples, on the device.
        validation: Validation samples, or None.
        plan: How it trains.
        architecture: What its model is called, for reports.
        kind: Clients of one kind have models of the same modules and shapes.
    """

    name: str
    train: Samples
    test: Samples
    validation: Samples | None
    plan: LocalPlan
    architecture: str
    kind: str


class Parked(NamedTuple):
    """What of a client outlives a visit.

    Attributes:
        model: The model's ``state_dict``.
        state: The method's state.
        received: What the method made of the last broadcast; empty before the first.
    """

    model: dict[str, Tensor]
    state: dict[str, Tensor]
    received: dict[str, Tensor]


@dataclass
class Client:
    """A member during a visit, with its model and what the method keeps for it.

    Attributes:
        member: Its data and how it trains.
        model: Its model, on the device.
        state: The method's state.
        received: What the method made of the last broadcast; None before the first.
    """

    member: Member
    model: SplitModel
    state: dict[str, Tensor] = field(default_factory=dict)
    received: dict[str, Tensor] | None = None

    @property
    def name(self) -> str:
        """The client's name."""
        return self.member.name

    @property
    def train(self) -> Samples:
        """Training samples, on the device."""
        return self.member.train

    @property
    def test(self) -> Samples:
        """Test samples, on the device."""
        return self.member.test

    @property
    def validation(self) -> Samples | None:
        """Validation samples, or None."""
        return self.member.validation

    @property
    def plan(self) -> LocalPlan:
        """How it trains."""
        return self.member.plan

    def park(self) -> Parked:
        """Return all that has to survive a stop; the tensors are the client's own, not copies."""
        return Parked(self.model.state_dict(), self.state, self.received or {})

    def load(self, parked: Parked) -> None:
        """Take on what :meth:`park` returned, on the model's device.

        Raises:
            KeyError, RuntimeError: If the tensors do not fit the model.
        """
        self.model.load_state_dict(parked.model)
        self._load_rest(parked)

    def resume(self, parked: Parked) -> None:
        """As :meth:`load`, unchecked and so faster: for what a model of this kind left behind."""
        own: dict[str, Tensor] = dict(self.model.named_parameters(remove_duplicate=False))
        own.update(self.model.named_buffers(remove_duplicate=False))
        if parked.model.keys() <= own.keys():
            with torch.no_grad():
                torch._foreach_copy_([own[name] for name in parked.model], list(parked.model.values()))
        else:  # a model that saves itself under other names
            self.model.load_state_dict(parked.model)
        self._load_rest(parked)

    def _load_rest(self, parked: Parked) -> None:
        device = next(self.model.parameters()).device
        self.state = {name: tensor.to(device, copy=True) for name, tensor in parked.state.items()}
        self.received = {name: tensor.to(device, copy=True) for name, tensor in parked.received.items()} or None


def flatten(parked: Parked) -> dict[str, Tensor]:
    """Return one dictionary of tensors, as files hold it: ``model.…``, ``state.…``, ``received.…``."""
    parts = parked._asdict()
    return {f"{part}.{name}": t for part, tensors in parts.items() for name, t in tensors.items()}


def unflatten(tensors: Mapping[str, Tensor]) -> Parked:
    """Undo :func:`flatten`.

    Raises:
        KeyError: For a name that belongs to no part.
    """
    parts: dict[str, dict[str, Tensor]] = {part: {} for part in Parked._fields}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        parts[part][rest] = tensor
    return Parked(**parts)


def pack(parked: Parked) -> bytes:
    """Return a client between visits as safetensors, to be sent."""
    return save(contiguous(flatten(parked)))


def unpack(data: bytes) -> Parked:
    """Undo :func:`pack`.

    Raises:
        PayloadError: If ``data`` is not what :func:`pack` returns.
    """
    try:
        return unflatten(load(data))
    except (SafetensorError, KeyError, ValueError) as error:
        raise PayloadError(f"state: not a client between visits ({claims.clean(error)})") from None


def contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as safetensors takes them: contiguous, and no two of one memory."""
    found, seen = {}, set()
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        memory = own.untyped_storage().data_ptr()
        found[name] = own.clone() if memory in seen or own.untyped_storage().nbytes() != own.nbytes else own
        seen.add(memory)
    return found
