"""FedPFT: Gaussian mixtures of fixed features, from which the server draws to train a head, in one round.

Beitollahi, Bie, Hemati, Brunswic, Li, Chen and Zhang, "Parametric Feature Transfer: One-shot Federated Learning
with Foundation Models", 2024.

Steps and settings are those of the first author's code (a baseline of Flower). That code leaves out a class with no
more samples than components; here it gets fewer components. Not offered are whole covariance matrices, of d²/2
numbers a class, and the private variant, with noise on the mean and the covariance of a class: ``fedlda`` sends
sums with noise.

The mixtures are also those of ``gfpl``, whose clients go on training, send them again and again, and draw from them
themselves. With one Gaussian per class and the same covariance for all, the best head for infinitely many draws is
that of ``fedlda``, which needs neither draws nor training.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from protofed.compute.seeding import generator
from protofed.errors import ModelError
from protofed.methods import register
from protofed.methods.contract import Aggregate, Batch, Local, Method, Round, SplitModel, Tensors, Traits, Upload
from protofed.methods.parts.moments import within
from protofed.methods.parts.training import linear_layer, sound, train_linear
from protofed.methods.parts.weights import load_weights
from protofed.methods.traits import GLOBAL_MODEL, HEAD, Protection
from protofed.options import Options, remote
from protofed.prototypes.mixtures import Covariance, choose, fit_mixtures, shares
from protofed.wire.schema import Field, Payload, Schema, weight_schema

MOST_SAMPLES = 10_000  #: Features that are drawn of one class of one client, at most


@dataclass(frozen=True)
class FedPFTOptions(Options):
    """Hyperparameters; all defaults but the learning rate are those of the first author's code."""

    components: int = remote(1, "Gaussians of a class's mixture, at most", least=1)
    covariance: Covariance = remote(
        "spherical", "covariance of a Gaussian: one variance, or one per dimension (diag)"
    )
    samples: int = remote(
        0,
        f"features drawn of each class of a client (0 = as many samples as it has, up to {MOST_SAMPLES})",
        least=0,
    )
    server_lr: float = remote(
        0.01, "learning rate of the AdamW that trains the head (the first author's 1e-4)", above=0
    )
    server_epochs: int = remote(50, "its epochs over the drawn features", least=1)
    server_batch_size: int = remote(32, "drawn features per server step", least=1)


@register
class FedPFT(Method[FedPFTOptions]):
    """Mixtures ``Σ_g π_g·N(μ_g, Σ_g)`` of the features of each client's classes go up, a head comes down.

    Server state: the head's ``weight`` ``(K, d)`` and ``bias`` ``(K,)``; ``present`` ``(K,)``, the classes of which
    features were drawn; and what each client sent last, by ``FIELD.CLIENT``. Client state: ``own`` ``(K,)``.
    """

    name = "fedpft"
    summary = "a head trained by the server on features drawn from clients' Gaussian mixtures: one round"
    reference = "Beitollahi et al., 2024, arXiv 2402.01862"
    Options = FedPFTOptions

    @classmethod
    def traits(cls, options: FedPFTOptions) -> Traits:
        """Draws need every single mixture, and the number of samples that it stands for."""
        spread = "1" if options.covariance == "spherical" else "d"
        return Traits(
            exchanges="prototypes",
            up=f"K_i·{options.components}·(1 + d + {spread})",
            down="K·d + K",
            rules=(HEAD, GLOBAL_MODEL),
            alike="architecture",
            counts="always",
            rounds="one",
            protection=Protection(local_only=("own",)),
        )

    def notes(self) -> tuple[str, ...]:
        """Describe features from a network that is not frozen."""
        model = None if self.task.template is None else self.task.template()
        if model is None or model.fixed:
            return ()
        return (
            "Features are those of a network with its initial weights, which nobody trains: random ones, unless "
            "the model reads weights from a file. Those of an encoder are better (encoder.name=auto).",
        )

    # What crosses the network.

    @property
    def upload_schema(self) -> Schema:
        """Mixtures of ``k`` classes and the samples that each stands for; unused components weigh 0."""
        n, d = self.options.components, self.task.feature_dim
        width = 1 if self.options.covariance == "spherical" else d
        fields = {
            "classes": Field(("k",), "label", parameter=False),
            "counts": Field(("k",), "count", parameter=False),
            "weights": Field(("k", n), minimum=0.0),
            "means": Field(("k", n, d)),
            # Bounded, and so sent in float32 and not compared in length: those of a single sample are tiny.
            "scales": Field(("k", n, width), minimum=0.0),
        }
        return Schema(fields, self.task.num_classes, limits={"k": self.task.num_classes})

    @cached_property
    def broadcast_schema(self) -> Schema:
        """The head, and the classes that it knows."""
        K = self.task.num_classes
        head = weight_schema(self.first_head(), K)
        known = Field((K,), "count", parameter=False)
        return Schema({**head.fields, "present": known}, K, head.sizes, head.limits)

    # The client.

    def extend(self, model: SplitModel) -> None:
        """Refuse a head that cannot take the bias."""
        if model.head.bias is None:
            raise ModelError("fedpft shares a head with a bias, but this model's head has none")

    def client_state(self, counts: Tensor) -> Tensors:
        """Remember the client's classes, for predictions only."""
        return {"own": counts > 0}

    def shifted(self, state: Tensors, counts: Tensor) -> Tensors:
        """Predict over the classes that occur now."""
        return {**state, "own": (counts > 0).to(state["own"].device)}

    def round(self, number: int) -> Round:
        """Nothing is trained at clients."""
        return Round(())

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Take over the head."""
        if message is None:
            return {"present": torch.zeros(self.task.num_classes, dtype=torch.bool)}
        load_weights(local.model.head, {name: message[name] for name in ("weight", "bias")})
        return {"present": message["present"] > 0}

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Fit a mixture to the features of each class by expectation-maximisation."""
        features, labels = local.features()
        # Features never change, so that the mixtures of a later round are those of the first.
        o, source = self.options, generator(local.seed, "mixtures", 1, local.name)
        found = fit_mixtures(
            features, labels, self.task.num_classes, o.components, generator=source, covariance=o.covariance
        )
        classes = (local.counts > 0).nonzero().squeeze(-1)
        weights, means, scales = (part[classes] for part in found)
        if o.covariance == "spherical":
            scales = scales[..., :1]
        sent = {"weights": weights, "means": means, "scales": scales}
        return {"classes": classes, "counts": local.counts[classes], **sent}

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Logits of the head over the client's own classes, and over all."""
        logits = model(batch.x).logits
        return {"head": within(logits, received["present"], state["own"]), "global_model": logits}

    # The server.

    def first_head(self) -> Tensors:
        """Return the random head that the server starts from."""
        source = generator(self.task.seed, "head")
        return linear_layer(self.task.feature_dim, self.task.num_classes, source, self.task.dtype)

    def server_state(self) -> Tensors:
        """Start with a random head, which knows no class."""
        return {**self.first_head(), "present": torch.zeros(self.task.num_classes, dtype=torch.bool)}

    def broadcast(self, server: Tensors, round_number: int, client: str | None = None) -> Payload:
        """Send the head."""
        return {"weight": server["weight"], "bias": server["bias"], "present": server["present"].long()}

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round_number: int) -> Aggregate:
        """``min_φ Σ CE(g_φ(f), c)`` over features f drawn from all mixtures, by AdamW from a new head.

        What a client sends replaces what it sent before. A head that diverges is not kept.
        """
        held = {name: tensor for name, tensor in server.items() if "." in name}
        for client, payload in uploads:
            held |= {f"{field}.{client}": tensor for field, tensor in payload.items()}
        clients = sorted(name.partition(".")[2] for name in held if name.startswith("classes."))
        drawn = [self.draw(c, {f: held[f"{f}.{c}"] for f in self.upload_schema.fields}) for c in clients]
        x, y = torch.cat([x for x, _ in drawn]), torch.cat([y for _, y in drawn])
        if not len(y):
            return Aggregate({**server, **held}, {})
        o, order = self.options, generator(self.task.seed, "server training")
        adamw, plan = partial(torch.optim.AdamW, lr=o.server_lr), (o.server_epochs, o.server_batch_size)
        head, losses = train_linear(self.first_head(), x, y, adamw, plan, order)
        if not sound(head):
            return Aggregate(server, {"head_diverged": True})
        present = torch.zeros_like(server["present"]).index_fill(0, y, True)
        told = {"drawn_features": len(y), "head_loss_first": losses[0], "head_loss_last": losses[-1]}
        return Aggregate({**held, **head, "present": present}, told)

    def draw(self, client: str, sent: Tensors) -> tuple[Tensor, Tensor]:
        """Return features ``(n, d)`` drawn from a client's mixtures, and their classes ``(n,)``."""
        o, source = self.options, generator(self.task.seed, "features", client)
        x, y = [torch.zeros(0, self.task.feature_dim, dtype=self.task.dtype)], [sent["classes"][:0]]
        for i, label in enumerate(sent["classes"].tolist()):
            if not bool((sent["weights"][i] > 0).any()):
                continue
            n = o.samples or min(int(sent["counts"][i]), MOST_SAMPLES)
            uniform = torch.rand(n, generator=source, dtype=torch.float64)
            noise = torch.randn(n, self.task.feature_dim, generator=source, dtype=self.task.dtype)
            chosen = choose(shares(sent["weights"][i]), uniform)
            x.append(sent["means"][i][chosen] + sent["scales"][i][chosen] * noise)
            y.append(torch.full((n,), label))
        return torch.cat(x), torch.cat(y)
