"""What limits how much a server learns of single clients: differential privacy and secure aggregation."""

from protofed.stages.privacy.clients import ClientPrivacy
from protofed.stages.privacy.options import PrivacyOptions
from protofed.stages.privacy.samples import SamplePrivacy, protected

__all__ = ["ClientPrivacy", "PrivacyOptions", "SamplePrivacy", "protected"]
