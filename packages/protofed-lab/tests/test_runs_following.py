"""Run directories followed while they grow, whatever becomes of them."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protofed.runs.border import Border
from protofed.runs.loading import load_run
from protofed.untrusted import limits
from protofed_lab.viewer import library as library_module
from protofed_lab.viewer.library import Follower, Library, State, places
from rundirs import make_comparison, make_run


def follow(directory: Path) -> Follower:
    return Follower("run", directory, Border(directory.parent))


def lines_of(directory: Path) -> list[str]:
    return (directory / "rounds.jsonl").read_text().splitlines(keepends=True)


def test_a_resumed_run_writes_its_rounds_anew(tmp_path):
    run = make_run(tmp_path / "run", rounds=6, planned=9, finished=False)
    follower = follow(run)
    follower.poll()
    kept = lines_of(run)[:4]
    partial = run / ".rounds.jsonl.partial"
    partial.write_text("".join(kept))
    os.replace(partial, run / "rounds.jsonl")
    assert follower.poll()
    assert follower.seen.run.last_round == 4
    with (run / "rounds.jsonl").open("a") as out:
        out.write(json.dumps({**json.loads(kept[-1]), "round": 5}) + "\n")
    assert follower.poll()
    assert follower.seen.run.last_round == 5


def test_from_nothing_to_the_end(tmp_path):
    made = make_run(tmp_path / "made", rounds=3)
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(made / "config.toml", run)
    follower = follow(run)
    states = []

    def look():
        follower.poll()
        states.append(follower.seen.state)

    look()
    shutil.copy(made / "federation.json", run)
    look()
    (run / "rounds.jsonl").touch()
    look()
    for line in lines_of(made):
        with (run / "rounds.jsonl").open("a") as out:
            out.write(line)
        look()
    shutil.copy(made / "summary.json", run)
    look()
    assert states == ["starting"] * 3 + ["running"] * 3 + ["finished"]
    assert follower.seen.run.outcome == load_run(made).outcome


def test_a_silent_run_is_called_quiet_and_wakes_up(tmp_path):
    run = make_run(tmp_path / "run", rounds=3, planned=9, finished=False)
    follower = follow(run)
    follower.poll()
    assert follower.seen.state is State.RUNNING
    follower.poll(running=time.monotonic() + 61)
    assert follower.seen.state is State.QUIET
    with (run / "rounds.jsonl").open("a") as out:
        out.write(json.dumps({**json.loads(lines_of(run)[-1]), "round": 4}) + "\n")
    follower.poll()
    assert follower.seen.state is State.RUNNING


def test_slow_rounds_are_not_called_quiet(tmp_path):
    run = make_run(tmp_path / "run", rounds=3, planned=9, finished=False)
    lines = [json.loads(line) for line in lines_of(run)]
    for line in lines:
        line["seconds"]["total"] = 400.0
    (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    follower = follow(run)
    for later, state in ((0, State.RUNNING), (3000, State.RUNNING), (4100, State.QUIET)):
        follower.poll(running=time.monotonic() + later)
        assert follower.seen.state is state


@pytest.mark.parametrize("jump", [-86_400, 86_400])
def test_a_clock_that_is_set_changes_nothing(tmp_path, monkeypatch, jump):
    """Silence is counted by a clock that nobody sets; files from the future are new."""
    run = make_run(tmp_path / "run", rounds=3, planned=9, finished=False)
    follower, now, running = follow(run), time.time(), time.monotonic()
    monkeypatch.setattr(time, "time", lambda: now + min(jump, 0))
    follower.poll(running)
    monkeypatch.setattr(time, "time", lambda: now + jump)
    follower.poll(running + 30)
    assert follower.seen.state is State.RUNNING
    follower.poll(running + 61)
    assert follower.seen.state is State.QUIET


def test_missing_files_are_damage_only_after_a_while(tmp_path):
    run = make_run(tmp_path / "run", finished=False)
    (run / "federation.json").unlink()
    follower = follow(run)
    follower.poll()
    assert (follower.seen.state, follower.seen.reason) == (State.STARTING, "")
    follower.poll(running=time.monotonic() + 61)
    assert follower.seen.state is State.DAMAGED
    assert "federation.json: missing" in follower.seen.reason


def damaged(edit):
    def damage(run: Path) -> None:
        lines = lines_of(run)
        value = json.loads(lines[1])
        edit(value)
        lines[1] = json.dumps(value) + "\n"
        (run / "rounds.jsonl").write_text("".join(lines))

    return damage


def in_file(name: str, text: str):
    return lambda run: (run / name).write_text(text)


DAMAGE = {
    "rounds.jsonl: line 2 is not the record": damaged(lambda r: r.pop("round")),
    "accuracies for 4 clients": damaged(
        lambda r: [a["clients"].pop() for a in r["accuracy"].values()] and r.update(round=99)
    ),
    "config.toml: seed: expected a whole number": in_file(
        "config.toml", 'seed = "seven"\n[method]\nname = "fedproto"\n'
    ),
}


@pytest.mark.parametrize("reason", DAMAGE)
def test_damage_is_told_and_healed(tmp_path, reason):
    run = make_run(tmp_path / "run", rounds=4)
    whole = {p.name: p.read_bytes() for p in run.iterdir()}
    follower = follow(run)
    DAMAGE[reason](run)
    for changed in (True, False):
        assert follower.poll() is changed
        assert follower.seen.state is State.DAMAGED
        assert reason in follower.seen.reason
        assert "\n" not in follower.seen.reason
    for name, content in whole.items():
        (run / name).write_bytes(content)
    follower.poll()
    assert (follower.seen.state, follower.seen.reason) == (State.FINISHED, "")


@pytest.mark.slow
@given(
    name=st.sampled_from(["config.toml", "federation.json", "rounds.jsonl", "summary.json"]),
    at=st.floats(0, 1),
    junk=st.binary(max_size=40),
    cut=st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_damage_makes_a_follower_fail(tmp_path, name, at, junk, cut):
    run = tmp_path / "run"
    if not run.exists():
        make_run(run, rounds=2, clients=2)
    whole = (run / name).read_bytes()
    place = int(at * len(whole))
    try:
        (run / name).write_bytes(whole[:place] + junk + (b"" if cut else whole[place + len(junk) :]))
        follower = follow(run)
        follower.poll()
        assert follower.seen.run is not None or follower.seen.reason or follower.seen.state is State.STARTING
        assert "\n" not in follower.seen.reason
    finally:
        (run / name).write_bytes(whole)


def test_what_is_no_file_and_what_leads_out_is_not_read(tmp_path):
    outside = make_run(tmp_path / "outside", rounds=2)
    root = tmp_path / "root"
    run = make_run(root / "run", rounds=2)
    whole = (run / "rounds.jsonl").rename(run / "aside")
    (run / "rounds.jsonl").symlink_to(outside / "rounds.jsonl")
    follower = Follower("run", run, Border(root))
    follower.poll()
    assert "rounds.jsonl: leads out of" in follower.seen.reason
    (run / "rounds.jsonl").unlink()
    os.mkfifo(run / "rounds.jsonl")  # reading it would wait for ever
    follower.poll()
    assert "rounds.jsonl: is no ordinary file" in follower.seen.reason
    whole.rename(run / "rounds.jsonl")
    follower.poll()
    assert follower.seen.state is State.FINISHED


def test_a_huge_file_is_not_read(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", rounds=2)
    monkeypatch.setattr(limits, "RUN_FILE_BYTES", 100)
    follower = follow(run)
    follower.poll()
    assert "more than 100: it is not read" in follower.seen.reason


# Folders of runs.


def keys(root: Path) -> list[str]:
    return [key for key, _ in places(root, Border(root))]


def test_runs_are_found_wherever_they_are(tmp_path):
    make_run(tmp_path / "b" / "deep" / "one", rounds=1)
    make_comparison(tmp_path / "a", ["local", "fedproto"], [0, 1], rounds=1)
    (tmp_path / ".hidden").mkdir()
    make_run(tmp_path / ".hidden" / "run", rounds=1)
    (tmp_path / "empty").mkdir()
    assert keys(tmp_path) == [
        "a/local-seed0",
        "a/local-seed1",
        "a/fedproto-seed0",
        "a/fedproto-seed1",
        "b/deep/one",
    ]
    assert keys(tmp_path / "b" / "deep" / "one") == ["one"]


def test_what_a_comparison_has_not_begun_waits(tmp_path):
    compared = make_comparison(tmp_path / "c", ["local", "fedproto"], [0], rounds=1)
    shutil.move(compared / "fedproto-seed0", tmp_path / "aside")
    library = Library(compared)
    library.poll()
    assert [(k, s.state) for k, s in library.runs.items()] == [
        ("local-seed0", "finished"),
        ("fedproto-seed0", "waiting"),
    ]
    assert not library.poll()
    shutil.move(tmp_path / "aside", compared / "fedproto-seed0")
    assert library.poll()
    assert library.runs["fedproto-seed0"].state is State.FINISHED


@pytest.mark.parametrize("name", ["..", "../outside", "/etc", "a/b", "", 3])
def test_a_comparison_names_only_folders_of_its_own(tmp_path, name):
    root = tmp_path / "root"
    make_run(tmp_path / "outside", rounds=1)
    compared = make_comparison(root / "c", ["local"], [0], rounds=1)
    content = json.loads((compared / "comparison.json").read_text())
    content["runs"].append({"method": "fedproto", "seed": 0, "directory": name})
    (compared / "comparison.json").write_text(json.dumps(content))
    library = Library(root)
    library.poll()
    assert list(library.runs) == ["c", "c/local-seed0"]
    assert "is no folder of this comparison" in library.runs["c"].reason


def test_links_stay_inside(tmp_path):
    root = tmp_path / "root"
    make_run(tmp_path / "outside", rounds=1)
    make_run(root / "real", rounds=1)
    (root / "again").symlink_to(root / "real")
    (root / "loop").symlink_to(root)
    (root / "out").symlink_to(tmp_path / "outside")
    library = Library(root)
    library.poll()
    assert list(library.runs) == ["again", "out"]  # `real` is the same run as `again`
    assert library.runs["out"].state is State.DAMAGED
    assert "leads out of" in library.runs["out"].reason


def test_runs_appear_change_and_go(tmp_path):
    library = Library(tmp_path)
    assert not library.poll()
    make_run(tmp_path / "run", rounds=2, planned=4, finished=False)
    assert library.poll()
    assert not library.poll()
    with (tmp_path / "run" / "rounds.jsonl").open("a") as out:
        out.write(json.dumps({**json.loads(lines_of(tmp_path / "run")[-1]), "round": 3}) + "\n")
    assert library.poll()
    assert library.runs["run"].run.last_round == 3
    shutil.rmtree(tmp_path / "run")
    assert library.poll()
    assert library.runs == {}


def test_names_that_are_no_text_can_be_sent(tmp_path):
    os.mkdir(os.fsencode(tmp_path) + b"/bad\xff")
    make_run(tmp_path / os.fsdecode(b"bad\xff") / "run", rounds=1)
    (key,) = keys(tmp_path)
    assert key.encode()


def test_a_page_does_not_wait_for_hundreds_of_runs(tmp_path, monkeypatch):
    for number in range(6):
        make_run(tmp_path / f"run-{number}", seed=number, rounds=2)
    library = Library(tmp_path)
    monkeypatch.setattr(library_module, "READING_S", -1.0)
    library.refresh()
    assert library.runs == {}
    monkeypatch.setattr(library_module, "READING_S", 60.0)
    library.refresh()  # at once: the last one was not complete
    assert list(library.runs) == [f"run-{number}" for number in range(6)]
