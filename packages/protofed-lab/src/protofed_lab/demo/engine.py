"""Two federations side by side: the library's own methods on its own engine, and what there is to see of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protofed import data, methods
from protofed.config.schema import ENCODED_MODEL
from protofed.engine import Accuracy, ClientData, FederatedData, Samples, Sequential, build_options, encode, resolve
from protofed.experiments.assemble import assemble
from protofed.methods import Batch, Local, predict
from protofed.models import Group, groups
from protofed.models.encoders import EncoderOptions
from protofed.options import option_rows, plain
from protofed.prototypes.geometry import pairwise_distances
from protofed.prototypes.means import class_means, class_sums
from protofed.prototypes.table import Prototypes
from protofed.runs.rules import HEAD, main_rule
from protofed.visits.batches import normalise
from protofed_lab.demo import digits
from protofed_lab.demo.setup import LETTERS, ROUNDS, SIDES, Chosen, Setup
from protofed_lab.demo.words import KNOBS

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")  #: Of the digits
SHOWN = 320  #: Dots on one side: all test images of all clients, or an even choice of them
MIXED = "demo4"
ENCODER = EncoderOptions(name="auto", dim=64)
"""Features for methods that train nothing: more would mean better answers, and far longer messages."""

groups.register(MIXED)(
    Group(
        "four small models for 28×28 digits, as in `protofed demo`",
        (
            ("mlp", {"hidden": (64, 16)}),
            ("cnn2", {"channels": (4, 8), "relu_features": False}),
            ("mlp", {"hidden": (32,)}),
            ("mlp", {"hidden": (128, 64, 16)}),
        ),
    )
)


@dataclass(frozen=True)
class View:
    """The visible state of one federation after a round."""

    accuracy: float  #: On all clients' test images by :attr:`LiveFederation.rule`, in [0, 1]
    head: float  #: By the classifier head
    clients: list[float | None]  #: Accuracy of each
    bytes: int  #: Sent so far, up and down
    seconds: float  #: Including features of an encoder
    ended: int | None  #: Last round, if more would change nothing
    #: Distance of the two closest global prototypes, in mean distances of a test feature from its class's global
    #: prototype; None with fewer than two
    separation: float | None
    unseen: float | None  #: Accuracy on digits that a client has no training images of; None if each has all
    dots: NDArray[np.float64]  #: ``(n, 2)`` test features in the plane, in the order of :meth:`FederationPair.dots`
    predicted: NDArray[np.int64]  #: ``(n,)`` classes, -1 where the model's output is not finite
    own: NDArray[np.float64]  #: ``(clients, K, 2)`` local prototypes, NaN where there is none
    shared: NDArray[np.float64]  #: ``(m, 2)`` global prototypes
    labels: NDArray[np.int64]  #: ``(m,)`` their classes


class FederationPair:
    """Two federations with the same clients, data and initial weights, a round at a time."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.federated = federated_digits(setup)
        self.sides = {side: LiveFederation(setup, setup.chosen(side), self.federated) for side in SIDES}
        self.round = 0

    @property
    def finished(self) -> bool:
        """Return whether the last round of both is over."""
        return all(live.finished for live in self.sides.values())

    def step(self) -> None:
        """Run one round on either side that has not finished."""
        for live in self.sides.values():
            live.step()
        self.round += 1

    def dots(self, client: int | None = None) -> list[tuple[int, int]]:
        """Return client and test-image position for every dot, or for those of one client."""
        total = len(self.federated.clients[0].test)
        if client is not None:
            return [(client, row) for row in range(total)]
        stride = -(-total * self.setup.clients // SHOWN)
        return [(c, row) for c in range(self.setup.clients) for row in range(c % stride, total, stride)]


class LiveFederation:
    """One of the two federations, as it learns.

    Methods that need a known number of rounds train nothing: they take the features of an encoder, and no network.
    """

    def __init__(self, setup: Setup, chosen: Chosen, federated: FederatedData) -> None:
        self.options, self.notes = fitting(chosen, setup)
        needed = rounds_needed(chosen.name, self.options)
        self.untrained, self.seconds, self.bytes, self.d = needed is not None, 0.0, 0, setup.d
        recipe = _recipe(setup, chosen.name, self.options)
        if self.untrained:
            whole, self.seconds = encoded_digits(setup.digits)
            federated, (self.d,) = federated_digits(setup, whole), whole.input_shape
            recipe |= {"rounds": needed, "model": {"name": ENCODED_MODEL}}
        self.federated = federated
        self.notes += federated.notes
        if self.d > 2:
            self.notes.append(
                f"Of {self.d} dimensions the two widest are seen: what overlaps may be apart in others."
            )
        self.federation, _ = assemble(resolve(recipe), federated)
        self.rounds = self.federation.run()
        self.plane = Plane(self.d)
        scores = self._executor.evaluate(self.federation.names, None, 0)
        self.accuracy = Accuracy.of([(s.correct, s.samples) for s in scores], self.federation.method.rules)

    @property
    def finished(self) -> bool:
        """Return whether the last round is over."""
        return self.federation.round >= self.federation.rounds

    @property
    def rule(self) -> str:
        """The rule that figures are about: clients are asked about all digits, not only about their own."""
        method = self.federation.method
        return next((r.name for r in method.declared.rules if r.open), main_rule(method.rules))

    @property
    def _executor(self) -> Sequential:
        executor = self.federation.executor
        assert isinstance(executor, Sequential)
        return executor

    def step(self) -> None:
        """Run one round, if there is another."""
        record = next(self.rounds, None)
        if record is None:
            return
        assert record.accuracy is not None
        self.seconds += record.seconds["total"]
        self.accuracy = record.accuracy
        self.bytes += sum(record.bytes.values())

    def change(self, options: dict[str, Any]) -> None:
        """Go on with other options of the method; all that server and clients have learned stays.

        A method object holds options and no state, so the engine is handed another one. Only options that change
        no state fit: margin, λ, γ, s.
        """
        old = self.federation.method
        merged = {**self.options, **options}
        method = type(old)(build_options(old.Options, merged, "method"), old.task)
        self.options = merged
        self.federation.method = method
        self._executor.trainer = replace(self._executor.trainer, method=method)

    def knobs(self) -> dict[str, float]:
        """Return the options that :meth:`change` may change, with their values."""
        if self.untrained:
            return {}
        options = plain(self.federation.method.options)
        inert = {"margin"} if options.get("loss", "hinge") != "hinge" else set()
        return {n: options[n] for n in KNOBS if isinstance(options.get(n), (int, float)) and n not in inert}

    @torch.no_grad()
    def view(self, dots: list[tuple[int, int]]) -> View:
        """Return the present view; ``dots`` are those of :meth:`FederationPair.dots`."""
        method, rule = self.federation.method, self.rule
        features, predicted, own = [], [], []
        received: dict[str, Tensor] = {}
        clients = self.federation.executor.clients
        for name in self.federation.names:
            test = clients[name].test
            local = self._executor.trainer.open(clients, name, self.federation.round)
            self._executor.trainer.receive(local, None, deliver=False)
            model = local.model.eval()
            batch = Batch(normalise(test.x, torch.float32), test.y)
            features.append(model(batch.x).features)
            predicted.append(predict(method, model, batch, local.received, local.state)[rule])
            own.append(_own_prototypes(local))
            received = received or local.received
        shared, labels = _global_prototypes(received, self.federation.server)
        found = torch.stack(predicted)
        who, rows = torch.tensor(dots, dtype=torch.int64).T
        shown = torch.stack(features)[who, rows].double()
        self.plane.turn(shown)
        return View(
            accuracy=self.accuracy.weighted[rule],
            head=self.accuracy.weighted.get(HEAD.name, self.accuracy.weighted[rule]),
            clients=self.accuracy.clients[rule],
            bytes=self.bytes,
            seconds=self.seconds,
            ended=self.federation.round if self.untrained and self.finished else None,
            separation=_separation(torch.cat(features), self.federated.clients[0].test.y, shared, labels),
            unseen=_unseen(found, self.federated),
            dots=self.plane.of(shown),
            predicted=found[who, rows].numpy(),
            own=self.plane.of(torch.stack(own).double()),
            shared=self.plane.of(shared.double()),
            labels=labels.numpy(),
        )


class Plane:
    """The plane that features are seen in: their own with ``d = 2``, otherwise the two widest directions.

    Principal directions of one round are turned towards those of the round before (orthogonal Procrustes), so that
    the picture moves because features do, not because an axis changed its sign.
    """

    def __init__(self, d: int) -> None:
        self.d = d
        self.centre = torch.zeros(d, dtype=torch.float64)
        self.basis = torch.eye(d, 2, dtype=torch.float64)
        self._seen = False

    def turn(self, features: Tensor) -> None:
        """Follow the ``(n, d)`` features of a round; those that are not finite are left out."""
        finite = features[features.isfinite().all(1)]
        if self.d == 2 or len(finite) < 2:
            return
        self.centre = finite.mean(0)
        widest = torch.linalg.svd(finite - self.centre, full_matrices=False).Vh[:2].T
        if self._seen:
            left, _, right = torch.linalg.svd(widest.T @ self.basis)
            widest = widest @ (left @ right)
        self.basis, self._seen = widest, True

    def of(self, vectors: Tensor) -> NDArray[np.float64]:
        """Return ``(..., d)`` vectors as ``(..., 2)`` points."""
        points: NDArray[np.float64] = ((vectors - self.centre) @ self.basis).numpy()
        return points


def federated_digits(setup: Setup, whole: FederatedData | None = None) -> FederatedData:
    """Divide the images of the setup's digits, or ``whole``, among clients with the same test images."""
    whole = whole or whole_digits(setup.digits)
    train, test = whole.clients[0].train, whole.clients[0].test
    shares = _dirichlet(train.y, setup) if setup.skew == "dirichlet" else _pair_classes(train.y, setup)
    clients = tuple(ClientData(name, train.at(rows), test) for name, rows in zip(LETTERS, shares, strict=False))
    return replace(whole, clients=clients)


def whole_digits(shown: tuple[int, ...]) -> FederatedData:
    """Return one client with all images of some digits."""
    train, test = (_samples(split, shown) for split in ("train", "test"))
    client = ClientData("all", train, test)
    return FederatedData((client,), len(shown), tuple(NAMES[digit] for digit in shown), tuple(train.x.shape[1:]))


@cache
def encoded_digits(shown: tuple[int, ...]) -> tuple[FederatedData, float]:
    """Return the same with :data:`ENCODER`'s features in place of the images, and the seconds that these took."""
    started = time.perf_counter()
    encoded = encode(whole_digits(shown), ENCODER, kept=False)
    return encoded, time.perf_counter() - started


def fitting(chosen: Chosen, setup: Setup) -> tuple[dict[str, Any], list[str]]:
    """Return a method's options as far as they suit the setup, and what had to be changed, in words."""
    options, notes = dict(chosen.options), []
    if chosen.method == "gfpl" and len(setup.digits) > setup.d and options.get("dcs", True):
        options["dcs"] = False
        notes.append(
            f"GFPL's fixed second classifier needs at least as many dimensions as classes ({len(setup.digits)}): "
            "it is off here."
        )
    if options.get("s", 0) > setup.d:
        options["s"] = setup.d
    known = {name for name, _, _ in option_rows(methods.get(chosen.name).Options)}
    return {name: value for name, value in options.items() if name in known}, notes


def rounds_needed(method: str, options: dict[str, Any]) -> int | None:
    """Return the rounds after which a method has nothing more to do, as it trains nothing; None if it trains."""
    kind = methods.get(method)
    return 1 if kind.traits(build_options(kind.Options, options, "method")).rounds == "one" else None


def _recipe(setup: Setup, method: str, options: dict[str, Any]) -> dict[str, Any]:
    same = {"name": "mlp", "options": {"hidden": (64, 16)}}
    return {
        "recipe": "demo",
        "seed": setup.seed,
        "rounds": ROUNDS,
        "method": {"name": method, **options},
        "model": {"d": setup.d, **(same if setup.models == "same" else {"name": MIXED})},
        "training": {"lr": 0.01, "momentum": 0.5, "batch_size": 32},
        "execution": {"device": "cpu", "executor": "sequential", "threads": 1},
    }


def _samples(split: str, chosen: tuple[int, ...]) -> Samples:
    rows = digits.rows(split, chosen)
    arrays = digits.load()
    x = torch.from_numpy(arrays[f"{split}_x"][rows]).unsqueeze(1)
    y = torch.from_numpy(arrays[f"{split}_y"][rows]).long()
    place = torch.zeros(10, dtype=torch.int64)
    place[list(chosen)] = torch.arange(len(chosen))
    return Samples(x, place[y])


def _pair_classes(y: Tensor, setup: Setup) -> list[Tensor]:
    """Give the first half of the clients most of the first half of the classes, and the others that of the others.

    Most is three quarters, or everything if ``setup.skew`` is ``apart``.
    """
    most = 1.0 if setup.skew == "apart" else 0.75
    clients, K = setup.clients, len(setup.digits)
    first = -(-clients // 2)
    shares: list[list[Tensor]] = [[] for _ in range(clients)]
    for label in range(K):
        rows = (y == label).nonzero().flatten()
        cut = round(len(rows) * (most if label < -(-K // 2) else 1 - most)) if clients > 1 else len(rows)
        parts = [*rows[:cut].tensor_split(first), *rows[cut:].tensor_split(max(1, clients - first))]
        for share, part in zip(shares, parts, strict=False):
            share.append(part)
    return [torch.cat(share) for share in shares]


def _dirichlet(y: Tensor, setup: Setup) -> list[Tensor]:
    partition = data.partitions.get("dirichlet")
    request = data.Request(y, len(setup.digits), None, setup.clients, setup.seed)
    options: Any = build_options(partition.Options, {"alpha": setup.alpha, "min_size": 4}, "partition")
    return [share.train for share in partition.assign(request, options)]


def _unseen(predicted: Tensor, federated: FederatedData) -> float | None:
    """Return the accuracy on classes that a client does not train on, given ``(clients, n)`` predictions."""
    right = [
        (own == client.test.y)[client.train.counts(federated.num_classes)[client.test.y] == 0]
        for own, client in zip(predicted, federated.clients, strict=True)
    ]
    answers = torch.cat(right)
    return float(answers.double().mean()) if len(answers) else None


def _own_prototypes(local: Local) -> Tensor:
    """Return a client's ``(K, d)`` prototypes as it sent them, or its class means; NaN where there is none."""
    if "prototypes" in local.state:
        means, present = Prototypes.of(local.state)
    else:
        means, present = class_means(*class_sums(*local.features(), len(local.counts)))
    return means.where(present.unsqueeze(-1), torch.nan)


def _global_prototypes(received: dict[str, Tensor], server: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the targets of clients' features, or the server's means: ``(m, d)`` and ``(m,)`` classes."""
    for tensors in (received, server):
        if "prototypes" in tensors:
            rows = tensors["prototypes"]
            present = tensors.get("present", torch.ones(len(rows), dtype=torch.bool))
            return rows[present], present.nonzero().flatten()
    if "means" in server:
        return server["means"], server["classes"]
    return torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64)


def _separation(features: Tensor, y: Tensor, shared: Tensor, labels: Tensor) -> float | None:
    """Return the smallest distance of two classes' prototypes in mean distances of features from their own."""
    if len(labels.unique()) < 2 or len(labels.unique()) < len(labels) or not bool(shared.isfinite().all()):
        return None
    between = pairwise_distances(shared).fill_diagonal_(torch.inf).min()
    table = torch.full((int(y.max()) + 1, shared.shape[1]), torch.nan).index_copy(0, labels, shared.float())
    within = (features - table[y.repeat(len(features) // len(y))]).norm(dim=1).nanmean()
    return float(between / within) if bool(within.isfinite()) and float(within) > 0 else None
