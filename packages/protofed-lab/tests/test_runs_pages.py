"""`protofed ui` as a user sees it, in a real browser."""

from __future__ import annotations

import http.client
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from browsing import WAIT_MS, Served, Visitor
from protofed_lab.viewer import rows
from rundirs import make_comparison, make_run
from support import command, few

pytestmark = pytest.mark.waits

NASTY = '<img src=x onerror="document.title=1"> & #1'

NAMES = "[...document.querySelectorAll('.records tbody th a')].map((n) => n.innerText)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A comparison with a run that goes on, one that is damaged, and one with nasty names."""
    root = tmp_path_factory.mktemp("shown") / "runs"
    methods = ["fedproto", "protonorm", "local"]
    compared = make_comparison(root / "methods", methods, [0, 1], rounds=12, clients=5, metrics=True)
    shutil.rmtree(compared / "local-seed1")
    (compared / "local-seed0" / "summary.json").unlink()
    broken = make_run(root / "broken", rounds=2)
    (broken / "federation.json").write_text("{")
    names = [NASTY, "b", "c"]
    odd = {"class_names": names, "validation": True, "on": "union", "rule": "local", "metrics": True}
    nasty = make_run(root / NASTY, "fedtgp", rounds=3, **odd)
    description = json.loads((nasty / "federation.json").read_text())
    description["clients"][0]["name"] = NASTY
    (nasty / "federation.json").write_text(json.dumps(description))
    measured = nasty / "metrics.json"
    measured.write_text(measured.read_text().replace('"client_00"', json.dumps(NASTY)))
    make_run(root.parent / "outside", "secretive", rounds=2)
    return root


@pytest.fixture(scope="module")
def shown(folder) -> Iterator[Served]:
    """The command, showing them."""
    served = Served(["ui", str(folder)], folder.parent)
    yield served
    served.stop()


@pytest.fixture(scope="module")
def window(shown, browser) -> Iterator[Visitor]:
    """One window for most tests: another would load and compile everything again."""
    visitor = Visitor(browser, shown.address)
    yield visitor
    visitor.context.close()


@pytest.fixture
def look(window) -> Iterator[Callable[[str], Any]]:
    """Open a page in it; what a page asks for and logs is checked."""

    def open_page(path: str = "/") -> Any:
        window.page.goto(window.address + path)
        wait(window.page, "window.socket?.connected && document.querySelector('.crumb:not(:empty), .records td')")
        return window.page

    yield open_page
    window.check()


def wait(page: Any, expression: str) -> None:
    page.wait_for_function(expression, timeout=WAIT_MS)


ELEMENT = """[...document.querySelectorAll('.plot')]
    .find((card) => card.querySelector('h2')?.innerText === title)?.querySelector('.nicegui-echart')"""

COLOURS = """JSON.stringify(protofed.instance(document.querySelector('.nicegui-echart'))
    .getOption().series.map((s) => s.itemStyle?.color))"""


def series(page: Any, title: str) -> dict[str, list]:
    """Return name → points of the lines of the chart with this title, as ECharts has them."""
    chart, line = f"protofed.instance({ELEMENT}).getOption().series", "(s) => s.type === 'line'"
    page.wait_for_function(f"(title) => {chart}.some({line})", arg=title, timeout=WAIT_MS)  # it may be drawn anew
    return dict(page.evaluate(f"(title) => {chart}.filter({line}).map((s) => [s.name, s.data])", title))


def drawn(page: Any, title: str) -> None:
    """Wait until the chart with this title has something in it."""
    there = "Number(element.dataset.fed) > 0 && protofed.instance(element).getOption().series.length"
    script = f"(title) => {{ const element = {ELEMENT}; return element && {there}; }}"
    page.wait_for_function(script, arg=title, timeout=WAIT_MS)


def changed(page: Any, expression: str, before: str) -> None:
    """Wait until the expression has another value."""
    page.wait_for_function(f"(before) => {expression} !== before", arg=before, timeout=WAIT_MS)


@pytest.mark.slow  # of the few that .ci/run runs beside all others
def test_all_runs(look):
    page = look()
    drawn(page, "Test accuracy against rounds")
    drawn(page, "Test accuracy against bytes sent")
    assert page.evaluate(NAMES) == [
        NASTY,
        "broken",
        "methods/fedproto-seed0",
        "methods/fedproto-seed1",
        "methods/protonorm-seed0",
        "methods/protonorm-seed1",
        "methods/local-seed0",
        "methods/local-seed1",
    ]
    lines = series(page, "Test accuracy against rounds")
    assert set(lines) == {"fedtgp", "fedproto", "protonorm", "local"}
    assert [len(points) for points in lines.values()] == [3, 12, 12, 12]
    assert "local: no traffic yet" in series(page, "Test accuracy against bytes sent")
    page.get_by_label("A line for every seed").check()
    wait(page, "document.querySelectorAll('.plot .legend')[0].children.length === 6")
    page.get_by_label("Accuracy by").select_option("global")
    wait(page, "document.querySelectorAll('.plot .legend')[0].children.length === 5")
    assert page.title() == "Runs · protofed"
    heads = [text.rstrip(" ↑↓") for text in page.locator(".records th button").all_inner_texts()]
    assert heads[3:11] == [
        *("Final", "Best validated", "Best", "Mean over clients", "Mean, best round", "Converged"),
        *("Everyone’s samples", "Unseen classes"),
    ]


@pytest.mark.slow
def test_the_table_is_sorted_by_mouse_and_by_keyboard(look):
    page = look()
    wait(page, "document.querySelectorAll('.records tbody tr').length === 8")
    page.get_by_role("button", name="Final").click()
    head = page.locator("th", has=page.get_by_role("button", name="Final"))
    assert head.get_attribute("aria-sort") == "descending"

    def finals() -> list[float]:
        cells = page.locator(".records tbody tr").evaluate_all(
            "(rows) => rows.map((row) => row.querySelectorAll('td.number')[1]?.innerText || '')"
        )
        assert not any(cells[len([c for c in cells if c]) :])  # what has no value stands last
        return [float(c.rstrip("%")) for c in cells if c]

    assert finals() == sorted(finals(), reverse=True)
    page.get_by_role("button", name="Final").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert finals() == sorted(finals())
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Space")
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("Seed")
    page.get_by_placeholder("Filter").fill("protonorm seed1")
    assert page.evaluate(NAMES) == ["methods/protonorm-seed1"]
    page.get_by_placeholder("Filter").fill("no such thing")
    assert page.get_by_text("No row fits the filter.").is_visible()


@pytest.mark.slow
def test_ticked_runs_are_drawn_alone_and_compared(look, shown):
    page = look()
    page.get_by_label("Choose methods/fedproto-seed0").check()
    page.get_by_label("Choose methods/protonorm-seed0").check()
    wait(page, "document.querySelectorAll('.plot .legend')[0].children.length === 2")
    page.get_by_role("link", name="Compare 2 runs").click()
    page.wait_for_url("**/compare?run=methods%2Ffedproto-seed0&run=methods%2Fprotonorm-seed0")
    page.get_by_role("heading", name="Methods one by one").wait_for()
    for keys in ([], ["nowhere"], ["methods/fedproto-seed0", "broken"]):
        assert ask(shown.address, rows.comparing(keys))[0] == 404


@pytest.mark.slow
def test_a_run_is_shown_as_its_report(look):
    page = look()
    page.get_by_role("link", name="methods/protonorm-seed0").click()
    page.get_by_role("heading", name="protonorm on fake-images").wait_for()
    page.get_by_role("heading", name="Prototypes").wait_for()


@pytest.mark.slow
def test_a_line_is_hidden_and_shown_from_the_legend(look):
    page = look()
    drawn(page, "Test accuracy against rounds")
    button = page.locator(".plot .legend").first.get_by_role("button", name="fedtgp")
    button.focus()
    page.keyboard.press("Enter")
    wait(page, "document.querySelector('.legend button').getAttribute('aria-pressed') === 'false'")
    assert "fedtgp" not in series(page, "Test accuracy against rounds")
    page.keyboard.press("Enter")
    wait(page, "document.querySelector('.legend button').getAttribute('aria-pressed') === 'true'")
    assert "fedtgp" in series(page, "Test accuracy against rounds")


@pytest.mark.slow
def test_a_damaged_run_is_shown_with_its_reason(look, window):
    page = look()
    row = page.locator(".records tbody tr", has_text="damaged").first
    assert "federation.json: not valid JSON" in row.inner_text()
    assert row.get_by_role("checkbox").count() == 0
    row.get_by_role("link").click()
    page.get_by_text("federation.json: not valid JSON").wait_for()
    window.faults.clear()  # the browser notes the status 404


@pytest.mark.slow
def test_names_are_text_and_nothing_else(visit, shown):
    page = visit(shown.address).page
    page.get_by_role("link", name=NASTY).click()
    page.get_by_role("heading", name="fedtgp on fake-images").wait_for()
    assert page.locator("img").count() == 0
    assert NASTY in page.locator("body").inner_text()


@pytest.mark.slow
@few("scheme", ["light", "dark"], 1)
def test_the_page_fits_a_telephone(visit, shown, scheme):
    page = visit(shown.address, "/", viewport={"width": 390, "height": 844}, color_scheme=scheme).page
    page.wait_for_selector(".records tbody tr")
    drawn(page, "Test accuracy against rounds")
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    wait(page, "document.documentElement.scrollWidth === 390")


@pytest.mark.slow
def test_charts_follow_the_theme(visit, shown):
    page = visit(shown.address, color_scheme="light").page
    drawn(page, "Test accuracy against rounds")
    before = page.evaluate(COLOURS)
    page.get_by_role("button", name="Light or dark").click()
    changed(page, COLOURS, before)
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    # Legends have the colours of their lines.
    shown = "getComputedStyle(document.querySelector('.legend path')).stroke"
    drawn_in = page.evaluate("protofed.instance(document.querySelector('.nicegui-echart')).getOption().series[0]")
    red, green, blue = (int(drawn_in["lineStyle"]["color"][i : i + 2], 16) for i in (1, 3, 5))
    assert page.evaluate(shown) == f"rgb({red}, {green}, {blue})"


# Runs that go on.


@pytest.fixture(scope="module")
def growing(tmp_path_factory) -> Iterator[tuple[Path, str]]:
    """An empty folder, which tests leave as empty, and the address of the command that shows it."""
    root = tmp_path_factory.mktemp("growing")
    served = Served(["ui", str(root)], root.parent)
    yield root, served.address
    served.stop()


@pytest.mark.slow
def test_a_run_is_watched_from_its_first_round(visit, growing, tmp_path):
    made = make_run(tmp_path / "made", "fedproto", rounds=3, planned=3)
    root, address = growing
    first, page = visit(address), visit(address).page
    page.get_by_text("No run here yet.").wait_for()
    run = root / "new"
    run.mkdir()
    for name in ("config.toml", "federation.json"):
        shutil.copy(made / name, run)
    (run / "rounds.jsonl").touch()
    first.page.locator("td .pill", has_text="starting").wait_for()
    first.context.close()  # a closed tab disturbs nobody
    for number, line in enumerate((made / "rounds.jsonl").read_text().splitlines(keepends=True), start=1):
        with (run / "rounds.jsonl").open("a") as out:
            out.write(line[:50])
            out.flush()
            page.wait_for_timeout(100)
            out.write(line[50:])
        page.locator("td .pill", has_text=f"running, {number} of 3").wait_for()
        page.wait_for_function(
            "(n) => Object.values([...runs.plots.values()][0].lines)[0]?.points.length === n", arg=number
        )
    assert "refresh" in ask(address, "/run/new")[2]
    shutil.copy(made / "summary.json", run)
    page.locator("td .pill", has_text="finished, 3 rounds").wait_for()
    assert "refresh" not in ask(address, "/run/new")[2]
    (run / "rounds.jsonl").write_text("damage\n\n")
    page.locator("td .reason", has_text="line 1 is not the record of a round").wait_for()
    shutil.rmtree(run)
    page.get_by_text("No run here yet.").wait_for()


@pytest.mark.slow
def test_a_tab_whose_connection_broke_gets_everything_again(look):
    page = look()
    drawn(page, "Test accuracy against rounds")
    count = "document.querySelectorAll('.records tbody tr').length"
    wait(page, f"{count} === 8")
    page.evaluate("window.before = true")
    page.evaluate("window.socket.io.engine.close()")
    wait(page, f"!window.before && document.readyState === 'complete' && {count} === 8")
    drawn(page, "Test accuracy against rounds")


# What must not happen.


def ask(address: str, path: str, method: str = "GET") -> tuple[int, bytes, set[str]]:
    """Send a request as it is, since browsers tidy paths up; return status, body and names of headers."""
    with closing(http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read(), {name.lower() for name in answer.headers}


@few(
    "path", ["/run/../outside", "/run/..%2Foutside", "/run/%00", "/static/..%2Fshell.py", "/etc/passwd", "/docs"], 4
)
def test_nothing_outside_is_reached(shown, folder, path):
    status, body, _ = ask(shown.address, path)
    assert status in (404, 307)
    for secret in (b"secretive", b"root:x:", b"def register", b"def serve"):
        assert secret not in body


def test_comparing_reaches_nothing_outside(shown):
    status, body, _ = ask(shown.address, "/compare?run=../outside&run=%2Fetc%2Fpasswd")
    assert status == 404
    assert b"secretive" not in body
    assert b"outside" not in body


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "POST"])
def test_nothing_can_be_written(shown, folder, method):
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    for path in ("/", "/run/broken", "/compare", "/static/x.txt"):
        assert ask(shown.address, path, method)[0] in (404, 405)
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*")} == before


@few(("name", "message"), [("nothing", "no such folder"), ("file", "is a file")], 1)
def test_no_folder(tmp_path, monkeypatch, capsys, name, message):
    (tmp_path / "file").touch()
    status, printed, told = command(monkeypatch, capsys, "ui", tmp_path / name, "--no-browser")
    assert (status, printed) == (2, "")
    assert message in told
