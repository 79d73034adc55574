"""Readers of all that comes from outside: limits come before allocation, an error is one line."""
