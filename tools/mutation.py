"""Find lines that no test checks: ``python tools/mutation.py PACKAGE [MUTANT]... [--tests ARGUMENT...]``.

Runs mutmut (``uv pip install mutmut``) on a copy of the repository in ``build/mutation``, by default against the
package's own tests that are quick. Mutants are chosen by name or pattern, such as ``'*[05]'`` for every fifth.
Survivors are worth a second run against more tests:
``--tests packages/protofed-flower/tests/test_serve.py tests/stages``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SLOW = (
    "papers or worker or process or nodes or degenerate or same_stacked or steps_are_those or measures or compiler "
    "or resume or dies or no_attack_ends or attacker_sends or every_method"
)
"""Names of tests that start processes or take seconds, which would be waited for with every mutant."""
TESTS = {
    "rounds": ["tests/rounds", "tests/stages/robust", "packages/protofed-flower/tests/test_serve.py"],
    "visits": [
        "tests/visits",
        "tests/rounds/test_evaluation.py",
        "tests/methods/test_fedproto_reference.py",
    ],
}
"""Tests of a package, where they are not only those in the folder of its name."""


def prepare(package: str, tests: list[str]) -> Path:
    """Copy the repository and return the folder; results of an earlier run on the same package stay."""
    folder = REPOSITORY / "build" / "mutation" / package
    for part in ("src", "tests"):
        shutil.copytree(REPOSITORY / part, folder / part, dirs_exist_ok=True)
    (folder / "mutants/src").mkdir(parents=True, exist_ok=True)  # Python ignores a path missing when it starts
    shutil.copy(REPOSITORY / "README.md", folder)
    settings = {
        "source_paths": ["src"],
        "only_mutate": [f"src/protofed/{package}/*.py"],
        "also_copy": ["README.md"],
        "pytest_add_cli_args": ["-o", "addopts=--import-mode=importlib", "--hypothesis-profile=ci"],
        "pytest_add_cli_args_test_selection": tests,
        "timeout_multiplier": 5.0,
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text("\n".join([project, "[tool.mutmut]", *lines, ""]), encoding="utf-8")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    packages = sorted(path.parent.name for path in (REPOSITORY / "src/protofed").glob("*/__init__.py"))
    parser.add_argument("package", choices=packages)
    parser.add_argument("mutants", nargs="*", metavar="MUTANT")
    parser.add_argument("--tests", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="of pytest")
    chosen = parser.parse_args()
    usual = [*TESTS.get(chosen.package, [f"tests/{chosen.package}"]), "-k", f"not ({SLOW})", "-m", "not slow"]
    folder = prepare(chosen.package, chosen.tests or usual)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder / "mutants/src")}
    mutmut = partial(subprocess.run, cwd=folder, env=environment, check=True, text=True)
    mutmut([sys.executable, "-m", "mutmut", "run", "--max-children", "1", *chosen.mutants])
    results = mutmut([sys.executable, "-m", "mutmut", "results"], stdout=subprocess.PIPE).stdout
    print("\n".join(line.strip() for line in results.splitlines() if not line.endswith(": not checked")))


if __name__ == "__main__":
    main()
