"""Attacks on a finished run with what its parties saw, each beside what a guess would reach."""

from protofed.apps.audit.auditing import audit_run
from protofed.apps.audit.findings import Audit, Finding, Reconstruction

__all__ = ["Audit", "Finding", "Reconstruction", "audit_run"]
