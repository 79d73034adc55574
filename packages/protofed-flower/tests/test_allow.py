"""A node does only what its node.toml allows; all else is refused in one line and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from network import FakeGrid, nodes_of, over, wanted
from protofed.errors import ConfigError
from protofed_flower.allow import SENT, Allowed
from protofed_flower.ledger import NAME
from protofed_flower.policy import Policy
from protofed_flower.settings import node_settings
from support import few, one_line


def configured(root: Path, folder: Path, allow: str) -> dict[int, dict]:
    """Return nodes of which the first is configured by a file."""
    nodes = nodes_of(root, folder / "state")
    first = nodes[101]
    lines = [f"{name} = {json.dumps(value)}" for name, value in first.items()]
    (folder / "node.toml").write_text("\n".join([*lines, "[allow]", allow]))
    nodes[101] = {"config": str(folder / "node.toml")}
    return nodes


OWN = 'models = ["mlp", "cnn2", "linear", "tiny"]'


def test_a_run_that_is_allowed_gives_the_numbers_that_it_gives_anywhere(root, tmp_path):
    chosen = wanted("fedproto", root, rounds=2)
    allow = f'methods = ["fedproto"]\nmodels = ["{chosen.model.name}"]\nrounds = 2\nbytes = 1_000_000'
    run = over(FakeGrid(configured(root, tmp_path, allow)), chosen, tmp_path / "run")
    assert not any(record.missing for record in run.rounds)
    plain = over(FakeGrid(nodes_of(root, tmp_path / "other")), chosen, tmp_path / "plain")
    assert [r.accuracy for r in run.rounds] == [r.accuracy for r in plain.rounds]


@few(
    ("allow", "options", "reason"),
    [
        ('methods = ["fedlda"]', {}, "method.name=fedproto, but this node allows fedlda (allow.methods"),
        ('methods = ["fedproto"]\nrounds = 1', {}, "rounds=2, but this node allows at most 1"),
        ('methods = ["fedproto"]', {"wire__codec": "int8"}, "wire.codec=int8, but this node allows float32"),
        (
            'methods = ["fedproto"]\noptions = { "training.batch_size" = [64, 128] }',
            {},
            "but this node allows 64 or 128 (allow.options.",
        ),
        ("methods = []", {}, "[allow] allows nothing: name methods"),
        ("", {}, "lacks 'methods'"),
        ('method = ["fedproto"]', {}, "did you mean 'methods'"),
        ('methods = "fedproto"', {}, "methods: expected a list"),
    ],
    2,
)
def test_what_is_not_allowed_is_refused_in_one_line(allow, options, reason, root, tmp_path, caplog):
    nodes = configured(root, tmp_path, allow)
    run = over(FakeGrid(nodes), wanted("fedproto", root, rounds=2, **options), tmp_path / "run", clients=2)
    (left_out,) = json.loads((run.directory / "federation.json").read_text())["left_out"]
    assert reason in caplog.text, "the sentence stays in the node's log"
    assert left_out["reason"].startswith("node: refused, ")
    assert "\n" not in left_out["reason"]
    assert len(run.rounds) == 2
    assert not (tmp_path / "state" / "ann" / "ann").exists()


def test_an_architecture_that_is_not_allowed_is_not_built(root, tmp_path, caplog):
    nodes = configured(root, tmp_path, 'methods = ["fedproto"]\nmodels = ["lenet5"]')
    run = over(FakeGrid(nodes), wanted("fedproto", root, rounds=2), tmp_path / "run")
    for record in run.rounds:
        missing = record.missing[0]
        assert {missing.client for missing in record.missing} == {"ann"}
        assert "refused, model.name: has a value that [allow] in its node.toml lacks" in missing.reason
    assert "but this node allows lenet5 (allow.models in its node.toml)" in caplog.text
    assert not (tmp_path / "state" / "ann" / "ann").exists()


def test_uploads_beyond_the_bytes_allowed_do_not_leave(root, tmp_path):
    chosen = wanted("fedproto", root, rounds=3)
    run = over(FakeGrid(nodes_of(root, tmp_path / "other")), chosen, tmp_path / "plain")
    sent = run.rounds[0].bytes["up"]
    allow = f'methods = ["fedproto"]\nmodels = ["{chosen.model.name}"]\nbytes = {sent // 2}'
    run = over(FakeGrid(configured(root, tmp_path, allow)), chosen, tmp_path / "run")
    assert "ann" not in [missing.client for missing in run.rounds[0].missing]
    assert "ann" in [missing.client for missing in run.rounds[-1].missing]
    assert "more bytes than allow.bytes in its node.toml has" in run.rounds[-1].missing[0].reason
    ledger = (tmp_path / "state" / "ann" / NAME).read_text()
    assert (
        sum(entry["bytes"] for entry in map(json.loads, ledger.splitlines()) if "upload of" in entry["content"]) > 0
    )


def test_bytes_are_counted_over_a_run():
    allowed = Allowed(("fedproto",), bytes=10)
    notes: dict = {}
    allowed.count(notes, "ann", 8)
    allowed.count(notes, "ann", 0)
    assert notes == {SENT: [8]}
    with pytest.raises(ConfigError, match="would be 11 bytes, but this node allows 10"):
        allowed.count(notes, "ann", 3)
    assert notes == {SENT: [8]}


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        ("client-dri = 'x'", {}, "client-dri.*did you mean 'client-dir'"),
        ("client-dir = ", {}, "not valid TOML"),
        ("device = 'cpu'", {"device": "cuda"}, "device stands in --node-config as well"),
        ("epsilon = 1.0\n[allow]\nepsilon = 2.0", {}, "epsilon stands outside"),
    ],
)
def test_a_file_that_is_wrong_is_named_in_one_line(text, given, message, tmp_path):
    (tmp_path / "node.toml").write_text(text)
    with one_line(ConfigError, message, says="node.toml"):
        node_settings({"config": str(tmp_path / "node.toml"), **given})


def test_a_file_gives_paths_relative_to_itself_and_its_epsilon_needs_noise(tmp_path):
    (tmp_path / "node.toml").write_text("client-dir = 'data'\n[allow]\nmethods = ['fedavg']\nepsilon = 8.0")
    found = node_settings({"config": str(tmp_path / "node.toml"), "device": "cpu"})
    assert found["client-dir"] == str(tmp_path / "data")
    assert found["device"] == "cpu"
    policy = Policy.of(found)
    assert (policy.mode, policy.epsilon) == ("sample", 8.0)
    assert policy.allowed == Allowed(("fedavg",))
    with pytest.raises(ConfigError, match="cannot be read"):
        node_settings({"config": str(tmp_path / "none.toml")})


def test_a_server_of_another_version_is_named_on_both_sides(root, tmp_path, monkeypatch, caplog):
    from protofed_flower import client_app

    monkeypatch.setattr(client_app, "__version__", "9.9.9")
    with pytest.raises(Exception, match=r"runs protofed 9\.9\.9, this server .*: install one version on both"):
        over(FakeGrid(nodes_of(root, tmp_path / "state")), wanted("fedproto", root), tmp_path / "run")
    assert "this node 9.9.9" in caplog.text


def test_a_node_that_reads_another_configuration_is_left_out_and_a_wrong_clock_is_named(root, tmp_path, caplog):
    def tamper(node, message, reply):
        values = reply.content["protofed"]
        if node == 101 and "clients" in values:
            values["config"] = "0" * 64
        if node == 102 and "clients" in values:
            values["time"] -= 86_400.0
        return reply

    grid = FakeGrid(nodes_of(root, tmp_path / "state"), tamper)
    run = over(grid, wanted("fedproto", root, rounds=1), tmp_path / "run", clients=2)
    (left_out,) = json.loads((run.directory / "federation.json").read_text())["left_out"]
    assert "the node reads another configuration (hash 000000000000, here " in left_out["reason"]
    assert "node 102: its clock is 24 h behind this server's" in caplog.text
