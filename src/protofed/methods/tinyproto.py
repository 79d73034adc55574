"""TinyProto: each class sends only its own few dimensions, scaled by sample counts that are never sent.

Lee and Choi, "TinyProto: Communication-Efficient Federated Learning with Sparse Prototypes in
Resource-Constrained Environments" (2025). It wraps a prototype method: TinyProto-FP on FedProto, TinyProto-FT on
FedTGP, and here also on ProtoNorm. Definition and equation numbers are the paper's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

from protofed.errors import ConfigError
from protofed.methods import get, register
from protofed.methods.contract import Aggregate, Local, Method, Task, Tensors, Upload
from protofed.methods.fedproto import FedProto, SeenUploads
from protofed.methods.parts.wrapped import WrappedMethod
from protofed.methods.protonorm import ProtoNorm
from protofed.options import Options, build_options, option
from protofed.prototypes.masks import class_masks, compress, rebuild
from protofed.prototypes.means import RunningMean
from protofed.wire.schema import Payload, Schema, prototype_schema


@dataclass(frozen=True)
class TinyProtoOptions(Options):
    """Hyperparameters; the paper keeps s = 50 of d = 500 with λ = 1."""

    base: Literal["fedproto", "fedtgp", "protonorm"] = option("fedproto", "method that is made sparse")
    lambda_: float | None = option(
        None, "weight λ of the base's prototype term (none = the base's default)", least=0
    )
    gamma: float | None = option(None, "upscaling γ of the base (none = the base's default)", least=0)
    base_options: dict[str, Any] = option(
        {}, "further options of the base, by name, as in method.base_options.prototypes=during"
    )
    cps: bool = option(True, "class-wise prototype sparsification (Definitions 1 and 2)")
    s: int | None = option(None, "dimensions kept per class (none = a tenth of d)", least=1)
    scaling: bool = option(True, "clients send n_ij·c_ij and never n_ij; the server multiplies by μ")
    reduction: Literal["sum", "mean", "compensated"] | None = option(
        None,
        "over the clients of a class: sum (the authors' code), mean (Eq. 10-11 to the letter), or the sum times "
        "the number of clients known to hold the class over that of those present, so that it does not shrink with "
        "participation (none = sum; fedtgp trains on every single prototype)",
    )
    masking: Literal["after", "before"] = option(
        "after",
        "on protonorm, mask the aligned prototypes, or align them within their masks, on what is sent (before)",
    )
    mu: float = option(
        0.0, "scale μ; 1.5e-4 for CIFAR-10, 1.5e-3 for CIFAR-100 in the paper (0 = from rho)", least=0
    )
    rho: float = option(0.675, "scale-free μ: ρ = μ·(mean number of training samples per class)", above=0)


@register
class TinyProto(WrappedMethod[TinyProtoOptions]):
    """Packs what its base method sends, and unpacks it on the other side.

    Server state: the base's; with ``reduction = compensated`` also ``classes.NAME`` ``(K,)``, those that a client
    reported last.
    """

    base: FedProto[Any]

    name = "tinyproto"
    summary = "sparse class means on FedProto, FedTGP or ProtoNorm: a tenth of the traffic"
    reference = "Lee and Choi, 2025, arXiv 2507.04327"
    exchanges = "prototypes"
    up = "K_i·s"
    down = "K·s"
    same_feature_dim = True
    Options = TinyProtoOptions

    def __init__(self, options: TinyProtoOptions, task: Task) -> None:
        self.s = options.s or max(1, round(task.feature_dim / 10))
        super().__init__(options, task)
        self.masks = class_masks(task.num_classes, task.feature_dim, self.s, task.seed) if options.cps else None
        symbol, width = ("s", self.s) if options.cps else ("d", task.feature_dim)
        self.schema = prototype_schema(task.num_classes, symbol, {symbol: width})
        of_base = self.base.upload_schema
        assert of_base is not None
        more = {name: field for name, field in of_base.fields.items() if name not in self.schema.fields}
        self.sent = prototype_schema(task.num_classes, symbol, {symbol: width}, sums=options.scaling, **more)
        if options.masking == "before" and isinstance(self.base, ProtoNorm):
            self.base.support = self.masks

    @classmethod
    def base_of(cls, options: TinyProtoOptions) -> tuple[type[Method], Any]:
        """Return the class that ``base`` names, and its options."""
        kind = get(options.base)
        given = {n: v for n, v in (("lambda", options.lambda_), ("gamma", options.gamma)) if v is not None}
        if twice := sorted(given.keys() & options.base_options):
            raise ConfigError(f"method.{twice[0]} and method.base_options.{twice[0]} are one option: give it once")
        return kind, build_options(kind.Options, {**given, **options.base_options}, "method.base_options")

    @classmethod
    def needs_counts(cls, options: TinyProtoOptions) -> bool:
        """``μ`` follows from ``ρ`` by the mean number of samples of a class; or the base needs the counts."""
        return (options.scaling and not options.mu) or super().needs_counts(options)

    @classmethod
    def sends_sums(cls, options: TinyProtoOptions) -> bool:
        """Scaled prototypes are sums over a class."""
        return options.scaling

    def check(self) -> None:
        """Refuse too many dimensions, counts that scaling is there to hide, and options without effect."""
        o = self.options
        if o.cps and self.s > self.task.feature_dim:
            raise ConfigError(f"method.s must be at most d = {self.task.feature_dim}, not {self.s}")
        if o.reduction and not o.scaling:
            raise ConfigError("method.reduction reduces scaled prototypes: set method.scaling=true or leave it out")
        if o.reduction and o.base == "fedtgp":
            raise ConfigError(
                "fedtgp trains on every single prototype, so nothing is reduced: leave out method.reduction"
            )
        if o.masking == "before" and not (o.base == "protonorm" and o.cps):
            raise ConfigError(
                "method.masking=before masks what protonorm aligns: it needs base=protonorm and cps=true"
            )
        kind, base_options = self.base_of(self.options)
        if self.options.scaling and kind.needs_counts(base_options):
            raise ConfigError(
                f"method.scaling weights prototypes by n_ij without sending it, but this {kind.name} sends it too: "
                "set method.scaling=false, or let the base take the plain mean"
            )

    @property
    def mu(self) -> float:
        """Scale ``μ``, as given or from ``ρ``."""
        return self.options.mu or self.options.rho / max(self.task.class_size, 1.0)

    @property
    def reduction(self) -> Literal["sum", "mean", "compensated"]:
        """How the base sees the clients of a class: as one, or (``mean``) each by itself."""
        alone = not self.options.scaling or self.options.base == "fedtgp"
        return self.options.reduction or ("mean" if alone else "sum")

    @property
    def sums_only(self) -> bool:  # type: ignore[override]
        """As the base, unless the server has to know who holds a class."""
        return self.base.sums_only and self.reduction != "compensated"

    def unclippable(self) -> str:
        """As the base for means; sums are as the server takes them."""
        if not self.options.scaling or not self.base.sums_only:
            return self.base.unclippable()
        if self.reduction != "sum":
            return f"method.reduction={self.reduction} needs the number of clients that hold a class: choose sum"
        return "" if self.options.mu else "method.rho derives μ from their numbers of samples: set method.mu"

    # Packing.

    def pack(self, payload: Payload) -> Payload:
        """Keep the entries ``ĉ`` of each class's mask (Definition 2)."""
        if self.masks is None:
            return payload
        if not len(payload["classes"]):
            return {**payload, "prototypes": payload["prototypes"][:, : self.s]}
        masks = self.masks[payload["classes"].cpu()]
        return {**payload, "prototypes": compress(payload["prototypes"], masks)}

    def unpack(self, payload: Payload) -> Payload:
        """Put them back in their places, zeros elsewhere (Definition 1)."""
        if self.masks is None:
            return payload
        if not len(payload["classes"]):
            return {**payload, "prototypes": payload["prototypes"].new_zeros(0, self.task.feature_dim)}
        masks = self.masks[payload["classes"].cpu()]
        return {**payload, "prototypes": rebuild(payload["prototypes"], masks)}

    @property
    def upload_schema(self) -> Schema:
        """``k`` prototypes of ``s`` entries, multiplied by sample counts; and the base's other fields."""
        return self.sent

    @property
    def broadcast_schema(self) -> Schema:
        """``k`` prototypes of ``s`` entries."""
        return self.schema

    # The client: the base's, towards zero-filled prototypes.

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Rebuild the global prototypes (Definition 1); the base does the rest."""
        return self.base.receive(local, None if message is None else self.unpack(message))

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send ``n_ij·ĉ_ij`` (Eq. 10); the client's own prototypes stay dense."""
        payload = self.base.upload(local, statistics)
        if self.options.scaling:
            counts = statistics["counts"][payload["classes"]].unsqueeze(-1)
            payload = {**payload, "prototypes": counts * payload["prototypes"]}
        return self.pack(payload)

    # The server.

    def broadcast(self, server: Tensors, round: int, client: str | None = None) -> Payload | None:
        """Send the kept entries of the base's global prototypes."""
        payload = self.base.broadcast(server, round, client)
        return None if payload is None else self.pack(payload)

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round: int) -> Aggregate:
        """Rebuild the uploads, scale them by μ, and let the base make global prototypes of them."""
        noted = self.reduction == "compensated" or self.base.personal_broadcast
        seen = SeenUploads(self._rebuilt(uploads), self.task.num_classes if noted else 0)
        return self.base.conclude(self.base.update(server, self._reduced(server, seen), round), seen)

    def _rebuilt(self, uploads: Iterable[Upload]) -> Iterator[Upload]:
        scale = self.mu if self.options.scaling else 1.0
        for upload in uploads:
            payload = self.unpack(upload.payload)
            yield Upload(upload.client, {**payload, "prototypes": scale * payload["prototypes"]})

    def _reduced(self, server: Tensors, seen: SeenUploads) -> Iterator[Upload]:
        """Reduce the clients to one upload, their sum: the base's mean then is Eq. 10-11 with Σ for the mean."""
        if self.reduction == "mean":
            yield from seen
            return
        total = RunningMean(self.task.num_classes, self.task.feature_dim)
        for upload in seen:
            total.add(upload.payload["classes"], upload.payload["prototypes"])
        rows, classes = total.sum().to_send()
        if not len(classes):
            return
        if self.reduction == "compensated":
            known = {name: held for name, held in server.items() if name.startswith("classes.")} | seen.classes
            holders = torch.stack(list(known.values())).sum(0)
            rows = rows * (holders / total.reporters)[classes].unsqueeze(-1)
        yield Upload("all clients", {"classes": classes, "prototypes": rows.to(self.task.dtype)})
