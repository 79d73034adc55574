"""Script that runs HtFLlib's main.py in a separate process; see :mod:`benchmarks.htfllib`.

The arguments are HtFLlib's folder ``system``, the number of threads, the models as JSON, and those of main.py.
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
"""Packages that HtFLlib imports for other methods, or uses only after the last round."""


class Nothing(types.ModuleType):
    """Stand-in for a package that is not installed."""

    __path__: list[str] = []  # noqa: RUF012  (makes the module a package)

    def __getattr__(self, name: str) -> None:
        """Return None for any public name."""
        if name.startswith("__"):
            raise AttributeError(name)


class Unused(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder of :data:`UNUSED` packages, placed after all other finders."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a specification for an unused package, and None for any other."""
        if name.partition(".")[0] not in UNUSED:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return an empty module."""
        return Nothing(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Leave the module empty."""


def main() -> None:
    """Prepare the environment that main.py expects and run it."""
    source, threads, models = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    sys.path[0] = source
    sys.meta_path.append(Unused())
    # HtFLlib stores whole models in files, which torch does not load by default.
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
