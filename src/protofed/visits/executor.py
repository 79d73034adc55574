"""Executors: where, and how many at a time, clients are visited. Results do not depend on the choice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import torch

from protofed.methods.contract import Phase
from protofed.visits.batches import batch_rows
from protofed.visits.contract import Evaluated, Executor, Messages, Trained
from protofed.visits.plain import PlainSteps
from protofed.visits.roster import Roster
from protofed.visits.stacked import StackedSteps, bytes_per_client
from protofed.visits.stacking import skeleton
from protofed.visits.visit import LocalTrainer

log = logging.getLogger("protofed")
Result = TypeVar("Result", Trained, Evaluated)


class Sequential(Executor):
    """One client after the other in this process, with plain autograd: the reference."""

    remote = False

    def __init__(self, trainer: LocalTrainer, clients: Roster) -> None:
        self.trainer = trainer
        self.clients = clients

    def train(self, names: Iterable[str], messages: Messages, round_number: int) -> Iterator[Trained]:
        """Train the named clients."""
        for name in names:
            yield from self.trainer.train(
                PlainSteps(self.trainer.method), self.clients, [name], messages, round_number
            )

    def evaluate(self, names: Iterable[str], messages: Messages | None, round_number: int) -> Iterator[Evaluated]:
        """Evaluate the named clients; without messages, as training left them."""
        for name in names:
            yield from self.trainer.evaluate(
                PlainSteps(self.trainer.method), self.clients, [name], messages, round_number
            )

    def description(self) -> dict[str, str | int]:
        """Return facts about the executor for reports."""
        return {"executor": "sequential", "threads": torch.get_num_threads()}

    def close(self) -> None:
        """Free the store."""
        self.clients.store.close()


class Fused(Executor):
    """All clients of one architecture together, as one stack.

    Clients that cannot be vectorised (because of an operation without a batching rule, dropout that draws from
    torch's random state, an optimiser that treats whole tensors, or a loss that counts padding) are run one by one,
    with a single warning; so are those whose first step with some loss differs from that of plain autograd.
    """

    remote = False

    def __init__(self, trainer: LocalTrainer, clients: Roster, budget: float) -> None:
        self.trainer = trainer
        self.clients = clients
        self.budget = budget
        self.skeletons = {kind: skeleton(model) for kind, model in clients.models.items()}
        self.refused: set[str] = set()
        self.limits: dict[str, int] = {}
        self.compared: dict[str, set[Any]] = {kind: set() for kind in clients.models}

    def train(self, names: Iterable[str], messages: Messages, round_number: int) -> Iterator[Trained]:
        """Train the named clients; results come in the order of ``names``."""
        phases = self.trainer.method.round(round_number).phases
        key = partial(self._training_key, phases=phases)
        return self._run(self.trainer.train, list(names), key, messages, round_number)

    def evaluate(self, names: Iterable[str], messages: Messages | None, round_number: int) -> Iterator[Evaluated]:
        """Evaluate the named clients; without messages, as training left them."""

        def key(name: str) -> tuple[Any, ...]:
            return (self.clients[name].kind,)

        return self._run(self.trainer.evaluate, list(names), key, messages, round_number)

    def description(self) -> dict[str, str | int]:
        """Return facts about the executor for reports."""
        return {"executor": "fused", "threads": torch.get_num_threads()}

    def close(self) -> None:
        """Free the store."""
        self.clients.store.close()

    def _training_key(self, name: str, *, phases: Sequence[Phase]) -> tuple[Any, ...]:
        """Return the properties that clients of one stack share, including the number of steps if it matters."""
        member = self.clients[name]
        plan = member.plan
        steps = 0
        for phase in phases:
            named = {update.optimizer.get("name", plan.optimizer) for update in phase.updates}
            if named != {"SGD"} and phase.passes(plan.epochs) > 1:
                even = self.clients.models[member.kind].needs_two_samples
                rows = torch.arange(len(member.train))
                steps = len(batch_rows(rows, plan.batch_size, even=even, drop_last=plan.drop_last))
        # repr: the settings may hold lists.
        return (member.kind, plan.epochs, plan.optimizer, repr(sorted(plan.settings.items())), steps)

    def _run(
        self,
        visit: Callable[..., list[Result]],
        names: Sequence[str],
        key: Callable[[str], tuple[Any, ...]],
        messages: Messages | None,
        round_number: int,
    ) -> Iterator[Result]:
        done: dict[str, Result] = {}
        for group in self._groups(names, key):
            done |= {result.client: result for result in self._attempt(visit, group, messages, round_number)}
        yield from (done[name] for name in names)

    def _groups(self, names: Sequence[str], key: Callable[[str], tuple[Any, ...]]) -> Iterator[list[str]]:
        """Divide clients into groups that can be stacked within the budget; refused kinds form groups of one."""
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
        if kind not in self.limits:
            member = next(m for m in self.clients.values() if m.kind == kind)
            shape = (member.train if len(member.train) else member.test).x.shape[1:]
            each = bytes_per_client(self.clients.models[kind], shape, member.plan.batch_size)
            self.limits[kind] = max(1, int(self.budget // each))
        return self.limits[kind]

    def _attempt(
        self, visit: Callable[..., list[Result]], group: Sequence[str], messages: Messages | None, round_number: int
    ) -> list[Result]:
        """Visit a group as a stack; once that has failed for its kind, client by client."""
        kind, method = self.clients[group[0]].kind, self.trainer.method
        if kind not in self.refused:
            model, compared = self.clients.models[kind], self.compared[kind]
            steps = StackedSteps(method, model, self.skeletons[kind], len(group), compared)
            try:
                return visit(steps, self.clients, group, messages, round_number)
            except RuntimeError as error:  # vmap's refusals are plain RuntimeErrors
                if isinstance(error, torch.OutOfMemoryError):
                    reason = "they do not fit in memory together: lower execution.memory_budget"
                else:
                    reason = str(error).strip().splitlines()[0][:160]
                self.refused.add(kind)
                log.warning("clients with %s are run one by one: %s", kind, reason)
        return [
            result
            for name in group
            for result in visit(PlainSteps(method), self.clients, [name], messages, round_number)
        ]
