import base64
import multiprocessing
import queue
import signal
import threading
from multiprocessing import Pipe

import numpy as np
import psutil
import pytest

from protofed_lab.demo.engine import View
from protofed_lab.demo.setup import Setup, usual
from protofed_lab.demo.worker import GRID, METHOD, NOTHING, Session, Worker, pack, prepare, work
from support import few


@pytest.fixture
def session():
    ours, theirs = Pipe()
    yield Session(theirs), ours
    ours.close()
    theirs.close()


def told(pipe):
    messages = []
    while pipe.poll(0):
        messages.append(pipe.recv())
    return messages


def view(dots, **changes):
    content = {
        "accuracy": 0.5,
        "head": 0.25,
        "clients": [0.5, None],
        "bytes": 7,
        "seconds": 0.5,
        "ended": None,
        "separation": None,
        "unseen": None,
        "dots": np.asarray(dots, float),
        "predicted": np.zeros(len(dots), int),
        "own": np.zeros((0, 0, 2)),
        "shared": np.zeros((0, 2)),
        "labels": np.zeros(0, int),
    }
    return View(**{**content, **changes})


def unpacked(packed, name, kind="<i2"):
    return np.frombuffer(base64.b64decode(packed[name]), kind)


def test_points_travel_in_little_room():
    points = np.random.default_rng(0).normal(size=(300, 2)) * [1, 40]
    packed = pack(view(points, shared=points[:4] * 2, labels=np.arange(4)))
    back = unpacked(packed, "dots").reshape(-1, 2) * packed["scale"] / GRID
    np.testing.assert_allclose(back, points, atol=packed["scale"] / GRID)
    assert packed["scale"] == pytest.approx(np.abs(points[:4] * 2).max().clip(np.abs(points).max()))
    assert len(packed["dots"]) < 300 * 6


def test_points_that_are_not_there():
    packed = pack(view([[1.0, 2.0], [np.nan, 1.0], [np.inf, 0.0]]))
    assert unpacked(packed, "dots").tolist() == [GRID // 2, GRID, *4 * [NOTHING]]
    assert packed["scale"] == 2.0
    nothing = pack(view(np.full((2, 2), np.nan)))
    assert unpacked(nothing, "dots").tolist() == 4 * [NOTHING]
    assert nothing["scale"] == 1.0


def test_a_studio_obeys(session):
    session, pipe = session
    session.begin(Setup())
    (ready, content), (frame, first) = told(pipe)
    assert (ready, frame) == ("ready", "frame")
    assert content["counts"] == [[48, 48, 16, 16], [16, 16, 48, 48]]
    assert content["knobs"]["right"] == {"margin": 0.8, "lambda": 1.0, "gamma": 1.0}
    assert "margin" not in content["knobs"]["left"]
    assert first["round"] == 0
    session.step()
    session.change("right", {"margin": 0.0})
    session.step()
    assert [m[1]["round"] for m in told(pipe)] == [1, 2]
    session.look(1)
    content, shown = (m[1] for m in told(pipe))
    assert {client for client, _ in content["dots"]} == {1}
    assert len(unpacked(shown["left"], "predicted", "<i1")) == 144
    assert shown["round"] == 2


def test_a_setup_that_does_not_fit_leaves_the_last_one(session):
    session, pipe = session
    session.begin(Setup())
    told(pipe)
    session.begin(Setup(left=usual("fedavg"), models="mixed"))
    ((kind, content),) = told(pipe)
    assert kind == "refused"
    assert "one architecture" in content["text"]
    session.step()
    assert told(pipe)[0][1]["round"] == 1
    session.change("right", {"margin": -3.0})
    assert told(pipe)[0][0] == "refused"


def test_the_last_round_ends_it(session, monkeypatch):
    session, pipe = session
    monkeypatch.setattr("protofed_lab.demo.engine.ROUNDS", 2)
    session.begin(Setup())
    session.go()
    for _ in range(3):
        session.step()
    frames = [content for kind, content in told(pipe) if kind == "frame"]
    assert [f["round"] for f in frames] == [0, 1, 2]
    assert [f["finished"] for f in frames] == [False, False, True]
    assert not session.running
    session.go()
    assert not session.running


@pytest.mark.slow
def test_a_process_that_learns_and_ends():
    prepare()
    heard = queue.Queue()
    worker = Worker(heard.put)
    worker.send("begin", Setup())
    worker.send("speed", 1000.0)
    worker.send("go")
    rounds = []
    while len(rounds) < 5:
        kind, content = heard.get(timeout=120)
        if kind == "frame":
            rounds.append(content["round"])
    assert rounds == [0, 1, 2, 3, 4]
    process = psutil.Process(worker.process.pid)
    worker.close()
    assert not process.is_running()
    worker.send("step")  # to nobody
    while heard.get(timeout=60)[0] != "gone":
        pass


@few("apart", [False, True], 1)
def test_a_process_whose_page_is_gone_ends(apart):
    """In this process it begins with its pipe filled, and a thread is the page."""
    prepare()
    context = multiprocessing.get_context(METHOD)
    ours, theirs = context.Pipe()
    ours.send(("begin", (Setup(),)))
    ours.send(("go", ()))

    def look_and_leave():
        while ours.recv()[0] != "frame":
            pass
        ours.close()

    if apart:
        process = context.Process(target=work, args=(theirs,))
        process.start()
        theirs.close()
        look_and_leave()
        process.join(timeout=60)
        assert process.exitcode == 0
        return
    before = signal.getsignal(signal.SIGINT)
    page = threading.Thread(target=look_and_leave)
    page.start()
    try:
        work(theirs)
    finally:
        signal.signal(signal.SIGINT, before)
    page.join(timeout=60)
    assert ours.closed
    theirs.close()
