"""Runs HtFLlib's main.py; a script of its own process, see :mod:`protofed.benchmark.htfllib`.

Arguments: its folder ``system``, the number of threads, its models as JSON, and then its own arguments.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import json
import runpy
import sys
import types
from collections.abc import Sequence
from typing import Any

import torch

UNUSED = ("PIL", "calmsize", "diffusers", "h5py", "higher", "torch_utils", "torchtext")
"""Packages that it imports for other methods than ours, or for after the last round."""


class Nothing(types.ModuleType):
    """In place of a package that is not installed."""

    __path__: list[str] = []  # noqa: RUF012  (what makes a module a package)

    def __getattr__(self, name: str) -> None:
        """Have any public name."""
        if name.startswith("__"):
            raise AttributeError(name)


class Unused(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds :data:`UNUSED` packages, after all others have looked for them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a specification for an unused package."""
        if name.partition(".")[0] not in UNUSED:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return an empty module."""
        return Nothing(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Leave it empty."""


def main() -> None:
    """Prepare what its main.py expects of its surroundings, and run it."""
    source, threads, models = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    sys.path[0] = source
    sys.meta_path.append(Unused())
    # It keeps whole models in files, which torch refuses to read unless told.
    torch.load = functools.partial(torch.load, weights_only=False)
    torch.set_num_threads(threads)

    from flcore.servers.serverbase import Server
    from flcore.trainmodel.models import BaseHeadSplit

    build = BaseHeadSplit.__init__

    def with_our_models(self: Any, args: Any, *rest: Any, **named: Any) -> None:
        args.models = models
        build(self, args, *rest, **named)

    BaseHeadSplit.__init__ = with_our_models
    Server.save_results = lambda self: sys.exit(0)  # called after the last round
    sys.argv = [f"{source}/main.py", *sys.argv[4:]]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
