"""Stages between validated uploads and a method that limit what the server learns of single clients."""
