"""Data on disk: files written whole or not at all, streams of records, snapshots, scratch space."""
