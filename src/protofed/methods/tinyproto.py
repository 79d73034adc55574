"""TinyProto: each class sends only its own few dimensions, scaled by sample counts that are never sent.

Lee and Choi, "TinyProto: Communication-Efficient Federated Learning with Sparse Prototypes in
Resource-Constrained Environments" (2025). It is around a prototype method: TinyProto-FP on FedProto, TinyProto-FT
on FedTGP, and here also on ProtoNorm. Definition and equation numbers are the paper's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch

from protofed.errors import ConfigError, require
from protofed.methods import get, register
from protofed.methods.contract import Aggregate, Local, Task, Tensors, Traits, Upload
from protofed.methods.fedproto import FedProto
from protofed.methods.parts.nearest import SeenUploads
from protofed.methods.protonorm import ProtoNorm
from protofed.methods.traits import Protection
from protofed.options import Options, build_options, named, remote
from protofed.prototypes.masks import class_masks, compress, rebuild
from protofed.prototypes.means import RunningMean
from protofed.wire.schema import Payload, Schema, prototype_schema


@dataclass(frozen=True)
class TinyProtoOptions(Options):
    """Hyperparameters; the paper keeps s = 50 of d = 500 with λ = 1."""

    base: Literal["fedproto", "fedtgp", "protonorm"] = remote("fedproto", "method that is made sparse")
    lambda_: float | None = remote(None, "weight λ of the base's prototype term (none = its default)", least=0)
    gamma: float | None = remote(None, "upscaling γ of the base (none = its default)", least=0)
    base_options: dict[str, Any] = named(
        {}, "further options of the base, by name, as in method.base_options.prototypes=during", of="methods"
    )
    cps: bool = remote(True, "class-wise prototype sparsification (Definitions 1 and 2)")
    s: int | None = remote(None, "dimensions kept per class (none = a tenth of d)", least=1)
    scaling: bool = remote(True, "clients send n_ij·c_ij and never n_ij; the server multiplies by μ")
    reduction: Literal["sum", "mean", "compensated"] | None = remote(
        None,
        "over the clients of a class: sum (the authors' code), mean (Eq. 10-11 to the letter), or the sum times "
        "the number of clients known to hold the class over that of those present, so that it does not shrink with "
        "participation (none = sum; fedtgp trains on every single prototype)",
    )
    masking: Literal["after", "before"] = remote(
        "after",
        "on protonorm, mask the aligned prototypes, or align them within their masks, on what is sent (before)",
    )
    mu: float = remote(
        0.0, "scale μ; 1.5e-4 for CIFAR-10, 1.5e-3 for CIFAR-100 in the paper (0 = from rho)", least=0
    )
    rho: float = remote(0.675, "scale-free μ: ρ = μ·(mean number of training samples per class)", above=0)


@register
class TinyProto(FedProto[Any]):
    """Packs what its base method sends, and unpacks it on the other side; clients are FedProto's, as the base's.

    Server state: the base's; with ``reduction = compensated`` also ``classes.NAME`` ``(K,)``, those that a client
    reported last.

    Attributes:
        sparse: Its own.
        mu: Scale ``μ``, as given or from ``ρ``.
    """

    name = "tinyproto"
    summary = "sparse class means on FedProto, FedTGP or ProtoNorm: a tenth of the traffic"
    reference = "Lee and Choi, 2025, arXiv 2507.04327"
    Options: ClassVar[type[Any]] = TinyProtoOptions

    def __init__(self, options: TinyProtoOptions, task: Task) -> None:
        super().__init__(options, task)
        kind, self.options = resolve_base(options)
        self.base, self.sparse = kind(self.options, task), options
        s = (options.s or max(1, round(task.feature_dim / 10))) if options.cps else task.feature_dim
        check(options, self.base, s)
        self.masks = class_masks(task.num_classes, task.feature_dim, s, task.seed)
        self.mu = options.mu or options.rho / max(task.class_size, 1.0)
        if isinstance(self.base, ProtoNorm) and options.masking == "before":
            self.base.support = self.masks

    @classmethod
    def traits(cls, options: TinyProtoOptions) -> Traits:
        """``μ`` follows from ``ρ`` by the mean number of samples of a class; scaled prototypes are sums over it."""
        kind, base_options = resolve_base(options)
        base, more = kind.traits(base_options), None
        sums, reduction = options.scaling and base.aggregation == "sums", reduction_of(options)
        if sums:
            more = "" if options.mu else "method.rho derives μ from their numbers of samples: set method.mu"
            if reduction != "sum":
                more = f"method.reduction={reduction} needs the number of clients that hold a class: choose sum"
        scaled: Literal["for robust rules", "always"] = "for robust rules" if options.mu else "always"
        summed = base.aggregation == "sums" and reduction != "compensated"
        return replace(
            base,
            up="K_i·s" if options.cps else base.up,
            down="K·s" if options.cps else base.down,
            counts=scaled if options.scaling else base.counts,
            aggregation="sums" if summed else "personal" if base.personal else "single",
            protection=Protection(dp_obstacle=more if sums else base.protection.dp_obstacle),
        )

    @property
    def gamma(self) -> float:
        """The base's."""
        return self.base.gamma

    # Packing.

    def pack(self, payload: Payload) -> Payload:
        """Keep the entries ``ĉ`` of each class's mask (Definition 2)."""
        masks, rows = self.masks[payload["classes"].cpu()], payload["prototypes"]
        kept = compress(rows, masks) if len(masks) else rows[:, : int(self.masks[0].sum())]
        return {**payload, "prototypes": kept}

    def read(self, message: Payload, server: Tensors) -> Payload:
        """Put them back in their places, zeros elsewhere (Definition 1)."""
        masks, rows = self.masks[message["classes"].cpu()], message["prototypes"]
        whole = rebuild(rows, masks) if len(masks) else rows.new_zeros(0, self.task.feature_dim)
        return {**message, "prototypes": whole}

    @property
    def upload_schema(self) -> Schema:
        """``k`` prototypes of ``s`` entries, multiplied by sample counts; and the base's other fields."""
        return self._schema(sums=self.sparse.scaling, counted="counts" in self.base.upload_schema.fields)

    @property
    def broadcast_schema(self) -> Schema:
        """``k`` prototypes of ``s`` entries."""
        return self._schema()

    def _schema(self, *, sums: bool = False, counted: bool = False) -> Schema:
        symbol, width = "s" if self.sparse.cps else "d", int(self.masks[0].sum())
        return prototype_schema(self.task.num_classes, symbol, {symbol: width}, sums=sums, counted=counted)

    # The client: towards zero-filled prototypes.

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Rebuild the global prototypes (Definition 1); the base does the rest."""
        return super().receive(local, None if message is None else self.read(message, {}))

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send ``n_ij·ĉ_ij`` (Eq. 10); the client's own prototypes stay dense."""
        payload = super().upload(local, statistics)
        if self.sparse.scaling:
            counts = statistics["counts"][payload["classes"]].unsqueeze(-1)
            payload = {**payload, "prototypes": counts * payload["prototypes"]}
        return self.pack(payload)

    # The server.

    def server_state(self) -> Tensors:
        """Start as the base does."""
        return self.base.server_state()

    def broadcast(self, server: Tensors, round_number: int, client: str | None = None) -> Payload | None:
        """Send the kept entries of the base's global prototypes."""
        payload = super().broadcast(server, round_number, client)
        return None if payload is None else self.pack(payload)

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round_number: int) -> Aggregate:
        """Rebuild the uploads, scale them by μ, and let the base make global prototypes of them."""
        noted = self.declared.personal or reduction_of(self.sparse) == "compensated"
        scale = self.mu if self.sparse.scaling else 1.0
        whole = ((client, self.read(payload, {})) for client, payload in uploads)
        scaled = (Upload(c, {**sent, "prototypes": scale * sent["prototypes"]}) for c, sent in whole)
        seen = SeenUploads(scaled, self.task.num_classes if noted else 0)
        return seen.conclude(self.base.update(server, self._reduce(server, seen), round_number))

    def _reduce(self, server: Tensors, seen: SeenUploads) -> Iterator[Upload]:
        """Reduce the clients to one upload, their sum: the base's mean then is Eq. 10-11 with Σ for the mean."""
        reduction = reduction_of(self.sparse)
        if reduction == "mean":
            yield from seen
            return
        total = RunningMean(self.task.num_classes, self.task.feature_dim)
        for upload in seen:
            total.add(upload.payload["classes"], upload.payload["prototypes"])
        rows, classes = total.sum().to_send()
        if not len(classes):
            return
        if reduction == "compensated":
            known = {name: held for name, held in server.items() if name.startswith("classes.")} | seen.classes
            holders = torch.stack(list(known.values())).sum(0)
            rows = rows * (holders / total.reporters)[classes].unsqueeze(-1)
        yield Upload("all clients", {"classes": classes, "prototypes": rows.to(self.task.dtype)})


def resolve_base(options: TinyProtoOptions) -> tuple[type[FedProto[Any]], Any]:
    """Return the class that ``base`` names, and its options."""
    kind: Any = get(options.base)
    given = {n: v for n, v in (("lambda", options.lambda_), ("gamma", options.gamma)) if v is not None}
    if twice := sorted(given.keys() & options.base_options):
        raise ConfigError(f"method.{twice[0]} and method.base_options.{twice[0]} are one option: give it once")
    return kind, build_options(kind.Options, {**given, **options.base_options}, "method.base_options")


def reduction_of(options: TinyProtoOptions) -> Literal["sum", "mean", "compensated"]:
    """Return the clients of a class in the base's view: as one, or (``mean``) each by itself."""
    alone = not options.scaling or options.base == "fedtgp"
    return options.reduction or ("mean" if alone else "sum")


def check(o: TinyProtoOptions, base: FedProto[Any], s: int) -> None:
    """Refuse too many dimensions, counts that scaling is there to hide, and options without effect."""
    d, masked = base.task.feature_dim, o.base == "protonorm" and o.cps
    refused = {
        f"method.s must be at most d = {d}, not {s}": s > d,
        "method.reduction reduces scaled prototypes: set method.scaling=true or leave it out": (
            o.reduction and not o.scaling
        ),
        "fedtgp trains on every single prototype, so nothing is reduced: leave out method.reduction": (
            o.reduction and o.base == "fedtgp"
        ),
        "method.masking=before masks what protonorm aligns: it needs base=protonorm and cps=true": (
            o.masking == "before" and not masked
        ),
        f"method.scaling weights prototypes by n_ij without sending it, but this {base.name} sends it too: "
        "set method.scaling=false, or let the base take the plain mean": o.scaling
        and base.declared.counts == "always",
    }
    for fault, found in refused.items():
        require(not found, fault)
