"""Centred clipping of class means around the last broadcast (Karimireddy et al., 2021, Section 4.2).

Attackers and honest clients alike move a global prototype by no more than the median distance of a round's uploads
from it: a rule that remembers, with bounded influence per round.
"""

from collections.abc import Iterator

import torch

from protofed.methods.contract import Upload
from protofed.rounds.stage import Opened, Stage
from protofed.runs.records import RoundRecord


class CentredClipping(Stage):
    """Shortens what leads from a global prototype to a client's to the median of these lengths."""

    def __call__(self, uploads: Iterator[Upload], opened: Opened, record: RoundRecord) -> Iterator[Upload]:
        kept = [u._replace(payload=dict(u.payload)) for u in uploads]
        before = {}
        if opened.payload is not None:
            before = dict(zip(opened.payload["classes"].tolist(), opened.payload["prototypes"], strict=True))
        rows: dict[int, list] = {}
        for u in kept:
            u.payload["prototypes"] = u.payload["prototypes"].clone()
            for place, label in enumerate(u.payload["classes"].tolist()):
                rows.setdefault(label, []).append((u.payload["prototypes"], place))
        for label, found in rows.items():
            values = torch.stack([table[place] for table, place in found])
            centre = before.get(label, values.median(0).values)
            away = values - centre
            lengths = away.norm(dim=1)
            shorter = (lengths.median() / lengths.clamp(min=1e-12)).clamp(max=1.0)
            for (table, place), row, factor in zip(found, away, shorter, strict=True):
                table[place] = centre + factor * row
        return iter(kept)
