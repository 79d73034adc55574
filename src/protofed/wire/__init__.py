"""Everything that crosses the network: one validator, one codec, one byte counter for every method."""

from protofed.wire.codec import Codec, cast, codecs, get_codec
from protofed.wire.validate import check_structure, check_values

__all__ = ["Codec", "cast", "check_structure", "check_values", "codecs", "get_codec"]
