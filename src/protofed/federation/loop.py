"""The round loop: participation, broadcasts, uploads, evaluation."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from protofed.errors import ConfigError, DivergedError, FederationError, PayloadError, unknown_name
from protofed.federation.options import EvaluationOptions, ParticipationOptions
from protofed.federation.state import ServerState
from protofed.methods.contract import Method, Tensors, Upload
from protofed.privacy import ClientPrivacy, PrivacyOptions, SamplePrivacy
from protofed.privacy.noise import from_seed, from_system
from protofed.privacy.secure import SecureSum, Summed
from protofed.robust import Attackers, Findings, Guard, RobustOptions
from protofed.runs import RULE_ORDER, Accuracy, Attack, RoundRecord, main_rule
from protofed.seeding import generator, uniform_from_system
from protofed.training import Evaluated, Executor, Messages, Missing, Trained
from protofed.wire import Codec, cast
from protofed.wire.schema import Schema
from protofed.wire.validate import check_values


@dataclass
class Federation:
    """A server and its clients.

    Attributes:
        method: The algorithm.
        codec: How messages are encoded.
        executor: Runs the clients.
        rounds: Number of rounds to run.
        seed: Seed of the experiment.
        participation: Selection of the participants of a round.
        evaluation: When clients are scored, on what, and by which rule results are summed up.
        robust: Robust rule applied to validated uploads.
        attackers: Hostile clients of a simulation, or None.
        privacy: What is protected by differential privacy.
        secure: Lets the server see sums of uploads only; None to let it see each.
        state: State of the server; new before the first round.
    """

    method: Method
    codec: Codec
    executor: Executor
    rounds: int
    seed: int
    participation: ParticipationOptions = field(default_factory=ParticipationOptions)
    evaluation: EvaluationOptions = field(default_factory=EvaluationOptions)
    robust: RobustOptions = field(default_factory=lambda: RobustOptions("none"))
    attackers: Attackers | None = None
    privacy: PrivacyOptions = field(default_factory=PrivacyOptions)
    state: ServerState = field(default_factory=ServerState)
    secure: SecureSum | None = None

    def __post_init__(self) -> None:
        self.names = list(self.executor.clients)
        if not self.names:
            raise ConfigError("the federation has no clients")
        members = self.executor.clients.items()
        self.method.check_clients(self.names, [n for n, m in members if m.validation])
        self.trainable = [n for n in self.names if len(self.executor.clients[n].train)]
        if not self.trainable:
            raise ConfigError("no client has training samples")
        self.newcomers = self._find_newcomers()
        least = self.participation.min_clients
        if least > len(self.trainable):
            raise ConfigError(
                f"participation.min_clients={least}, but only {len(self.trainable)} clients have training samples"
            )
        self._check_optimizers()
        self._check_evaluation()
        K = self.method.task.num_classes
        training = {n: m.train for n, m in self.executor.clients.items()}
        counts = {n: samples.most(K).cpu() for n, samples in training.items()}
        counts = counts if self.attackers is None else self.attackers.described(counts)
        withheld = {n for n, samples in training.items() if not samples.exact}
        self.guard = Guard(self.robust, self.method, counts, withheld)
        participants = self._number_of([n for n in self.trainable if n not in self.newcomers])
        self.guard.check(participants)
        self.hiding = self._privacy()
        if self.secure is not None:
            self.secure.check(participants, self.robust.rule)
        if not self.state.round:
            self.state.tensors = self.method.server_state()

    @property
    def server(self) -> Tensors:
        """The method's server state."""
        return self.state.tensors

    @property
    def round(self) -> int:
        """Rounds completed."""
        return self.state.round

    @property
    def secret(self) -> bool:
        """Whether noise and participation must be unpredictable to the clients: in a deployment."""
        return self.executor.remote and not self.executor.clients.rests_here

    def _privacy(self) -> ClientPrivacy | SamplePrivacy | None:
        """Return the stage that hides clients or the cost of hiding samples; None if nothing is ever sent.

        Raises:
            ConfigError: If the options of privacy do not suit the method or the clients.
        """
        if self.privacy.mode == "none" or self.method.upload_schema is None:
            return None
        if self.privacy.mode == "sample":
            members = {name: self.executor.clients[name] for name in self.trainable}
            return SamplePrivacy(self.privacy, self.method, members)
        return self._client_privacy()

    def _client_privacy(self) -> ClientPrivacy:
        """Return the stage of ``privacy.mode=client``.

        Raises:
            ConfigError: If other options would undo it, or its own do not suit the method.
        """
        o = self.participation
        if self.robust.rule not in ("none", "clip"):
            raise ConfigError(
                f"robust.rule={self.robust.rule} lets one client change what others contribute, which the noise of "
                "privacy.mode=client does not cover: choose none; privacy.clip limits every client"
            )
        if o.sampling == "samples":
            raise ConfigError(
                "participation.sampling=samples shows numbers of samples, which privacy.mode=client does not hide: "
                "choose uniform or poisson"
            )
        able = [n for n in self.trainable if n not in self.newcomers]
        rates, expected = [], []
        for round, sends in enumerate(o.sending(self.method, self.rounds), start=1):
            drawn = o.sampling == "poisson" and not self.method.everyone(round)
            # With secure aggregation, the clients of a round are told who else takes part.
            rates.append((o.fraction if drawn and self.secure is None else 1.0) if sends else 0.0)
            all_of_them = self.method.everyone(round)
            number = len(able) * o.fraction if drawn else len(able) if all_of_them else self._number_of(able)
            expected.append(number)
        source = from_system if self.secret else from_seed(self.seed, "privacy")
        shared = self.secure is not None
        return ClientPrivacy(self.privacy, self.method, rates, expected, source, shared)

    @property
    def exhausted(self) -> bool:
        """Whether another round would exceed the budget of differential privacy."""
        return self.hiding is not None and self.round < self.rounds and not self.hiding.affords(self.round + 1)

    def _find_newcomers(self) -> frozenset[str]:
        """Return the clients that join after training.

        Raises:
            ConfigError: If this is no simulation, or nobody is left to train before they join.
        """
        o = self.participation
        if not o.newcomers:
            return frozenset()
        if self.executor.remote:
            raise ConfigError("participation.newcomers is for simulations: use --engine local")
        found = self.trainable[-o.newcomers :]
        if len(found) == len(self.trainable):
            raise ConfigError(
                f"participation.newcomers={o.newcomers} leaves nobody to train before they join: at most "
                f"{len(self.trainable) - 1} of {len(self.trainable)} clients can"
            )
        if o.newcomer_rounds >= self.rounds:
            raise ConfigError(
                f"participation.newcomer_rounds={o.newcomer_rounds} leaves no rounds for training: rounds is "
                f"{self.rounds}"
            )
        return frozenset(found)

    def joined(self, round: int) -> bool:
        """Return whether newcomers have joined in ``round``."""
        return self.participation.joined(round, self.rounds)

    def _check_optimizers(self) -> None:
        """Raise ConfigError if the method overrides a setting that some client's optimiser lacks."""
        phases = [phase for round in range(1, self.rounds + 1) for phase in self.method.phases(round)]
        wanted = {tuple(sorted(u.optimizer.items())) for phase in phases for u in phase.updates if u.optimizer}
        plans = {repr(m.plan): m.plan for m in self.executor.clients.values()}
        for plan, overrides in itertools.product(plans.values(), wanted):
            try:
                plan.check(*plan.chosen(dict(overrides)))
            except ConfigError as error:
                raise ConfigError(f"method {self.method.name} sets {dict(overrides)}, but {error}") from None

    def _check_evaluation(self) -> None:
        """Raise ConfigError if clients cannot be scored as the options ask."""
        on, rule = self.evaluation.on, self.evaluation.rule
        if self.evaluation.patience and not any(m.validation for m in self.executor.clients.values()):
            raise ConfigError("evaluation.patience needs validation samples: set data.validation_fraction")
        known = dict.fromkeys((*self.method.rules, *RULE_ORDER))
        if rule and rule not in known:
            raise ConfigError(unknown_name("rule in evaluation.rule", rule, known))
        if on == "own":
            return
        if self.executor.remote:
            raise ConfigError(f"evaluation.on={on} needs all test samples on this machine: use --engine local")
        tests = [m.test for m in self.executor.clients.values() if len(m.test)]
        kinds = {(str(t.x.dtype).removeprefix("torch."), tuple(t.x.shape[1:])) for t in tests}
        if len(kinds) != 1:
            found = " and ".join(f"{dtype} of shape {shape}" for dtype, shape in sorted(kinds)) or "none"
            raise ConfigError(f"evaluation.on={on} needs test samples of one type and shape, not {found}")

    @property
    def main_rule(self) -> str:
        """The rule by which results are summed up."""
        return main_rule(self.method.rules, self.evaluation.rule)

    def stalled(self, rounds: Sequence[RoundRecord]) -> bool:
        """Return whether accuracy on validation samples has not improved for ``evaluation.patience`` evaluations.

        Args:
            rounds: Records of all rounds so far.
        """
        found = [r.validation.weighted[self.main_rule] for r in rounds if r.validation]
        since = len(found) - 1 - found.index(max(found)) if found else 0
        return 0 < self.evaluation.patience <= since

    def run(self) -> Iterator[RoundRecord]:
        """Run the remaining rounds, as far as the budget goes, and yield a record after each.

        Raises:
            FederationError: If it does not suffice for a first one after those that were lost with a killed server,
                or too few clients gave a usable result.
        """
        if self.hiding is not None and self.exhausted and not self.round:
            raise FederationError(
                f"privacy.epsilon={self.privacy.budget:g} is spent: {self.hiding.ledger.repeated} rounds were lost "
                f"with a killed server ({self.hiding.ledger.path}), and with one more ε would be "
                f"{self.hiding.epsilon(1):.3g}"
            )
        while self.round < self.rounds and not self.exhausted:
            yield self._round(self.round + 1)

    def exchange(self, names: Sequence[str], round: int) -> list[Upload]:
        """Train clients and return what the server receives of them, without aggregating it.

        Args:
            names: The clients.
            round: Number of the round, from 1.
        """
        messages = self._messages(names, round)
        results = self.executor.train(names, messages, round)
        return list(self._uploads(results, [], RoundRecord(round, list(names)), self.method.upload_schema))

    def participants(self, round: int) -> list[str]:
        """Return the clients that train in ``round``, in their fixed order."""
        joined = self.joined(round)
        here = [name for name in self.trainable if (name in self.newcomers) == joined]
        able = self.state.standing.able(here, round, self.participation.max_refusals)
        if self.participation.sampling == "poisson" and not self.method.everyone(round):
            return [name for name in able if self._coin(round, name) < self.participation.fraction]
        number = self._number_of(able)
        if number >= len(able) or self.method.everyone(round):
            return able
        drawing = generator(self.seed, "participation", round)
        if self.participation.sampling == "samples":
            sizes = torch.tensor([int(self.guard.counts[n].sum()) for n in able], dtype=torch.float64)
            order = torch.multinomial(sizes, number, generator=drawing)
        else:
            order = torch.randperm(len(able), generator=drawing)
        return [able[i] for i in sorted(order[:number].tolist())]

    def _coin(self, round: int, name: str) -> float:
        """Return the number in ``[0, 1)`` that decides whether a client takes part."""
        if self.secret:
            return float(uniform_from_system(1))
        return float(torch.rand((), generator=generator(self.seed, "participation", round, name)))

    def _number_of(self, able: Sequence[str]) -> int:
        """Return the number of clients to ask among those able to train."""
        return max(1, int(self.participation.fraction * len(able) + 0.5))

    def _round(self, round: int) -> RoundRecord:
        start = time.perf_counter()
        names = self.participants(round)
        self._train_from_now(round)
        record = RoundRecord(round, names)
        while not self._attempt(names, round, record):
            if record.attempts == self.participation.attempts or self.executor.clients.rests_here:
                raise FederationError(self._why(round, record))
            record.attempts += 1
        self.state.round = round
        self.state.standing.note(record, self.names)
        if round % self.evaluation.every == 0 or round == self.rounds or self.exhausted:
            if self._combines(round):
                self._train_from_now(round + 1)
                self.executor.announce(self.participants(round + 1))
            self._evaluate(round, record)
        record.seconds["total"] = time.perf_counter() - start
        return record

    def _train_from_now(self, round: int) -> None:
        """Count a round of clients that protect their samples before any of them trains for it."""
        if isinstance(self.hiding, SamplePrivacy):
            self.hiding.ledger.publish(round)

    def _combines(self, round: int) -> bool:
        """Return whether clients may train for the next round as soon as they have been scored in ``round``."""
        certain = round < self.rounds and not self.evaluation.patience and not self.exhausted
        return self.participation.combine and self.evaluation.at == "broadcast" and certain

    def _attempt(self, names: Sequence[str], round: int, record: RoundRecord) -> bool:
        """Train and aggregate; over a network, leave the state unchanged if too few results were usable.

        A repeated attempt is safe only there: nodes answer a repeated request with the result they already have,
        whereas clients of this process would train once more.
        """
        messages = self._messages(names, round, record)
        record.robust = Findings()
        record.privacy = None if self.hiding is None else self.hiding.spent(round)
        state, diagnostics, usable = self._aggregate(names, messages, round, record)
        if usable < min(self.participation.min_clients, len(names)) and self.executor.remote:
            return False
        if isinstance(self.hiding, ClientPrivacy) and self.method.communicates(round):
            self.hiding.ledger.publish(round)
        if reason := self._unsound(state, round):
            record.robust.kept = f"clients would have refused the new one ({reason})"
        else:
            self.state.tensors, record.diagnostics = state, diagnostics
        return True

    def _unsound(self, state: Tensors, round: int) -> str:
        """Return the reason why clients would refuse the next broadcast; empty if they would accept it."""
        for name, tensor in state.items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                return f"{name}: not finite"
        schema = self.method.broadcast_schema
        if schema is None or self.method.personal_broadcast:
            return ""
        payload = self.method.broadcast(state, round + 1)
        try:
            check_values(payload or {}, schema if payload else replace(schema, fields={}))
        except DivergedError as error:
            return str(error)
        return ""

    def _why(self, round: int, record: RoundRecord) -> str:
        """Return the reason why a round could not be completed, as one line."""
        if record.robust.kept:
            return f"round {round}, attempt {record.attempts}: {record.robust.kept}"
        reasons = [f"{m.client}: {m.reason}" for m in record.missing]
        reasons += [f"{r.client}: {r.field} {r.reason}" for r in record.refused]
        return (
            f"round {round}: fewer than participation.min_clients={self.participation.min_clients} clients gave a "
            f"usable result in {record.attempts} attempts; last {'; '.join(reasons[-3:]) or 'nobody was asked'}"
        )

    def _messages(self, names: Sequence[str], round: int, record: RoundRecord | None = None) -> Messages:
        """Encode the broadcast for ``names``, and count its traffic if ``record`` is given."""
        schema = self.method.broadcast_schema
        if schema is None:
            return dict.fromkeys(names)
        messages: dict[str, bytes | None] = {}
        shared: tuple[bytes, int] | None = None
        for name in names:
            encoded = shared
            if encoded is None:
                personal = self.method.personal_broadcast
                payload = self.method.broadcast(self.server, round, name if personal else None)
                if payload is None:
                    messages[name] = None
                    continue
                encoded = self.codec.encode(payload, schema), schema.parameters(payload)
                shared = None if personal else encoded
            messages[name] = encoded[0]
            if record is not None:
                record.add_traffic("down", len(encoded[0]), encoded[1])
        return messages

    def _aggregate(
        self, names: Sequence[str], messages: Messages, round: int, record: RoundRecord
    ) -> tuple[Tensors, dict[str, Any], int]:
        """Train clients and aggregate their uploads as they arrive; also return the number of usable results."""
        start = time.perf_counter()
        waiting = _Clock()
        trained: list[Trained] = []
        results = waiting.timed(self.executor.train(names, messages, round))
        sending = not self.joined(round)
        if sending and self.attackers is not None:
            results = self.attackers.act(results, messages, round)
        uploads = self._uploads(results, trained, record, self.method.upload_schema if sending else None)
        diagnostics: dict[str, Any] = {}
        if not sending or not self.method.communicates(round):
            for _ in uploads:
                pass
            state, usable = self.server, len(trained)
        elif self.secure is not None:
            state, diagnostics, usable = self._summed(self.secure, results, messages, trained, round, record)
        else:
            counter, findings = itertools.count(), Findings()
            counted = (upload for upload, _ in zip(uploads, counter, strict=False))
            if isinstance(self.hiding, ClientPrivacy):
                assert record.privacy is not None
                screened = self.hiding.merge(counted, self.opening(round), round, record.privacy)
            else:
                screened = self.guard.screen(counted, self.opening(round), findings)
            state, diagnostics = self.server, {}
            if some := _unless_empty(screened):
                state, diagnostics = self.method.aggregate(self.server, some, round)
            uploads_left = sum(1 for _ in screened)
            assert not uploads_left, f"{self.method.name} left uploads unread"
            usable = next(counter)
            record.robust = findings
        record.set_losses(trained)
        record.seconds["training"] += waiting.seconds
        record.seconds["aggregation"] += time.perf_counter() - start - waiting.seconds
        return state, diagnostics, usable

    def _summed(
        self,
        secure: SecureSum,
        results: Iterator[Trained | Missing],
        broadcasts: Messages,
        trained: list[Trained],
        round: int,
        record: RoundRecord,
    ) -> tuple[Tensors, dict[str, Any], int]:
        """Aggregate what secure aggregation lets the server see; nothing if too few clients remain."""
        arrived = self._arrived(results, trained, record)
        messages = {result.client: result.message for result in arrived if result.message is not None}
        try:
            summed = secure.sum(messages, broadcasts, record)
            uploads = self.revealed(secure, summed, secure.opening(next(iter(broadcasts.values()), None)), round)
        except (FederationError, PayloadError) as error:
            record.robust.kept = str(error)
            return self.server, {}, 0
        state, diagnostics = self.method.aggregate(self.server, iter(uploads), round)
        return state, diagnostics, summed.clients

    def revealed(self, secure: SecureSum, summed: Summed, opening: Tensors, round: int) -> list[Upload]:
        """Return the uploads that a method makes of a sum what it would make of the clients' own.

        Args:
            secure: The stage that has made the sum.
            summed: The sum.
            opening: Payload of the broadcast that opened the round.
            round: Number of the round, from 1.
        """
        if secure.noisy is None:
            return secure.uploads(summed)
        assert isinstance(self.hiding, ClientPrivacy)
        deviation = secure.noisy.deviation(summed.threshold, summed.clients)
        return [self.hiding.standing_for_all(secure.noisy.decode(summed.total), deviation, opening, round)]

    def opening(self, round: int) -> Tensors | None:
        """Return the broadcast that opened ``round``; None if it differed between clients."""
        if self.method.broadcast_schema is None or self.method.personal_broadcast:
            return None
        return self.method.broadcast(self.server, round)

    def _uploads(
        self,
        results: Iterator[Trained | Missing],
        trained: list[Trained],
        record: RoundRecord,
        schema: Schema | None,
    ) -> Iterator[Upload]:
        """Decode and validate uploads one by one, none without a schema; refused ones are recorded and left out."""
        for result in self._arrived(results, trained, record):
            if result.message is None or schema is None:
                continue
            try:
                payload = cast(self.codec.decode(result.message, schema), self.method.task.dtype)
            except PayloadError as error:
                record.add_traffic("up", len(result.message), 0)
                record.refuse(result.client, error)
                continue
            record.add_traffic("up", len(result.message), schema.parameters(payload))
            yield Upload(result.client, payload)

    @staticmethod
    def _arrived(
        results: Iterator[Trained | Missing], trained: list[Trained], record: RoundRecord
    ) -> Iterator[Trained]:
        """Yield the results of clients that were trained; the others are recorded."""
        for result in results:
            if isinstance(result, Missing):
                record.miss(result, "training")
                continue
            trained.append(replace(result, message=None))  # of many clients, they are gigabytes
            if result.failure:
                record.refuse(result.client, DivergedError(result.failure))
            yield result

    def _evaluate(self, round: int, record: RoundRecord) -> None:
        start = time.perf_counter()
        delivered = self.evaluation.at == "broadcast"
        names = [name for name in self.names if name not in self.newcomers or self.joined(round)]
        messages = self._messages(names, round + 1) if delivered else None
        scored = {r.client: self._score(r, record) for r in self.executor.evaluate(names, messages, round)}
        results = [scored.get(name) or Evaluated(name, {}, 0, 0.0) for name in self.names]
        if any(r.samples for r in results):  # nodes may keep all scores to themselves
            record.accuracy = Accuracy.of([(r.correct, r.samples) for r in results], self.method.rules)
        for part in ("validation", "union", "unseen"):
            scores = [getattr(r, part) for r in results]
            if any(samples for _, samples in scores):
                setattr(record, part, Accuracy.of(scores, self.method.rules))
        if self.joined(round):
            own = [(r.correct, r.samples) if r.client in self.newcomers else ({}, 0) for r in results]
            record.newcomers = Accuracy.of(own, self.method.rules)
        if self.attackers is not None:
            honest = [r for r in results if r.client not in self.attackers.names]
            record.attack = Attack(
                clients=self.attackers.names,
                honest=Accuracy.of([(r.correct, r.samples) for r in honest], self.method.rules).weighted,
                success=self.attackers.success(names),
            )
        record.seconds["evaluation"] = time.perf_counter() - start

    @staticmethod
    def _score(result: Evaluated | Missing, record: RoundRecord) -> Evaluated:
        if isinstance(result, Evaluated):
            return result
        record.miss(result, "evaluation")
        return Evaluated(result.client, {}, 0, 0.0)


def _unless_empty(uploads: Iterator[Upload]) -> Iterator[Upload] | None:
    """Return an iterator over the same uploads, or None if there are none; keep no upload."""
    for first in uploads:
        return itertools.chain((first,), uploads)
    return None


class _Clock:
    """Measures the time spent waiting for an iterator."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, items: Iterator[Trained | Missing]) -> Iterator[Trained | Missing]:
        while True:
            start = time.perf_counter()
            item = next(items, None)
            self.seconds += time.perf_counter() - start
            if item is None:
                return
            yield item
