"""The runs of a comparison, ``comparison.json``, written and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from protofed.errors import CheckpointError
from protofed.untrusted import claims, limits
from protofed.untrusted.decoding import Large, Line, check_with, decode


def _folder(name: Any) -> str:
    if not isinstance(name, str) or name in ("", ".", "..") or {"/", "\\", "\0"} & set(name):
        raise ValueError(f"{claims.clean(repr(name), 80)} is no folder of this comparison")
    if len(name.encode(errors="replace")) > limits.FILE_NAME_BYTES:
        raise ValueError(f"{name[:40]!r}… is longer than the name of a folder may be")
    return name


if TYPE_CHECKING:
    Folder = str
else:
    Folder = check_with(_folder)


@dataclass(frozen=True)
class ListedRun:
    """A run of a comparison: its folder inside that of the comparison, and its values along the axes."""

    method: Line
    directory: Folder
    values: tuple[str, ...] = ()
    seed: Large | None = None


@dataclass(frozen=True)
class ComparisonFile:
    """The content of ``comparison.json``."""

    runs: list[ListedRun] = field(default_factory=list)
    axes: Mapping[str, Annotated[Sequence[Line], Meta(min_length=1)]] = field(default_factory=dict)
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
        """Return the runs and axes that :meth:`to_dict` wrote; nothing else of the file is looked at."""
        known = {name: value[name] for name in ("runs", "axes") if value.get(name) is not None}
        found = decode(known, cls, where)
        for run in found.runs:
            along = zip(run.values, found.axes.values(), strict=False)
            if len(run.values) != len(found.axes) or any(value not in names for value, names in along):
                raise CheckpointError(f"{where}: {run.directory}: its values {run.values!r} are not along the axes")
        return found
