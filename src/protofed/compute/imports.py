"""Imports: quick ones where a process begins, and those of code that a user names."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from protofed.errors import ConfigError

T = TypeVar("T")


@contextmanager
def uncollected() -> Iterator[None]:
    """Import without looking for garbage: imports leave hardly any, and the search takes a third of their time.

    What is there afterwards stays to the end of the process, so later searches, and the last one, leave it out, and
    processes that are forked share it. Meant for programs, not for a library that is imported by one.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()


def user_module(location: str) -> ModuleType:
    """Import a module that a user names.

    Args:
        location: A dotted name, which may also lie in the working directory, or the path of a Python file.
    """
    if not location.endswith(".py"):
        top, here = location.partition(".")[0], str(Path.cwd())
        if not top:
            raise ImportError(f"{location!r} names no module")
        if top not in sys.modules and importlib.util.find_spec(top) is None and here not in sys.path:
            sys.path.append(here)  # a command does not search the working directory by itself
        return importlib.import_module(location)
    path = Path(location).resolve()
    name = f"protofed_user_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise ImportError(f"no module at {path}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def user_class(kind: str, name: str, base: type[T], called: str) -> type[T]:
    """Return the class that a user names.

    Args:
        kind: Noun for messages: ``method``, ``stage``.
        name: ``package.module:Class`` or ``file.py:Class``.
        called: Term of the documentation for ``base``.
    """
    location, _, attribute = name.rpartition(":")
    try:
        found = getattr(user_module(location), attribute)
    except (ImportError, OSError, AttributeError, ValueError) as error:
        raise ConfigError(f"{kind} {name!r} cannot be imported: {error}") from None
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{kind} {name!r} must be a subclass of {called}")
    return found
