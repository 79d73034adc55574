#!/usr/bin/env bash
# Run the fast tests on the built wheel, away from the sources: tools/check_wheel.sh [PYTHON]
set -euo pipefail
cd "$(dirname "$0")/.."

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
uv build --quiet --wheel --out-dir "$place/dist"
uv venv --quiet --python "${1:-3.11}" "$place/venv"
VIRTUAL_ENV=$place/venv uv pip install --quiet --compile-bytecode --constraint constraints.txt \
    "$(echo "$place"/dist/protofed-*.whl)[dev]"
cp -r tests conftest.py pyproject.toml "$place"  # the latter for pytest's settings

cd "$place"
unset PYTHONPATH
venv/bin/python -c 'import protofed, sys; print(sys.version); sys.exit("site-packages" not in protofed.__file__)'
venv/bin/python -m pytest -m fast -p no:cacheprovider tests
