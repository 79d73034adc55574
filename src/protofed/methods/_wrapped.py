"""A method around another one, which changes messages and leaves the rest as it is."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from torch import Tensor

from protofed.methods.contract import Aggregate, Batch, Local, Method, Phase, Task, Tensors, Terms, Upload
from protofed.wire.schema import Payload, Schema

if TYPE_CHECKING:
    from protofed.models import Output, SplitModel


O = TypeVar("O")  # noqa: E741


class WrappedMethod(Method[O]):
    """Forward every hook of the contract to ``self.base``; a subclass overrides those that it changes.

    ``phases`` are the base's, with the base's losses: a subclass with a loss of its own overrides both.
    """

    base: Method

    @classmethod
    def base_of(cls, options: O) -> tuple[type[Method], Any]:
        """Return the class of the base, and its options.

        Raises:
            ConfigError: If the options do not suit the base.
        """
        raise NotImplementedError

    def __init__(self, options: O, task: Task) -> None:
        kind, base_options = self.base_of(options)
        self.base = kind(base_options, task)
        super().__init__(options, task)

    @classmethod
    def needs_same_architecture(cls, options: O) -> bool:
        """As the base."""
        kind, base_options = cls.base_of(options)
        return kind.needs_same_architecture(base_options)

    @classmethod
    def needs_counts(cls, options: O) -> bool:
        """As the base."""
        kind, base_options = cls.base_of(options)
        return kind.needs_counts(base_options)

    @classmethod
    def sends_sums(cls, options: O) -> bool:
        """As the base."""
        kind, base_options = cls.base_of(options)
        return kind.sends_sums(base_options)

    @classmethod
    def rounds_needed(cls, options: O, *, validated: bool) -> int | None:
        """As the base."""
        kind, base_options = cls.base_of(options)
        return kind.rounds_needed(base_options, validated=validated)

    @classmethod
    def depends_on_rounds(cls, options: O) -> str:
        """As the base."""
        kind, base_options = cls.base_of(options)
        return kind.depends_on_rounds(base_options)

    @property
    def sums_only(self) -> bool:  # type: ignore[override]
        """As the base."""
        return self.base.sums_only

    @property
    def personal_broadcast(self) -> bool:  # type: ignore[override]
        """As the base."""
        return self.base.personal_broadcast

    def unclippable(self) -> str:
        """As the base, if uploads are the base's."""
        same = self.upload_schema == self.base.upload_schema
        return self.base.unclippable() if same else super().unclippable()

    def weighted_by(self, name: str) -> str:
        """The count in these uploads, unless the base weights all clients alike."""
        return "" if getattr(self.base.options, "weighting", "") == "uniform" else super().weighted_by(name)

    def check(self) -> None:
        """The base has checked itself."""

    def check_clients(self, names: Collection[str], validated: Collection[str]) -> None:
        """As the base."""
        self.base.check_clients(names, validated)

    def notes(self) -> tuple[str, ...]:
        """As the base."""
        return self.base.notes()

    # What crosses the network.

    @property
    def upload_schema(self) -> Schema | None:
        """As the base."""
        return self.base.upload_schema

    @property
    def broadcast_schema(self) -> Schema | None:
        """As the base."""
        return self.base.broadcast_schema

    def communicates(self, round: int) -> bool:
        """As the base."""
        return self.base.communicates(round)

    def everyone(self, round: int) -> bool:
        """As the base."""
        return self.base.everyone(round)

    # The client.

    @property
    def statistics_from(self) -> Literal["after", "during", "before"] | None:
        """As the base."""
        return self.base.statistics_from

    @property
    def statistics_by_batch(self) -> bool:
        """As the base."""
        return self.base.statistics_by_batch

    def extend(self, model: SplitModel) -> None:
        """As the base."""
        self.base.extend(model)

    def client_state(self, counts: Tensor) -> Tensors:
        """As the base."""
        return self.base.client_state(counts)

    def kept_state(self, counts: Tensor) -> Tensors:
        """As the base."""
        return self.base.kept_state(counts)

    def shifted(self, state: Tensors, counts: Tensor) -> Tensors:
        """As the base."""
        return self.base.shifted(state, counts)

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """As the base."""
        return self.base.receive(local, message)

    def begin(self, local: Local) -> None:
        """As the base."""
        self.base.begin(local)

    def phases(self, round: int) -> tuple[Phase, ...]:
        """As the base."""
        return self.base.phases(round)

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """As the base."""
        return self.base.loss(model, batch, received, state)

    def statistics(self, output: Output, batch: Batch) -> Tensors:
        """As the base."""
        return self.base.statistics(output, batch)

    def epoch_end(self, local: Local, statistics: Tensors) -> None:
        """As the base."""
        self.base.epoch_end(local, statistics)

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """As the base."""
        return self.base.upload(local, statistics)

    @property
    def rules(self) -> tuple[str, ...]:
        """As the base."""
        return self.base.rules

    @property
    def open_rule(self) -> str:
        """As the base."""
        return self.base.open_rule

    def predict(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """As the base."""
        return self.base.predict(model, batch, received, state)

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """As the base."""
        return self.base.scores(model, batch, received, state)

    # The server.

    def server_state(self) -> Tensors:
        """As the base."""
        return self.base.server_state()

    def broadcast(self, server: Tensors, round: int, client: str | None = None) -> Payload | None:
        """As the base."""
        return self.base.broadcast(server, round, client)

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round: int) -> Aggregate:
        """As the base."""
        return self.base.aggregate(server, uploads, round)
