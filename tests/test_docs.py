"""The page on what comes after training works, and generated pages say what there is."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from protofed.cli.main import main
from protofed.methods import methods
from support import script

DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


WRITTEN = {
    "after-training": {"runs", "images.npy", "classes.csv"}
    | {f"client-00.{kind}{card}" for kind in ("pt2", "safetensors") for card in ("", ".model-card.md")},
}
"""What the blocks of each page leave behind."""


@pytest.mark.slow
@pytest.mark.parametrize("page", WRITTEN)
def test_blocks_of_a_page(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = BLOCK.findall((DOCS / f"{page}.md").read_text())
    assert len(blocks) >= 8
    for language, code in blocks:
        if language == "python":
            exec(compile(code, f"docs/{page}.md", "exec"), names)
            continue
        for line in code.strip().splitlines():
            monkeypatch.setattr(sys, "argv", line.split())
            with pytest.raises(SystemExit) as ended:
                main()
            assert not ended.value.code, capsys.readouterr().err
    written = {p.name for p in tmp_path.iterdir()} - {"__pycache__"}
    assert written == WRITTEN[page]


@pytest.fixture(scope="module")
def made():
    return script(DOCS / "options_reference.py")


def test_every_option_has_a_meaning(made):
    rows = re.findall(r"^\| `(\S+)` \|.*\| (.*) \|$", made.options_page(), re.M)
    assert len(rows) > 300
    assert [name for name, meaning in rows if not meaning] == []
    assert {"seed", "rounds", "stages"} < {name for name, _ in rows}


def test_every_command_is_on_its_page(made):
    page = made.commands_page()
    named = set(re.findall(r"^## `protofed ([\w ]+)`$", page, re.M))
    assert {"init", "try", "run", "compare", "tune", "new method", "deploy check"} < named
    assert "| `--methods` | Methods, separated by commas" in page


@pytest.mark.slow
def test_every_method_is_in_the_table_of_traffic(made):
    page = made.communication_page()
    assert [name for name in methods() if f"\n| `{name}` | " not in page] == []


def test_pages_with_results_on_cifar_10_say_that_its_images_are_jpeg_files():
    pages = [p for p in DOCS.rglob("*.md") if p.parent.name != "reference" and p.stem not in ("guide", "models")]
    papers = [*(DOCS.parent / "papers").rglob("*.md"), DOCS.parent / "paper/paper.md"]
    named = [p for p in (*pages, *papers) if "CIFAR-10" in p.read_text(encoding="utf-8")]
    assert len(named) >= 14
    assert [p.name for p in named if "JPEG" not in p.read_text(encoding="utf-8")] == []


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as hosts of repositories make them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_between_pages_lead_somewhere():
    """Sphinx checks those within the documentation; these lead to it, out of it, or from generated pages."""
    root, wrong = DOCS.parent, []
    pages = [p for folder in ("docs", "papers", "paper", "packages", "hub") for p in (root / folder).rglob("*.md")]
    for page in [*root.glob("*.md"), *pages]:
        if "reference" in page.parts or "templates" in page.parts:
            continue
        for target, anchor in re.findall(r"\]\(([^)#: ]*)(?:#([^): ]+))?\)", page.read_text(encoding="utf-8")):
            path = page.parent / target if target else page
            known = "reference/" in target or (path.exists() and (not anchor or anchor in headings(path)))
            wrong += [] if known else [f"{page.relative_to(root)}: {target}#{anchor}"]
    assert wrong == []


@pytest.mark.slow
def test_the_python_of_the_readme_prints_what_it_says(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"^```python\n(.*?)^```$", (DOCS.parent / "README.md").read_text(), re.M | re.S)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    comments = " ".join(re.findall(r"# (.*)", code))
    said = re.findall(r"-?\d+\.\d+", comments)
    assert len(said) == 7
    assert [number for number in said if number not in printed] == []
