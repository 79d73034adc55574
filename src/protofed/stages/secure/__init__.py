"""Secure aggregation: the server learns sums over clients, and no single upload."""
