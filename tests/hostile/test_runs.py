"""Run directories that somebody prepared: refused in one line, at once, and other runs go on being shown."""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save, save_file
from typer.testing import CliRunner

from hostile.bounds import bounded, refused
from protofed.analysis import load_run, load_runs, write_report
from protofed.analysis.restore import restore_features
from protofed.cli.main import app
from protofed.errors import CheckpointError, DataError
from protofed.rounds.checkpoint import load_checkpoint
from protofed.rounds.state import ServerState
from protofed.storage.files import read_tensors
from protofed_lab.viewer.library import Library, State
from rundirs import make_comparison, make_run
from support import few

Damage = Callable[[Path], object]


def text(name: str, content: str | bytes) -> Damage:
    return lambda run: (run / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def replaced(name: str, by: Callable[[Path], object]) -> Damage:
    def damage(run: Path) -> None:
        (run / name).unlink()
        by(run / name)

    return damage


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 * 10**9)


def in_json(name: str, change: Callable[[Any], object]) -> Damage:
    def damage(run: Path) -> None:
        content = json.loads((run / name).read_text())
        change(content)
        (run / name).write_text(json.dumps(content))

    return damage


def in_round(change: Callable[[Any], object]) -> Damage:
    def damage(run: Path) -> None:
        lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
        change(lines[1])
        (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    return damage


def put(*path: Any, value: Any) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        for step in path[:-1]:
            content = content[step]
        content[path[-1]] = value

    return change


NO_FILES: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link out": lambda path: path.symlink_to("/etc/passwd"),
    "10 GB": sparse,
}

DAMAGE: dict[str, Damage] = {
    **{
        f"{name}: {kind}": replaced(name, by)
        for name in ("rounds.jsonl", "config.toml", "federation.json", "summary.json")
        for kind, by in NO_FILES.items()
    },
    "rounds.jsonl: one line without end": text("rounds.jsonl", b'{"round": ' + b"1" * (17 * 2**20)),
    "rounds.jsonl: nested": text("rounds.jsonl", '{"round": ' + "[" * 10**5 + "\n{}\n"),
    "rounds.jsonl: no number": text("rounds.jsonl", '{"round": NaN}\n{}\n'),
    "rounds.jsonl: too large a number": in_round(put("diagnostics", value={"x": 10**400})),
    "rounds.jsonl: infinite": lambda run: text(
        "rounds.jsonl",
        (run / "rounds.jsonl").read_text().replace('"diagnostics": {}', '"diagnostics": {"x": 1e999}'),
    )(run),
    "rounds.jsonl: round 2**62": in_round(put("round", value=2**62)),
    "rounds.jsonl: refused": in_round(put("refused", value=[{"client": [], "field": {}, "reason": 1}])),
    "rounds.jsonl: fewer rules": in_round(lambda r: r["accuracy"].pop("head")),
    "config.toml: seed": text("config.toml", 'seed = "x"\n[method]\nname = "fedproto"'),
    "config.toml: a huge seed": text("config.toml", f"seed = {10**4000}\n[method]\nname = 'fedproto'"),
    "config.toml: nested": text("config.toml", ".".join("a" * 3000) + ' = 1\n[method]\nname = "fedproto"'),
    "config.toml: method": text("config.toml", "method = 3"),
    "config.toml: recipe": text("config.toml", 'recipe = "a\\u001b[2J"\n[method]\nname = "fedproto"'),
    "federation.json: client name": in_json("federation.json", put("clients", 0, "name", value=["a"])),
    "federation.json: two lines": in_json("federation.json", put("clients", 0, "name", value="a\nb")),
    "federation.json: twins": in_json("federation.json", put("clients", 0, "name", value="client_01")),
    "federation.json: huge count": in_json("federation.json", put("clients", 0, "parameters", value=2**60)),
    "federation.json: long class name": in_json("federation.json", put("class_names", 0, value="a" * 10**6)),
    "summary.json: environment": in_json("summary.json", put("environment", value=[1])),
    "summary.json: list": text("summary.json", "[]"),
}


@few("name", DAMAGE, 18)
def test_a_prepared_run(tmp_path, name):
    """One line that names the file, from the library and the pages; the run beside it is shown all the same."""
    good, bad = make_run(tmp_path / "good", seed=1), make_run(tmp_path / "bad")
    DAMAGE[name](bad)
    file = name.split(":")[0]
    with bounded():
        assert f"bad/{file}: " in refused(lambda: load_run(bad), CheckpointError)
        refused(lambda: load_runs([tmp_path]), CheckpointError)
        left_out: list[CheckpointError] = []
        assert [run.directory for run in load_runs([tmp_path], left_out)] == [good]
        assert [f"bad/{file}: " in str(error) for error in left_out] == [True]
        library = Library(tmp_path)
        library.poll()
    assert {key: seen.state for key, seen in library.runs.items()} == {"bad": State.DAMAGED, "good": State.FINISHED}
    assert f"bad/{file}: " in library.runs["bad"].reason


def test_a_report_names_what_it_leaves_out(tmp_path):
    make_run(tmp_path / "good", rounds=2, clients=2)
    make_run(tmp_path / "<bad>")
    (tmp_path / "<bad>" / "rounds.jsonl").unlink()
    os.mkfifo(tmp_path / "<bad>" / "rounds.jsonl")
    with bounded(60):
        result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "<bad>/rounds.jsonl: is no ordinary file" in result.output
    page = (tmp_path / "report.html").read_text()
    assert "Left out" in page
    assert "&lt;bad&gt;/rounds.jsonl" in page
    assert "<bad>" not in page
    assert "rounds.jsonl" in refused(
        lambda: write_report([tmp_path / "<bad>"], tmp_path / "x.html"), CheckpointError
    )
    assert not (tmp_path / "x.html").exists()


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&{{7*7}}${7*7}"


def test_names_are_text_in_reports(tmp_path):
    run = make_run(tmp_path / "run", "fedproto", rounds=3, clients=2, class_names=[EVIL, f"$\\frac{EVIL}", "$$"])
    in_json("federation.json", put("clients", 0, "name", value=EVIL))(run)
    in_json("federation.json", put("clients", 0, "architecture", value=EVIL))(run)
    in_json("federation.json", put("notes", value=[EVIL]))(run)
    in_json("summary.json", put("environment", value={EVIL: EVIL}))(run)
    in_json("summary.json", put("label", value=EVIL))(run)
    in_round(put("refused", value=[{"client": EVIL, "field": EVIL, "reason": EVIL}]))(run)
    in_round(put("losses", value={EVIL: 1.0}))(run)
    in_round(put("diagnostics", value={EVIL: 1.0}))(run)
    (run / "config.toml").write_text((run / "config.toml").read_text().replace("fake-images", "<script>alert(2)"))
    page = write_report([run], tmp_path / "report.html").read_text()
    for tag in ("script", "img"):
        assert not re.search(rf"<\s*{tag}", page)
    assert "onerror=alert(1)&gt;" in page
    assert "{{7*7}}${7*7}" in page


def test_comparisons_name_folders_of_their_own(tmp_path):
    make_run(tmp_path / "outside")
    path = make_comparison(tmp_path / "runs" / "c", ["fedproto"], [0], rounds=2)
    for name in ("../../outside", "/etc", "..", "", "a/../../../outside", "a\0b", 3, None, ["a"]):
        (path / "comparison.json").write_text(json.dumps({"runs": [{"method": "a", "directory": name}]}))
        message = refused(lambda: load_runs([tmp_path / "runs"]), CheckpointError)
        assert "is no folder of this comparison" in message


def test_links_out_and_links_in_circles(tmp_path):
    make_run(tmp_path / "outside")
    make_run(tmp_path / "runs" / "good", rounds=2)
    (tmp_path / "runs" / "out").symlink_to(tmp_path / "outside")
    (tmp_path / "runs" / "circle").symlink_to(tmp_path / "runs")
    deep = tmp_path / "runs"
    for _ in range(40):
        deep /= "d"
    make_run(deep)
    with bounded():
        left_out: list[CheckpointError] = []
        assert [run.directory.name for run in load_runs([tmp_path / "runs"], left_out)] == ["good"]
        library = Library(tmp_path / "runs")
        library.poll()
    assert ["leads out of" in str(error) for error in left_out] == [True]
    assert {key for key, seen in library.runs.items() if seen.run is not None} == {"good"}


def header(content: dict[str, Any] | bytes, length: int | None = None) -> bytes:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw


TENSORS: dict[str, bytes] = {
    "nothing": b"",
    "endless header": header(b"{}", 2**63),
    "long header": header(b" " * 17 * 2**20),
    "huge shape": header({"a": {"dtype": "F32", "shape": [2**40, 2**20], "data_offsets": [0, 2**62]}}),
    "shape beyond 64 bits": header({"a": {"dtype": "F32", "shape": [2**63, 4], "data_offsets": [0, 16]}})
    + bytes(16),
    "other size": header({"a": {"dtype": "F32", "shape": [8], "data_offsets": [0, 16]}}) + bytes(16),
    "offsets": header({"a": {"dtype": "F32", "shape": [4], "data_offsets": [16, 0]}}) + bytes(16),
    "nested": header(b"[" * 10**5),
}


@pytest.mark.parametrize("name", TENSORS)
def test_prepared_tensors(tmp_path, name):
    run = load_run(make_run(tmp_path / "run", rounds=2))
    path = run.directory / "prototypes.safetensors"
    path.write_bytes(TENSORS[name])
    with bounded():
        assert "prototypes.safetensors: cannot be read" in refused(lambda: read_tensors(path), CheckpointError)


def test_tensors_that_are_no_file(tmp_path):
    for kind in ("pipe", "folder", "device"):
        NO_FILES[kind](tmp_path / kind)
        with bounded():
            refused(lambda path=tmp_path / kind: read_tensors(path), CheckpointError)


class Clients(dict[str, Any]):
    rests_here = True

    def replace(self, name: str, snapshot: object) -> None:
        self[name] = snapshot


def record(header: object) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + bytes(8)


STATE = {
    "version": 3,
    "round": 3,
    "clients": ["ann"],
    "refusals": {"damaged": {}, "diverged": {}, "last": {}, "misled": []},
    "generations": {},
    "records": {"ann": [[0, 80], [80, 72]]},
}
STATES: dict[str, tuple[object, str]] = {
    "upwards": ({**STATE, "clients": ["../../ann"]}, "written for other clients"),
    "a list": ([], "not a JSON object"),
    "round of another kind": ({**STATE, "round": "3"}, "round: expected a whole number, not '3'"),
    "another round": ({**STATE, "round": 2**62}, "round: must be from 0"),
    "no version": ({"round": 3, "clients": ["ann"]}, "written in format 1"),
    "generations of others": ({**STATE, "generations": {"eve": "x"}}, "which states its clients had"),
}


def refused_checkpoint(place: Path, records: bytes, state: object) -> str:
    """Return the error of a checkpoint with such files."""
    folder = place / "checkpoint" / "round-000003"
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"a": torch.ones(1)}, folder / "server.safetensors")
    (folder / "clients.records").write_bytes(records)
    (folder / "state.json").write_text(json.dumps(state))
    return refused(lambda: load_checkpoint(folder.parent, ServerState(), Clients(ann=None)), CheckpointError)


@pytest.mark.parametrize("name", STATES)
def test_prepared_checkpoints(tmp_path, name):
    (content, said), records = STATES[name], 2 * save({"elsewhere.a": torch.ones(1)})
    assert said in refused_checkpoint(tmp_path, records, content)
    assert "clients.records: ann cannot be read" in refused_checkpoint(tmp_path, records, STATE)


HEADER = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
RECORDS: dict[str, tuple[object, bytes]] = {
    "nowhere": (None, b""),
    "of another client": ({"eve": [[0, 8], [0, 8]]}, b""),
    "beyond the end": ({"ann": [[0, 8], [2**62, 8]]}, b""),
    "before the start": ({"ann": [[-8, 8], [0, 8]]}, b""),
    "of endless length": ({"ann": [[0, 2**62], [0, 8]]}, b""),
    "a long header": ({}, (2**63).to_bytes(8, "little")),
    "not JSON": ({}, record(b"{" * 64)),
    "deep": ({}, record(b"[" * 10**6)),
    "another type": ({}, record({"a": {**HEADER["a"], "dtype": "F128"}})),
    "no shape": ({}, record({"a": {"dtype": "F32", "data_offsets": [0, 8]}})),
    "a negative side": ({}, record({"a": {**HEADER["a"], "shape": [-2]}})),
    "a huge side": ({}, record({"a": {**HEADER["a"], "shape": [2**62, 2**62]}})),
    "more than there is": ({}, record(HEADER)[:-4]),
    "overlapping": ({}, record({**HEADER, "b": HEADER["a"]})),
    "with a gap": ({}, record({"a": {**HEADER["a"], "data_offsets": [8, 16]}})),
}


@pytest.mark.parametrize("name", RECORDS)
def test_prepared_records_of_a_checkpoint(tmp_path, name):
    places, data = RECORDS[name]
    data = data or record(HEADER)
    places = {"ann": [[0, len(data)]] * 2} if places == {} else places
    refused_checkpoint(tmp_path, data, {**STATE, "records": places})


def test_links_are_no_checkpoints(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "round-000009").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "checkpoint" / "round-x").mkdir()
    os.mkfifo(tmp_path / "checkpoint" / "round-000010")
    assert not load_checkpoint(tmp_path / "checkpoint", ServerState(), Clients(ann=None))


@pytest.mark.parametrize(
    "addition",
    [
        '[model]\nname = "os:abort"',
        '[model]\nshared = "os:abort"',
        '[[model.members]]\nname = "os:abort"',
        "[data]\ntrust_code = true",
    ],
)
def test_pictures_of_features_import_no_code(tmp_path, addition):
    run = make_run(tmp_path / "run", rounds=2)
    (run / "clients").mkdir()
    config = re.sub(r"\[data\][^\[]*", "", (run / "config.toml").read_text())
    (run / "config.toml").write_text(f"{config}\n{addition}\n")
    assert "(--trust-code) if you trust this folder" in refused(lambda: restore_features(load_run(run)), DataError)
