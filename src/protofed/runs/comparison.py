"""The runs of a comparison, ``comparison.json``, written and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from protofed.errors import CheckpointError
from protofed.runs.checks import is_text
from protofed.untrusted import limits


@dataclass(frozen=True)
class ListedRun:
    """A run of a comparison.

    Attributes:
        method: Name of its method.
        directory: Name of its folder, inside that of the comparison.
        values: Names of its values along the axes.
        seed: Its seed; None if the file does not say.
    """

    method: str
    directory: str
    values: tuple[str, ...] = ()
    seed: int | None = None


@dataclass(frozen=True)
class ComparisonFile:
    """The content of ``comparison.json``.

    Attributes:
        runs: The runs.
        axes: Names of the values along each axis.
        recipe: Name of the recipe.
        methods: Names of the methods.
        seeds: The seeds.
    """

    runs: list[ListedRun]
    axes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    recipe: str = ""
    methods: Sequence[str] = ()
    seeds: Sequence[int] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``comparison.json``; a comparison without axes does not mention them."""
        runs = [
            {
                "method": run.method,
                "seed": run.seed,
                "directory": run.directory,
                **({"values": list(run.values)} if self.axes else {}),
            }
            for run in self.runs
        ]
        axes = {axis: list(names) for axis, names in self.axes.items()}
        return {
            "recipe": self.recipe,
            "methods": list(self.methods),
            "seeds": list(self.seeds),
            **({"axes": axes} if axes else {}),
            "runs": runs,
        }

    @classmethod
    def from_dict(cls, value: dict[str, Any], where: str) -> ComparisonFile:
        """Return the runs and axes that :meth:`to_dict` wrote; nothing else of the file is looked at.

        Args:
            where: What errors begin with.

        Raises:
            CheckpointError: If ``value`` is damaged, or names anything but folders inside that of the comparison.
        """
        axes = value.get("axes", {})
        lists = isinstance(axes, dict) and all(isinstance(names, list) and names for names in axes.values())
        if not lists or not all(is_text(name) for names in axes.values() for name in names):
            raise CheckpointError(f"{where}: axes must be a table of lists of names")
        try:
            runs = [
                ListedRun(entry["method"], entry["directory"], tuple(entry.get("values", ())))
                for entry in value.get("runs") or ()
            ]
        except (TypeError, KeyError, AttributeError):
            raise CheckpointError(f"{where}: runs must list method, seed and directory") from None
        for run in runs:
            _check_run(run, axes, where)
        return cls(runs, axes)


def _check_run(run: ListedRun, axes: Mapping[str, Sequence[str]], where: str) -> None:
    """Raise an error unless a run has a plain folder, the name of a method, and a value along each axis."""
    name = run.directory
    if not isinstance(name, str) or name in ("", ".", "..") or {"/", "\\", "\0"} & set(name):
        raise CheckpointError(f"{where}: {name!r} is no folder of this comparison")
    if len(name.encode(errors="replace")) > limits.FILE_NAME_BYTES:
        raise CheckpointError(f"{where}: {name[:40]!r}… is longer than the name of a folder may be")
    if not is_text(run.method):
        raise CheckpointError(f"{where}: {run.method!r} is no name of a method")
    along = zip(run.values, axes.values(), strict=False)
    if len(run.values) != len(axes) or any(value not in names for value, names in along):
        raise CheckpointError(f"{where}: {name}: its values {run.values!r} are not along the axes")
