"""Typed configuration of experiments, the recipes that come with the library, and clients' architectures."""
