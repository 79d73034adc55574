"""LocalNCM: the nearest mean among the client's own, by cosine. The control of FedNCM: nothing is sent."""

from __future__ import annotations

from protofed.methods import register
from protofed.methods.fedncm import nearest_by_cosine
from protofed.methods.parts.moments import ClosedForm, Linear, Sums
from protofed.options import NoOptions


@register
class LocalNCM(ClosedForm[NoOptions]):
    """The client's own class means, of unit length."""

    name = "local_ncm"
    summary = "no communication: the nearest of the client's own class means, by cosine"
    Options = NoOptions
    alone = True

    def classifier(self, total: Sums) -> Linear:
        """Return the class means, of unit length."""
        return nearest_by_cosine(total)
