"""The stage between validation and a method's ``aggregate``; no method knows of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from protofed.errors import ConfigError
from protofed.methods.contract import Method, Upload
from protofed.robust.clipping import Proportions, clip, too_long
from protofed.robust.findings import Findings
from protofed.robust.options import POOLING, RobustOptions
from protofed.robust.pooling import hostile, pooled, without_outliers
from protofed.robust.vectors import Counts, cap_counts, collect, parts_of
from protofed.wire.schema import Payload

SUSPECT = 20.0
"""Multiple of the median length from which on a vector is out of proportion, whatever the rule does about it."""


class Guard:
    """Applies one robust rule to the uploads of every round.

    Args:
        options: The rule and its limits.
        method: Whose uploads they are.
        counts: ``(K,)`` samples per class that each client described, or may have where it withholds its numbers.
        withheld: Clients whose ``counts`` are bounds, not numbers of samples.

    Raises:
        ConfigError: If the rule cannot be applied to what the method exchanges.
    """

    def __init__(
        self, options: RobustOptions, method: Method, counts: Counts, withheld: Collection[str] = ()
    ) -> None:
        self.options = options
        self.method = method
        self.counts = counts
        schema = method.upload_schema
        self.parts = parts_of(schema) if schema is not None else []
        self.unscaled = set(withheld) if any(part.field.sums for part in self.parts) else set()
        if options.rule != "none" and self.unscaled:
            raise ConfigError(
                f"robust.rule={options.rule} compares means, but {method.name} sends sums, and numbers of samples "
                f"are withheld by {', '.join(sorted(self.unscaled))}: choose counts=exact or robust.rule=none"
            )
        if options.rule in POOLING and (unlike := [p.name for p in self.parts if not p.comparable]):
            raise ConfigError(
                f"robust.rule={options.rule} puts one vector in the place of all, but the {unlike[0]} that "
                f"{method.name} sends have no counterparts at other clients: use clip or multi_krum"
            )
        if options.rule in POOLING and method.personal_broadcast:
            raise ConfigError(
                f"robust.rule={options.rule} makes all uploads the same, but {method.name} treats clients "
                "differently: use clip or multi_krum"
            )
        if options.rule == "multi_krum" and any(part.layout == "varying" for part in self.parts):
            raise ConfigError(
                f"robust.rule=multi_krum compares uploads, but those of {method.name} vary in size: use clip"
            )

    def check(self, participants: int) -> None:
        """Raise ConfigError if the rule does not survive the assumed attackers among ``participants`` clients."""
        rule, number = self.options.rule, hostile(participants, self.options)
        least = {"trimmed": 2 * number + 1, "krum": 2 * number + 3, "multi_krum": 2 * number + 3}.get(rule, 1)
        if self.parts and participants < least:
            raise ConfigError(
                f"robust.rule={rule} with {number} attackers needs {least} clients in a round, not {participants}: "
                "lower robust.attackers, or choose median or clip"
            )

    def screen(self, uploads: Iterable[Upload], reference: Payload | None, findings: Findings) -> Iterator[Upload]:
        """Yield the uploads as the method may see them.

        Args:
            uploads: Validated.
            reference: The broadcast that opened the round, or None.
            findings: Filled with what was changed and left out.
        """
        capped = self._capped(uploads, findings)
        if self.options.rule == "none":
            return self._watched(capped, findings)
        if self.options.rule == "clip":
            return clip(capped, self.parts, self.counts, reference, self.options, findings)
        return iter(self._together(list(capped), findings))

    def _capped(self, uploads: Iterable[Upload], findings: Findings) -> Iterator[Upload]:
        """Yield uploads whose sample counts do not exceed what their senders described."""
        schema = self.method.upload_schema
        assert schema is not None
        for upload in uploads:
            upload, fields = cap_counts(upload, schema, self.counts)
            if fields:
                findings.capped[upload.client] = fields
            yield upload

    def _watched(self, uploads: Iterable[Upload], findings: Findings) -> Iterator[Upload]:
        """Yield uploads as they are; note afterwards which were out of proportion, as far as it can be told."""
        measured = Proportions(self.parts, self.counts, None, keep_rows=False)
        for upload in uploads:
            if upload.client not in self.unscaled:
                measured.add(upload)
            yield upload
        findings.out_of_proportion = [c for c, multiple in measured.excess().items() if multiple > SUSPECT]

    def _together(self, uploads: Sequence[Upload], findings: Findings) -> list[Upload]:
        """Return what a rule that needs all uploads makes of them."""
        measured = Proportions(self.parts, self.counts, None)
        for upload in uploads:
            measured.add(upload)
        left_out = too_long(measured, self.options, findings)
        kept = [upload for upload in uploads if upload.client not in left_out]
        if not kept:
            return []
        findings.alone = measured.alone(left_out)
        found = [collect(part, kept, self.counts) for part in self.parts]
        if self.options.rule == "multi_krum":
            number = max(0, hostile(len(uploads), self.options) - len(left_out))
            return without_outliers(kept, found, number, self.options, findings)
        return pooled(kept, found, self.options)
