"""A pandas frame as a federation: what is in it, and a recipe for :func:`protofed.run` and its like."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofed.config.schema import Tree
from protofed.data.frames import WHERE, keep
from protofed.errors import DataError, unknown_name
from protofed.sites.looking import Survey, survey
from protofed.sites.recipe import Notice, format_notice
from protofed.sites.scan import ONE_TABLE, DataFolder
from protofed.untrusted.reading import parse_toml

if TYPE_CHECKING:
    from pandas import DataFrame

GUESSED = "frame"  #: Name of the recipe of a frame


@dataclass(frozen=True, eq=False, repr=False)
class FrameRecipe(Mapping[str, Any]):
    """The recipe of a data frame, for :func:`protofed.run`, ``compare``, ``tune`` and ``try_out``."""

    look: Survey
    tree: Tree

    def __getitem__(self, name: str) -> Any:
        return self.tree[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tree)

    def __len__(self) -> int:
        return len(self.tree)

    @property
    def sites(self) -> Mapping[str, int]:
        """Name and number of samples of each site."""
        return self.look.sites

    @property
    def notices(self) -> Sequence[Notice]:
        """What was found, and what is done about it."""
        return self.look.notices

    def __repr__(self) -> str:
        head = f"{sum(self.sites.values()):,} samples ({self.look.kind}) at {len(self.sites)} sites"
        return "\n".join([head, *map(format_notice, self.notices)])


def federation(
    frame: DataFrame, site: str = "", label: str = "", overrides: Mapping[str, Any] | None = None
) -> FrameRecipe:
    """Return the recipe of a pandas frame, with every proposal of ``protofed init`` taken.

    Example:
        federated = protofed.federation(frame, site="hospital", label="diagnosis")
        protofed.compare(federated)

    Args:
        site: Column that names the site of each row; by default one that looks like it, or else the samples are
            divided at random.
        label: Column to predict; by default the most likely one.
        overrides: Values by dotted name, as for :func:`protofed.run`: they win over proposals, and what lists and
            tables hold is added to theirs.

    Raises:
        DataError: If the frame cannot be read, or something is found that no option can mend.
    """
    path = keep(frame)
    if not len(frame):
        raise DataError(f"{WHERE}: holds no rows: expected one per sample")
    names = [str(name) for name in frame.columns]
    for role, name in ("site", site), ("label", label):
        if name and name not in names:
            index = " (it is the index: use frame.reset_index())" if name in frame.index.names else ""
            raise DataError(f"{WHERE}: {unknown_name(f'{role} column', name, names[:40])}{index}")
    source = {"data.source": "frame", "data.data_dir": str(path.parent), "data.options.frame": path.stem}
    folder = DataFolder(Path(WHERE), "tables", {ONE_TABLE: path}, source)
    look = survey(folder, label, site, overrides)
    tree = {**parse_toml(look.recipe(look.notices)), "recipe": GUESSED}
    return FrameRecipe(look, tree)
