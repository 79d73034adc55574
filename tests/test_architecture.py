"""The directions of dependence that docs/architecture.md promises."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import protofed

ROOT = Path(protofed.__file__).parent
CORE = ("prototypes", "methods", "models", "training", "wire", "robust", "federation")
ALLOWED = {"torch", "numpy", "safetensors"}
# One file of the core imports one package more, inside a function, for those who choose wire.compression=zstd.
LAZY = {"wire/compression.py": {"zstandard"}}
SHARED = {
    "claims",
    "errors",
    "limits",
    "numerics",
    "optimizers",
    "options",
    "reading",
    "registry",
    "samples",
    "scratch",
    "seeding",
}
KNOWS = {
    "prototypes": set(),
    "models": set(),
    "wire": set(),
    "methods": {"prototypes", "wire"},
    "training": {"methods", "wire"},
    "robust": {"methods", "wire", "training"},
    "federation": {"methods", "wire", "training", "robust"},
    "data": set(),
    "analysis": {"federation", "prototypes", "training", "methods"},
}
# Features of final models are not in a run's files: one file, when asked for them, builds the models again.
ALSO = {"analysis/restore.py": {"experiments", "models"}}


def imports(package: str) -> dict[str, set[str]]:
    """Return what each file of a package imports when it runs (type-checking imports left out)."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / package).rglob("*.py"):
        tree = ast.parse(path.read_text())
        skipped = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        names = set()
        for node in ast.walk(tree):
            if id(node) in skipped:
                continue
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module)
        found[str(path.relative_to(ROOT))] = names
    return found


@pytest.mark.parametrize("package", CORE)
def test_the_core_needs_little(package):
    allowed = ALLOWED | ({"torchvision"} if package == "models" else set())
    for path, names in imports(package).items():
        foreign = {n.split(".")[0] for n in names} - set(sys.stdlib_module_names) - {"protofed"}
        assert foreign <= allowed | LAZY.get(path, set()), path


@pytest.mark.parametrize("package", KNOWS)
def test_imports_point_one_way(package):
    for path, names in imports(package).items():
        rooms = {n.split(".")[1] for n in names if n.startswith("protofed.")} - SHARED - {package}
        assert rooms <= KNOWS[package] | ALSO.get(path, set()), path


def test_the_command_line_starts_without_heavy_imports():
    code = "import protofed.cli, sys; print([m for m in ('torch', 'numpy', 'matplotlib') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_every_public_name_exists():
    for name in protofed.__all__:
        assert getattr(protofed, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = protofed.nothing


def test_hardly_anything_looks_at_a_clock_that_can_be_set():
    """Durations and deadlines survive a clock that jumps; the pages compare it with when files were written.

    A server's starts are numbered by it, but ever higher whatever it says.
    """
    found = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("time.time", "time.time_ns")
    }
    assert found == {"ui/runs/following.py", "flower/server_app.py"}


def test_data_come_without_executors():
    code = "import sys, protofed.data; print([n for n in sys.modules if n.startswith('protofed.training')])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
