"""GFPL: Gaussian mixtures as prototypes, pseudo-features drawn from them, and a second, fixed classifier.

Lu, He, Li, Wang and Gong, "GFPL: Generative Federated Prototype Learning for Resource-Constrained and
Data-Imbalanced Vision Task". Equation and algorithm numbers are the paper's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from protofed.errors import ConfigError
from protofed.methods import register
from protofed.methods.contract import Aggregate, Method, Phase, Round, Terms, Traits, Update, Upload
from protofed.methods.given import Batch, Local, SplitModel, Task, Tensors
from protofed.methods.parts import pseudo
from protofed.methods.parts.prior import PrivateHead, SoftmaxOptions, cross_entropy, head_scores
from protofed.options import remote
from protofed.prototypes.etf import simplex_etf
from protofed.runs.rules import ETF
from protofed.wire.schema import Field, Payload, Schema


@dataclass(frozen=True)
class GFPLOptions(SoftmaxOptions):
    """Hyperparameters; the defaults are those of the paper's Sec. 5.1, Table 3 and appendix C.1."""

    lambda_: float = remote(2.0, "weight λ of the dot regression (Eq. 13)", least=0)
    cross_entropy: float = remote(
        1.0, "weight of cross-entropy (Eq. 13-14); 0 trains by the dot regression alone, and no head", least=0
    )
    dcs: bool = remote(True, "dual-classifier structure: a fixed ETF beside the learned head (Sec. 4.1)")
    projection_dim: int = remote(
        0, "dimension of the ETF, into which features are projected (Table 3), at least K; 0 = d", least=0
    )
    pfg: bool = remote(True, "pseudo-feature generation: mixtures are exchanged and heads retrained (Sec. 4.2)")
    components: int = remote(4, "components n of a class's mixture", least=1)
    samples: int = remote(16, "pseudo-features r per class", least=1)
    start: int = remote(10, "first round t₁ with retraining", least=1)
    interval: int = remote(10, "rounds S_T from one retraining to the next", least=1)
    threshold: float = remote(
        1.0, "S_C: components closer than this Bhattacharyya distance are fused (Algorithm 1)", above=0
    )
    distance: Literal["sum", "mean"] = remote(
        "sum",
        "Bhattacharyya distance summed over the d dimensions (Eq. 8), or averaged, so that one S_C fits any d",
    )
    weight_by_counts: bool = remote(False, "multiply mixture weights by n_ij before fusion")
    retrain: Literal["batch", "epoch"] = remote(
        "batch",
        "a step on new pseudo-features after every local step (Algorithm 2, lines 16-20), or, after all local "
        "epochs, a pass over pseudo-features drawn once (text of Sec. 4.2)",
    )
    retrain_parts: Literal["projection", "heads"] = remote(
        "projection",
        "what is retrained: the projection (line 19), or projection and head (text); without dcs always the head",
    )
    momentum: float = remote(0.5, "momentum of the SGD that retrains (0 = the experiment's optimiser as it is)")


@register
class GFPL(PrivateHead[GFPLOptions], Method[GFPLOptions]):
    """Algorithm 2.

    A retraining in round t (``t ≥ t₁``, ``t mod S_T = 0``) is one exchange: mixtures go up at the end of round
    ``t − 1`` and come down, fused, at the start of round t. No other round communicates. Server state: the fused
    components, as :mod:`~protofed.methods.parts.pseudo` lists them.
    """

    name = "gfpl"
    summary = "Gaussian mixtures per class, pseudo-features that rebalance the heads, a fixed ETF classifier"
    reference = "Lu, He, Li, Wang and Gong, GFPL"
    Options = GFPLOptions

    @classmethod
    def traits(cls, options: GFPLOptions) -> Traits:
        """Fusion compares single components; the rules are the head if cross-entropy trains it, and the ETF."""
        etf = (ETF,) if options.dcs else ()
        return Traits(
            exchanges="prototypes" if options.pfg else "nothing",
            up="c_i·(2·d + 1)" if options.pfg else "0",
            down="c·(2·d + 1)" if options.pfg else "0",
            rules=options.head_rules(*etf) if options.cross_entropy else etf,
            alike="features",
            counts="always" if options.pfg and options.weight_by_counts else "never",
        )

    def __init__(self, options: GFPLOptions, task: Task) -> None:
        super().__init__(options, task)
        o, d, K = options, task.feature_dim, task.num_classes
        self.projection_dim = p = o.projection_dim or d
        self.each_batch = o.pfg and o.retrain == "batch"
        width, raised = ("projection_dim", "it") if o.projection_dim else ("d", "model.d or method.projection_dim")
        advice = f"raise {raised} or set method.dcs=false"
        untrained = not (o.cross_entropy or o.dcs)
        refused = {
            f"its ETF needs {width} >= K, but {width} = {p} and K = {K}: {advice}": o.dcs and p < K,
            "method.softmax=balanced needs method.cross_entropy above 0": o.balanced and not o.cross_entropy,
            "method.projection_dim needs the projection of method.dcs=true": o.projection_dim and not o.dcs,
            "without method.dcs only cross-entropy trains: raise method.cross_entropy above 0": untrained,
        }
        for fault, found in refused.items():
            if found:
                raise ConfigError(f"gfpl: {fault}")

    def notes(self) -> tuple[str, ...]:
        """Describe retraining without a projection, and a head without cross-entropy."""
        o = self.options
        said = {
            "Without the dual classifier there is no projection, so the head is retrained.": o.pfg and not o.dcs,
            "Without cross-entropy the head is never trained, and there is no rule head.": not o.cross_entropy,
        }
        return tuple(text for text, applies in said.items() if applies)

    # When, and what crosses the network.

    def retrains(self, round_number: int) -> bool:
        """Return whether clients retrain in ``round``."""
        return self.options.pfg and round_number >= self.options.start and round_number % self.options.interval == 0

    @property
    def upload_schema(self) -> Schema | None:
        """Up to n components per class."""
        more = {"counts": Field(("c",), "count", parameter=False)} if self.options.weight_by_counts else {}
        return self._schema(self.task.num_classes * self.options.components, **more)

    @property
    def broadcast_schema(self) -> Schema | None:
        """All fused components: of every class at most as many as all clients together report."""
        return self._schema(self.task.clients * self.task.num_classes * self.options.components)

    def _schema(self, most: int, **more: Field) -> Schema | None:
        K, d = self.task.num_classes, self.task.feature_dim
        return pseudo.schema(K, d, most, **more) if self.options.pfg else None

    # The client.

    @cached_property
    def etf(self) -> Tensor:
        """The fixed classifier, one class per row (Eq. 9-10), as wide as the projection."""
        K, p = self.task.num_classes, self.projection_dim
        return simplex_etf(K, p, self.task.seed, dtype=self.task.dtype).T.contiguous()

    def extend(self, model: SplitModel) -> None:
        """Add the learned projection l (DCS), and a source of pseudo-features."""
        if self.options.dcs:
            model.extras["projection"] = nn.Linear(model.feature_dim, self.projection_dim)
        if self.each_batch:
            model.add_noise("noise")

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Unpack the fused mixtures, and add the ETF."""
        received, task = dict(message or {}), self.task
        if self.each_batch:
            received = pseudo.table(received, task.num_classes, task.feature_dim, task.dtype)
        return {**received, "etf": self.etf} if self.options.dcs else received

    def round(self, number: int) -> Round:
        """Local training; in a retraining round also steps on pseudo-features, after each batch or at the end.

        Mixtures go up in the round before.
        """
        momentum = {"momentum": self.options.momentum} if self.options.momentum else {}
        local = Update(self.loss)
        retrain = Update(self.retrain_loss, trainable=self.is_retrained, optimizer=momentum)
        phases = [Phase((local,))]
        if self.retrains(number) and self.each_batch:
            phases = [Phase((local, retrain))]
        elif self.retrains(number):
            phases.append(Phase((retrain,), epochs=1, source=self.pseudo_features))
        return Round(tuple(phases), self.retrains(number + 1))

    def is_retrained(self, name: str) -> bool:
        """Select the parameters that pseudo-features train: never the extractor."""
        if self.options.dcs and self.options.retrain_parts == "projection":
            return name.startswith("extras.projection.")
        return not name.startswith("extractor.")

    def project(self, model: SplitModel, features: Tensor) -> Tensor:
        """Return ``h = l(f)/‖l(f)‖`` (Eq. 11)."""
        return F.normalize(model.extras["projection"](features), dim=-1)

    def dual_loss(
        self, model: SplitModel, features: Tensor, logits: Tensor, batch: Batch, received: Tensors, state: Tensors
    ) -> Tensors:
        """Return the terms of ``λ·½(h·z_y − 1)² + w·CE(g(f), y)`` (Eq. 12-13, where w is 1)."""
        terms = {}
        if self.options.cross_entropy:
            terms["cross_entropy"] = self.options.cross_entropy * cross_entropy(batch, logits, state)
        if self.options.dcs:
            cosine = (self.project(model, features) * received["etf"][batch.y]).sum(-1)
            terms["dot_regression"] = self.options.lambda_ * batch.mean((cosine - 1).square() / 2)
        return terms

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Eq. 13 on the client's samples."""
        output = model(batch.x)
        return self.dual_loss(model, output.features, output.logits, batch, received, state), output

    def retrain_loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Eq. 14, through the heads only: the same on r pseudo-features per class, drawn for each step or once."""
        if self.each_batch:  # Algorithm 2, lines 17-18; the batch of the local step plays no part.
            batch = pseudo.draw_batch(received, model.extras["noise"], self.options.samples)
        terms = self.dual_loss(model, batch.x, model.classify(batch.x), batch, received, {})
        return {f"retrain_{name}": term for name, term in terms.items()}, None

    def pseudo_features(self, local: Local) -> tuple[Tensor, Tensor]:
        """Draw r features per class from the global mixtures (Eq. 4), all classes alike."""
        return pseudo.draw_once(local, self.options.samples, self.task.feature_dim)

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Fit a mixture to the features of each class present (Eq. 5-6)."""
        payload = pseudo.fit_local(local, self.task.num_classes, self.options.components)
        return payload | {"counts": local.counts[payload["classes"]]} if self.options.weight_by_counts else payload

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Logits of the head, and ``h·z_j``."""
        output = model(batch.x)
        found = head_scores(output.logits, state)
        if self.options.dcs:
            found["etf"] = self.project(model, output.features) @ received["etf"].T
        return found

    # The server.

    def server_state(self) -> Tensors:
        """Start without mixtures."""
        return pseudo.none(self.task.feature_dim, self.task.dtype)

    def broadcast(self, server: Tensors, round_number: int, client: str | None = None) -> Payload | None:
        """Send the fused mixtures to a retraining round."""
        return dict(server) if self.retrains(round_number) and len(server["classes"]) else None

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round_number: int) -> Aggregate:
        """Fuse the components of each class (Algorithm 1); a class nobody reports keeps its mixture."""
        reported = pseudo.join_lists(upload.payload for upload in uploads)
        if self.options.weight_by_counts and reported:
            reported["weights"] = reported["weights"] * reported["counts"]
        # A mean over d dimensions is below S_C where their sum is below S_C·d.
        threshold = self.options.threshold * (self.task.feature_dim if self.options.distance == "mean" else 1)
        state = pseudo.fuse_components(server, reported, threshold)
        if state is server:
            return Aggregate(server, {})
        counts = {"components_before": len(reported["classes"]), "components_after": len(state["classes"])}
        return Aggregate(state, counts)
