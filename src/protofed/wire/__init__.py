"""Validation and encoding of all messages that cross the network, shared by all methods."""

from protofed.wire import lossy  # noqa: F401  (registers its codecs)
