"""Limits on a server's knowledge of single clients: differential privacy."""

from protofed.stages.privacy.clients import ClientPrivacy
from protofed.stages.privacy.options import PrivacyOptions
from protofed.stages.privacy.samples import SamplePrivacy, protect_plan

__all__ = ["ClientPrivacy", "PrivacyOptions", "SamplePrivacy", "protect_plan"]
