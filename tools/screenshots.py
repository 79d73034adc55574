"""Take the screenshots in ``docs/figures``: ``python tools/screenshots.py [demo] [runs]``.

This needs Chromium on the path (or ``PROTOFED_CHROMIUM``) and the extras ``ui`` and ``dev``.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs/figures"
SIZES = {1280: 900, 390: 844}
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")

sys.path.insert(0, str(ROOT / "tests"))

from browsing import WAIT_MS, Served, chromium  # noqa: E402


def demo(take: Callable[..., None], folder: Path) -> None:
    """Take the demonstration after forty rounds."""
    served = Served(["demo"], folder)

    def run(page: Page) -> None:
        page.wait_for_selector(".demo[data-round='0']")
        for _ in range(40):
            page.keyboard.press("s")
        page.wait_for_selector(".demo[data-round='40']")

    take("demo", served.address, run)
    served.stop()


def runs(take: Callable[..., None], folder: Path) -> None:
    """Take the overview of a comparison on real digits, and of a run in progress."""
    import protofed

    methods = ("fedproto", "fedtgp", "protonorm", "tinyproto", "local")
    protofed.compare("quickstart", methods, (0, 1), {"rounds": 30}, out=folder / "runs/methods")
    command = [sys.executable, "-m", "protofed", "run", "quickstart", "method.name=gfpl", "rounds=2000", "--quiet"]
    with subprocess.Popen([*command, "--out", "runs/still-running"], cwd=folder) as going:
        served = Served(["ui", "runs"], folder)

        def overview(page: Page) -> None:
            page.locator(".pill", has_text="running").first.wait_for(state="attached")
            drawn = "[...document.querySelectorAll('.nicegui-echart')].every((e) => Number(e.dataset.fed) > 0)"
            page.wait_for_function(f"document.querySelector('.nicegui-echart') && {drawn}", timeout=WAIT_MS)

        take("runs", served.address, overview)
        going.terminate()
        served.stop()


PAGES = {"demo": demo, "runs": runs}


def main() -> None:
    """Take all screenshots, or those of the named pages."""
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])

        def take(name: str, address: str, act: Callable[[Any], None]) -> None:
            for width, height in SIZES.items():
                for theme in THEMES:
                    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
                    page.set_default_timeout(WAIT_MS)
                    page.goto(address)
                    act(page)
                    page.mouse.move(0, 0)
                    page.wait_for_timeout(500)
                    picture = Image.open(io.BytesIO(page.screenshot(full_page=width > 700)))
                    path = FIGURES / f"{name}-{width}-{theme}.png"
                    few = picture.convert("RGB").quantize(256, kmeans=2, dither=Image.Dither.NONE)
                    few.save(path, optimize=True)
                    print(path.relative_to(ROOT))
                    page.close()

        for name in sys.argv[1:] or PAGES:
            PAGES[name](take, Path(folder))
        browser.close()


if __name__ == "__main__":
    main()
