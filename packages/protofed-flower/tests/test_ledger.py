"""What leaves a node is in its ledger first; changes of it are found, at its end by the server's record."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer import Exit

from network import FakeGrid, nodes_of, over, wanted
from protofed_flower import ledger
from protofed_flower.cli import ledger as command
from protofed_flower.ledger import RECEIVED, LedgerEntry, NodeLedger, compare, read_ledger
from support import one_line

VALUES = {"client": "ann", "losses": "{}", "seconds": 0.5, "message": b"\x01\x02"}
REQUEST = {"client": "ann", "run": "abc", "round": 3}


def entries(path: Path) -> list[LedgerEntry | str]:
    return [found for _, _, found in read_ledger(path)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two rounds over a network; the folders of its nodes, and its run directory."""
    from network import write_folders
    from support import ordinary

    folder = tmp_path_factory.mktemp("ledger")
    root = write_folders(folder / "data", ordinary())
    run = over(FakeGrid(nodes_of(root, folder / "state")), wanted("fedproto", root, rounds=2), folder / "run")
    return folder / "state", run


def test_every_message_of_a_run_is_there_in_words_and_exactly(finished):
    state, run = finished
    found = entries(state / "ann" / ledger.NAME)
    assert all(isinstance(entry, LedgerEntry) for entry in found)
    kinds = [entry.kind for entry in found]
    assert kinds[0] == "description"
    assert kinds.count("upload") == 2
    assert kinds.count("scores") == 2
    upload = next(entry for entry in found if entry.kind == "upload")
    assert "prototypes" in upload.content
    assert upload.round == 1
    assert upload.client == "ann"
    assert 0 < upload.bytes < run.rounds[0].bytes["up"] + 1000


def test_the_servers_record_is_what_left_the_nodes(finished):
    state, run = finished
    known = {}
    for name in ("ann", "bob", "cid"):
        if (path := state / name / ledger.NAME).is_file():
            known |= {digest: found for _, digest, found in read_ledger(path)}
    received = run.directory / RECEIVED
    assert not list(compare(known, received))
    assert len(received.read_text().splitlines()) == len(known)
    some = dict(list(known.items())[:-1])
    (problem,) = compare(some, received)
    assert "bytes were received that the ledger lacks" in problem
    (problem,) = compare({}, received)
    assert problem.startswith(f"none of the {len(known)} answers")


@pytest.mark.parametrize(
    ("change", "line", "problem"),
    [
        (lambda rows: [rows[0], rows[1].replace('"round": 3', '"round": 4'), *rows[2:]], 3, "does not follow"),
        (lambda rows: [rows[0], *rows[2:]], 2, "does not follow"),
        (lambda rows: [rows[1], rows[0], *rows[2:]], 1, "does not follow"),
        (lambda rows: [rows[0], "{}", *rows[2:]], 2, "is no entry"),
        (lambda rows: [*rows[:-1], rows[-1][:-20]], 4, "is no entry"),
    ],
    ids=["changed", "removed", "swapped", "emptied", "cut"],
)
def test_tampering_is_found(change, line, problem, tmp_path):
    path = tmp_path / "ledger.jsonl"
    for _ in range(4):
        NodeLedger(path).record(REQUEST, VALUES)
    rows = path.read_text().splitlines()
    path.write_text("\n".join(change(rows)) + "\n")
    wrong = [(number, found) for number, _, found in read_ledger(path) if isinstance(found, str)]
    assert wrong[0][0] == line
    assert problem in wrong[0][1]
    with pytest.raises(Exit) as end:
        command(path)
    assert end.value.exit_code == 1


def test_a_line_that_a_crash_cut_is_named_and_the_chain_goes_on(tmp_path, capsys):
    path = tmp_path / "ledger.jsonl"
    for _ in range(2):
        NodeLedger(path).record(REQUEST, VALUES)
    path.write_bytes(path.read_bytes()[:-30])
    NodeLedger(path).record(REQUEST, VALUES)
    first, cut, after = entries(path)
    assert isinstance(first, LedgerEntry)
    assert "is no entry" in cut
    assert isinstance(after, LedgerEntry)


def test_missing_last_lines_are_found_with_the_servers_record_only(tmp_path):
    path = tmp_path / "ledger.jsonl"
    receipts = ledger.Receipts(tmp_path)
    for _ in range(3):
        head = NodeLedger(path).record(REQUEST, VALUES)
        receipts.add(2**64 - 1, "ann", {**VALUES, "ledger": head, "version": "x"})
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    known = {digest: found for _, digest, found in read_ledger(path) if isinstance(found, LedgerEntry)}
    assert len(known) == 2
    assert len(list(compare(known, receipts.path))) == 1


@pytest.fixture
def cut_off(tmp_path):
    """The folder of a node with two clients, whose ledger had four answers; the server's record has them all."""
    path, receipts = tmp_path / "ledger.jsonl", ledger.Receipts(tmp_path)
    described = {"clients": json.dumps([{"name": "ann"}, {"name": "bob"}])}
    for client, values in [("", described), ("ann", VALUES), ("bob", {**VALUES, "client": "bob"}), ("ann", VALUES)]:
        head = NodeLedger(path).record({**REQUEST, "client": client}, values)
        receipts.add(7, client, {**values, "ledger": head})
        receipts.add(8, "cid", {**values, "ledger": "0" * 64})  # of another node
    return tmp_path


@pytest.mark.parametrize("left", [0, 1, 2, 3, 4])
def test_answers_of_clients_that_the_ledger_no_longer_names_are_missed(left, cut_off, capsys):
    path = cut_off / "ledger.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:left]))
    with pytest.raises(Exit) as end:
        command(path, cut_off)
    assert end.value.exit_code == (left < 4)
    assert capsys.readouterr().out.count("lacks") == (4 - left if left else 0)


@pytest.mark.parametrize("said", ["", "x", "\x1b[2J", 5, None])
def test_whatever_a_node_says_of_its_ledger_the_servers_record_can_be_read(said, tmp_path):
    receipts = ledger.Receipts(tmp_path)
    receipts.add(1, "ann", VALUES)
    receipts.add(2, "eve", {**VALUES, "ledger": said})
    assert [r.client for r in ledger.read_receipts(receipts.path)] == ["ann", "eve"]


def test_a_receipt_cut_short_goes_with_the_next_one(tmp_path):
    receipts = ledger.Receipts(tmp_path)
    for name in ("ann", "bob"):
        receipts.add(1, name, VALUES)
    receipts.path.write_bytes(receipts.path.read_bytes()[:-30])
    assert [r.client for r in ledger.read_receipts(receipts.path)] == ["ann"]
    receipts.add(1, "cid", VALUES)
    assert [r.client for r in ledger.read_receipts(receipts.path)] == ["ann", "cid"]


def _write(path: Path) -> None:
    for _ in range(20):
        NodeLedger(path).record(REQUEST, VALUES)


def test_processes_of_a_node_write_one_chain(tmp_path):
    path = tmp_path / "ledger.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(path,)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(entries(path)) == 60
    assert all(isinstance(found, LedgerEntry) for found in entries(path))


def test_nothing_leaves_that_cannot_be_entered(tmp_path):
    from network import write_folders
    from support import ordinary

    root = write_folders(tmp_path / "data", ordinary())
    nodes = nodes_of(root, tmp_path / "state")
    (tmp_path / "file").write_text("")
    nodes[101]["ledger"] = str(tmp_path / "file" / "ledger.jsonl")
    run = over(FakeGrid(nodes), wanted("fedproto", root, rounds=1), tmp_path / "run", clients=2)
    (left_out,) = json.loads((run.directory / "federation.json").read_text())["left_out"]
    assert "it cannot write what it must keep" in left_out["reason"]
    assert "\n" not in left_out["reason"]


def test_a_ledger_is_for_its_owner_and_errors_are_one_line(tmp_path, capsys):
    path = tmp_path / "state" / "ledger.jsonl"
    NodeLedger(path).record(REQUEST, {"error": "a\nb" * 1000, "client": "x\x1b[31m"})
    assert path.stat().st_mode & 0o077 == 0
    (found,) = entries(path)
    assert isinstance(found, LedgerEntry)
    assert found.kind == "error"
    path.write_bytes(b"x" * (ledger.LINE + 10))
    with one_line(Exception, "is longer than"):
        list(read_ledger(path))


def test_the_command_prints_each_message_and_the_verdict(finished, capsys):
    state, run = finished
    with pytest.raises(Exit) as end:
        command(state / "ann", run.directory)
    out = capsys.readouterr().out
    assert end.value.exit_code == 0
    assert "upload of classes 3, prototypes 3×5" in out
    assert "the chain holds, and has all that the server received" in out


@pytest.fixture(scope="module")
def three_lines(tmp_path_factory):
    path = tmp_path_factory.mktemp("lines") / "ledger.jsonl"
    for _ in range(3):
        NodeLedger(path).record(REQUEST, VALUES)
    return path.read_bytes()


@given(place=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
def test_any_changed_byte_of_an_earlier_line_is_found(place, byte, three_lines, tmp_path_factory):
    earlier = three_lines.rstrip(b"\n").rfind(b"\n") + 1
    at = int(place * earlier)
    path = tmp_path_factory.getbasetemp() / "changed.jsonl"
    path.write_bytes(three_lines[:at] + bytes([byte]) + three_lines[at + 1 :])
    wrong = [found for found in entries(path) if isinstance(found, str)]
    assert bool(wrong) == (three_lines[at] != byte)
    assert all("\n" not in text and len(text) < 400 for text in wrong)
