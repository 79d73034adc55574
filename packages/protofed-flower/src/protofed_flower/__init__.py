"""Federations over a network of separate machines, with Flower."""
