"""One algorithm per file: client side and server side together, reading like the paper's algorithm box.

A file in this package whose class carries :func:`register` is a method: nothing else has to be edited.
Files that start with an underscore hold what several methods share.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from functools import cache
from pathlib import Path
from typing import TypeVar

from protofed.errors import ConfigError
from protofed.methods.contract import (
    Aggregate,
    Batch,
    Build,
    Exchange,
    Local,
    Method,
    Phase,
    Task,
    Tensors,
    Update,
    Upload,
)
from protofed.registry import Registry
from protofed.wire.schema import Field, Payload, Schema

__all__ = [
    "Aggregate",
    "Batch",
    "Build",
    "Exchange",
    "Field",
    "Local",
    "Method",
    "Payload",
    "Phase",
    "Schema",
    "Task",
    "Tensors",
    "Update",
    "Upload",
    "get",
    "methods",
    "register",
]

M = TypeVar("M", bound=type[Method])

_registry: Registry[type[Method]] = Registry("method")


def register(method: M) -> M:
    """Make a :class:`Method` subclass available under its ``name``."""
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
    """Return the method class called ``name``, or ``package.module:Class`` / ``file.py:Class`` of your own.

    Raises:
        ConfigError: If there is none.
    """
    if ":" not in name:
        return methods().get(name)
    location, _, attribute = name.rpartition(":")
    try:
        method = getattr(_load(location), attribute)
    except (ImportError, OSError, AttributeError) as error:
        raise ConfigError(f"method {name!r} cannot be imported: {error}") from None
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise ConfigError(f"method {name!r} must be a subclass of protofed.methods.Method")
    return method


def _load(location: str):  # type: ignore[no-untyped-def]
    """Import a module by dotted name or by path of a Python file."""
    if not location.endswith(".py"):
        return importlib.import_module(location)
    path = Path(location).resolve()
    name = f"protofed_user_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"no module at {path}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]
