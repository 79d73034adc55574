"""LocalLDA: linear discriminant analysis of the client's own samples. The control of FedLDA: nothing is sent."""

from __future__ import annotations

from torch import Tensor

from protofed.methods import register
from protofed.methods.contract import Batch, Local, SplitModel, Tensors
from protofed.methods.fedlda import Shrunk
from protofed.methods.parts.gaussian import Pools, choose, discriminant, typical
from protofed.methods.parts.moments import ClosedForm, Linear, Sums
from protofed.wire.schema import Payload


@register
class LocalLDA(ClosedForm[Shrunk]):
    """The client's own class means, covariance and shrinkage, with its own prior over its own classes."""

    name = "local_lda"
    summary = "no communication: linear discriminant analysis of the client's own fixed features"
    Options = Shrunk
    second = True
    alone = True

    def classifier(self, total: Sums) -> Linear:
        """Return the discriminant of the client's own samples."""
        return discriminant(total, self.options.first, self.task.dtype)

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Make the classifier, with the shrinkage under which the client's own samples are most likely."""
        features, labels = self.samples(local)
        pools = Pools.alone(Sums.of(features, labels, self.task.num_classes, second=True), self.task.views)
        choice = choose(pools, features, labels, self.options.shrinkages, self.task.dtype)
        near = pools.distances(features, labels, choice, self.task.dtype)
        return {**pools.classifier(choice.mixture, self.task.dtype).tensors(self.task.dtype), **near}

    def typical(
        self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors, rule: str
    ) -> Tensor | None:
        """Compare distances from class means with those of the client's own samples."""
        return typical(model(batch.x).features, received, received["present"]) if "metric" in received else None

    def likely(self, scores: Tensor, state: Tensors) -> Tensor:
        """Add the log-prior."""
        return scores + state["prior"]
