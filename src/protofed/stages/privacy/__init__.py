"""Limits on a server's knowledge of single clients: differential privacy."""

from protofed.stages.privacy.accounting import Release, epsilon
from protofed.stages.privacy.clients import ClientPrivacy
from protofed.stages.privacy.noise import NO_NOISE, OwnNoise, Vector
from protofed.stages.privacy.options import PrivacyOptions
from protofed.stages.privacy.samples import SamplePrivacy, Training, protect_plan

__all__ = ["NO_NOISE", "ClientPrivacy", "OwnNoise", "PrivacyOptions", "Release", "SamplePrivacy"]
__all__ += ["Training", "Vector", "epsilon", "protect_plan"]
