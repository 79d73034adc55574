"""FedL2G: guiding vectors per class, learned so that following them lowers clients' own loss.

Zhang, Liu, Hua, Cao and Yang, "FedL2G: Learning to Guide Local Training in Heterogeneous Federated Learning", 2024.

The formulas and settings are those of the authors' code, in which a client holds its quiz out of its training
samples. Here the quiz is made of validation samples, and of training samples if a client has none for validation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Literal

import torch
from torch import Tensor
from torch.func import functional_call, grad

from protofed.compute.seeding import generator
from protofed.methods import register
from protofed.methods.contract import Aggregate, Method, Phase, Round, Terms, Traits, Update, Upload
from protofed.methods.given import Batch, Local, Output, SplitModel, Tensors
from protofed.methods.parts.prior import PrivateHead, SoftmaxOptions, cross_entropy
from protofed.methods.parts.training import batch_statistics
from protofed.methods.traits import Protection
from protofed.options import remote
from protofed.prototypes.inference import pull
from protofed.prototypes.means import RunningMean
from protofed.prototypes.table import Prototypes
from protofed.wire.schema import Field, Payload, Schema, weight_schema

SERVER_LR = {"logits": 0.1, "features": 100.0}  #: The authors' learning rates of the server
LONGEST = 100.0  #: Largest norm of a gradient, at clients and at the server


@dataclass(frozen=True)
class FedL2GOptions(SoftmaxOptions):
    """Hyperparameters."""

    guides: Literal["logits", "features"] = remote(
        "logits", "what a class's vector guides: outputs of length K (FedL2G-l), or features of length d (FedL2G-f)"
    )
    server_lr: float = remote(
        0.0, "learning rate η_s of the vectors (0 = the authors': 0.1 for logits, 100 for features)", least=0
    )
    client_lr: float = remote(
        0.01, "learning rate η_c of the step on which clients try them; the authors': training.lr", above=0
    )
    study: int = remote(10, "training samples of that step", least=1)
    quiz: int = remote(10, "samples that judge it", least=1)
    warm_up: int = remote(
        5, "rounds at the start in which vectors are learned and models rest (the authors': 50)", least=0
    )


@register
class FedL2G(PrivateHead[FedL2GOptions], Method[FedL2GOptions]):
    """Clients are pulled to the vectors ``v``, and send the gradient of a quiz that they take after such a step.

    ::

        L(w, v; S) = CE(g(f(x)), y) + MSE(g(f(x)), v_y)    or MSE(f(x), v_y)
        w' = w − η_c·∇_w L(w, v; S)                        S: some training samples, the study set
        u_y = ∂/∂v_y CE of w' on Q                         Q: the quiz
        v_y ← v_y − η_s·(mean of the u_y that clients sent)

    Server state: ``guide`` ``(K, m)``, m = K or d. A class sends ``u_y`` if S has a sample of it.
    """

    name = "fedl2g"
    summary = "vectors that guide each class's outputs, learned by a quiz after a step towards them"
    reference = "Zhang et al., 2024, arXiv 2410.06490"
    Options = FedL2GOptions

    @classmethod
    def traits(cls, options: FedL2GOptions) -> Traits:
        """The server takes means of what few samples say."""
        of_features = options.guides == "features"
        return Traits(
            exchanges="prototypes" if of_features else "logits",
            up="K_b·d" if of_features else "K_b·K",
            down="K·d" if of_features else "K²",
            rules=options.head_rules(),
            alike="features" if of_features else "nothing",
            aggregation="sums",
            protection=Protection(dp_obstacle="they are gradients of a few samples, to which no noise is added"),
        )

    @property
    def width(self) -> int:
        """The length m of a vector."""
        return self.task.feature_dim if self.options.guides == "features" else self.task.num_classes

    @cached_property
    def upload_schema(self) -> Schema:
        """``b`` gradients, and their classes: those of the study set."""
        fields = {"classes": Field(("b",), "label", parameter=False), "gradients": Field(("b", "m"))}
        return Schema(fields, self.task.num_classes, {"m": self.width}, {"b": self.task.num_classes})

    @cached_property
    def broadcast_schema(self) -> Schema:
        """All vectors."""
        return weight_schema(self.server_state(), self.task.num_classes)

    # The client.

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Return the vectors; before there are any, a table without."""
        none = Prototypes.none(self.task.num_classes, self.width, self.task.dtype)
        if message is None:
            return {"guide": none.rows, "present": none.present}
        return {"guide": message["guide"], "present": ~none.present}

    def round(self, number: int) -> Round:
        """Models rest while the vectors warm up."""
        return Round((Phase((Update(self.loss, clip=LONGEST),)),) if number > self.options.warm_up else ())

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """``L(w, v; S)``."""
        output = model(batch.x)
        return self.guided(output, batch, received, state), output

    def guided(self, output: Output, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Return cross-entropy and the pull to the vectors."""
        moved = output.features if self.options.guides == "features" else output.logits
        apart = pull(moved, batch.y, Prototypes(received["guide"], received["present"]))
        return {"cross_entropy": cross_entropy(batch, output.logits, state), "guidance": batch.mean(apart)}

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send ``u_y`` of the classes in the study set."""
        study, quiz = self.sets(local)
        held = torch.zeros(self.task.num_classes, dtype=torch.bool, device=study.y.device)
        held[study.y] = True
        classes = (held & bool(len(quiz.y))).nonzero().squeeze(-1)
        if not len(classes):
            return {"classes": classes, "gradients": local.received["guide"][classes]}
        with batch_statistics(local.model, len(study.y), len(quiz.y)):
            gradient = grad(self.take_quiz(local, study, quiz))(local.received["guide"])
        return {"classes": classes, "gradients": gradient[classes]}

    def take_quiz(self, local: Local, study: Batch, quiz: Batch) -> Callable[[Tensor], Tensor]:
        """Return the quiz's cross-entropy as a function of the vectors, ``(K, m)``."""
        model, state = local.model, local.state
        weights = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}

        def result(guide: Tensor) -> Tensor:
            def loss_of(w: Tensors) -> Tensor:
                terms = self.guided(functional_call(model, w, study.x), study, received, state)
                return reduce(torch.add, terms.values())

            received = {**local.received, "guide": guide}
            slopes = grad(loss_of)(weights)
            after = {n: w - self.options.client_lr * slopes[n] for n, w in weights.items()}
            return cross_entropy(quiz, functional_call(model, after, quiz.x).logits, state)

        return result

    def sets(self, local: Local) -> tuple[Batch, Batch]:
        """Draw the study set and the quiz, which share no sample; either may be empty."""
        o, train, validation = self.options, local.training, local.validation
        n, held_out = (sum(len(batch.y) for batch in batches()) for batches in (train, validation))
        rows = torch.randperm(n, generator=local.generator("study"))
        if held_out:
            other = torch.randperm(held_out, generator=local.generator("quiz"))
            return pick_samples(train(), rows[: o.study]), pick_samples(validation(), other[: o.quiz])
        study, quiz = rows.split([n - min(o.quiz, n // 2), min(o.quiz, n // 2)])
        return pick_samples(train(), study[: o.study]), pick_samples(train(), quiz)

    # The server.

    def server_state(self) -> Tensors:
        """Start with standard normal vectors."""
        source = generator(self.task.seed, "guide")
        return {"guide": torch.randn(self.task.num_classes, self.width, generator=source, dtype=self.task.dtype)}

    def broadcast(self, server: Tensors, round_number: int, client: str | None = None) -> Payload:
        """Send all vectors."""
        return dict(server)

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round_number: int) -> Aggregate:
        """Move each vector against the mean of its gradients, all together shortened to :data:`LONGEST`."""
        mean = RunningMean(self.task.num_classes, self.width)
        for upload in uploads:
            mean.add(upload.payload["classes"], upload.payload["gradients"])
        slope = mean.mean().rows.to(self.task.dtype)
        length = float(slope.norm())
        rate = self.options.server_lr or SERVER_LR[self.options.guides]
        guide = server["guide"] - rate * slope * min(1.0, LONGEST / max(length, LONGEST))
        return Aggregate({"guide": guide}, {"guide_gradient_norm": length})


def pick_samples(batches: Iterable[Batch], rows: Tensor) -> Batch:
    """Return the samples with some numbers as one batch, in the order of the data."""
    start, found = 0, []
    for batch in batches:
        here = rows.to(batch.y.device) - start
        own = here[(here >= 0) & (here < len(batch.y))]
        found.append(Batch(batch.x[own], batch.y[own]))
        start += len(batch.y)
    if not found:
        return Batch(torch.zeros(0), torch.zeros(0, dtype=torch.int64))
    return Batch(torch.cat([b.x for b in found]), torch.cat([b.y for b in found]))
