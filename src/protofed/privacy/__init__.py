"""Differential privacy: noise with an accountant."""

from protofed.privacy.clients import ClientPrivacy
from protofed.privacy.options import PrivacyOptions
from protofed.privacy.samples import SamplePrivacy, protected

__all__ = ["ClientPrivacy", "PrivacyOptions", "SamplePrivacy", "protected"]
