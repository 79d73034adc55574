"""The hostile clients of a simulation: who they are, and what they make of what they would have sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from protofed.errors import ConfigError, PayloadError, unknown_name
from protofed.robust import backdoor
from protofed.robust.attacks import ATTACKS, AttackOptions, Knowledge
from protofed.robust.vectors import parts_of
from protofed.seeding import generator
from protofed.training import LocalTrainer, Messages, Missing, Roster, Trained
from protofed.wire import cast
from protofed.wire.schema import Payload, Schema

FINITE = 6e4
"""Magnitude that every codec can send."""


class Attackers:
    """Hostile clients.

    Args:
        options: What they do.
        trainer: The method, its codec and the seed.
        clients: All clients.

    Raises:
        ConfigError: If a client does not exist, nobody honest is left, or the method sends nothing to attack.
    """

    def __init__(self, options: AttackOptions, trainer: LocalTrainer, clients: Roster) -> None:
        self.options = options
        self.trainer = trainer
        self.clients = clients
        self.names = self._chosen([n for n, m in clients.members.items() if len(m.train)])
        schema = trainer.method.upload_schema
        if (
            schema is not None
            and options.kind == "counts"
            and not any(f.kind == "count" for f in schema.fields.values())
        ):
            raise ConfigError(f"attack.kind=counts: {trainer.method.name} sends no sample counts: choose another")
        if options.kind == "backdoor":
            self._check_backdoor()

    def _chosen(self, trainable: Sequence[str]) -> list[str]:
        wanted = self.options.clients
        if not isinstance(wanted, int):
            for name in wanted:
                if name not in trainable:
                    raise ConfigError(unknown_name("client in attack.clients", name, trainable))
            names = list(wanted)
        else:
            order = torch.randperm(len(trainable), generator=generator(self.trainer.seed, "attackers"))
            names = [trainable[i] for i in sorted(order[:wanted].tolist())]
        if (isinstance(wanted, int) and wanted >= len(trainable)) or len(names) >= len(trainable):
            raise ConfigError(
                f"attack.clients={wanted}, but only {len(trainable)} clients train: leave somebody honest"
            )
        return names

    def _check_backdoor(self) -> None:
        if set(self.names) - set(self.clients.here):
            raise ConfigError("attack.kind=backdoor needs the clients on this machine: use --engine local")
        classes = self.trainer.method.task.num_classes
        if self.options.target >= classes:
            raise ConfigError(f"attack.target={self.options.target}, but classes are 0 to {classes - 1}")

    def act(
        self, results: Iterator[Trained | Missing], messages: Messages, round: int
    ) -> Iterator[Trained | Missing]:
        """Yield the results of a round's visits, those of hostile clients with the message they send instead."""
        schema = self.trainer.method.upload_schema
        for result in results:
            hostile = isinstance(result, Trained) and result.client in self.names
            if hostile and schema is not None and isinstance(result, Trained) and result.message is not None:
                yield replace(result, message=self._message(result, messages[result.client], schema, round))
            else:
                yield result

    def _message(self, result: Trained, opening: bytes | None, schema: Schema, round: int) -> bytes:
        assert result.message is not None
        codec, method = self.trainer.codec, self.trainer.method
        try:
            if self.options.kind == "backdoor":
                client = self.clients[result.client]
                payload = backdoor.poisoned(
                    self.trainer, client, opening, round, self.options.target, self.options.strength
                )
            else:
                honest = cast(codec.decode(result.message, schema), method.task.dtype)
                payload = ATTACKS[self.options.kind](honest, self._knowledge(result.client, opening, schema, round))
        except PayloadError:  # its own model has diverged: it sends that
            return result.message
        try:
            return codec.encode(payload, schema)
        except PayloadError:
            return codec.encode(_finite(payload, schema), schema)

    def _knowledge(self, client: str, opening: bytes | None, schema: Schema, round: int) -> Knowledge:
        method, broadcast = self.trainer.method, None
        if opening is not None and method.broadcast_schema is not None:
            broadcast = cast(self.trainer.codec.decode(opening, method.broadcast_schema), method.task.dtype)
        counts = self.clients.members[client].train.counts(method.task.num_classes).cpu()
        g = generator(self.trainer.seed, "attack", round, client)
        return Knowledge(schema, self.options.strength, counts, broadcast, g)

    def success(self) -> dict[str, float]:
        """Return, per rule, the share of honest clients' test samples with the trigger that are given the target.

        Empty for attacks without a trigger.
        """
        if self.options.kind != "backdoor":
            return {}
        first = self.clients[self.names[0]]
        with torch.no_grad():
            local = self.trainer.receive(first, None, 0, deliver=False)
        goal = backdoor.goal_of(first, local, self.options.target)
        trigger = backdoor.optimise_trigger(first, goal, self.trainer.seed)
        hits, total = dict.fromkeys(self.trainer.method.rules, 0), 0
        for name in self.clients:
            if name not in self.names:
                found, samples = backdoor.success(self.trainer, self.clients[name], trigger, self.options.target)
                hits = {rule: hits[rule] + found[rule] for rule in hits}
                total += samples
        return {rule: number / total if total else 0.0 for rule, number in hits.items()}


def _finite(payload: Payload, schema: Schema) -> Payload:
    """Return a payload with magnitudes that fit every codec."""
    return {**payload, **{p.name: payload[p.name].clamp(-FINITE, FINITE) for p in parts_of(schema)}}
