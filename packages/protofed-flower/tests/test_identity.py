"""A name belongs to the key that brought it, or to the one that the operator's file names."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from network import FakeGrid, apart, dying, nodes_of, over, wanted, write_folders
from protofed.errors import ConfigError
from protofed.untrusted import claims, limits
from protofed_flower.identity import Bindings, fingerprint, read_roster
from protofed_flower.nodes import RECORD
from support import client, federated, one_line, ordinary


def public_key(form: str = "PEM") -> bytes:
    return encoded(ec.generate_private_key(ec.SECP384R1()).public_key(), form)


def encoded(key, form: str) -> bytes:
    formats = serialization.PublicFormat
    if form == "PEM":
        return key.public_bytes(serialization.Encoding.PEM, formats.SubjectPublicKeyInfo)
    return key.public_bytes(serialization.Encoding.OpenSSH, formats.OpenSSH)


KEYS = {number: public_key() for number in range(101, 106)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_folders(tmp_path / "data", federated(*ordinary().clients, client("zoe", [0, 1, 2, 3])))


def left_out(run) -> list[dict[str, str]]:
    return json.loads((run.directory / "federation.json").read_text()).get("left_out", [])


def test_a_fingerprint_is_what_ssh_prints(tmp_path):
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    (tmp_path / "node.pub").write_bytes(encoded(key, "ssh") + b" node\n")
    printed = subprocess.run(["ssh-keygen", "-lf", tmp_path / "node.pub"], capture_output=True, text=True)
    found = fingerprint(encoded(key, "PEM"))
    assert found == fingerprint(encoded(key, "ssh") + b" node\n")
    assert found.startswith("SHA256:")
    if printed.returncode == 0:
        assert found in printed.stdout
    assert fingerprint(b"") == fingerprint(b"nothing") == fingerprint(b"-----BEGIN PUBLIC KEY-----\n") == ""


def test_an_impostor_is_refused_and_the_real_one_kept_also_across_a_resume(root, tmp_path):
    nodes = nodes_of(root, tmp_path / "state")

    def second(node, message):
        return message.metadata.message_type == "train" and message.content[RECORD]["round"] == 2

    real = {n: nodes[n] for n in (101, 102, 103)}
    grid = FakeGrid(real, dying(second), KEYS)
    chosen = apart("fedproto", root)
    with pytest.raises(KeyboardInterrupt):
        over(grid, chosen, tmp_path / "run")
    kept = json.loads((tmp_path / "run" / "nodes.json").read_text())
    assert kept["keys"] == {name: fingerprint(KEYS[n]) for name, n in (("ann", 101), ("bob", 102), ("cid", 103))}
    # While the server was down, bob's node has left, and another one says that it is bob.
    asked = []
    impostor = {104: {**nodes[104], "client": "bob"}}

    def watch(node, message, reply):
        asked.append((node, message.metadata.message_type))
        return reply

    grid = FakeGrid({n: nodes[n] for n in (101, 103)} | impostor, watch, KEYS)
    run = over(grid, chosen, tmp_path / "run", resume=True)
    assert {kind for node, kind in asked if node == 104} == {"query"}, "it is given no work"
    for record in run.rounds[1:]:
        assert [m.client for m in record.missing if m.phase == "training"] == ["bob"]
    # The real one is back, under another number of Flower's.
    grid = FakeGrid({**real, 105: impostor[104]}, keys={**KEYS, 105: KEYS[104]})
    run = over(grid, chosen, tmp_path / "again")
    assert [r.participants for r in run.rounds] == [["ann", "bob", "cid"]] * 3


def test_a_node_that_comes_back_is_known_by_its_key(root, tmp_path):
    nodes = nodes_of(root, tmp_path / "state")
    asked = []

    def move(node, message, reply):
        """After round 1 bob's node comes back under another number, as after a new registration."""
        asked.append((node, message.metadata.message_type))
        if message.metadata.message_type == "evaluate" and node == 102:
            grid.nodes[202], grid.keys[202] = grid.nodes[102], KEYS[102]
            gone.append(node)
        return reply

    gone: list[int] = []
    grid = FakeGrid({n: nodes[n] for n in (101, 102, 103)}, move, dict(KEYS))
    grid.get_nodes = lambda: [i for i in FakeGrid.get_nodes(grid) if i.node_id not in gone]
    run = over(grid, apart("fedproto", root), tmp_path / "run")
    assert not any(r.missing for r in run.rounds)
    assert (202, "train") in asked
    assert (202, "query") not in asked


@pytest.mark.slow
def test_with_a_roster_an_impostor_that_comes_first_is_refused(root, tmp_path):
    nodes = nodes_of(root, tmp_path / "state")
    nodes[104]["client"] = "bob"  # answers come in reverse order: before the real one's
    names = {"ann": 101, "bob": 102, "cid": 103}
    roster = tmp_path / "roster.json"
    roster.write_text(json.dumps({n: fingerprint(KEYS[k]) for n, k in names.items()}))
    run = over(FakeGrid(nodes, keys=KEYS), wanted("fedproto", root), tmp_path / "run", roster=str(roster))
    assert run.rounds[0].participants == ["ann", "bob", "cid"]
    (left,) = left_out(run)
    assert left["client"] == "node 104"
    assert left["reason"].startswith(f"says it is bob, whose key is {fingerprint(KEYS[102])}, not")
    nodes[104]["client"] = "zoe"
    run = over(FakeGrid(nodes, keys=KEYS), wanted("fedproto", root), tmp_path / "run2", roster=str(roster))
    assert left_out(run) == [{"client": "node 104", "reason": "says it is zoe, which the roster does not list"}]


def test_one_client_per_key_but_in_a_simulation():
    bindings = Bindings()
    bindings.bind("ann", "A")
    assert bindings.refusal("ann", "A") == ""
    assert bindings.refusal("ann", "B") == "says it is ann, whose key is A, not B"
    assert bindings.refusal("bob", "A") == ("says it is bob, but its key is that of ann")
    assert bindings.refusal("Ann", "B") == "says it is Ann, which reads as ann"
    simulated = Bindings({"ann": "A"}, simulated=True)
    assert simulated.refusal("ann", "B") == simulated.refusal("bob", "A") == ""


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "not JSON"),
        ("[]", "expected an object"),
        ('{"ann": "SHA256:x"}', "ann: neither a public key nor a fingerprint"),
        ('{"../x": "SHA256:' + "A" * 43 + '"}', "use letters"),
        ('{"ann": "SHA256:' + "A" * 43 + '", "ANN": "SHA256:' + "B" * 43 + '"}', "read the same"),
    ],
)
def test_a_bad_roster_is_named(content, expected, tmp_path):
    (tmp_path / "roster.json").write_text(content)
    with pytest.raises(ConfigError, match=expected) as error:
        read_roster(tmp_path / "roster.json")
    assert "roster.json" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_roster_takes_public_keys_as_they_are_registered(tmp_path):
    key = public_key("ssh").decode() + " node1"
    (tmp_path / "roster.json").write_text(json.dumps({"Köln": key}))
    assert read_roster(tmp_path / "roster.json").keys == {"Köln": fingerprint(key.encode())}
    with pytest.raises(ConfigError, match="cannot be read"):
        read_roster(tmp_path / "none.json")


@given(st.text(max_size=80))
def test_a_name_is_taken_or_refused_in_one_line_and_taken_names_are_safe(text):
    name = ""
    with contextlib.suppress(ValueError):
        name = claims.client_name(text)
    if not name:
        with one_line(ValueError, "name"):
            claims.client_name(text)
        return
    assert claims.client_name(name) == name
    assert Path(name).name == name
    assert "\n" not in name
    assert 0 < len(name) <= limits.CLIENT_NAME
    assert len(name.encode()) <= limits.CLIENT_NAME_BYTES


@pytest.mark.parametrize("name", ["Köln", "Ko\u0308ln", "north clinic", "東京", "मुंबई", "a_b-c 1", "Ω"])
def test_names_in_any_script(name):
    assert claims.client_name(name).isprintable()
    assert claims.client_name("Ko\u0308ln") == "Köln"
