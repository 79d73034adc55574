"""The hostile clients of a simulation: their selection and the messages they send."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from protofed.compute.seeding import generator
from protofed.errors import ConfigError, PayloadError, unknown_name
from protofed.methods.contract import Local, Upload
from protofed.rounds.stage import Opened, Stage
from protofed.runs.records import Accuracy, Attack, RoundRecord
from protofed.stages.attack import backdoor
from protofed.stages.attack.attacks import ATTACKS, AttackOptions, Knowledge, inflate
from protofed.stages.attack.colluding import COLLUDING, craft_uploads
from protofed.stages.robust.vectors import Counts, parts_of, scale_counts
from protofed.visits.contract import Evaluated, Trained
from protofed.visits.roster import Roster
from protofed.visits.visit import LocalTrainer
from protofed.wire.codec import cast
from protofed.wire.schema import Payload, Schema

FINITE = 6e4  #: Largest magnitude used when a codec cannot encode an attack's values; every codec can represent it


class Attackers(Stage):
    """The hostile clients of a simulation."""

    def __init__(self, options: AttackOptions, trainer: LocalTrainer, clients: Roster) -> None:
        self.options, self.trainer, self.clients = options, trainer, clients
        self.names = self._choose([n for n, m in clients.items() if len(m.train)])
        schema = trainer.method.upload_schema
        if (
            schema is not None
            and options.kind == "counts"
            and not any(f.kind == "count" or (f.sums and options.samples) for f in schema.fields.values())
        ):
            raise ConfigError(f"attack.kind=counts: {trainer.method.name} sends no sample counts: choose another")
        if options.kind == "backdoor" and not clients.rests_here:
            raise ConfigError("attack.kind=backdoor needs the clients on this machine: use --engine local")
        classes = trainer.method.task.num_classes
        if options.kind == "backdoor" and options.target >= classes:
            raise ConfigError(f"attack.target={options.target}, but classes are 0 to {classes - 1}")

    def _choose(self, trainable: Sequence[str]) -> list[str]:
        wanted = self.options.clients
        if not isinstance(wanted, int):
            for name in wanted:
                if name not in trainable:
                    raise ConfigError(unknown_name("client in attack.clients", name, trainable))
            names = list(wanted)
        else:
            order = torch.randperm(len(trainable), generator=generator(self.trainer.seed, "attackers"))
            names = [trainable[i] for i in sorted(order[:wanted].tolist())]
        if len(names) >= len(trainable):
            raise ConfigError(
                f"attack.clients={wanted}, but only {len(trainable)} clients train: leave at least one honest"
            )
        return names

    def describe_counts(self, counts: Counts) -> dict[str, Tensor]:
        """Return the samples per class ``(K,)`` that each client says it has."""
        samples = self.options.samples
        return {n: scale_counts(c, samples) if samples and n in self.names else c for n, c in counts.items()}

    def __call__(self, uploads: Iterator[Trained], opened: Opened, record: RoundRecord) -> Iterator[Trained]:
        """Yield the results of the visits, with other messages of hostile clients."""
        schema = self.trainer.method.upload_schema
        if self.options.kind in COLLUDING and schema is not None:
            yield from self._together(list(uploads), schema)
            return
        for result in uploads:
            if result.client in self.names and schema is not None and result.message is not None:
                message = self._message(result, opened.messages[result.client], schema, opened.round)
                result = replace(result, message=message)
            yield result

    def _together(self, results: Sequence[Trained], schema: Schema) -> Iterator[Trained]:
        """Yield the results with messages of hostile clients that were made from those of all others."""
        codec, method = self.trainer.codec, self.trainer.method
        honest: list[Upload] = []
        for result in results:
            with suppress(PayloadError):  # a diverged model; it sends what it has
                if result.message is not None:
                    payload = cast(codec.decode(result.message, schema), method.task.dtype)
                    honest.append(Upload(result.client, payload))
        counts = {u.client: self.clients[u.client].train.counts(method.task.num_classes).cpu() for u in honest}
        made = craft_uploads(self.options.kind, honest, self.names, parts_of(schema), counts, self.options.strength)
        for result in results:
            if result.client in made:
                payload, samples = made[result.client].payload, len(self.clients[result.client].train)
                if self.options.samples:
                    payload = inflate(payload, schema, self.options.samples / samples)
                result = replace(result, message=self._encode(payload, schema))
            yield result

    def scored(self, results: Sequence[Evaluated], names: Sequence[str], record: RoundRecord) -> None:
        """Record the accuracy of honest clients, and the success of a backdoor."""
        honest = [(r.correct, r.samples) for r in results if r.client not in self.names]
        accuracy = Accuracy.of(honest, self.trainer.method.rules).weighted
        record.attack = Attack(self.names, accuracy, self.success(names))

    def _message(self, result: Trained, opening: bytes | None, schema: Schema, round_number: int) -> bytes:
        assert result.message is not None
        codec, method = self.trainer.codec, self.trainer.method
        try:
            if self.options.kind == "backdoor":
                local = self._local(result.client, opening, round_number)
                client, o = self.clients[result.client], self.options
                payload = backdoor.poison(method, client, local, o.target, o.strength)
            else:
                honest = cast(codec.decode(result.message, schema), method.task.dtype)
                payload = ATTACKS[self.options.kind](
                    honest, self._knowledge(result.client, opening, schema, round_number)
                )
        except PayloadError:  # the client's model has diverged: send that
            return result.message
        if self.options.samples:
            payload = inflate(payload, schema, self.options.samples / len(self.clients[result.client].train))
        return self._encode(payload, schema)

    def _encode(self, payload: Payload, schema: Schema) -> bytes:
        try:
            return self.trainer.codec.encode(payload, schema)
        except PayloadError:
            return self.trainer.codec.encode(_finite(payload, schema), schema)

    def _knowledge(self, client: str, opening: bytes | None, schema: Schema, round_number: int) -> Knowledge:
        method, broadcast = self.trainer.method, None
        if opening is not None and method.broadcast_schema is not None:
            broadcast = cast(self.trainer.codec.decode(opening, method.broadcast_schema), method.task.dtype)
        counts = self.clients[client].train.counts(method.task.num_classes).cpu()
        g = generator(self.trainer.seed, "attack", round_number, client)
        return Knowledge(schema, self.options.strength, counts, broadcast, g)

    @torch.no_grad()
    def _local(self, name: str, opening: bytes | None, round_number: int) -> Local:
        local = self.trainer.open(self.clients, name, round_number)
        local.model.eval()
        self.trainer.receive(local, opening, deliver=False)
        return local

    def success(self, names: Sequence[str]) -> dict[str, float]:
        """Return the success rate of the backdoor for each prediction rule.

        The rate is the share of the honest clients' test samples with the trigger that are classified as the
        target. The result is empty for attacks without a trigger.
        """
        if self.options.kind != "backdoor":
            return {}
        method, target, first = self.trainer.method, self.options.target, self.names[0]
        local = self._local(first, None, 0)
        trigger = backdoor.optimise_trigger(self.clients[first], local, backdoor.goal_of(local, target))
        hits, total = dict.fromkeys(method.rules, 0), 0
        for name in names:
            if name not in self.names:
                local = self._local(name, None, 0)
                found, samples = backdoor.success(method, self.clients[name].test, local, trigger, target)
                hits = {rule: hits[rule] + found[rule] for rule in hits}
                total += samples
        return {rule: number / total if total else 0.0 for rule, number in hits.items()}


def _finite(payload: Payload, schema: Schema) -> Payload:
    return {**payload, **{p.name: payload[p.name].clamp(-FINITE, FINITE) for p in parts_of(schema)}}
