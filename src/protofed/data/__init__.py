"""Data: named data sets, federation folders and partitions, down to each client's train and test samples."""

from protofed.data import (  # noqa: F401  (registrations)
    builtin,
    classes,
    frames,
    given,
    hub,
    local,
    several,
    skew,
)
from protofed.data.loading import load, load_pool
from protofed.data.options import DataOptions, resolve_options
from protofed.data.partition import Partition, Request, Share, partitions
from protofed.data.pool import Dataset, Listing, Pool, datasets
from protofed.data.shift import ShiftOptions
from protofed.data.tables import Table
from protofed.data.text import embed as embed_texts
from protofed.data.text import tokenize as tokenize_texts
from protofed.data.transforms import TransformOptions, augmentation, normalisation

__all__ = [
    "DataOptions",
    "Dataset",
    "Listing",
    "Partition",
    "Pool",
    "Request",
    "Share",
    "ShiftOptions",
    "Table",
    "TransformOptions",
    "augmentation",
    "datasets",
    "embed_texts",
    "load",
    "load_pool",
    "normalisation",
    "partitions",
    "resolve_options",
    "tokenize_texts",
]
