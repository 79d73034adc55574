"""A method of one's own in thirty lines: a shared network beside the client's, and a head that reads both."""

import torch

from protofed.methods import Rule, Traits
from protofed.methods.parts.auxiliary import AuxiliaryMethod, AuxiliaryOptions
from protofed.methods.traits import Protection


class Nested(AuxiliaryMethod):
    """Client and server."""

    name = "nested"
    summary = "a small shared network, and a head that reads its features beside the client's own"
    role = "small"
    Options = AuxiliaryOptions

    @classmethod
    def traits(cls, options):
        rules = (Rule("both", "Both", "its class by all features"), Rule("small", "Shared network", open=True))
        size, protection = "|w_aux|", Protection(dp_obstacle="")
        exchanges = "part of the weights"
        return Traits(
            exchanges=exchanges,
            up=size,
            down=size,
            rules=rules,
            counts="always",
            aggregation="sums",
            protection=protection,
        )

    def extend(self, model):
        super().extend(model)
        model.extras["both"] = torch.nn.Linear(self.network.feature_dim + model.feature_dim, self.task.num_classes)

    def scores(self, model, batch, received, state):
        small, own = model.extras["small"](batch.x), model(batch.x)
        both = model.extras["both"](torch.cat([small.features, own.features], -1))
        return {"both": both, "small": small.logits}

    def loss(self, model, batch, received, state):
        scores = self.scores(model, batch, received, state)
        return {f"{rule}_loss": batch.cross_entropy(scores[rule]) for rule in scores}, None
