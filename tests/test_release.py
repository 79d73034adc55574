"""What a release says of itself in several places agrees, and maintainers' scripts still start."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version

import protofed
from support import script

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(not (ROOT / "CITATION.cff").is_file(), reason="runs in a checkout")


def test_version_changelog_and_citation_agree():
    version, released = re.search(
        r"^## (\S+) \((\d{4}-\d{2}-\d{2})\)$", (ROOT / "CHANGELOG.md").read_text(), re.M
    ).groups()
    citation = (ROOT / "CITATION.cff").read_text()
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == protofed.__version__
    if "dev" in protofed.__version__:
        assert "\n## Unreleased\n" in (ROOT / "CHANGELOG.md").read_text()
        assert Version(protofed.__version__) > Version(version)
    else:
        assert protofed.__version__ == version
    assert f"version: {version}\n" in citation
    assert f"date-released: {released}\n" in citation


@pytest.mark.parametrize("path", sorted((ROOT / "tools").glob("*.py")), ids=lambda p: p.stem)
def test_scripts_find_what_they_import(path):
    pytest.importorskip("playwright" if "screenshots" in path.stem else "protofed")
    assert vars(script(path))
