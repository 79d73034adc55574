"""The stage of robust rules."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from protofed.errors import ConfigError, unknown_name
from protofed.methods import ClosedForm
from protofed.methods.contract import Method, Upload
from protofed.rounds.stage import Opened, Stage
from protofed.runs.findings import Findings
from protofed.runs.records import RoundRecord
from protofed.stages.robust.clipping import Proportions, clip, too_long
from protofed.stages.robust.options import POOLING, RobustOptions
from protofed.stages.robust.pooling import hostile, pool, without_outliers
from protofed.stages.robust.sums import bound_sums
from protofed.stages.robust.vectors import Counts, cap_counts, collect, limit_counts, parts_of

SUSPECT = 20.0  #: Multiple of the median length above which a vector is reported as out of proportion


class Guard(Stage):
    """Application of one robust rule to the uploads of every round.

    Args:
        counts: ``(K,)`` samples per class that each client described, or upper bounds; the attribute has those
            that it is :func:`~protofed.stages.robust.vectors.limit_counts` to have.
    """

    def __init__(
        self, options: RobustOptions, method: Method, counts: Counts, withheld: Collection[str] = ()
    ) -> None:
        self.options = options
        self.method = method
        for name in options.admitted:
            if name not in counts:
                raise ConfigError(unknown_name("client in robust.admitted", name, counts))
        self.counts = limit_counts(counts, options, withheld)
        totals = {name: (int(c.sum()), int(counts[name].sum())) for name, c in self.counts.items()}
        self.shares = {name: few / many for name, (few, many) in totals.items() if few < many}
        schema = method.upload_schema
        self.parts = parts_of(schema) if schema is not None else []
        self.unscaled = set(withheld) if any(part.field.sums for part in self.parts) else set()
        if options.rule != "none" and self.unscaled:
            raise ConfigError(
                f"robust.rule={options.rule} compares means, but {method.name} sends sums, and sample counts "
                f"are withheld by {', '.join(sorted(self.unscaled))}: choose counts=exact or robust.rule=none"
            )
        if options.rule in POOLING and (unlike := [p.name for p in self.parts if not p.comparable]):
            raise ConfigError(
                f"robust.rule={options.rule} replaces all vectors by one, but the {unlike[0]} that {method.name} "
                "sends have no counterparts at other clients: use clip or multi_krum"
            )
        if options.rule in POOLING and method.declared.personal:
            raise ConfigError(
                f"robust.rule={options.rule} makes all uploads equal, but {method.name} treats clients "
                "differently: use clip or multi_krum"
            )
        if options.rule == "multi_krum" and any(part.layout == "varying" for part in self.parts):
            raise ConfigError(
                f"robust.rule=multi_krum compares uploads, but those of {method.name} vary in size: use clip"
            )

    def check(self, participants: int) -> None:
        """Raise ConfigError if the rule needs more than ``participants`` clients for the assumed attackers."""
        rule, number = self.options.rule, hostile(participants, self.options)
        least = {"trimmed": 2 * number + 1, "multi_krum": 2 * number + 3}.get(rule, 1)
        if self.parts and participants < least:
            raise ConfigError(
                f"robust.rule={rule} with {number} attackers needs {least} clients in a round, not {participants}: "
                "lower robust.attackers, or choose median or clip"
            )

    def __call__(self, uploads: Iterator[Upload], opened: Opened, record: RoundRecord) -> Iterator[Upload]:
        """Apply the rule to the uploads of a round; changes and omissions are recorded."""
        findings = record.robust
        capped = self._cap(uploads, findings)
        if self.options.rule == "none":
            return self._watch(capped, findings)
        if self.options.rule == "clip" and isinstance(self.method, ClosedForm):
            measured = Proportions(self.parts, self.counts, None, keep_rows=False)
            return bound_sums(capped, self.method, measured, self.options, findings)
        if self.options.rule == "clip":
            return clip(capped, self.parts, self.counts, opened.payload, self.options, findings)
        return iter(self._together(list(capped), findings))

    def _cap(self, uploads: Iterable[Upload], findings: Findings) -> Iterator[Upload]:
        """Yield the uploads with sample counts, and sums over samples, reduced to what their senders may weigh."""
        schema = self.method.upload_schema
        assert schema is not None
        for upload in uploads:
            upload, fields = cap_counts(upload, schema, self.counts, self.shares.get(upload.client, 1.0))
            if fields:
                findings.capped[upload.client] = fields
            yield upload

    def _watch(self, uploads: Iterable[Upload], findings: Findings) -> Iterator[Upload]:
        """Yield the uploads unchanged, then record which of the comparable ones were out of proportion."""
        measured = Proportions(self.parts, self.counts, None, keep_rows=False)
        for upload in uploads:
            if upload.client not in self.unscaled:
                measured.add(upload)
            yield upload
        findings.out_of_proportion = [c for c, multiple in measured.excess().items() if multiple > SUSPECT]

    def _together(self, uploads: Sequence[Upload], findings: Findings) -> list[Upload]:
        """Apply a rule that needs all uploads at once."""
        measured = Proportions(self.parts, self.counts, None)
        for upload in uploads:
            measured.add(upload)
        left_out = too_long(measured, self.options, findings)
        kept = [upload for upload in uploads if upload.client not in left_out]
        if not kept:
            return []
        findings.alone = measured.alone(left_out)
        vectors = [collect(part, kept, self.counts) for part in self.parts]
        if self.options.rule == "multi_krum":
            number = max(0, hostile(len(uploads), self.options) - len(left_out))
            return without_outliers(kept, vectors, number, self.options, findings)
        return pool(kept, vectors, self.options)
