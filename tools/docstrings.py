"""List public functions whose docstrings are at fault: ``python tools/docstrings.py [PACKAGE]...``.

``Args:`` holds parameters of which there is more to say than name and type: it may name no others, and "client: The
client." is one line too many. A function of the front (:data:`FRONT`) with a ``raise`` statement needs ``Raises:``.
Overrides of base-class methods, commands of the command line and figures, which describe their options to users
under ``Options:``, are exempt.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

FRONT = ("protofed.api", "protofed.trained.run")
"""Modules whose functions users call themselves, and whose errors they have to know."""


def modules(name: str) -> Iterator[Any]:
    """Yield a package with all its modules, or a single module."""
    root = importlib.import_module(name)
    yield root
    for info in pkgutil.walk_packages(getattr(root, "__path__", []), f"{name}."):
        if not info.name.endswith(("__main__", "_main", ".cli", ".cli.main", ".cli.trained")):
            yield importlib.import_module(info.name)


def functions(module: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public functions and methods that a module defines, without overrides, by qualified name."""
    for name, item in vars(module).items():
        if name.startswith("_") or getattr(item, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(item):
            inherited = {attribute for base in item.__mro__[1:] for attribute in vars(base)}
            for attribute, member in vars(item).items():
                member = getattr(member, "__func__", member)
                if inspect.isfunction(member) and not attribute.startswith("_") and attribute not in inherited:
                    yield f"{module.__name__}.{name}.{attribute}", member
        elif inspect.isfunction(item) and not _draws(item):
            yield f"{module.__name__}.{name}", inspect.unwrap(item)


def _draws(function: Callable[..., Any]) -> bool:
    """Return whether a function is a figure, which is called by the name under which it is registered."""
    within = function.__module__.startswith("protofed.analysis.figures.")
    return within and "runs" in inspect.signature(function).parameters


def faults(function: Callable[..., Any]) -> list[str]:
    """Return what is wrong with the docstring of a function."""
    doc = inspect.getdoc(function) or ""
    section = re.search(r"^Args:\n((?:    .*\n?|\n)+)", doc, re.M)
    entries = re.findall(r"^    \*{0,2}(\w+):\s*((?:.|\n(?!    \w|\n))*)", section[1] if section else "", re.M)
    missing = [f"no parameter {name}" for name, _ in entries if name not in inspect.signature(function).parameters]
    missing += [
        f"nothing said of {name}" for name, text in entries if re.fullmatch(rf"(The |A )?{name}\.", text, re.I)
    ]
    if function.__module__ in FRONT and "Raises:" not in doc and _raises(function):
        missing.append("no Raises")
    return missing


def _raises(function: Callable[..., Any]) -> bool:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    todo = list(ast.iter_child_nodes(tree))
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Raise) and node.exc is not None:
            return True
        if not isinstance(node, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            todo += ast.iter_child_nodes(node)
    return False


def main() -> None:
    """Print one line per function, and end with status 1 if there is any."""
    lines = [
        f"{name}: {'; '.join(missing)}"
        for root in sys.argv[1:] or ["protofed"]
        for module in modules(root)
        for name, function in functions(module)
        if (missing := faults(function))
    ]
    print(*lines, sep="\n", end="\n" if lines else "")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
