"""Executors decide where and how many at a time clients are visited; what is computed does not depend on them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch

from protofed.methods.contract import Phase
from protofed.training.batches import batch_rows
from protofed.training.plain import PlainSteps
from protofed.training.roster import Roster
from protofed.training.stacked import StackedSteps, bytes_per_client
from protofed.training.stacking import skeleton
from protofed.training.visit import Evaluated, LocalTrainer, Messages, Missing, Trained

log = logging.getLogger("protofed")


class Executor(Protocol):
    """Runs visits and yields their results in the order of ``names``."""

    clients: Roster

    def train(self, names: Iterable[str], messages: Messages, round: int) -> Iterator[Trained | Missing]:
        """Train the named clients."""
        ...

    def evaluate(
        self, names: Iterable[str], messages: Messages | None, round: int
    ) -> Iterator[Evaluated | Missing]:
        """Evaluate the named clients; without messages, as they were left by training."""
        ...

    def description(self) -> dict[str, str | int]:
        """Return what a report says of it."""
        ...

    def close(self) -> None:
        """Free processes and files; the executor is not used afterwards."""
        ...


class Sequential:
    """One client after the other in this process, with plain autograd: the reference."""

    def __init__(self, trainer: LocalTrainer, clients: Roster) -> None:
        self.trainer = trainer
        self.clients = clients

    def train(self, names: Iterable[str], messages: Messages, round: int) -> Iterator[Trained]:
        """Train the named clients."""
        for name in names:
            steps = PlainSteps(self.trainer.method)
            yield from self.trainer.train(steps, self.clients, [name], messages, round)

    def evaluate(self, names: Iterable[str], messages: Messages | None, round: int) -> Iterator[Evaluated]:
        """Evaluate the named clients; without messages, as they were left by training."""
        for name in names:
            steps = PlainSteps(self.trainer.method)
            yield from self.trainer.evaluate(steps, self.clients, [name], messages, round)

    def description(self) -> dict[str, str | int]:
        """Return what a report says of it."""
        return {"executor": "sequential", "threads": torch.get_num_threads()}

    def close(self) -> None:
        """Free the store."""
        self.clients.store.close()


class Fused:
    """All clients of one architecture together, as one stack.

    What cannot be vectorised (an operation without a batching rule, dropout that draws from torch's random state,
    an optimiser that looks at whole tensors, a loss that counts padding) is run client by client, and a warning
    says so once.

    Args:
        trainer: Takes clients through their visits.
        clients: The clients.
        budget: Bytes that the stacks of one group may take; larger groups are divided.
        check: Whether the first steps of every architecture are compared with those of plain autograd, and a stack
            that gives something else counts as one that cannot be vectorised.
    """

    def __init__(self, trainer: LocalTrainer, clients: Roster, budget: float, *, check: bool = False) -> None:
        self.trainer = trainer
        self.clients = clients
        self.budget = budget
        self.alone = Sequential(trainer, clients)
        self.skeletons = {kind: skeleton(model) for kind, model in clients.models.items()}
        self.refused: set[str] = set()
        self.limits: dict[str, int] = {}
        self.unchecked = set(clients.models) if check else set()

    def train(self, names: Iterable[str], messages: Messages, round: int) -> Iterator[Trained]:
        """Train the named clients; results come in the order of ``names``."""
        names = list(names)
        done: dict[str, Trained] = {}
        phases = self.trainer.method.phases(round)
        for group in self._groups(names, lambda name: self._training_key(name, phases)):

            def together(steps: StackedSteps, group: Sequence[str] = group) -> list[Trained]:
                return self.trainer.train(steps, self.clients, group, messages, round)

            for result in self._attempt(group, together, lambda g: self.alone.train(g, messages, round)):
                done[result.client] = result
        yield from (done[name] for name in names)

    def evaluate(self, names: Iterable[str], messages: Messages | None, round: int) -> Iterator[Evaluated]:
        """Evaluate the named clients; without messages, as they were left by training."""
        names = list(names)
        done: dict[str, Evaluated] = {}
        for group in self._groups(names, lambda name: (self.clients.members[name].kind,)):

            def together(steps: StackedSteps, group: Sequence[str] = group) -> list[Evaluated]:
                return self.trainer.evaluate(steps, self.clients, group, messages, round)

            for result in self._attempt(group, together, lambda g: self.alone.evaluate(g, messages, round)):
                done[result.client] = result
        yield from (done[name] for name in names)

    def description(self) -> dict[str, str | int]:
        """Return what a report says of it."""
        return {"executor": "fused", "threads": torch.get_num_threads()}

    def close(self) -> None:
        """Free the store."""
        self.clients.store.close()

    def _training_key(self, name: str, phases: Sequence[Phase]) -> tuple[Any, ...]:
        """Return what clients of one stack have in common: also its steps, where their number matters."""
        member = self.clients.members[name]
        plan = member.plan
        steps = 0
        for phase in phases:
            named = {update.optimizer.get("name", plan.optimizer) for update in phase.updates}
            if named != {"SGD"} and phase.passes(plan.epochs) > 1:
                even = self.clients.models[member.kind].needs_two_samples
                steps = len(batch_rows(torch.arange(len(member.train)), plan.batch_size, even=even))
        # repr: the settings may hold lists.
        return (member.kind, plan.epochs, plan.optimizer, repr(sorted(plan.settings.items())), steps)

    def _groups(self, names: Sequence[str], key: Callable[[str], tuple[Any, ...]]) -> Iterator[list[str]]:
        """Divide clients into groups that can be stacked and fit the budget; refused kinds are groups of one."""
        groups: dict[tuple[Any, ...], list[str]] = {}
        for name in names:
            groups.setdefault(key(name), []).append(name)
        for (kind, *_), members in groups.items():
            most = 1 if kind in self.refused else self._limit(kind)
            # As many groups as the budget needs, of about the same size.
            number = -(-len(members) // most)
            size = -(-len(members) // number)
            yield from (members[start : start + size] for start in range(0, len(members), size))

    def _limit(self, kind: str) -> int:
        """Return how many clients of a kind fit the budget."""
        if kind not in self.limits:
            member = next(m for m in self.clients.members.values() if m.kind == kind)
            samples = member.train if len(member.train) else member.test
            each = bytes_per_client(self.clients.models[kind], samples, member.plan)
            self.limits[kind] = max(1, int(self.budget // each))
        return self.limits[kind]

    def _attempt(
        self, group: list[str], together: Callable[[StackedSteps], list[Any]], alone: Callable[[list[str]], Any]
    ) -> list[Any]:
        """Run a group together; what cannot be is run client by client, from then on without trying."""
        kind = self.clients.members[group[0]].kind
        if kind in self.refused:
            return list(alone(group))
        method, model, check = self.trainer.method, self.clients.models[kind], kind in self.unchecked
        try:
            steps = StackedSteps(method, model, self.skeletons[kind], len(group), check=check)
            found = together(steps)
        except RuntimeError as error:  # vmap's refusals are plain RuntimeErrors
            if isinstance(error, torch.OutOfMemoryError):
                reason = "they do not fit in memory together: lower execution.memory_budget"
            else:
                reason = str(error).strip().splitlines()[0][:160]
            self.refused.add(kind)
            log.warning("clients with %s are run one by one: %s", kind, reason)
            return list(alone(group))
        if steps.compared:
            self.unchecked.discard(kind)
        return found
