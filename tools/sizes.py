"""Print how large the house is, and fail where it exceeds its budget: ``python tools/sizes.py``.

Lines of every package, what the round loop imports, the files that matter most, and the hooks of the contract; the
budget stands beside in brackets. It only falls: whoever makes something smaller lowers it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import grimp

import protofed
from protofed.methods import Method
from protofed.methods.traits import Protection, Traits
from protofed.untrusted.reading import read_toml

ROOT = Path(protofed.__file__).parent
REPOSITORY = ROOT.parents[1]
BUDGET = {
    "src": 45_826,
    "all sources": 65_221,
    "tests": 47_914,
    "recipes": 14,
    "variants": 5,
    "behind the round loop": 3_902,
    "modules behind the round loop": 31,
    "rounds/loop.py": 196,
    "methods/contract.py": 283,
    "methods/fedproto.py": 171,
    "methods/gfpl.py": 250,
    "methods/tinyproto.py": 227,
    "hooks of the contract": 19,
    "names of a method author": 35,
    "words of docs by hand": 33_250,
}
"""Most of each: lines, unless the name says otherwise."""


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def file_of(module: str) -> Path:
    place = ROOT.parent / Path(*module.split("."))
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def total(*folders: Path) -> int:
    """Return the lines of Python below folders, without tests."""
    return sum(lines(p) for folder in folders for p in folder.rglob("*.py") if "tests" not in p.parts)


def sizes() -> dict[str, int]:
    """Return what is limited, by the names of the budget."""
    behind = grimp.build_graph("protofed", exclude_type_checking_imports=True).find_upstream_modules(
        "protofed.rounds.loop"
    )
    members = {n: v for n, v in vars(Method).items() if not n.startswith("_")}
    hooks = [n for n, v in members.items() if callable(v) or isinstance(v, property | classmethod)]
    names = {*members, *Method.__annotations__, *Traits.__annotations__, *Protection.__annotations__}
    tests = [REPOSITORY / "tests", *REPOSITORY.glob("packages/*/tests"), REPOSITORY / "papers/tests"]
    return {
        "src": total(ROOT),
        "all sources": total(ROOT, *(REPOSITORY / name for name in ("packages", "papers", "tools", "benchmarks"))),
        "tests": sum(lines(path) for folder in tests for path in folder.rglob("*.py")),
        "recipes": len([*(ROOT / "config/recipes").glob("*.toml")]),
        "variants": len(read_toml(ROOT / "config/variants.toml")),
        "behind the round loop": sum(lines(file_of(module)) for module in behind),
        "modules behind the round loop": len(behind),
        **{name: lines(ROOT / name) for name in BUDGET if name.endswith(".py")},
        "hooks of the contract": len([n for n in hooks if n != "Options"]),
        "names of a method author": len(names),
        "words of docs by hand": sum(len(p.read_text("utf-8").split()) for p in (REPOSITORY / "docs").glob("*.md")),
    }


def main() -> None:
    packages = {folder.name: total(folder) for folder in ROOT.iterdir() if folder.is_dir()}
    for name, count in sorted(packages.items(), key=lambda item: -item[1]):
        print(f"{count:7,} {name}")
    found = sizes()
    for name, most in BUDGET.items():
        print(f"{found[name]:7,} {name} ({most:,})")
    if over := [f"{name}: {found[name]:,} of {most:,}" for name, most in BUDGET.items() if found[name] > most]:
        sys.exit(f"over the budget of tools/sizes.py: {'; '.join(over)}")


if __name__ == "__main__":
    main()
