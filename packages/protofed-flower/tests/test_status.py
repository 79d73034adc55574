"""The state of a run at the server and of a node, as text, JSON and for Prometheus; and log lines as JSON."""

from __future__ import annotations

import json
import logging
import signal
import threading
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer import Exit

from network import FakeGrid, nodes_of, over, wanted, write_folders
from protofed.errors import ConfigError
from protofed.experiments.rundir import RunDirectory
from protofed_flower import cli
from protofed_flower.ledger import NAME, NodeLedger
from protofed_flower.logs import VARIABLE, JsonLine, format_as_asked
from protofed_flower.server_app import _interrupted_first
from protofed_flower.status import metrics, server, status
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


def numbers(page: bytes) -> dict[str, float]:
    return {
        f"{sample.name}{''.join(sorted(sample.labels.values()))}": sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def test_the_server_tells_of_rounds_of_clients_and_of_those_left_out(finished):
    found = status(finished[1])
    assert found.healthy
    assert any(line.startswith("fedproto: round 2 of 2, finished") for line in found.lines)
    assert any("left out: node 103" in line and "refused, privacy.mode: " in line for line in found.lines)
    shown = numbers(metrics(found))
    assert shown["protofed_server_rounds_completed"] == 2
    assert shown["protofed_server_clients"] == 2
    assert shown["protofed_server_clients_left_out"] == 1
    assert shown["protofed_server_healthy"] == 1
    assert shown["protofed_server_last_message_age_secondsann"] >= 0


def test_a_node_tells_of_what_it_sent_and_of_its_last_error(finished):
    shown = numbers(metrics(status(finished[0] / "ann")))
    assert shown["protofed_node_messagesannupload"] == 2
    assert shown["protofed_node_sent_bytesann"] > 500
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


def test_it_is_served_and_a_probe_sees_a_damaged_ledger(tmp_path):
    path = tmp_path / NAME
    NodeLedger(path).record({"client": "ann"}, {"client": "ann", "losses": "{}", "seconds": 0.1})
    pages = server(tmp_path, "127.0.0.1", 0)
    thread = threading.Thread(target=pages.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{pages.server_address[1]}"
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
            assert (answer.status, answer.read()) == (200, b"ok\n")
        with urllib.request.urlopen(f"{address}/metrics", timeout=5) as answer:
            assert numbers(answer.read())["protofed_node_healthy"] == 1
        with urllib.request.urlopen(f"{address}/status", timeout=5) as answer:
            assert json.loads(answer.read())["side"] == "node"
        path.write_text("{}\n")
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"{address}/health", timeout=5)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{address}/../../etc/passwd", timeout=5)
        with pytest.raises(ConfigError, match="cannot be served"):
            server(tmp_path, "127.0.0.1", pages.server_address[1])
    finally:
        pages.shutdown()
        pages.server_close()


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


def test_log_lines_are_json_if_the_environment_says_so(monkeypatch, capsys):
    own = logging.getLogger("protofed")
    monkeypatch.setattr(own, "handlers", [])
    monkeypatch.setattr(logging.getLogger("flwr"), "handlers", [])
    monkeypatch.setenv(VARIABLE, "json")
    format_as_asked()
    own.warning("left out: %s\nwith a line end", "ann")
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    found = json.loads(line)
    assert (found["level"], found["logger"], found["message"][:13]) == ("warning", "protofed", "left out: ann")
    assert datetime.fromisoformat(found["time"]).tzinfo is not None
    monkeypatch.setenv(VARIABLE, "xml")
    with pytest.raises(ConfigError, match="must be text or json"):
        format_as_asked()
    try:
        raise ValueError("inside")
    except ValueError:
        import sys

        record = logging.LogRecord("protofed", 40, "", 1, "failed", None, sys.exc_info())
    assert "inside" in json.loads(JsonLine().format(record))["error"]
