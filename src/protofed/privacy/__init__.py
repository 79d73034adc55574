"""What limits how much a server learns of single clients: differential privacy and secure aggregation."""

from protofed.privacy.clients import ClientPrivacy
from protofed.privacy.options import PrivacyOptions
from protofed.privacy.samples import SamplePrivacy, protected

__all__ = ["ClientPrivacy", "PrivacyOptions", "SamplePrivacy", "protected"]
