"""The numbers of samples that clients are believed to have, by which the server weighs them."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor

from protofed.stages.robust.options import RobustOptions
from protofed.stages.robust.vectors import Counts

LEAST = 3
"""Minimum number of clients, or of vectors, for which a median is meaningful."""


def limit_counts(stated: Counts, options: RobustOptions, withheld: Collection[str] = ()) -> dict[str, Tensor]:
    """Return the counts that clients state, reduced in proportion where a client states too many in all.

    The limit is ``robust.weight`` times the (lower) median over the clients with samples, or what
    ``robust.admitted`` sets for a client. Counts of single classes have no limit of their own, because those of
    honest clients differ by three orders of magnitude.

    Args:
        withheld: Clients whose counts are not numbers of samples: these neither change nor count in the median.
    """
    known = {name: int(counts.sum()) for name, counts in stated.items() if name not in withheld}
    numbers = sorted(number for number in known.values() if number)
    limit = max(known.values(), default=0)
    if options.most and len(numbers) >= LEAST:
        limit = int(options.most * numbers[(len(numbers) - 1) // 2])
    most = {name: min(number, options.admitted.get(name, limit)) for name, number in known.items()}
    return {name: scale_counts(c, most[name]) if name in most else c for name, c in stated.items()}


def scale_counts(counts: Tensor, total: int) -> Tensor:
    """Scale int64 counts to integers with exactly the sum ``total``; both sums are below 2³¹."""
    number = int(counts.sum())
    if number in (0, total):
        return counts
    ends = counts.cumsum(0) * total // number
    return ends.diff(prepend=ends.new_zeros(1))
