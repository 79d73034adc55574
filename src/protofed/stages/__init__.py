"""Stages between validated uploads and a method: one package per purpose, one protocol."""
