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

from protofed.errors import CheckpointError, ConfigError
from protofed.runs.border import Border
from protofed.runs.loading import load_run
from protofed.runs.records import RoundRecord
from protofed.untrusted import limits
from protofed_lab.viewer import library as library_module
from protofed_lab.viewer.following import Follower, RoundsFile, State
from protofed_lab.viewer.library import Library, places
from rundirs import make_comparison, make_run


def follow(directory: Path) -> Follower:
    return Follower("run", directory, Border(directory.parent))


def lines_of(directory: Path) -> list[str]:
    return (directory / "rounds.jsonl").read_text().splitlines(keepends=True)


def record(number: int) -> dict:
    counts = {"up": 1, "down": 2}
    seconds = {"training": 0.1, "aggregation": 0.1, "evaluation": 0.1, "total": 0.3}
    rest = {"losses": {}, "bytes": counts, "parameters": counts, "seconds": seconds}
    return {"round": number, "participants": [], **rest, "refused": [], "diagnostics": {}}


@given(cuts=st.lists(st.integers(0, 4000), max_size=12), rounds=st.integers(0, 12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_written_in_any_pieces_gives_the_same_records(tmp_path, cuts, rounds):
    path = tmp_path / f"{time.monotonic_ns()}.jsonl"
    text = "".join(json.dumps(record(t)) + "\n" for t in range(1, rounds + 1)).encode()
    path.write_bytes(b"")
    file = RoundsFile(path, Border(tmp_path))
    file.poll()
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(text)], strict=True):
        with path.open("ab") as out:
            out.write(text[start:end])
        file.poll()
        written = text[: max(0, end)]
        whole = written.count(b"\n")
        # A last line that lacks nothing but its end may be taken already.
        assert whole <= len(file.records) <= whole + 1
    assert [r.round for r in file.in_order] == list(range(1, rounds + 1))


def test_only_new_lines_are_parsed(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", rounds=6, finished=False)
    parsed = []
    read = RoundRecord.from_dict
    monkeypatch.setattr(RoundRecord, "from_dict", lambda r, where: parsed.append(r["round"]) or read(r, where))
    file = RoundsFile(run / "rounds.jsonl", Border(tmp_path))
    assert file.poll()
    assert not file.poll()
    with file.path.open("a") as out:
        out.write(json.dumps(record(7)) + "\n")
    assert file.poll()
    assert parsed == [1, 2, 3, 4, 5, 6, 7]


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


def test_a_file_changed_in_place_is_read_from_its_beginning(tmp_path):
    run = make_run(tmp_path / "run", rounds=3, finished=False)
    follower = follow(run)
    follower.poll()
    with (run / "rounds.jsonl").open("r+b") as out:
        text = b"".join(json.dumps(record(t)).encode() + b"\n" for t in (1, 2, 3, 4, 5))
        out.write(text.ljust(os.path.getsize(out.name) + 1) + b"\n")
    follower.poll()
    assert follower.seen.run.last_round == 5
    assert follower.seen.run.sent()[5] == 15


def test_a_follower_and_a_reader_agree(tmp_path):
    run = make_run(tmp_path / "run", "protonorm", rounds=7)
    follower = follow(run)
    follower.poll()
    assert follower.seen.run == load_run(run)


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
    follower.poll(time.time() + 3000)
    assert follower.seen.state is State.RUNNING
    follower.poll(running=time.monotonic() + 1100)
    assert follower.seen.state is State.QUIET


@pytest.mark.parametrize("jump", [-86_400, 86_400])
def test_a_clock_that_is_set_changes_nothing(tmp_path, jump):
    """Silence is counted by a clock that nobody sets; the other one is looked at when files change."""
    run = make_run(tmp_path / "run", rounds=3, planned=9, finished=False)
    follower = follow(run)
    now, running = time.time(), time.monotonic()
    follower.poll(now, running)
    follower.poll(now + jump + 30, running + 30)
    assert follower.seen.state is State.RUNNING
    follower.poll(now + jump + 61, running + 61)
    assert follower.seen.state is State.QUIET


def test_files_from_the_future_are_new(tmp_path):
    run = make_run(tmp_path / "run", rounds=3, planned=9, finished=False)
    follower = follow(run)
    now, running = time.time() - 86_400, time.monotonic()
    follower.poll(now, running)
    assert follower.seen.state is State.RUNNING
    follower.poll(now, running + 61)
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
    "line 2: bytes.up: expected a whole number": damaged(lambda r: r.update(bytes={"up": None})),
    "line 2: accuracy.head.weighted: expected a number": damaged(
        lambda r: r["accuracy"]["head"].update(weighted="high")
    ),
    "line 2: losses.total: expected a number or none": damaged(lambda r: r["losses"].update(total=[])),
    "line 2: seconds lacks 'total'": damaged(lambda r: r.update(seconds={})),
    "line 2: participants: expected a list": damaged(lambda r: r.update(participants=3)),
    "line 2: diagnostics: expected a table": damaged(lambda r: r.update(diagnostics=[])),
    "line 2: refused[0] lacks 'client'": damaged(lambda r: r.update(refused=[{}])),
    "accuracies for 4 clients": damaged(
        lambda r: [a["clients"].pop() for a in r["accuracy"].values()] and r.update(round=99)
    ),
    "rounds.jsonl: line 1 is not": in_file("rounds.jsonl", '{"round": 1e999}\n{}\n'),
    "federation.json: expected a JSON object": in_file("federation.json", "[]"),
    "federation.json: clients[0].train: expected a list": in_file(
        "federation.json",
        json.dumps(
            {
                "class_names": ["a"],
                "clients": [{"name": "a", "architecture": "m", "parameters": 1, "d": 2, "train": "x", "test": [0]}],
            }
        ),
    ),
    "config.toml: not valid TOML": in_file("config.toml", "]["),
    "config.toml: seed: expected a whole number": in_file(
        "config.toml", 'seed = "seven"\n[method]\nname = "fedproto"\n'
    ),
    "summary.json: not valid JSON": in_file("summary.json", '{"a": NaN}'),
}


@pytest.mark.parametrize("reason", DAMAGE)
def test_damage_is_told_and_healed(tmp_path, reason):
    run = make_run(tmp_path / "run", rounds=4)
    whole = {p.name: p.read_bytes() for p in run.iterdir()}
    follower = follow(run)
    DAMAGE[reason](run)
    for _ in range(2):
        follower.poll()
        assert follower.seen.state is State.DAMAGED
        assert reason in follower.seen.reason
        assert "\n" not in follower.seen.reason
        assert follower.seen.version == 1
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


@pytest.mark.parametrize(
    "value",
    [None, 1, "x", [], {}, [[]], {"head": 1}, [1, "a"], 10**400, -1, True, {"up": True, "down": 1}, "\ud800"],
    ids=repr,
)
@pytest.mark.parametrize("part", ["round", "accuracy", "losses", "bytes", "seconds", "refused", "diagnostics"])
def test_no_value_in_a_record_makes_a_follower_fail(tmp_path, part, value):
    run = make_run(tmp_path / "run", rounds=2, clients=2)
    damaged(lambda r: r.update({part: value}))(run)
    follower = follow(run)
    follower.poll()
    assert follower.seen.state in (State.FINISHED, State.DAMAGED)


def test_what_is_no_file_and_what_leads_out_is_not_read(tmp_path):
    outside = make_run(tmp_path / "outside", rounds=2)
    root = tmp_path / "root"
    run = make_run(root / "run", rounds=2)
    (run / "rounds.jsonl").unlink()
    (run / "rounds.jsonl").symlink_to(outside / "rounds.jsonl")
    follower = Follower("run", run, Border(root))
    follower.poll()
    assert "rounds.jsonl: leads out of" in follower.seen.reason
    (run / "rounds.jsonl").unlink()
    os.mkfifo(run / "rounds.jsonl")  # reading it would wait for ever
    follower.poll()
    assert "rounds.jsonl: is no ordinary file" in follower.seen.reason


def test_a_huge_file_is_not_read(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", rounds=2)
    monkeypatch.setattr(limits, "RUN_FILE_BYTES", 100)
    follower = follow(run)
    follower.poll()
    assert "more than 100: it is not read" in follower.seen.reason


# Folders of runs.


def keys(root: Path) -> list[str]:
    return [p.key for p in places(root, Border(root))]


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
    assert not library.poll(look=True)
    shutil.move(tmp_path / "aside", compared / "fedproto-seed0")
    assert library.poll(look=True)
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
    assert library.poll(look=True)
    assert not library.poll(look=True)
    before = library.runs["run"]
    with (tmp_path / "run" / "rounds.jsonl").open("a") as out:
        out.write(json.dumps({**json.loads(lines_of(tmp_path / "run")[-1]), "round": 3}) + "\n")
    assert library.poll()
    assert library.runs["run"].version > before.version
    assert library.runs["run"].run.last_round == 3
    shutil.rmtree(tmp_path / "run")
    assert library.poll(look=True)
    assert library.runs == {}


def test_runs_are_told_apart_as_in_reports(tmp_path):
    make_run(tmp_path / "a", "fedproto", recipe="one", rounds=1)
    make_run(tmp_path / "b", "fedproto", recipe="two", rounds=1)
    library = Library(tmp_path)
    library.poll()
    assert [s.run.label for s in library.runs.values()] == ["fedproto, one", "fedproto, two"]
    shutil.rmtree(tmp_path / "b")
    assert library.poll(look=True)
    assert [s.run.label for s in library.runs.values()] == ["fedproto"]


def test_names_that_are_no_text_can_be_sent(tmp_path):
    os.mkdir(os.fsencode(tmp_path) + b"/bad\xff")
    make_run(tmp_path / os.fsdecode(b"bad\xff") / "run", rounds=1)
    (key,) = keys(tmp_path)
    assert key.encode()


@pytest.mark.parametrize(("make", "message"), [(False, "no such folder"), (True, "is a file")])
def test_there_must_be_a_folder(tmp_path, make, message):
    path = tmp_path / "nothing"
    if make:
        path.touch()
    with pytest.raises(ConfigError, match=message):
        Library(path)


def test_nothing_is_written(tmp_path):
    make_comparison(tmp_path / "c", ["local"], [0], rounds=2)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    Library(tmp_path).poll()
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


def test_a_signature_needs_a_readable_place(tmp_path):
    with pytest.raises(CheckpointError, match="is no ordinary file"):
        Border(tmp_path).signature(tmp_path)
    assert Border(tmp_path).signature(tmp_path / "absent") is None


def test_a_page_does_not_wait_for_hundreds_of_runs(tmp_path, monkeypatch):
    for number in range(6):
        make_run(tmp_path / f"run-{number}", seed=number, rounds=2)
    library = Library(tmp_path)
    library.poll(look=True, most_s=-1.0)
    assert library.runs == {}
    library.poll(look=True, first=["run-4", "no such run"], most_s=-1.0)
    assert list(library.runs) == ["run-4"]
    monkeypatch.setattr(library_module, "READING_S", -1.0)
    library.refresh()
    assert list(library.runs) == ["run-4"], "those that are known are followed whatever it takes"
    monkeypatch.setattr(library_module, "READING_S", 60.0)
    library.refresh()  # at once: the last one was not complete
    assert list(library.runs) == [f"run-{number}" for number in range(6)]
