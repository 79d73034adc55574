"""Print how large the house is: ``python tools/sizes.py``.

Lines of every package, what the round loop imports, the files that matter most, and the hooks of the contract;
where a size is set, it stands beside in brackets.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import grimp

import protofed
from protofed.methods import Method

ROOT = Path(protofed.__file__).parent
WANTED = {
    "rounds/loop.py": 220,
    "methods/contract.py": 350,
    "methods/fedproto.py": 180,
    "methods/gfpl.py": 260,
    "methods/tinyproto.py": 180,
}
"""Lines that a file should not exceed."""


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def file_of(module: str) -> Path:
    place = ROOT.parent / Path(*module.split("."))
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def main() -> None:
    files = sorted(ROOT.rglob("*.py"))
    packages: Counter[str] = Counter()
    for path in files:
        packages[path.relative_to(ROOT).parts[0]] += lines(path)
    for name, count in packages.most_common():
        print(f"{count:7,} {name}")
    print(f"{packages.total():7,} src/ (40,000)")
    tests = ROOT.parents[1] / "tests"
    print(f"{sum(map(lines, tests.rglob('*.py'))):7,} tests/ (28,000)")
    behind = grimp.build_graph("protofed", exclude_type_checking_imports=True).find_upstream_modules(
        "protofed.rounds.loop"
    )
    print(
        f"{sum(lines(file_of(m)) for m in behind):7,} behind the round loop, in {len(behind)} modules (8,000 in 45)"
    )
    for name, most in WANTED.items():
        print(f"{lines(ROOT / name):7,} {name} ({most})")
    hooks = [
        name for name, value in vars(Method).items() if callable(value) or isinstance(value, property | classmethod)
    ]
    public = [name for name in hooks if not name.startswith("_") and name != "Options"]
    print(f"{len(public):7} hooks of {Method.__module__}: {', '.join(public)}")


if __name__ == "__main__":
    main()
