"""The directions of dependence that docs/architecture.md promises."""

from __future__ import annotations

import ast
import gc
import graphlib
import subprocess
import sys
from collections.abc import Iterator, Mapping, Set
from functools import cache
from pathlib import Path

import pytest

import protofed
from conftest import REPOSITORY
from protofed.methods import methods
from support import few

ROOT = Path(protofed.__file__).parent
CORE = (
    "compute",
    "untrusted",
    "storage",
    "runs",
    "prototypes",
    "methods",
    "models",
    "wire",
    "visits",
    "rounds",
    "stages",
)
ALLOWED = {"torch", "numpy", "safetensors", "msgspec"}
# These files of the core import more, inside a function or as a module that only functions import, for those who
# choose wire.compression=zstd, or privacy.mode.
LAZY = {
    "wire/compression.py": {"zstandard"},
    "stages/privacy/accounting.py": {"dp_accounting", "scipy"},
}


@cache
def files() -> dict[str, None]:
    """Return the paths of all files below the package, as the keys of a dict."""
    return dict.fromkeys(sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py")))


@cache
def text(path: str) -> str:
    """Return what a module's file holds."""
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def tree(path: str) -> ast.Module:
    """Return the syntax of a module."""
    return ast.parse(text(path))


def room(path: str) -> str:
    """Return the package or the top-level module that a file belongs to."""
    return path.split("/")[0].removesuffix(".py")


@cache
def nodes(path: str) -> tuple[ast.AST, ...]:
    """Return all nodes of a module's syntax."""
    return tuple(ast.walk(tree(path)))


@pytest.fixture(autouse=True, scope="module")
def _syntax() -> Iterator[None]:
    """Leave the syntax of all modules, many nodes, out of the search for garbage; drop it after these tests."""
    gc.disable()
    yield
    for kept in (tree, nodes):
        kept.cache_clear()
    gc.enable()


BLOCKS = (ast.stmt, ast.ExceptHandler, ast.match_case)  #: What holds statements, as expressions do not


@cache
def imports(path: str, *, lazy: bool = True) -> frozenset[tuple[str, str]]:
    """Return what a file imports when it runs, as ``(module, name)``; the name is empty where a module is imported.

    Args:
        path: The file.
        lazy: Whether imports inside functions count; those for type checkers never do.
    """
    left_out = (ast.FunctionDef, ast.AsyncFunctionDef) if not lazy else ()

    def statements(node: ast.AST) -> Iterator[ast.stmt]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.Import, ast.ImportFrom)):
                yield child
            elif isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING":
                for other in child.orelse:
                    yield from statements(other)
            elif isinstance(child, BLOCKS) and not isinstance(child, left_out):
                yield from statements(child)

    names: set[tuple[str, str]] = set()
    for statement in statements(tree(path)):
        if isinstance(statement, ast.Import):
            names |= {(alias.name, "") for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom):
            assert not statement.level, f"{path}: imports are absolute"
            names |= {(statement.module or "", alias.name) for alias in statement.names}
    return frozenset(names)


@cache
def module(name: str, attribute: str) -> str:
    """Return the file of ``from name import attribute``: the submodule of that name, or where the name is."""
    place = "".join(f"{part}/" for part in name.split(".")[1:])
    for candidate in (f"{place}{attribute}.py", f"{place}{attribute}/__init__.py", f"{place}__init__.py"):
        if candidate in files():
            return candidate
    return f"{place[:-1]}.py"


@cache
def targets(path: str, *, lazy: bool = True) -> frozenset[str]:
    """Return the files of the package that a file imports."""
    own = {module(m, name) for m, name in imports(path, lazy=lazy) if m.split(".")[0] == "protofed"}
    assert own <= files().keys(), f"{path} imports what is not there: {own - files().keys()}"
    return frozenset(own)


def circle(graph: Mapping[str, Set[str]]) -> list[str]:
    """Return the nodes of a circle; an empty list if there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


@few("package", CORE, 5)
def test_the_core_needs_little(package):
    allowed = ALLOWED | ({"torchvision"} if package == "models" else set())
    for path in files():
        if room(path) == package:
            foreign = {m.split(".")[0] for m, _ in imports(path)} - set(sys.stdlib_module_names) - {"protofed"}
            assert foreign <= allowed | LAZY.get(path, set()), path


def test_imports_point_one_way():
    """The layers in pyproject.toml hold; in a process of its own, because the tool switches off all loggers."""
    lint = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    found = subprocess.run(lint, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_no_circle_between_modules():
    """Imports that happen when modules are loaded; those inside functions may go back and forth in a package."""
    assert circle({path: targets(path, lazy=False) - {path} for path in files()}) == []


def test_nobody_uses_private_names_of_another_package():
    offences = []
    for path in files():
        bound = set()
        for statement in nodes(path):
            if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("protofed"):
                for alias in statement.names:
                    names = [*statement.module.split("."), alias.name]
                    if room(module(statement.module, alias.name)) == room(path):
                        continue
                    bound.add(alias.asname or alias.name)
                    offences += [f"{path}: {'.'.join(names)}" for name in names if _is_private(name)]
        for node in nodes(path):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in bound:
                offences += [f"{path}: {ast.unparse(node)}"] if _is_private(node.attr) else []
    assert offences == []


def _is_private(name: str) -> bool:
    """Return whether a name is private; what named tuples offer is not, in spite of its underscore."""
    return name.startswith("_") and not name.startswith("__") and name not in ("_asdict", "_fields", "_replace")


def test_methods_stand_on_one_other_at_most_and_say_who_they_are():
    known = [methods().get(name) for name in methods()]
    for method in known:
        above = [kind for kind in method.__mro__[1:] if kind in known]
        assert len(above) <= 1, above
        assert {"name", "summary", "Options"} <= vars(method).keys(), method
        assert "reference" in vars(method) or not method.reference


def test_the_command_line_starts_without_heavy_imports():
    heavy = ("torch", "numpy", "matplotlib", "cryptography", "flwr")
    code = f"import protofed.cli.main, sys; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_every_public_name_exists():
    for name in protofed.__all__:
        assert getattr(protofed, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = protofed.nothing


def test_hardly_anything_looks_at_a_clock_that_can_be_set():
    """Durations and deadlines survive a clock that jumps; the pages compare it with when files were written.

    A server's starts are numbered by it, but ever higher whatever it says. Server and nodes compare theirs.
    """
    beside = REPOSITORY.glob("packages/*/src/**/*.py")
    found = {
        path.stem
        for path in (*(ROOT / each for each in files()), *beside)
        if "time.time" in (content := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(content))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("time.time", "time.time_ns")
    }
    assert found - {"server_app", "nodes", "client_app"} == {"library"}


def test_runs_are_read_without_heavy_imports():
    code = "import sys, protofed.runs; print([m for m in ('torch', 'numpy', 'matplotlib') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


@pytest.mark.slow
def test_data_come_without_executors():
    code = "import sys, protofed.data; print([n for n in sys.modules if n.startswith('protofed.visits')])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_codecs_are_registered_whichever_module_comes_first():
    """A codec was unknown until somebody imported the file that defines it: now the package does."""
    found = {path for path in files() if "@codecs.register" in text(path)}
    assert found == {"wire/codec.py"} | (found & targets("wire/__init__.py", lazy=False))


def test_no_two_classes_have_one_name():
    found: dict[str, list[str]] = {}
    for path in files():
        for node in nodes(path):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(path)
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
