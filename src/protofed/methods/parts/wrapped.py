"""A method around another one, which changes messages and leaves the rest as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from protofed.methods.contract import Method, Task

O = TypeVar("O")  # noqa: E741


class WrappedMethod(Method[O]):
    """Forward every hook of the contract to ``self.base``; a subclass overrides those that it changes.

    ``phases`` are the base's, with the base's losses: a subclass with a loss of its own overrides both.
    """

    base: Method

    @classmethod
    def base_of(cls, options: O) -> tuple[type[Method], Any]:
        """Return the class of the base, and its options.

        Raises:
            ConfigError: If the options do not suit the base.
        """
        raise NotImplementedError

    def __init__(self, options: O, task: Task) -> None:
        kind, base_options = self.base_of(options)
        self.base = kind(base_options, task)
        super().__init__(options, task)

    def check(self) -> None:
        """The base has checked itself."""

    def unclippable(self) -> str:
        """As the base, if uploads are the base's."""
        same = self.upload_schema == self.base.upload_schema
        return self.base.unclippable() if same else super().unclippable()

    def weighted_by(self, name: str) -> str:
        """The count in these uploads, unless the base weights all clients alike."""
        return "" if getattr(self.base.options, "weighting", "") == "uniform" else super().weighted_by(name)


def _of_class(name: str) -> Any:
    def forward(cls: type[Any], /, options: Any, **more: Any) -> Any:
        kind, base_options = cls.base_of(options)
        return getattr(kind, name)(base_options, **more)

    return classmethod(forward)


def _of_object(name: str) -> Callable[..., Any]:
    def forward(self: WrappedMethod[Any], *arguments: Any, **more: Any) -> Any:
        return getattr(self.base, name)(*arguments, **more)

    return forward


def _value(name: str) -> property:
    return property(lambda self: getattr(self.base, name))


for _name, _hook in [*vars(Method).items(), ("sums_only", property()), ("personal_broadcast", property())]:
    if _name.startswith("_") or _name in vars(WrappedMethod):
        continue
    if isinstance(_hook, property):
        setattr(WrappedMethod, _name, _value(_name))
    elif isinstance(_hook, classmethod):
        setattr(WrappedMethod, _name, _of_class(_name))
    elif callable(_hook) and not isinstance(_hook, type):
        setattr(WrappedMethod, _name, _of_object(_name))
