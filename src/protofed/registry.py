"""Registries of named objects, with an error that suggests the nearest valid name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from protofed.errors import ConfigError, unknown_name

T = TypeVar("T")


class Registry(Generic[T]):
    """A named collection that refuses duplicates."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that stores its argument under ``name``."""

        def store(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._entries[name] = entry
            return entry

        return store

    def get(self, name: str) -> T:
        """Return the entry called ``name``."""
        try:
            return self._entries[name]
        except KeyError:
            raise ConfigError(unknown_name(self.kind, name, self._entries)) from None

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def items(self) -> list[tuple[str, T]]:
        """Return pairs ``(name, entry)`` in the order of registration."""
        return list(self._entries.items())
