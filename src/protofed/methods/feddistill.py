"""FedDistill (federated distillation, FD): clients exchange their mean output per class.

Jeong, Oh, Kim, Park, Bennis and Kim, "Communication-Efficient On-Device Machine Learning: Federated Distillation
and Augmentation under Non-IID Private Data", NeurIPS 2018 workshop.

Not confirmed from the paper's text: its γ. In it every client gets the mean of the others; here, as in public code,
all get the mean of all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from protofed.methods import register
from protofed.methods.contract import Aggregate, Method, Phase, Round, Statistics, Terms, Traits, Update, Upload
from protofed.methods.given import Batch, Local, Output, SplitModel, Task, Tensors
from protofed.methods.parts.prior import PrivateHead, SoftmaxOptions, cross_entropy
from protofed.methods.parts.training import HTFL_CLIP
from protofed.methods.traits import Protection
from protofed.options import remote
from protofed.prototypes.means import class_means, class_sums
from protofed.prototypes.table import Prototypes
from protofed.wire.schema import Field, Payload, Schema


@dataclass(frozen=True)
class FedDistillOptions(SoftmaxOptions):
    """Hyperparameters."""

    gamma: float = remote(1.0, "weight γ of the distillation term", least=0)
    preset: Literal["paper", "htfl"] = remote(
        "paper",
        "the paper: probabilities from a pass after training, and no term for a class without target; or HtFLlib's "
        "and PFLlib's code: raw logits of the last local epoch, used as if they were probabilities, the own output "
        "for a class without target, and (ours, or the loss ends in NaN) gradients clipped to a norm of 10",
    )


@register
class FedDistill(PrivateHead[FedDistillOptions], Method[FedDistillOptions]):
    """``F_ij``, the mean output of client i for class j, goes up; ``F_j``, the mean over its reporters, comes down.

    A class that nobody reports keeps its last ``F_j``; a class never reported has none. Server state: ``sums``
    ``(K, K)`` of the rows reported last for each class, and their number ``reporters`` ``(K,)``.
    """

    name = "feddistill"
    summary = "mean outputs per class, towards which clients distil"
    reference = "Jeong et al., NeurIPS 2018 workshop, arXiv 1811.11479"
    Options = FedDistillOptions

    def __init__(self, options: FedDistillOptions, task: Task) -> None:
        super().__init__(options, task)
        self.htfl = options.preset == "htfl"
        outputs = Field(("k", "K"))
        if not self.htfl:  # a mean of rounded probabilities may end just above 1
            outputs = Field(("k", "K"), minimum=0.0, limit=1.001)
        fields = {"classes": Field(("k",), "label", parameter=False), "outputs": outputs}
        K = task.num_classes
        self.schema = Schema(fields, K, {"K": K}, {"k": K})

    @classmethod
    def traits(cls, options: FedDistillOptions) -> Traits:
        """The server takes means."""
        rules, protection = options.head_rules(), Protection(dp_obstacle="")
        return Traits(
            exchanges="logits", up="K_i·K", down="K²", rules=rules, aggregation="sums", protection=protection
        )

    @property
    def upload_schema(self) -> Schema:
        """``k`` mean outputs of ``K`` numbers, and their classes."""
        return self.schema

    @property
    def broadcast_schema(self) -> Schema:
        """As the upload."""
        return self.schema

    # The client.

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Return the table of targets ``F``, and the classes that have one."""
        K = self.task.num_classes
        if message is None:
            targets, present = Prototypes.none(K, K, self.task.dtype)
        else:
            targets, present = Prototypes.received(message["outputs"], message["classes"], K)
        return {"targets": targets, "present": present}

    def round(self, number: int) -> Round:
        """Train; with raw logits for targets the loss has no lower bound, hence the clipping."""
        return Round((Phase((Update(self.loss, clip=HTFL_CLIP if self.htfl else None),)),))

    def outputs(self, logits: Tensor) -> Tensor:
        """Return the probabilities or logits ``(B, K)`` that are averaged and distilled."""
        return logits if self.htfl else logits.softmax(-1)

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """``CE + γ·mean(−Σ_k F_yk log p_k)``, the mean over the samples whose class has a target."""
        output = model(batch.x)
        logits = output.logits
        targets, has = received["targets"][batch.y], received["present"][batch.y]
        if self.htfl:
            targets = torch.where(has.unsqueeze(-1), targets, self.outputs(logits).detach())
            has = torch.ones_like(has)
        soft = -(targets * logits.log_softmax(-1)).sum(-1)
        # Before there are targets no sample counts, and the term is 0.
        weight = has.to(soft.dtype) if batch.weight is None else has * batch.weight
        distilled = (torch.where(has, soft, 0.0) * weight).sum() / weight.sum().clamp(min=1)
        if self.htfl:
            distilled = distilled * received["present"].any()  # the first round is cross-entropy alone
        cross = cross_entropy(batch, logits, state)
        terms = {"cross_entropy": cross, "distillation": self.options.gamma * distilled}
        return terms, output

    @property
    def statistics(self) -> Statistics:
        """Mean outputs are means over the training data."""
        return Statistics(self.sums_of_outputs, "during" if self.htfl else "after")

    def sums_of_outputs(self, output: Output, batch: Batch) -> Tensors:
        """Return sums of outputs and numbers of samples per class."""
        sums, counts = class_sums(self.outputs(output.logits), batch.y, self.task.num_classes, batch.weight)
        return {"sums": sums, "counts": counts}

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send ``F_ij = mean over own samples of class j`` for the classes present."""
        rows, classes = class_means(statistics["sums"], statistics["counts"]).to_send()
        return {"classes": classes, "outputs": rows}

    # The server.

    def server_state(self) -> Tensors:
        """Start without targets."""
        K = self.task.num_classes
        return {"sums": torch.zeros(K, K, dtype=torch.float64), "reporters": torch.zeros(K, dtype=torch.int64)}

    def broadcast(self, server: Tensors, round_number: int, client: str | None = None) -> Payload | None:
        """Send ``F_j = (1/M_j)·Σ_i F_ij``."""
        sums, reporters = server["sums"], server["reporters"]
        classes = (reporters > 0).nonzero().squeeze(-1)
        if not len(classes):
            return None
        means = sums[classes] / reporters[classes].unsqueeze(-1)
        if not self.htfl:
            means = means.clamp(0, 1)  # a mean of rounded probabilities may end just above 1
        return {"classes": classes, "outputs": means.to(self.task.dtype)}

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round_number: int) -> Aggregate:
        """Add up the reported rows; a class that nobody reports keeps its last sum."""
        sums, reporters = self.server_state().values()
        for _, payload in uploads:
            sums[payload["classes"]] += payload["outputs"].double()
            reporters[payload["classes"]] += 1
        new = reporters > 0
        state = {
            "sums": torch.where(new.unsqueeze(-1), sums, server["sums"]),
            "reporters": torch.where(new, reporters, server["reporters"]),
        }
        return Aggregate(state, {"classes_reported": int(new.sum())})
