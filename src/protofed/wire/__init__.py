"""Validation and encoding of all messages that cross the network, shared by all methods."""

from protofed.wire.codec import Codec, cast, codecs, get_codec
from protofed.wire.lossy import Float16, Int8
from protofed.wire.validate import check_structure, check_values

__all__ = ["Codec", "Float16", "Int8", "cast", "check_structure", "check_values", "codecs", "get_codec"]
