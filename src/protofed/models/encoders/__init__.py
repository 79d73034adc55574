"""Encoders: fixed, untrained maps from samples to vectors that all clients share."""

from protofed.models.encoders import fixed, scattering  # noqa: F401  (each registers its encoders)
from protofed.models.encoders.building import Encoder, build_encoder, choose_encoder, width_of
from protofed.models.encoders.contract import EncoderOptions, NamedEncoder, encoder, encoders

__all__ = [
    "Encoder",
    "EncoderOptions",
    "NamedEncoder",
    "build_encoder",
    "choose_encoder",
    "encoder",
    "encoders",
    "width_of",
]
