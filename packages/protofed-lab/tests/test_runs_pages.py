"""`protofed ui` as a user sees it, in a real browser."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import protofed
from browsing import WAIT_MS, Served, Visitor
from rundirs import make_comparison, make_run
from support import command, few, write_vectors

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

SIGNED = "JSON.stringify([...runs.plots.values()].find((plot) => plot.settings.ramp === 'signed').content)"

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
def test_two_runs_are_compared(look):
    page = look()
    page.get_by_label("Choose methods/fedproto-seed0").check()
    page.get_by_label("Choose methods/protonorm-seed0").check()
    wait(page, "document.querySelectorAll('.plot .legend')[0].children.length === 2")
    page.get_by_role("link", name="Compare 2 runs").click()
    page.wait_for_url("**/compare?run=methods%2Ffedproto-seed0&run=methods%2Fprotonorm-seed0")
    page.get_by_text("1 of 14 options differ.").wait_for()
    (row,) = page.locator(".options tbody tr").all_inner_texts()
    assert row.split() == ["method.name", "(differs)", '"fedproto"', '"protonorm"']
    page.get_by_label("Show options that are the same, too").check()
    wait(page, "document.querySelectorAll('.options tbody tr').length === 14")
    assert page.locator(".options tr.differs").count() == 1
    page.get_by_label("with").select_option("methods/fedproto-seed0")
    page.get_by_text("Choose two runs.").wait_for()
    page.get_by_label("with").select_option("methods/fedproto-seed1")
    page.get_by_text("1 of 14 options differ.").wait_for()
    page.wait_for_url("**/compare?run=methods%2Ffedproto-seed0&run=methods%2Ffedproto-seed1")
    wait(page, "document.querySelectorAll('.records tbody tr').length === 2")
    drawn(page, "Test accuracy against rounds")
    assert list(series(page, "Test accuracy against rounds")) == ["fedproto, seed 0", "fedproto, seed 1"]


@pytest.mark.slow
def test_one_run(look):
    page = look("/run/methods/protonorm-seed0")
    for title in ("Test accuracy against rounds", "Who holds what", "Accuracy of each client", "Training loss"):
        drawn(page, title)
    assert list(series(page, "Test accuracy against rounds")) == [
        "Classifier head",
        "Own prototypes",
        "Global prototypes",
        "Global, own classes",
    ]
    drawn(page, "Who is taken for whom")
    assert page.locator(".records", has_text="Specificity").locator("tbody tr").count() == 3
    assert page.get_by_text("Balanced accuracy", exact=True).count() == 2, "a card and a column"
    drawn(page, "Distances between classes")
    drawn(page, "Margins")
    page.get_by_text("After round 12.").wait_for()
    before = page.evaluate(SIGNED)
    page.get_by_label("Of", exact=True).select_option("client_01")
    changed(page, SIGNED, before)
    assert page.locator(".options tbody tr", has_text="training.lr").inner_text() == "training.lr\t0.01"
    assert page.locator(".records", has_text="Architecture").locator("tbody tr").count() == 5
    page.get_by_label("Show", exact=True).select_option("alignment.energy")
    wait(page, "[...runs.plots.values()].some((p) => p.order[0] === 'alignment.energy')")
    page.get_by_label("Differences from").select_option("methods/fedproto-seed1")
    page.wait_for_url("**/compare?run=methods%2Fprotonorm-seed0&run=methods%2Ffedproto-seed1")


@pytest.mark.slow
def test_a_diverged_run_says_so_and_breaks_nothing(look, folder):
    """Prototypes of which none is finite gave charts colours without a value."""
    place = make_run(folder / "diverged", "fedproto", rounds=2)
    path = place / "prototypes.safetensors"
    save_file({n: t * torch.nan if t.is_floating_point() else t for n, t in load_file(path).items()}, path)
    lines = [json.loads(line) for line in (place / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        line["losses"] = dict.fromkeys(line["losses"])
    (place / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    try:
        page = look("/run/diverged")
        page.get_by_role("alert").filter(has_text="No round had finite losses").wait_for()
        wait(
            page,
            "[...runs.plots.values()].some((p) => p.settings.missing === 'None of these prototypes is finite.')",
        )
    finally:
        shutil.rmtree(place)


@pytest.mark.slow
def test_a_run_of_a_comparison_has_its_report(look, shown):
    page = look("/run/methods/fedproto-seed0")
    page.get_by_role("link", name="Report").click()
    page.get_by_role("heading", name="fedproto on fake-images").wait_for()
    assert ask(shown, "/report/nowhere")[0] == 404


@pytest.mark.slow
def test_a_line_is_hidden_and_shown_from_the_legend(look):
    page = look("/run/methods/fedproto-seed0")
    drawn(page, "Test accuracy against rounds")
    button = page.locator(".plot .legend").first.get_by_role("button", name="Classifier head")
    button.focus()
    page.keyboard.press("Enter")
    wait(page, "document.querySelector('.legend button').getAttribute('aria-pressed') === 'false'")
    assert "Classifier head" not in series(page, "Test accuracy against rounds")
    page.keyboard.press("Enter")
    wait(page, "document.querySelector('.legend button').getAttribute('aria-pressed') === 'true'")
    assert "Classifier head" in series(page, "Test accuracy against rounds")


@pytest.mark.slow
def test_a_damaged_run_is_shown_with_its_reason(look):
    page = look()
    row = page.locator(".records tbody tr", has_text="damaged").first
    assert "federation.json: not valid JSON" in row.inner_text()
    assert row.get_by_role("checkbox").count() == 0
    row.get_by_role("link").click()
    page.wait_for_url("**/run/broken")
    assert "federation.json: not valid JSON" in page.get_by_role("alert").filter(has_text="json").inner_text()


@pytest.mark.slow
def test_names_are_text_and_nothing_else(visit, shown):
    page = visit(shown.address).page
    page.get_by_role("link", name=NASTY).click()
    drawn(page, "Who holds what")
    drawn(page, "Accuracy of each client")
    for title in ("Who holds what", "Accuracy of each client"):
        tip = "dispatchAction({ type: 'showTip', seriesIndex: 0, dataIndex: 0 })"
        page.evaluate(f"(title) => protofed.instance({ELEMENT}).{tip}", title)
    assert page.locator("img").count() == 0
    assert page.title() == "fedtgp · protofed"
    assert page.get_by_text("sorted by own prototypes").is_visible()
    assert page.get_by_text("On everyone’s samples").is_visible()
    assert page.get_by_text("% on unseen classes").is_visible()
    assert NASTY in page.locator(".crumb").inner_text()
    page.goto(shown.address + "/compare?run=%3Cimg%20src%3Dx%3E")
    page.get_by_text("Choose two runs.").or_(page.get_by_text("options differ")).wait_for()
    assert page.locator("img").count() == 0


@pytest.mark.slow
@few(
    ("scheme", "paths"),
    [("light", ("/", "/compare")), ("dark", ("/run/methods/protonorm-seed0", "/run/broken"))],
    1,
)
def test_pages_fit_a_telephone(visit, shown, scheme, paths):
    page = visit(shown.address, paths[0], viewport={"width": 390, "height": 844}, color_scheme=scheme).page
    for path in paths:
        page.goto(shown.address + path)
        page.wait_for_selector(".crumb:not(:empty), .records tbody tr")
        if path != "/run/broken":
            drawn(page, "Test accuracy against rounds")
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
        wait(page, "document.documentElement.scrollWidth === 390")


@pytest.mark.slow
@few("path", ["/", "/run/methods/fedproto-seed0"], 1)
def test_tables_fit_a_screen_and_names_break_after_punctuation(look, path):
    page = look(path)
    wait(page, "document.querySelectorAll('.records tbody tr').length > 3")
    tables = "[...document.querySelectorAll('.records .scroll')]"
    assert page.evaluate(f"{tables}.filter((s) => s.scrollWidth > s.clientWidth + 1).length") == 0
    assert page.locator(".records tbody tr:last-child th wbr").count() > 1


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
    page.get_by_role("link", name="new").click()
    page.get_by_text("No round").or_(page.get_by_text("no round has been evaluated yet")).first.wait_for()
    for number, line in enumerate((made / "rounds.jsonl").read_text().splitlines(keepends=True), start=1):
        with (run / "rounds.jsonl").open("a") as out:
            out.write(line[:50])
            out.flush()
            page.wait_for_timeout(100)
            out.write(line[50:])
        page.get_by_text(f"running, {number} of 3").first.wait_for()
        page.wait_for_function(
            "(n) => [...runs.plots.values()][0].lines.global?.points.length === n", arg=number, timeout=WAIT_MS
        )
    shutil.copy(made / "prototypes.safetensors", run)
    shutil.copy(made / "summary.json", run)
    page.get_by_text("finished, 3 rounds").first.wait_for()
    drawn(page, "Distances between classes")
    assert len(series(page, "Test accuracy against rounds")["Global prototypes"]) == 3
    (run / "rounds.jsonl").write_text("damage\n\n")
    page.get_by_role("alert").filter(has_text="line 1 is not the record of a round").wait_for()
    shutil.rmtree(run)
    page.get_by_text("This run is gone").wait_for()


@pytest.mark.slow
def test_a_tab_whose_connection_broke_gets_everything_again(look):
    page = look()
    drawn(page, "Test accuracy against rounds")
    count = "document.querySelectorAll('.records tbody tr').length"
    wait(page, f"{count} === 8")
    told = page.locator(".crumb").inner_text()
    # As if these had been lost on their way.
    page.evaluate("runs.plots.forEach((plot) => { plot.lines = {}; plot.order = []; })")
    page.evaluate("mounted_app.elements[document.querySelector('.crumb').id.slice(1)].text = ''")
    page.evaluate("getElement(document.querySelector('.records').id.slice(1)).rows.clear()")
    page.evaluate("window.socket.io.engine.close()")
    wait(page, "[...runs.plots.values()].every((plot) => plot.order.length === 4)")
    wait(page, f"{count} === 8")
    assert page.locator(".crumb").inner_text() == told


@pytest.mark.slow
def test_a_real_run_is_followed_to_its_end(visit, growing, tmp_path):
    root, address = growing
    page = visit(address).page
    page.get_by_text("No run here yet.").wait_for()
    seen = threading.Event()

    class Held(protofed.Progress):
        """Holds the run after its first round, so that the page sees it run however slow the browser is."""

        def round(self, label: str, record: Any) -> None:
            assert seen.wait(2 * WAIT_MS / 1000)

    chosen = {"data.source": "path", "data.path": str(write_vectors(tmp_path / "data")), "model.name": "mlp"}
    chosen |= {"model.d": 8, "method.name": "fedproto", "rounds": 8, "execution.threads": 1}
    with ThreadPoolExecutor(1) as runs:
        run = runs.submit(protofed.run, "quickstart", chosen, out=root / "new", progress=Held())
        try:
            page.get_by_role("link", name="new").click(timeout=2 * WAIT_MS)
            page.locator(".pill", has_text=re.compile("starting|running")).first.wait_for()
        finally:
            seen.set()
        page.get_by_text("finished, 8 rounds").first.wait_for(timeout=2 * WAIT_MS)
        run.result(WAIT_MS / 1000)
    lines = [json.loads(line) for line in (root / "new" / "rounds.jsonl").read_text().splitlines()]
    shown = series(page, "Test accuracy against rounds")["Global prototypes"]
    assert shown == [[r["round"], round(100 * r["accuracy"]["global"]["weighted"], 2)] for r in lines]
    drawn(page, "Distances between classes")
    drawn(page, "Distances over the rounds")
    shutil.rmtree(root / "new")


# What must not happen.


def ask(served: Served, path: str, method: str = "GET", headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """Send a request as it is: browsers tidy paths up."""
    host = served.address.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=60)
    connection.request(method, path, headers=headers or {})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


@few(
    "path",
    [
        "/run/../outside",
        "/run/..%2Foutside",
        "/run/%2e%2e/outside",
        "/run/methods/../../outside",
        "/run//etc",
        "/run/",
        "/run/nothing",
        "/run/..%5Coutside",
        "/run/%00",
        "/runs-static/../pages.py",
        "/runs-static/..%2Fpages.py",
        "/runs-static/%2e%2e/pages.py",
        "/shell/../shell.py",
        "/shell/..%2F..%2Fruns%2Fpages.py",
        "/etc/passwd",
        "/..%2F..%2F..%2Fetc%2Fpasswd",
        "/docs",
        "/openapi.json",
    ],
    5,
)
def test_nothing_outside_is_reached(shown, folder, path):
    status, body = ask(shown, path)
    assert status in (404, 307)
    for secret in (b"secretive", b"root:x:", b"def register", b"def serve"):
        assert secret not in body


def test_comparing_reaches_nothing_outside(shown):
    status, body = ask(shown, "/compare?run=../outside&run=%2Fetc%2Fpasswd")
    assert status == 200
    assert b"secretive" not in body
    assert b"outside" not in re.sub(rb"http://[^\"]*", b"", body)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "POST"])
def test_nothing_can_be_written(shown, folder, method):
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    for path in ("/", "/run/broken", "/compare", "/static/x.txt"):
        assert ask(shown, path, method)[0] in (404, 405)
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*")} == before


@few(("name", "message"), [("nothing", "no such folder"), ("file", "is a file")], 1)
def test_no_folder(tmp_path, monkeypatch, capsys, name, message):
    (tmp_path / "file").touch()
    status, printed, told = command(monkeypatch, capsys, "ui", tmp_path / name, "--no-browser")
    assert (status, printed) == (2, "")
    assert message in told
