"""Imports: quick ones where a process begins, and those of code that a user names."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import pickle
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar

from protofed.errors import ConfigError

T = TypeVar("T")
Packed = tuple[dict[str, str], bytes]
_permitted: ContextVar[Collection[str] | None] = ContextVar("permitted", default=None)
_OWN = "protofed_user_"  #: Beginning of the names of modules that are files of users


@contextmanager
def pause_collection() -> Iterator[None]:
    """Import without looking for garbage: imports leave hardly any, and the search takes a third of their time.

    What is there afterwards stays to the end of the process, so later searches, and the last one, leave it out, and
    processes that are forked share it. Meant for what starts a process, not for a library that is imported.
    """
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@contextmanager
def importing_only(permitted: Collection[str]) -> Iterator[None]:
    """Refuse to import code that users name, whatever asks for it, but what is permitted.

    This is the last of the locks: names are searched for before, and what a search forgets ends here.

    Args:
        permitted: Names of code, as ``package.module:attribute`` or ``file.py:attribute``.
    """
    token = _permitted.set({name.rpartition(":")[0] for name in permitted})
    try:
        yield
    finally:
        _permitted.reset(token)


def user_module(location: str) -> ModuleType:
    """Import the module at a dotted name, also below the working directory, or at the path of a Python file."""
    permitted = _permitted.get()
    if permitted is not None and location not in permitted:
        raise ConfigError(f"{location}: code that nobody here has permitted to be imported")
    if not location.endswith(".py"):
        top, here = location.partition(".")[0], str(Path.cwd())
        if not top:
            raise ImportError(f"{location!r} names no module")
        if top not in sys.modules and importlib.util.find_spec(top) is None and here not in sys.path:
            sys.path.append(here)  # a command does not search the working directory by itself
        return importlib.import_module(location)
    path = Path(location).resolve()
    if not path.is_file():
        raise ImportError(f"no module at {path}")
    # Other files may have the same name, and this one may have been edited since.
    version = sha256(str(path).encode() + b"\0" + path.read_bytes()).hexdigest()[:12]
    return _of_file(f"{_OWN}{path.stem}_{version}", path)


def _of_file(name: str, path: Path) -> ModuleType:
    if name not in sys.modules:
        loader = _Source(name, str(path))
        spec = importlib.util.spec_from_loader(name, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


class _Source(SourceFileLoader):
    """A loader without stored bytecode: Python finds it by second and size, and a quick edit can keep both."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def pack(value: object) -> Packed:
    """Pickle a value for another process, with the paths of the users' files whose classes it contains."""
    content = pickle.dumps(value)
    own = {n: str(m.__file__) for n, m in sys.modules.items() if n.startswith(_OWN) and n.encode() in content}
    return own, content


def unpack(value: Packed) -> Any:
    """Return a value from another process of this program."""
    own, content = value
    for name, path in own.items():
        _of_file(name, Path(path))
    return pickle.loads(content)


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
