"""FedMRL (Yi et al., NeurIPS 2024), from scratch in fifty lines: a small shared network beside the client's own.

The shared features are the first of a client's; one head reads them alone, another all of them (Matryoshka).
"""

import copy

import torch

from protofed.methods import Aggregate, Method, Rule, Traits
from protofed.methods.parts.weights import WeightedMean, copied, load_weights, shared_weights, with_samples
from protofed.wire.schema import weight_schema


class FedMRL(Method):
    """Client and server."""

    name = "fedmrl"
    summary = "a small shared network whose features are the first of a client's"

    def __init__(self, options, task):
        super().__init__(options, task)
        self.small = task.auxiliary("mlp", {}, 4)
        self.initial = copied(shared_weights(self.small, buffers=False))

    @classmethod
    def traits(cls, options):
        rules = (Rule("both", "Both", "its class by all features"), Rule("small", "Shared network", open=True))
        return Traits("part of the weights", "|w_aux|", "|w_aux|", rules=rules, counts=True, beyond_means="")

    @property
    def broadcast_schema(self):
        return weight_schema(self.initial, self.task.num_classes)

    @property
    def upload_schema(self):
        return with_samples(self.broadcast_schema, "samples")

    def extend(self, model):
        model.extras["small"] = copy.deepcopy(self.small)
        model.extras["both"] = torch.nn.Linear(4 + model.feature_dim, self.task.num_classes)

    def receive(self, local, message):
        load_weights(local.model.extras["small"], message or {})
        return {}

    def scores(self, model, batch, received, state):
        small, own = model.extras["small"](batch.x), model(batch.x)
        both = model.extras["both"](torch.cat([small.features, own.features], -1))
        return {"both": both, "small": small.logits}

    def loss(self, model, batch, received, state):
        scores = self.scores(model, batch, received, state)
        return {f"{rule}_loss": batch.cross_entropy(scores[rule]) for rule in scores}, None

    def upload(self, local, statistics):
        return {**shared_weights(local.model.extras["small"], buffers=False), "samples": local.counts.sum()}

    def server_state(self):
        return dict(self.initial)

    def broadcast(self, server, round, client=None):
        return dict(server)

    def aggregate(self, server, uploads, round):
        mean = WeightedMean()
        for _, payload in uploads:
            mean.add({n: payload[n] for n in server}, int(payload["samples"]))
        return Aggregate(mean.mean(server), {})
