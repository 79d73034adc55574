"""A client's data and training plan.

Between visits a client is a :class:`~protofed.storage.snapshots.Snapshot`; during a visit, the method sees it as a
:class:`~protofed.methods.contract.Local`.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from protofed.compute.optimizers import eager
from protofed.errors import ConfigError, unknown_name
from protofed.methods.contract import Method, Phase
from protofed.samples import ClientData, Samples
from protofed.visits.batches import whole
from protofed.visits.private import Private


@dataclass(frozen=True)
class Schedule:
    """Schedule of learning rates over the rounds."""

    kind: Literal["constant", "step", "exponential", "cosine"] = "constant"  # see :meth:`factor`
    decay: float = 1.0  # factor, for ``step`` and ``exponential``
    every: int = 1  # rounds between two decays, for ``step``

    def factor(self, round_number: int, rounds: int) -> float:
        """Return the factor of all learning rates in a round.

        Args:
            round_number: ``t``, from 1.
            rounds: ``R``.

        Returns:
            1 if constant, ``decay^⌊(t-1)/every⌋``, ``decay^(t-1)``, or ``(1 + cos(π(t-1)/R))/2``.
        """
        if self.kind == "cosine":
            return (1 + math.cos(math.pi * (round_number - 1) / rounds)) / 2
        decays = {"constant": 0, "step": (round_number - 1) // self.every, "exponential": round_number - 1}[
            self.kind
        ]
        return float(self.decay**decays)


@dataclass(frozen=True)
class LocalPlan:
    """Local training plan of a client."""

    epochs: int = 1  # ``E`` per round
    batch_size: int = 32  # ``B``; the last batch of an epoch may be smaller
    optimizer: str = "SGD"  # a class in ``torch.optim``; every round builds a new instance
    settings: Mapping[str, Any] = field(default_factory=lambda: {"lr": 0.01})  # keyword arguments, including ``lr``
    #: Largest Euclidean norm of a gradient; see :class:`~protofed.methods.contract.Update`
    clip: float | None = None
    schedule: Schedule = Schedule()  # of the learning rates of local training, also of a method's own
    factor: float = 1.0  # of the learning rates in the present round
    class_weights: bool = False  # weight the cross-entropy of a client's own samples by :func:`balance`
    private: Private | None = None  # protection of single samples by DP-SGD
    least_samples: int = 0  # least training samples of a class that is reported
    shuffle: bool = True  # every epoch has a new order of samples
    drop_last: bool = False  # leave out a smaller last batch of an epoch, unless it is the only one

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        self.check(self.optimizer, self.settings)

    @staticmethod
    def check(name: str, settings: Mapping[str, Any]) -> None:
        """Check the name of a class in ``torch.optim`` and its settings."""
        valid = [n for n in torch.optim.__all__ if inspect.isclass(getattr(torch.optim, n, None))]
        if name not in valid or name == "Optimizer":
            raise ConfigError(unknown_name("optimizer", name, valid))
        accepted = inspect.signature(getattr(torch.optim, name)).parameters
        for setting, value in settings.items():
            if setting not in accepted:
                raise ConfigError(unknown_name(f"option of optimizer {name}", setting, accepted))
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"optimizer {name}: {setting} must be a finite number, not {value}")
        try:
            eager(getattr(torch.optim, name))([torch.zeros(1)], **settings)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"optimizer {name}: {error}") from None

    def build(
        self, parameters: Iterable[Tensor], overrides: Mapping[str, Any] | None = None
    ) -> torch.optim.Optimizer:
        """Build a new optimiser.

        Args:
            overrides: A method's own settings, and ``name`` for another class.
        """
        name, settings = self.choose_optimizer(overrides or {})
        result: torch.optim.Optimizer = eager(getattr(torch.optim, name))(
            [{"params": list(parameters)}], **settings
        )
        if self.factor != 1:
            for group in result.param_groups:
                group["lr"] *= self.factor
        return result

    def at(self, round_number: int, rounds: int) -> LocalPlan:
        """Return the plan of a round."""
        factor = self.schedule.factor(round_number, rounds)
        return self if factor == self.factor else replace(self, factor=factor)

    def clip_phase(self, phase: Phase) -> Phase:
        """Return a phase of training with gradients clipped as the plan says, where that is the smaller limit."""
        if (most := self.clip) is None:
            return phase
        updates = (replace(u, clip=most if u.clip is None else min(u.clip, most)) for u in phase.updates)
        return replace(phase, updates=tuple(updates))

    def choose_optimizer(self, overrides: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the optimiser's name and settings; overrides with a ``name`` replace all of the plan's."""
        settings = dict(overrides)
        name = settings.pop("name", None)
        return (self.optimizer, {**self.settings, **settings}) if name is None else (name, settings)


def check_optimizers(method: Method, clients: Mapping[str, Member], rounds: int) -> None:
    """Check that the optimisers of all clients have the settings that a method overrides."""
    phases = [phase for round_number in range(1, rounds + 1) for phase in method.round(round_number).phases]
    wanted = {tuple(sorted(u.optimizer.items())) for phase in phases for u in phase.updates if u.optimizer}
    plans = {repr(m.plan): m.plan for m in clients.values()}
    for plan, overrides in itertools.product(plans.values(), wanted):
        try:
            plan.check(*plan.choose_optimizer(dict(overrides)))
        except ConfigError as error:
            raise ConfigError(f"method {method.name} sets {dict(overrides)}, but {error}") from None


def balance(counts: Tensor) -> Tensor:
    """Return the factors that give each class of a client the same total: ``w_c = n / (K' n_c)``.

    ``n`` is the number of samples and ``K'`` the number of classes that the client has, so that the mean factor is
    1 (scikit-learn's ``balanced``).

    Returns:
        ``(K,)`` float64; 0 for classes that the client does not have.
    """
    present = counts > 0
    factors = counts.sum() / (present.sum() * counts.double())
    return torch.where(present, factors, 0.0)


@dataclass(frozen=True)
class Member:
    """A client of a federation."""

    data: ClientData  # on the device
    plan: LocalPlan
    architecture: str
    kind: str  # key shared by all clients whose models have the same modules and shapes

    @property
    def name(self) -> str:
        """Unique name of the client."""
        return self.data.name

    @property
    def train(self) -> Samples:
        """Training samples."""
        return self.data.train

    @property
    def seen(self) -> Samples:
        """Training samples that class means are taken of: whole batches only if the last one is dropped."""
        kept = whole(len(self.train), self.plan.batch_size)
        return self.train.at(slice(kept)) if self.plan.drop_last else self.train

    @property
    def test(self) -> Samples:
        """Test samples."""
        return self.data.test

    @property
    def validation(self) -> Samples | None:
        """Validation samples, or None."""
        return self.data.validation
