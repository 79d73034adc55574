"""A client during a run: its data, model, method state and how it trains."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from protofed.errors import ConfigError, unknown_name
from protofed.training.samples import Samples

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
            getattr(torch.optim, name)([torch.zeros(1)], **settings)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"optimizer {name}: {error}") from None

    def build(
        self, parameters: Iterable[Tensor], overrides: Mapping[str, Any] | None = None
    ) -> torch.optim.Optimizer:
        """Return a fresh optimiser; ``overrides`` may hold ``name`` and settings."""
        settings = dict(overrides or {})
        name = settings.pop("name", None)
        if name is None:
            name, settings = self.optimizer, {**self.settings, **settings}
        optimizer: torch.optim.Optimizer = getattr(torch.optim, name)(parameters, **settings)
        return optimizer


@dataclass
class Client:
    """One participant.

    Attributes:
        name: Unique.
        train: Training samples, on the device.
        test: Test samples, on the device.
        validation: Validation samples, or None.
        model: Its model, on the device.
        state: The method's state.
        plan: How it trains.
        architecture: What its model is called, for reports.
        received: What the method made of the last broadcast; None before the first.
    """

    name: str
    train: Samples
    test: Samples
    validation: Samples | None
    model: SplitModel
    state: dict[str, Tensor]
    plan: LocalPlan
    architecture: str = ""
    received: dict[str, Tensor] | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Return all that has to survive a stop: model, method state and what was received last."""
        parts = {"model": self.model.state_dict(), "state": self.state, "received": self.received or {}}
        return {f"{part}.{name}": t for part, tensors in parts.items() for name, t in tensors.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`tensors` returned.

        Raises:
            KeyError, RuntimeError: If the tensors do not fit the model.
        """
        device = next(self.model.parameters()).device
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "state": {}, "received": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = tensor.to(device)
        self.model.load_state_dict(parts["model"])
        self.state, self.received = parts["state"], parts["received"] or None
