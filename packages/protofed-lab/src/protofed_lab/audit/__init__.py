"""Attacks on a finished run with what its parties saw, each beside what a guess would reach."""
