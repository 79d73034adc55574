#!/usr/bin/env bash
# Run the fast tests on the built wheel, away from the sources, and then the other distributions beside it: tools/check_wheel.sh [PYTHON]
set -euo pipefail
cd "$(dirname "$0")/.."

constraints=$PWD/constraints.txt
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
uv build --quiet --wheel --out-dir "$place/dist"
for each in flower lab; do uv build --quiet --wheel --out-dir "$place/beside" --package "protofed-$each"; done
uv venv --quiet --python "${1:-3.11}" "$place/venv"
VIRTUAL_ENV=$place/venv uv pip install --quiet --compile-bytecode --constraint "$constraints" \
    "$(echo "$place"/dist/protofed-*.whl)[dev]"
cp -r tests conftest.py pyproject.toml "$place"  # the latter for pytest's settings

cd "$place"
unset PYTHONPATH
venv/bin/python -c 'import protofed, sys; print(sys.version); sys.exit("site-packages" not in protofed.__file__)'
(venv/bin/protofed deploy || true) 2>&1 | grep -F "pip install protofed-flower"  # a command that is elsewhere says where
venv/bin/python -m pytest -m fast -p no:cacheprovider tests
VIRTUAL_ENV=$place/venv uv pip install --quiet --compile-bytecode --constraint "$constraints" beside/*.whl dist/*.whl
venv/bin/protofed run quickstart rounds=1 data.clients=3 data.samples=200 method.name=fedproto --engine flower --quiet --out run
