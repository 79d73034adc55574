"""LG-FedAvg: every client keeps a representation of its own; the head is averaged.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global Representations", 2019. The
authors' CIFAR code shares the convolutions instead and keeps the dense layers, the reverse of the paper's story;
that is ``shared = extractor.…``. It also starts from a model trained by FedAvg, which is left to the user.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from protofed.errors import ConfigError
from protofed.methods import register
from protofed.methods.contract import SplitModel, Task, Traits
from protofed.methods.parts.averaged import FedAvgOptions, SharedPart
from protofed.methods.parts.weights import check_parts, first_model, select_weights, within
from protofed.options import named


@dataclass(frozen=True)
class LGFedAvgOptions(FedAvgOptions):
    """Hyperparameters; the authors' code averages uniformly, public re-implementations by n_i."""

    shared: tuple[str, ...] = named(
        ("head",), "modules that are averaged: the last linear layer, or names such as extractor.map,head", of=""
    )


@register
class LGFedAvg(SharedPart[LGFedAvgOptions]):
    """``θ_i`` and ``φ`` are trained together by cross-entropy; ``φ`` is averaged.

    Extractors may differ. The first round opens with the head of the first client's initial model.
    """

    name = "lg_fedavg"
    summary = "the head is averaged, every client keeps an extractor of its own"
    reference = "Liang et al., 2019, arXiv 2001.01523"
    Options = LGFedAvgOptions

    def __init__(self, options: LGFedAvgOptions, task: Task) -> None:
        super().__init__(options, task)
        if not options.shared:
            raise ConfigError("lg_fedavg: method.shared is empty: name what is averaged, e.g. head, or use local")
        check_parts("method.shared", options.shared, first_model(task))

    @classmethod
    def traits(cls, options: LGFedAvgOptions) -> Traits:
        """The head travels."""
        up = "|φ|" if options.shared == ("head",) else "part of |w|"
        return replace(super().traits(options), up=up, down=up, alike="features")

    def shares(self, name: str) -> bool:
        """Return whether the weight called ``name`` belongs to ``φ``."""
        return within(self.options.shared)(name)

    def extend(self, model: SplitModel) -> None:
        """Refuse a model whose shared part does not have the shapes of the first client's."""
        own = select_weights(model, self.shares, buffers=self.options.share_buffers)
        for name in sorted(own.keys() | self.initial.keys()):
            shape, first = (tuple(w[name].shape) if name in w else "none" for w in (own, self.initial))
            if shape != first:
                raise ConfigError(
                    f"lg_fedavg averages {name}, which is {shape} here and {first} at the first client: share "
                    "parts that all architectures have alike (method.shared)"
                )
