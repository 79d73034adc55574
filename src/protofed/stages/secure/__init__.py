"""Secure aggregation: the server learns sums over clients, and no single upload."""

from protofed.stages.secure.stage import Conduct, Offer, SecureSum, Summed
from protofed.stages.secure.sums import SecureAggregationError, require_enough

__all__ = ["Conduct", "Offer", "SecureAggregationError", "SecureSum", "Summed", "require_enough"]
