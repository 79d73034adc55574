"""Attacks on a federation of a test."""

from __future__ import annotations

from contextlib import closing

from protofed.config.schema import Experiment
from protofed.experiments.assemble import assemble
from protofed.samples import FederatedData
from protofed_lab.audit.auditing import attack
from protofed_lab.audit.findings import Finding
from protofed_lab.audit.seen import observe, shadow


def audited(experiment: Experiment, data: FederatedData) -> dict[tuple[str, str], Finding]:
    """Run a federation, attack it by means of a shadow federation, and return the findings by key and observer."""
    federation, _ = assemble(experiment, data)
    with closing(federation.executor):
        list(federation.run())
        seen = observe(federation, data)
    other, dealt = shadow(experiment, data)
    with closing(other.executor):
        found, _ = attack(seen, observe(other, dealt), ("a", "b", "c", "d"), 0)
    return {(f.key, f.observer): f for f in found}
