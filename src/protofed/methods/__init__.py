"""One algorithm per file: client side and server side together, reading like the paper's algorithm box.

A file in this package whose class carries :func:`register` is a method: nothing else has to be edited.
What several methods share is in :mod:`protofed.methods.parts`.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TypeVar

from protofed.compute.imports import user_class
from protofed.methods.contract import (
    Aggregate,
    Exchange,
    Method,
    Phase,
    Protection,
    Round,
    Statistics,
    Traits,
    Update,
    Upload,
    predict,
)
from protofed.methods.given import Batch, Build, Local, Task, Tensors
from protofed.methods.parts.moments import ClosedForm, Sums, within
from protofed.methods.parts.prior import own_classes
from protofed.methods.traits import check_hooks
from protofed.registry import Registry
from protofed.runs.rules import Rule
from protofed.wire.schema import Field, Payload, Schema

__all__ = [
    "Aggregate",
    "Batch",
    "Build",
    "ClosedForm",
    "Exchange",
    "Field",
    "Local",
    "Method",
    "Payload",
    "Phase",
    "Protection",
    "Round",
    "Rule",
    "Schema",
    "Statistics",
    "Sums",
    "Task",
    "Tensors",
    "Traits",
    "Update",
    "Upload",
    "get",
    "methods",
    "own_classes",
    "predict",
    "register",
    "within",
]

M = TypeVar("M", bound=type[Method])

_registry: Registry[type[Method]] = Registry("method")


def register(method: M) -> M:
    """Make a :class:`Method` subclass available under its ``name``."""
    check_hooks(method)
    _registry.register(method.name)(method)
    return method


def methods() -> Registry[type[Method]]:
    """Return all methods, after importing every public file of this package."""
    _import_all()
    return _registry


@cache
def _import_all() -> None:
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{__name__}.{module.name}")


def get(name: str) -> type[Method]:
    """Return the method class called ``name``, or ``package.module:Class`` / ``file.py:Class`` of your own."""
    if ":" not in name:
        return methods().get(name)
    found = user_class("method", name, Method, "protofed.methods.Method")
    check_hooks(found)
    return found
