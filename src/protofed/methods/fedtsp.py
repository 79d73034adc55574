"""FedTSP with frozen text targets: features are contrasted with embeddings of the names of the classes.

Wu, Niu, Liu, Zhu, Zhang and Tang, "Enhancing Visual Representation with Textual Semantics: Textual
Semantics-Powered Prototypes for Heterogeneous Federated Learning", CVPR 2026.

The client's loss is that of the authors' code. Their server tunes prompts of a language model on the clients' class
means, and sends its embeddings; here the embeddings are those of a static table (package wordllama), in which every
party looks the names up. Nothing is sent, so this is a control as well: do names of classes teach more than the
directions of ``fixed_etf``, which know nothing of them?
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.compute.seeding import generator
from protofed.errors import ConfigError
from protofed.methods import register
from protofed.methods.contract import Batch, SplitModel, Tensors, Terms
from protofed.methods.fixed_etf import FixedETF, FixedETFOptions
from protofed.methods.parts.nearest import nearest_scores
from protofed.methods.parts.prior import cross_entropy
from protofed.options import fixed, remote
from protofed.prototypes.inference import alignment
from protofed.prototypes.table import Prototypes
from protofed.text import few

_NUMBER = re.compile(r"\s*[-+]?\d+([.,]\d+)?\s*")


@dataclass(frozen=True)
class FedTSPOptions(FixedETFOptions):
    """Hyperparameters."""

    lambda_: float = remote(1.0, "weight λ of the contrast with the names", least=0)
    gamma: float = fixed(1.0)
    scale: float = remote(100.0, "factor s of cosines, CLIP's (the authors learn it from there)", above=0)


@register
class FedTSP(FixedETF):
    """``CE + λ·CE(s·cos(f(x), t_c), y)`` with ``t_c``, the embedding of class c's name, turned into ℝ^d.

    The turn is an orthogonal map that all derive from the seed; where d is less than 256, it is a projection. Rules
    of prototypes compare directions: the largest cosine.
    """

    name = "fedtsp"
    summary = "no communication: features contrasted with embeddings of the names of the classes"
    reference = "Wu et al., CVPR 2026, arXiv 2503.13543"
    Options = FedTSPOptions
    options: FedTSPOptions

    def check(self, clients: Mapping[str, bool]) -> None:
        """Check that there are targets, before any training."""
        self.directions(self.task.feature_dim)

    def directions(self, d: int) -> Tensor:
        """Return ``t``, ``(K, d)`` unit rows."""
        from protofed.data.text import embed

        names = self.task.classes
        if all(_NUMBER.fullmatch(name) for name in names):
            raise ConfigError(
                "fedtsp turns the names of classes into targets, but the classes are called "
                f"{few(names, 3)}: give names with "
                'data.labels={0 = "cat", 1 = "dog", …}'
            )
        texts = embed(names, "the name of class {}".format, empty=False).double()
        turned = F.normalize(texts @ turn(self.task.seed, texts.shape[1], d), dim=-1)
        near = (turned @ turned.T).fill_diagonal_(-1.0)
        if float(near.max()) > 1 - 1e-9:
            a, b = divmod(int(near.argmax()), len(names))
            raise ConfigError(f"fedtsp: classes {names[a]!r} and {names[b]!r} have the same embedding: rename one")
        return turned.to(self.task.dtype)

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Cross-entropy of the head, and of the cosines with the names."""
        output = model(batch.x)
        cosines = F.normalize(output.features, dim=-1) @ received["prototypes"].T
        contrast = batch.cross_entropy(self.options.scale * cosines)
        return {
            "cross_entropy": cross_entropy(batch, output.logits, state),
            "contrast": self.options.lambda_ * contrast,
        }, output

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Logits of the head, and 2·cos(f(x), t_c) − 2 of the names."""
        own = Prototypes(torch.zeros_like(received["prototypes"]), state["own"])
        return nearest_scores(model(batch.x), state, Prototypes.of(received), own, alignment)


@cache
def turn(seed: int, e: int, d: int) -> Tensor:
    """Return a random orthogonal map from ℝ^e to ℝ^d, or a projection where d < e: ``(e, d)`` float64."""
    width = max(e, d)
    source = generator(seed, "text", d)
    Q, R = torch.linalg.qr(torch.randn(width, width, generator=source, dtype=torch.float64))
    result: Tensor = (Q * torch.where(R.diagonal() < 0, -1.0, 1.0))[:e, :d]  # the same on any LAPACK
    return result
