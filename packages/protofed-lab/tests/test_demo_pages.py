"""The demonstration in a real browser."""

import socket
import time
import urllib.error
import urllib.request

import psutil
import pytest

from browsing import WAIT_MS, Served, Visitor
from support import command, few

pytestmark = pytest.mark.waits


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """One command for most tests: every page has a demonstration of its own."""
    command = Served(["demo"], tmp_path_factory.mktemp("demo"))
    yield command
    command.stop()


@pytest.fixture(scope="module")
def window(served, browser):
    """One window for most tests: another would load and compile everything again."""
    visitor = Visitor(browser, served.address)
    visitor.page.goto(served.address)
    begun(visitor.page)
    yield visitor
    visitor.context.close()


@pytest.fixture
def page(window):
    """Its page, before the first round, for tests that leave the setup as it is."""
    press(window.page, "Reset")
    window.page.evaluate("document.activeElement.blur()")
    at(window.page, 0)
    yield window.page
    window.check()


@pytest.fixture
def changed(page):
    """The page for tests that change the setup: it is loaded anew after them."""
    yield page
    page.reload()
    begun(page)


def opened(visit, served, **options):
    visitor = visit(served.address, **options)
    begun(visitor.page)
    return visitor


def begun(page):
    """Wait for the page's demonstration; those of pages that were left take up room for ten seconds more."""
    for _ in range(30):
        page.wait_for_function(
            "document.querySelector('.demo') || document.body.innerText.includes('are open already')",
            timeout=WAIT_MS,
        )
        if not page.get_by_text("are open already").count():
            break
        time.sleep(1)
        page.reload()
    reached(page, 0)


def reached(page, round_number):
    page.wait_for_function(f"+document.querySelector('.demo')?.dataset.round >= {round_number}", timeout=WAIT_MS)


def at(page, round_number, patience=1):
    page.wait_for_function(
        f"document.querySelector('.demo').dataset.round === '{round_number}'", timeout=patience * WAIT_MS
    )


def press(page, name):
    page.get_by_role("button", name=name, exact=True).click()


def reads(page, name, side=None):
    where = f'[data-side="{side}"] ' if side else ""
    return page.locator(f'{where}[data-read="{name}"]').inner_text()


def both(page):
    """Return what is read below either plane."""
    return [[reads(page, name, side) for name in ("accuracy", "bytes", "separation")] for side in ("left", "right")]


def choose(page, label, *options):
    page.get_by_label(label, exact=True).first.click()
    for option in options:
        page.get_by_role("option", name=option, exact=True).click()


def turn(page, name, key, times, which=0):
    slider = page.get_by_role("slider", name=name).nth(which)
    slider.focus()
    for _ in range(times):
        page.keyboard.press(key)


def test_requests_without_a_browser_take_no_place(tmp_path):
    command = Served(["demo"], tmp_path, browser=False)
    answers = [urllib.request.urlopen(command.address).read() for _ in range(9)]
    command.stop()
    assert not any(b"are open already" in answer for answer in answers)


def learning(served):
    """Return the processes in which demonstrations learn."""
    # Not by each process's parent: one may end between the listing and the question.
    starters = psutil.Process(served.process.pid).children()
    return [p for starter in starters for p in starter.children()]


def leave(visitor):
    """Close a window whose server is gone, which its pages rightly complain about."""
    visitor.context.close()
    visitor.faults.clear()


def until(condition):
    deadline = time.monotonic() + WAIT_MS / 1000
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.25)


@pytest.mark.slow  # of the few that .ci/run runs beside all others
def test_run_pause_step_and_reset(page):
    assert both(page) == [["25.0%", "0 B", "–"]] * 2
    press(page, "Step")
    at(page, 1)
    press(page, "Step")
    at(page, 2)
    press(page, "Run")
    reached(page, 6)
    press(page, "Pause")
    page.get_by_role("button", name="Run", exact=True).wait_for()

    def stands() -> bool:  # after the round that was going on
        before = reads(page, "round")
        page.wait_for_timeout(300)
        return reads(page, "round") == before

    until(stands)
    assert both(page) != [["25.0%", "0 B", "–"]] * 2
    press(page, "Reset")
    at(page, 0)
    assert both(page) == [["25.0%", "0 B", "–"]] * 2
    press(page, "Step")
    at(page, 1)


@pytest.mark.slow
def test_the_margin_acts_on_the_running_system(changed):
    page = changed
    turn(page, "Margin", "Home", 1)
    press(page, "Run")
    reached(page, 4)
    press(page, "Pause")
    page.wait_for_timeout(500)
    left, right = both(page)
    assert left == right  # without a margin, training is averaging
    press(page, "Run")
    turn(page, "Margin", "End", 1)
    reached(page, int(reads(page, "round")) + 6)
    press(page, "Pause")
    page.wait_for_timeout(500)
    left, right = both(page)
    assert left[0] != right[0]
    assert left[2] != right[2]
    assert int(reads(page, "round")) >= 10  # it went on, it did not begin anew


@pytest.mark.slow
def test_a_closed_form_finishes_while_the_other_side_goes_on(changed):
    page = changed
    choose(page, "Method on the right", "FedLDA, one round")
    page.get_by_text("Right, FedLDA:").wait_for()
    page.get_by_text("(encoder.name=scattering)").wait_for()
    assert page.get_by_role("slider", name="λ").count() == 1  # the left side's
    choose(page, "Divided", "by halves, each its own digits")
    page.locator("table.counts td.none").nth(3).wait_for()
    page.locator(".right .ended:empty").wait_for(state="attached")
    press(page, "Step")
    at(page, 1)
    said = reads(page, "ended", "right")
    assert said.startswith(f"Finished after one round, {reads(page, 'bytes', 'right')}, ")
    finished = both(page)[1]
    press(page, "Step")
    at(page, 2)
    assert both(page)[1] == finished
    assert reads(page, "ended", "right") == said
    assert reads(page, "ended", "left") == ""
    assert float(reads(page, "unseen", "right").rstrip("%")) > 90
    shown = page.locator("table.counts tbody tr").first.inner_text().split()
    assert float(shown[-1].rstrip("%")) > 90 > float(shown[-2].rstrip("%"))
    curve = "protofed.instance(document.querySelector('.curve')).getOption().series.find(s => s.id === 'right')"
    assert page.evaluate(f"{curve}.markPoint.data[0].coord[0]") == 1
    level = page.evaluate(f"{curve}.data.map(p => p[1])")
    assert level[1] == level[2] > level[0]
    press(page, "bytes")
    ends = page.evaluate(f"{curve}.data.at(-1)[0] - {curve}.data[1][0]")
    assert ends >= 0
    press(page, "rounds")


@pytest.mark.slow
def test_other_clients(changed):
    page = changed
    table = page.locator("table.counts tbody tr")
    assert [table.nth(i).inner_text().split() for i in (0, 1)] == [
        ["A", "48", "48", "16", "16", "25.0%", "25.0%"],
        ["B", "16", "16", "48", "48", "25.0%", "25.0%"],
    ]
    page.get_by_label("Clients", exact=True).fill("5")
    page.locator("table.counts tbody tr:nth-child(5)").wait_for()
    choose(page, "Digits", "7", "3")
    page.keyboard.press("Escape")
    page.wait_for_function(
        "[...document.querySelectorAll('table.counts thead th:not([class])')]"
        ".map(th => th.innerText).join() === '0,1,2,7'",
        timeout=WAIT_MS,
    )
    choose(page, "Divided", "by Dir(α)")
    page.wait_for_function(
        "[...document.querySelectorAll('table.counts tbody tr')]"
        ".some(r => !/16|10|11|5/.test([...r.cells].slice(0, -2).map(c => c.innerText).join()))"
        " || [...document.querySelectorAll('table.counts td')].some(c => c.innerText === '0')",
        timeout=WAIT_MS,
    )
    turn(page, "α", "End", 1)
    choose(page, "Models", "four different ones")
    choose(page, "Dimension d", "16")
    at(page, 0)
    press(page, "Step")
    at(page, 1)


@pytest.mark.slow
def test_by_keyboard_alone(page):
    page.keyboard.press("s")
    at(page, 1)
    page.keyboard.press("r")
    at(page, 0)
    page.keyboard.press(" ")
    reached(page, 3)
    page.keyboard.press(" ")
    page.get_by_role("button", name="Run", exact=True).wait_for()
    seen = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.add(
            page.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.innerText")
        )
    for name in ("Light or dark", "Step", "Reset", "Speed: rounds a second", "Method on the left", "Clients"):
        assert any(name in (found or "") for found in seen), (name, seen)


@pytest.mark.slow  # of the few that .ci/run runs beside all others
def test_pictures_are_described_and_told_apart_by_shape(page):
    press(page, "Step")
    at(page, 1)
    assert page.get_by_role("img").count() >= 3
    assert "Global prototype" in page.locator(".key").inner_text() or "global" in page.locator(".key").inner_text()
    shapes = page.evaluate(
        "['left', 'right'].map(s => protofed.instance(document.querySelector(`[data-side=${s}] .chart`))"
        ".getOption().series.filter(s => s.id.startsWith('own')).map(s => s.symbol))"
    )
    assert shapes == [["triangle", "rect"]] * 2
    labels = page.evaluate(
        "protofed.instance(document.querySelector('.right .chart')).getOption().series"
        ".find(s => s.id === 'shared').data.map(d => d.label.formatter)"
    )
    assert labels == ["0", "1", "2", "3"]


@pytest.mark.slow
@few("scheme", ["light", "dark"], 1)
def test_widths_and_themes(served, visit, scheme):
    page = opened(visit, served, viewport={"width": 390, "height": 844}, color_scheme=scheme).page
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        page.wait_for_function(f"document.documentElement.scrollWidth <= {width}", timeout=WAIT_MS)
    ground = "getComputedStyle(document.body).backgroundColor"
    first = page.evaluate(ground)
    assert (first == "rgb(17, 20, 24)") is (scheme == "dark")
    page.get_by_role("button", name="Light or dark").click()
    page.wait_for_function(f"{ground} !== '{first}'")
    page.reload()
    begun(page)
    assert page.evaluate(ground) != first  # the choice is kept


@pytest.mark.slow
def test_tabs_learn_on_their_own_and_end_with_their_page_and_all_with_ctrl_c(serve, visit):
    served = serve("demo")
    visitor = opened(visit, served)
    press(visitor.page, "Run")
    other = visitor.tab()
    other.goto(served.address)
    reached(other, 0)
    assert reads(other, "round") == "0"
    reached(visitor.page, 3)
    assert len(learning(served)) == 2
    press(other, "Run")
    reached(other, 2)
    press(visitor.page, "Pause")  # a page's end is noticed after ten seconds, in which there is nothing to see
    other.close()
    until(lambda: len(learning(served)) == 1)
    press(visitor.page, "Run")
    reached(visitor.page, int(reads(visitor.page, "round")) + 2)
    children = psutil.Process(served.process.pid).children(recursive=True)
    assert children
    said = served.stop()
    assert "Stopped." in said
    assert "warning" not in said
    assert served.process.returncode == 0
    psutil.wait_procs(children, timeout=30)
    assert not [p for p in children if p.is_running()]
    leave(visitor)


@pytest.mark.slow
def test_a_server_for_others_warns_and_leaves_nothing_when_it_is_killed(serve, visit):
    served = serve("demo", "--host", "0.0.0.0")
    assert served.address.startswith("http://127.0.0.1:")
    visitor = opened(visit, served)
    children = psutil.Process(served.process.pid).children(recursive=True)
    served.process.kill()
    psutil.wait_procs(children, timeout=30)
    assert not [p for p in children if p.is_running()]
    assert "anybody who can reach this machine" in served.stop()
    leave(visitor)


def test_a_port_in_use(capsys, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, printed, said = command(monkeypatch, capsys, "demo", "--no-browser", "--port", port)
    assert (status, printed, said.count("\n")) == (2, "", 1)
    assert f"127.0.0.1:{port}" in said
    assert "another --port" in said


def test_an_address_that_is_not_ours(capsys, monkeypatch):
    said = command(monkeypatch, capsys, "demo", "--no-browser", "--host", "nowhere.invalid")[2]
    assert "--host nowhere.invalid: no such address" in said
