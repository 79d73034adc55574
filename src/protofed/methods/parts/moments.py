"""Closed forms: a classifier from the class sums and the second moment of fixed features.

Sums over clients are sums over samples, so what the server makes of them is what it would make of all samples
together, whatever the split (Legate et al., NeurIPS 2023; Fanì et al., ICML 2024). Nothing is trained, so it takes
features that do not change: those of an encoder or of frozen weights.

Server state: what each client sent last, as ``FIELD.NAME/0``, so that nobody counts twice and anybody can be taken
out again; and what follows from it: ``prototypes`` ``(K, d)`` and ``present`` ``(K,)``, the class means of all, and
the classifier, ``weights`` ``(K, d)`` and ``bias`` ``(K,)``. Client state: ``own`` ``(K,)`` and ``prior`` ``(K,)``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, lru_cache
from typing import ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from protofed.errors import ConfigError, unknown_name
from protofed.methods.contract import Aggregate, Method, Round, Statistics, Traits, Upload
from protofed.methods.given import Batch, Local, Output, SplitModel, Tensors
from protofed.methods.parts.prior import over, own_classes
from protofed.methods.traits import GLOBAL_MODEL, HEAD, Protection
from protofed.prototypes.geometry import summary
from protofed.prototypes.means import class_sums
from protofed.prototypes.table import Prototypes
from protofed.wire.schema import Field, Payload, Schema
from protofed.wire.validate import check_structure, check_values

LARGEST = 1e15  #: Largest magnitude of a feature; fields with bounds of their own are not rounded by lossy codecs
ROUNDED = 1e-4
"""Share of the trace of a client's second moment by which rounding may have made an eigenvalue negative."""
SURE = 2.0  #: A class is present if its noisy number of samples exceeds so many standard deviations of the noise
RELEASE = {"counts": 0.5, "sums": 1.0, "moment": 1.0}
"""Factors of the statistics where noise is added to all of them: sums and moment can use more precision."""
RIDGE = 1e-12
"""Least ridge, as a multiple of the features' mean square: those that never vary leave a matrix singular."""

O = TypeVar("O")  # noqa: E741
T = TypeVar("T")


class Sums(NamedTuple):
    """Sufficient statistics of some samples, in float64."""

    counts: Tensor  # ``(K,)`` samples per class
    sums: Tensor  # ``(K, d)`` sum of the features of each class
    moment: Tensor  # ``(d, d)`` ``Σ φφᵀ`` over all samples; ``(0, 0)`` if it is not known

    @classmethod
    def none(cls, num_classes: int, width: int, *, second: bool) -> Sums:
        """Return the sums of no samples, with or without a second moment."""
        side = width if second else 0
        shapes = ((num_classes,), (num_classes, width), (side, side))
        return cls(*(torch.zeros(shape, dtype=torch.float64) for shape in shapes))

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, num_classes: int, *, second: bool) -> Sums:
        """Return the sums of a batch."""
        exact = (features.cpu() if features.device.type == "mps" else features).double()
        sums, counts = class_sums(exact, labels.to(exact.device), num_classes)
        return cls(counts, sums, exact.mT @ exact if second else exact.new_zeros(0, 0))

    def plus(self, other: Sums, times: float = 1.0) -> Sums:
        """Return these sums and those of other samples, which may count more or less than once."""
        return Sums(*(mine + times * theirs for mine, theirs in zip(self, other, strict=True)))

    def possible(self, tolerance: float) -> Sums:
        """Return sums that some samples have: a client's own scatter has no negative eigenvalues.

        With those of a client that lies, or is broken, the covariance of all could have none of the variance that
        it has in some direction, in which the classifier would then be arbitrarily large.

        Args:
            tolerance: Share of the trace that rounding may make of an eigenvalue.
        """
        scatter = self.scatter
        floor = tolerance * float(self.moment.diagonal().abs().sum()) + torch.finfo(scatter.dtype).tiny
        _, failed = torch.linalg.cholesky_ex(scatter + floor * torch.eye(len(scatter), dtype=scatter.dtype))
        if not failed:
            return self
        values, vectors = torch.linalg.eigh(scatter)
        return self._replace(moment=self.moment - scatter + (vectors * values.clamp(min=0)) @ vectors.mT)

    def remove_noise(self, deviation: float) -> Sums:
        """Remove what may be noise: such classes, and what would make the scatter singular.

        As in AdaSSP (Wang, "Revisiting differentially private linear regression", UAI 2018), what noise does to the
        eigenvalues is at most a ridge: negative ones count as zero, and half of the norm that noise is expected to
        have, ``σ·√(2d)``, is added to all.

        Args:
            deviation: ``σ`` of the noise on each number of the sums and on the diagonal of the moment.
        """
        known = self.counts > max(SURE * deviation / RELEASE["counts"], 0.5)
        sure = self._replace(counts=self.counts * known, sums=self.sums * known.unsqueeze(-1))
        if not self.moment.numel():
            return sure
        values, vectors = torch.linalg.eigh(sure.scatter)
        ridge = deviation * (len(values) / 2) ** 0.5
        return sure._replace(
            moment=self.moment - sure.scatter + (vectors * (values.clamp(min=0) + ridge)) @ vectors.mT
        )

    def view(self, number: int, of: int) -> Sums:
        """Return the sums of one of several equally long features that stand side by side."""
        here = part_of(self.sums.shape[1], number, of)
        return Sums(self.counts, self.sums[:, here], self.moment[here, here])

    @property
    def means(self) -> Prototypes:
        """Class means ``μ_k``; samples may count less than once."""
        present = self.counts > 0
        return Prototypes(self.sums / torch.where(present, self.counts, 1).unsqueeze(-1), present)

    @property
    def square(self) -> float:
        """Mean square of a feature, over samples and the ``d`` features."""
        return float(self.moment.diagonal().mean().clamp(min=0) / self.counts.sum().clamp(min=1))

    @property
    def scatter(self) -> Tensor:
        """``Σ (φ − μ_y)(φ − μ_y)ᵀ``, ``(d, d)``: the part of the second moment within the classes."""
        result: Tensor = self.moment - self.means.rows.mT @ self.sums
        return result


def part_of(d: int, number: int, of: int) -> slice:
    """Return where one of several equally long features is that stand side by side."""
    return slice(number * d // of, (number + 1) * d // of)


def triangle(matrix: Tensor, views: int = 1) -> Tensor:
    """Return the upper triangle of a symmetric matrix ``(d, d)``, row by row, ``(d·(d + 1)/2,)``.

    Args:
        views: Number of equally large blocks on the diagonal, of which each has a triangle; the rest is left out.
    """
    upper, _ = _places(len(matrix) // views, matrix.device)
    blocks = (part_of(len(matrix), view, views) for view in range(views))
    return torch.cat([matrix[block, block].reshape(-1).index_select(0, upper) for block in blocks])


def symmetric(upper: Tensor, d: int, views: int = 1) -> Tensor:
    """Return a symmetric matrix ``(d, d)`` from its ``(d·(d + 1)/2,)`` upper triangle; inverts :func:`triangle`."""
    side = d // views
    _, entries = _places(side, upper.device)
    blocks = [part.index_select(0, entries).view(side, side) for part in upper.chunk(views)]
    return blocks[0] if views == 1 else torch.block_diag(*blocks)


@lru_cache(maxsize=2)
def _places(d: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return where the entries of a triangle are in a matrix, and where those of a matrix are in a triangle."""
    i, j = torch.triu_indices(d, d, device=device)
    entries = torch.empty(d, d, dtype=torch.int32, device=device)
    entries[i, j] = entries[j, i] = torch.arange(len(i), dtype=torch.int32, device=device)
    return (i * d + j).int(), entries.view(-1)


def size(d: int, views: int = 1) -> int:
    """Return the length of a :func:`triangle`."""
    return d * (d // views + 1) // 2


def isometric(matrix: Tensor, power: float = 1.0) -> Tensor:
    """Return a symmetric matrix whose off-diagonals are multiplied by ``√2``, or by that to another power.

    The triangle of the result is then as long as the matrix.
    """
    factor: Tensor = torch.full_like(matrix, 2 ** (power / 2)).fill_diagonal_(1)
    return matrix * factor


def floor(square: float, dtype: torch.dtype) -> float:
    """Return the least ridge of a matrix of features: what rounding may be, or 1 if all features are 0.

    Args:
        square: Size of the numbers of which the matrix is the difference: their rounding is no variance.
        dtype: Type in which they were sent.
    """
    return max(RIDGE, 8 * torch.finfo(dtype).eps) * square or 1.0


def solve(matrix: Tensor, right: Tensor, square: float, dtype: torch.dtype, ridge: float = 0.0) -> Tensor:
    """Return ``(S + r·I)⁻¹ B`` for a symmetric ``S`` that should have no negative eigenvalues.

    Rounding, and clients that lie, may have given it some; they count as zero.

    Args:
        square: Size of the numbers of which ``S`` is the difference: their rounding is no variance.
        dtype: Type in which they were sent.
    """
    least = max(ridge, floor(square, dtype))
    raised = matrix.clone()
    raised.diagonal().add_(least)
    lower, failed = torch.linalg.cholesky_ex(raised)
    if not failed:
        return torch.cholesky_solve(right, lower)
    values, vectors = torch.linalg.eigh(matrix)
    result: Tensor = vectors @ ((vectors.mT @ right) / (values.clamp(min=0) + least).unsqueeze(-1))
    return result


class Linear(NamedTuple):
    """A linear classifier with the scores ``w_k·φ + b_k``."""

    weights: Tensor  # ``(K, d)``
    bias: Tensor  # ``(K,)``
    present: Tensor  # ``(K,)`` bool, the classes that it can answer

    @classmethod
    def named(cls, tensors: Tensors, prefix: str = "") -> Linear:
        """Return the classifier whose parts :meth:`tensors` has named."""
        return cls(*(tensors[prefix + name] for name in cls._fields))

    def tensors(self, dtype: torch.dtype, prefix: str = "") -> Tensors:
        """Return its parts by name."""
        parts = {"weights": self.weights.to(dtype), "bias": self.bias.to(dtype), "present": self.present}
        return {prefix + name: part for name, part in parts.items()}

    def beside(self, number: int, of: int) -> Linear:
        """Return the classifier of several features side by side that looks at one of them."""
        d = self.weights.shape[1]
        return self._replace(weights=torch.nn.functional.pad(self.weights, (number * d, (of - 1 - number) * d)))

    def scores(self, features: Tensor) -> Tensor:
        """Return the ``(B, K)`` scores of ``(B, d)`` features; a class that is not present has no chance."""
        return over(features @ self.weights.mT + self.bias, self.present)


def within(scores: Tensor, present: Tensor, own: Tensor) -> Tensor:
    """Return scores over a client's own classes, or over all if the classifier knows none of them.

    Args:
        present: ``(K,)`` bool, the classes that the classifier knows.
        own: ``(K,)`` bool, the client's.
    """
    known = own & present
    return over(scores, known | ~known.any())


class Latest(Generic[T]):
    """A function of a message that remembers its last result: all clients mostly receive the same."""

    def __init__(self, make: Callable[[Payload], T]) -> None:
        self.make = make
        self._last: tuple[Payload, T] | None = None

    def __call__(self, message: Payload) -> T:
        """Return the result, which must not be modified."""
        last = self._last
        if last is None or not all(torch.equal(tensor, last[0][name]) for name, tensor in message.items()):
            last = self._last = message, self.make(message)
        return last[1]


class ClosedForm(Method[O]):
    """Base of the closed forms: clients send their sums, and the server makes of them all a linear classifier."""

    second: ClassVar[bool] = False  #: whether the second moment is needed as well
    #: Whether nothing is sent, and a client's classifier is of its own samples: a control.
    alone: ClassVar[bool] = False
    #: Whether the classifier follows from the sums over all clients, so that these may have noise.
    released: ClassVar[bool] = True

    @classmethod
    def traits(cls, options: O) -> Traits:
        """A control exchanges nothing; in sums, the features of all clients must mean the same."""
        protection = Protection(
            dp_obstacle="its server needs n_ik, which no noise hides",
            dp_statistics={n: w for n, w in RELEASE.items() if cls.released and (cls.second or n != "moment")},
            local_only=("own", "prior"),
        )
        if cls.alone:
            return Traits(protection=Protection(local_only=protection.local_only), rounds="one")
        return Traits(
            exchanges="prototypes",
            up="K_i·d + d·(d+1)/2" if cls.second else "K_i·d",
            down="K·d + K",
            rules=(HEAD, GLOBAL_MODEL),
            alike="architecture",
            counts="always",
            aggregation="sums",
            rounds="one",
            protection=protection,
        )

    @abstractmethod
    def classifier(self, total: Sums) -> Linear:
        """Return the classifier of some samples; nothing is known of classes without any."""

    def notes(self) -> tuple[str, ...]:
        """Describe features from a network that is not frozen."""
        model = None if self.alone or self.task.template is None else self.task.template()
        if model is None or not any(p.requires_grad for p in model.extractor.parameters()):
            return ()
        return (
            "Features are those of a network with its initial weights, which nobody trains: random ones, unless "
            "the model reads weights from a file. Those of an encoder are better (encoder.name=auto).",
        )

    # What crosses the network.

    @cached_property
    def upload_schema(self) -> Schema | None:
        """Class means and their counts; ``(1/n_i) Σ φφᵀ`` as an upper triangle, with ``n_i``.

        With noise, the sums of all ``K`` classes, which a sample changes by at most the norm of their factors.
        """
        if self.alone:
            return None
        d, K = self.task.feature_dim, self.task.num_classes
        if self.task.noise is not None:
            sizes = {"counts": (K,), "sums": (K, d), "moment": (size(d),)}
            return Schema({name: Field(sizes[name], limit=LARGEST) for name in self.protection.dp_statistics}, K)
        fields = {**self.rows("means", weight="counts"), "counts": Field(("k",), "count", parameter=False)}
        if self.second:
            fields |= self.moment_fields(size(d, self.task.views))
        return self.schema(fields)

    def moment_fields(self, size: int) -> dict[str, Field]:
        """Return the fields of an upload that hold the second moment."""
        return {
            "samples": Field((), "count", parameter=False),
            "moment": Field((size,), limit=LARGEST**2, weight="samples"),
        }

    @cached_property
    def broadcast_schema(self) -> Schema | None:
        """The classifier."""
        if self.alone:
            return None
        return self.schema({**self.rows("weights", limit=LARGEST**2), "bias": Field(("k",), limit=LARGEST**2)})

    def rows(self, name: str, limit: float = LARGEST, weight: str = "") -> dict[str, Field]:
        """Return the fields of ``k`` classes with one row of ``d`` numbers each."""
        rows = Field(("k", "d"), limit=limit, weight=weight)
        return {"classes": Field(("k",), "label", parameter=False), name: rows}

    def schema(self, fields: dict[str, Field]) -> Schema:
        """Return the schema of a message."""
        K = self.task.num_classes
        return Schema(fields, K, sizes={"d": self.task.feature_dim}, limits={"k": K})

    # The client.

    def round(self, number: int) -> Round:
        """Nothing is trained."""
        return Round(())

    def client_state(self, counts: Tensor) -> Tensors:
        """Remember the client's classes and their frequencies, for predictions only."""
        return own_classes(counts, self.task.dtype, balanced=True)

    def shifted(self, state: Tensors, counts: Tensor) -> Tensors:
        """Predict with the new frequencies, and over the classes that occur now."""
        return {**state, **self.client_state(counts.to(state["own"].device))}

    @property
    def statistics(self) -> Statistics:
        """Sums are of the features as they are."""
        return Statistics(self.sums)

    def sums(self, output: Output, batch: Batch) -> Tensors:
        """Return sums and counts per class, and the second moment, in float64."""
        return Sums.of(output.features, batch.y, self.task.num_classes, second=self.second)._asdict()

    def samples(self, local: Local) -> tuple[Tensor, Tensor]:
        """Return the features of a client's samples, ``(n, d)`` float64, and their labels."""
        features, labels = torch.zeros(0, self.task.feature_dim), local.counts[:0]
        if int(local.counts.sum()):
            features, labels = local.features()
        return features.cpu().double(), labels.cpu()

    def own_sums(self, local: Local, *, among: Tensor | None = None) -> Sums:
        """Return the sums of a client's samples, computed anew: the features do not change.

        Args:
            among: ``(K,)`` bool, the classes whose samples count; None for all.
        """
        features, labels = self.samples(local)
        chosen = slice(None) if among is None else among.cpu()[labels]
        return Sums.of(features[chosen], labels[chosen], self.task.num_classes, second=self.second)

    def reported(self, local: Local) -> Tensor:
        """Return the classes of which a client has enough samples to report them, ``(K,)`` bool."""
        return (local.counts >= max(1, local.least_samples)).cpu()

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send ``μ_ik`` and ``n_ik``, and the mean second moment of the samples of reported classes."""
        if self.task.noise is not None:
            released = {
                name: statistics[name].cpu() * factor for name, factor in self.protection.dp_statistics.items()
            }
            if self.second:  # noise that differs on either side of the diagonal is halved
                moment = released["moment"]
                released["moment"] = triangle(isometric((moment + moment.mT) / 2))
            return released
        sums, reported = Sums(*(statistics[name].cpu() for name in Sums._fields)), self.reported(local)
        if self.second and bool((reported != (sums.counts > 0)).any()):  # sums of rare classes would tell of them
            sums = self.own_sums(local, among=reported)
        rows, classes = sums.means.to_send()
        payload = {"classes": classes, "means": rows, "counts": sums.counts[classes].long()}
        return {**payload, **self.pack_moment(sums)} if self.second else payload

    def pack_moment(self, sums: Sums) -> Payload:
        """Return the fields of an upload that hold the second moment."""
        samples = sums.counts.sum()
        return {"samples": samples.long(), "moment": triangle(sums.moment, self.task.views) / samples.clamp(min=1)}

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Unpack the classifier; before there is one, make it of the client's own samples."""
        if message is None:
            return self.classifier(self.own_sums(local)).tensors(self.task.dtype)
        K, classes, bias = self.task.num_classes, message["classes"], message["bias"]
        weights = Prototypes.received(message["weights"], classes, K)
        found = Linear(weights.rows, bias.new_zeros(K).index_copy(0, classes, bias), weights.present)
        return found.tensors(self.task.dtype)

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Scores of the classifier over the client's own classes and over all."""
        shared = Linear.named(received)
        scores = shared.scores(model(batch.x).features)
        return {"head": within(self.likely(scores, state), shared.present, state["own"]), "global_model": scores}

    def typical(
        self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors, rule: str
    ) -> Tensor | None:
        """Return p-values of samples being of classes that the client knows, ``(B,)``; None if none are known."""
        return None

    def likely(self, scores: Tensor, state: Tensors) -> Tensor:
        """Return the scores of all classes for a client's class frequencies; the same if they play no part."""
        return scores

    # The server.

    def server_state(self) -> Tensors:
        """Start without clients."""
        if self.alone:
            return {}
        K, d = self.task.num_classes, self.task.feature_dim
        none = Sums.none(K, d, second=self.second)
        return self.conclude({}, none, Linear(none.sums, none.counts, none.counts > 0))

    def conclude(self, held: Tensors, total: Sums, classifier: Linear) -> Tensors:
        """Return the server's state."""
        dtype = self.task.dtype
        return {**held, "prototypes": total.means.rows.to(dtype), **classifier.tensors(dtype)}

    def broadcast(self, server: Tensors, round_number: int, client: str | None = None) -> Payload | None:
        """Send the classifier; nothing before there is one."""
        classes = server["present"].nonzero().squeeze(-1)
        if not len(classes):
            return None
        return {"classes": classes, "weights": server["weights"][classes], "bias": server["bias"][classes]}

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round_number: int) -> Aggregate:
        """Note what each client sent, in place of what it sent before, and make the classifier of all."""
        held = {name: tensor for name, tensor in server.items() if "." in name}
        new: dict[str, list[Payload]] = {}
        for upload in uploads:
            # Of secure aggregation come several uploads that are all alike, which replace those of its last round.
            new.setdefault(upload.client, []).append(upload.payload)
        held = {name: tensor for name, tensor in held.items() if _sender(name) not in new}
        for client, payloads in new.items():
            for number, payload in enumerate(payloads):
                held |= {f"{name}.{client}/{number}": tensor for name, tensor in payload.items()}
        state = self.make_state(held)
        return Aggregate(state, summary(*Prototypes.of(state)))

    def make_state(self, held: Tensors) -> Tensors:
        """Return the server's state that follows from each client's last uploads, by ``FIELD.CLIENT/NUMBER``."""
        total, classifier = self.combine(self.parts(held))
        return self.conclude(held, total, classifier)

    def parts(self, held: Tensors) -> Iterator[Sums]:
        """Return the sums of each upload, in an order that does not depend on when clients sent them."""
        return map(self.part, _payloads(held))

    def part(self, payload: Payload) -> Sums:
        """Return the sums that an upload stands for; those of one client, such as samples can have."""
        single = self.second and self.task.noise is None and not self.task.summed
        return self.sums_of(payload).possible(ROUNDED) if single else self.sums_of(payload)

    def repack(self, payload: Payload, sums: Sums) -> Payload:
        """Return an upload with other class means and another second moment, of as many samples."""
        means = sums.means.rows[payload["classes"]].to(payload["means"].dtype)
        if not self.second:
            return {**payload, "means": means}
        moment = triangle(sums.moment, self.task.views) / payload["samples"].clamp(min=1)
        moment = moment.to(payload["moment"].dtype)
        return {**payload, "means": means, "moment": moment}

    def without(self, server: Tensors, client: str) -> Tensors:
        """Return the server's state as it would be had a client never sent anything."""
        held = {name: tensor for name, tensor in server.items() if "." in name}
        if client not in (senders := {_sender(name) for name in held}):
            raise ConfigError(unknown_name("client among those that have sent anything", client, senders))
        if senders == {client}:
            raise ConfigError(f"{client} is the only one that has sent anything: without it there is no classifier")
        rest = {name: tensor for name, tensor in held.items() if _sender(name) != client}
        assert self.upload_schema is not None
        for payload in _payloads(rest):
            check_structure(payload, self.upload_schema)
            check_values(payload, self.upload_schema)
        return self.make_state(rest)

    def combine(self, parts: Iterable[Sums]) -> tuple[Sums, Linear]:
        """Return the sums over all clients, and their classifier.

        Args:
            parts: In an order that does not depend on when clients sent them.
        """
        K, d = self.task.num_classes, self.task.feature_dim
        total, number = Sums.none(K, d, second=self.second), 0
        for number, part in enumerate(parts, start=1):  # noqa: B007
            for all_of_them, own in zip(total, part, strict=True):
                all_of_them += own
        if self.task.noise:
            total = total.remove_noise(
                self.task.noise * math.hypot(*self.protection.dp_statistics.values()) * number**0.5
            )
        return total, self.classifier(total)

    def sums_of(self, payload: Payload) -> Sums:
        """Return the sums that an upload stands for."""
        K, d = self.task.num_classes, self.task.feature_dim
        none = torch.zeros(0, 0, dtype=torch.float64)
        second = symmetric(payload["moment"].double(), d, self.task.views) if self.second else none
        if self.task.noise is not None:
            counts, sums = (
                payload[name].double() / self.protection.dp_statistics[name] for name in ("counts", "sums")
            )
            return Sums(counts, sums, isometric(second, -1))
        classes, counts = payload["classes"], payload["counts"].double()
        sums = torch.zeros(K, d, dtype=torch.float64)
        sums[classes] = payload["means"].double() * counts.unsqueeze(-1)
        moment = second * float(payload["samples"]) if self.second else second
        if self.second and self.task.views > 1:  # no scatter is known between features side by side: it counts as 0
            view = torch.arange(d) * self.task.views // d
            moment = torch.where(view == view.unsqueeze(1), moment, payload["means"].double().mT @ sums[classes])
        return Sums(torch.zeros(K, dtype=torch.float64).index_copy(0, classes, counts), sums, moment)


def _sender(name: str) -> str:
    """Return the client that sent a tensor of the server's state."""
    return name.partition(".")[2].rpartition("/")[0]


def senders(server: Tensors) -> list[str]:
    """Return the names of the clients whose uploads a server's state holds, in the order of :meth:`parts`."""
    return sorted({_sender(name) for name in server if "." in name})


def _payloads(held: Tensors) -> Iterator[Payload]:
    """Yield the sent sums, upload by upload, in the order of the senders' names."""
    uploads: dict[tuple[str, int], Payload] = {}
    for name, tensor in held.items():
        number = int(name.rpartition("/")[2])
        uploads.setdefault((_sender(name), number), {})[name.partition(".")[0]] = tensor
    for _, payload in sorted(uploads.items(), key=lambda item: item[0]):
        yield payload
