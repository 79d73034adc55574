"""Validation and encoding of all messages that cross the network, shared by all methods."""
