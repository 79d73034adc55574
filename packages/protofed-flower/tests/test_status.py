"""The state of a run at the server and of a node."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta

import pytest
from typer import Exit

from network import FakeGrid, nodes_of, over, wanted, write_folders
from protofed.errors import ConfigError
from protofed.experiments.rundir import RunDirectory
from protofed_flower import cli
from protofed_flower.ledger import NAME, NodeLedger
from protofed_flower.server_app import _interrupted_first
from protofed_flower.status import status
from support import ordinary


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The state of the nodes of a run of two rounds, of which one refused, and the run's directory."""
    folder = tmp_path_factory.mktemp("status")
    root = write_folders(folder / "data", ordinary())
    nodes = nodes_of(root, folder / "state")
    nodes[103] |= {"privacy": "sample", "epsilon": 1.0}
    run = over(FakeGrid(nodes), wanted("fedproto", root, rounds=2), folder / "run", clients=2)
    return folder / "state", run.directory


def test_the_server_tells_of_rounds_of_clients_and_of_those_left_out(finished):
    found = status(finished[1])
    assert found.healthy
    assert any(line.startswith("fedproto: round 2 of 2, finished") for line in found.lines)
    assert any("left out: node 103" in line and "refused, privacy.mode: " in line for line in found.lines)


def test_a_node_tells_of_what_it_sent_and_of_its_last_error(finished):
    (sent,) = (line for line in status(finished[0] / "ann").lines if line.startswith("ann: round 2, last message"))
    assert " in all" in sent
    refused = status(finished[0] / "cid")
    assert not refused.healthy
    assert any("last error" in line and "privacy.mode" in line for line in refused.lines)


def test_a_run_that_is_silent_for_long_is_not_healthy_unless_it_has_finished(finished, tmp_path):
    later = datetime.now(UTC) + timedelta(days=1)
    assert status(finished[1], later).healthy
    for name in ("config.toml", "federation.json", "rounds.jsonl", "received.jsonl"):
        (tmp_path / name).write_bytes((finished[1] / name).read_bytes())
    config = tmp_path / "config.toml"
    config.write_text(config.read_text().replace("rounds = 2\n", "rounds = 9\n", 1))
    with RunDirectory(tmp_path).alone():
        assert status(tmp_path).healthy
        silent = status(tmp_path, later)
        assert not silent.healthy
        assert "quiet: its nodes or the network may be gone" in silent.lines[0]
    stopped = status(tmp_path)  # nobody has had to wait: the process that ran it is gone
    assert not stopped.healthy
    assert "round 2 of 9, stopped: no process runs it" in stopped.lines[0]
    (tmp_path / "rounds.jsonl").unlink()
    assert not status(tmp_path).healthy
    with RunDirectory(tmp_path).alone():
        assert status(tmp_path).healthy
        assert status(tmp_path).lines[0] == "no round is complete yet"


def interrupted(folder):
    with _interrupted_first(), RunDirectory(folder).alone():
        assert RunDirectory(folder).in_use
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_frees_the_run_directory_before_flower_handles_it(tmp_path, monkeypatch):
    handled = []
    before = signal.signal(signal.SIGINT, lambda number, frame: handled.append(RunDirectory(tmp_path).in_use))
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted(tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    assert handled == [False]


def test_a_damaged_ledger_is_not_healthy(tmp_path):
    path = tmp_path / NAME
    NodeLedger(path).record({"client": "ann"}, {"client": "ann", "losses": "{}", "seconds": 0.1})
    assert status(tmp_path).healthy
    path.write_text("{}\n")
    assert not status(tmp_path).healthy


def test_the_command_ends_with_the_state(finished, tmp_path, capsys):
    with pytest.raises(Exit) as end:
        cli.status(finished[1])
    assert end.value.exit_code == 0
    assert capsys.readouterr().out.endswith("healthy\n")
    with pytest.raises(Exit) as end:
        cli.status(finished[0] / "cid")
    assert end.value.exit_code == 1
    with pytest.raises(ConfigError, match="neither a run directory of a server nor the state-dir of a node"):
        cli.status(tmp_path)
