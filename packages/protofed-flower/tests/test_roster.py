"""Rosters: what nodes take from them, and one line for everything that does not fit."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from deployment import write_trial
from protofed.errors import ConfigError
from protofed_flower.held import peers_of
from protofed_flower.identity import fingerprint, read_roster
from protofed_flower.keys import create_keys
from protofed_flower.peers import TRUSTING, KnownPeers
from protofed_flower.roster import sign_roster
from support import command, one_line

CLIENTS = ("north", "south", "west")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("roster")
    create_keys(folder, 3, clients=CLIENTS)
    return folder


def node(folder: Path, **changes: object) -> dict[str, object]:
    """Return the configuration of the node of north."""
    files = {
        "roster": str(folder / "roster.json"),
        "authority": str(folder / "ca.crt"),
        "key": str(folder / "node1"),
    }
    return {"client-dir": "north", "state-dir": "state", **files, **changes}


def test_a_node_knows_its_peers_from_the_roster(made):
    peers = peers_of(node(made, **{"least-peers": 4, "least-threshold": 5}), "north")
    assert isinstance(peers, KnownPeers)
    assert (tuple(peers.keys), peers.federation, peers.least_peers, peers.least_threshold) == (
        CLIENTS,
        "trial",
        4,
        5,
    )
    other = peers_of(node(made, key=str(made / "node2")), "south")
    signature = peers.sign(b"statement")
    assert other.signed("north", b"statement", signature)
    for wrong in (
        ("south", b"statement", signature),
        ("north", b"another", signature),
        ("north", b"statement", b""),
    ):
        assert not other.signed(*wrong)
    assert not other.signed("east", b"statement", signature)


def test_nodes_of_a_simulation_trust_each_other():
    assert peers_of({"partition-id": 0, "num-partitions": 2}, "north") is TRUSTING


def test_the_server_reads_the_same_roster(made):
    prints = read_roster(made / "roster.json").keys
    assert prints == {n: fingerprint((made / f"node{i}.pub").read_bytes()) for i, n in enumerate(CLIENTS, start=1)}


def changed(made: Path, folder: Path, **changes: object) -> Path:
    path = folder / "changed.json"
    path.write_text(json.dumps({**json.loads((made / "roster.json").read_text()), **changes}))
    return path


def refusal(made: Path, name: str = "north", **changes: object) -> str:
    with one_line(ConfigError) as error:
        peers_of(node(made, **changes), name)
    return str(error.value)


def test_a_roster_that_somebody_has_changed(made, tmp_path):
    clients = json.loads((made / "roster.json").read_text())["clients"]
    for change in (
        {"clients": {**clients, "mallory": clients["west"]}},
        {"clients": {**clients, "west": clients["south"]}},
        {"until": "2100-01-01T00:00:00+00:00"},
        {"federation": "another"},
        {"signature": ""},
        {"signature": "no base64"},
    ):
        text = refusal(made, roster=str(changed(made, tmp_path, **change)))
        assert "changed.json: not signed by 'CN=protofed trial CA" in text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"north": "SHA256:abc"}', "has no signature: a node needs the roster that the federation's"),
        ("[]", "has no signature"),
        ("", "roster: not JSON"),
        ('{"signature": "x"}', "roster: lacks 'federation'"),
        ('{"signature": "x", "more": 1}', "unknown roster 'more'"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_file_that_is_no_signed_roster(content, reason, made, tmp_path):
    (tmp_path / "roster.json").write_text(content)
    assert reason in refusal(made, roster=str(tmp_path / "roster.json"))


def test_files_and_settings_that_do_not_fit(made, tmp_path):
    create_keys(tmp_path / "others", 3, clients=CLIENTS)
    other = tmp_path / "others"
    assert "not signed by" in refusal(made, authority=str(other / "ca.crt"))
    assert "not signed by" in refusal(made, roster=str(other / "roster.json"))
    assert "a server's certificate, not an authority's" in refusal(made, authority=str(made / "server.pem"))
    assert "lists north with another key than" in refusal(made, key=str(other / "node1"))
    assert "lists south with another key than" in refusal(made, "south")
    assert "roster.json: does not list east: ask the authority for one that does" in refusal(made, "east")
    assert "nowhere: No such file" in refusal(made, roster=str(tmp_path / "nowhere"))
    assert "cannot be read" in refusal(made, key=str(tmp_path / "nowhere"))
    assert "a public key: give the private one" in refusal(made, key=str(made / "node1.pub"))
    for name, value in (
        ("least-threshold", 2),
        ("least-peers", 1),
        ("least-peers", "two"),
        ("least-threshold", True),
    ):
        assert f"{name}: " in refusal(made, **{name: value})
    assert refusal(made, **{"least-threshold": 2}) == (
        "least-threshold: must be from 3 to 1048576, not 2 (in --node-config)"
    )


def key_of(path: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (-9, -2, "late.json: expired on {1:%Y-%m-%d %H:%M} UTC, and this machine's clock says {2:%Y-%m-%d}"),
        (1, 9, "late.json: not valid before {0:%Y-%m-%d %H:%M} UTC, and this machine's clock says {2:%Y-%m-%d}"),
    ],
)
def test_a_roster_out_of_its_time(start, end, expected, made, tmp_path):
    now = datetime.now(UTC)
    keys = {n: (made / f"node{i}.pub").read_text() for i, n in enumerate(CLIENTS, start=1)}
    path = tmp_path / "late.json"
    dates = now + timedelta(days=start), now + timedelta(days=end)
    path.write_bytes(sign_roster(keys, key_of(made / "ca.key"), "trial", *dates))
    text = refusal(made, roster=str(path))
    assert expected.format(*dates, now) in text
    assert ("compare the clocks of the two machines" in text) == (start > 0)
    with pytest.raises(ConfigError, match=r"late.json: (expired on|not valid before)"):
        read_roster(path)  # nor does the server take it


def test_the_server_certificate_cannot_sign_a_roster(made, tmp_path):
    keys = {n: (made / f"node{i}.pub").read_text() for i, n in enumerate(CLIENTS, start=1)}
    now = datetime.now(UTC)
    path = tmp_path / "forged.json"
    path.write_bytes(sign_roster(keys, key_of(made / "server.key"), "trial", now, now + timedelta(days=1)))
    assert "forged.json: not signed by" in refusal(made, roster=str(path))


# The commands.


def test_the_check_notices_the_key_of_another_node(made, tmp_path, monkeypatch, capsys):
    data = write_trial(tmp_path)
    files = ("--roster", made / "roster.json", "--authority", made / "ca.crt", "--key", made / "node2")
    check = ("deploy", "check", *files, "--client-dir")
    status, printed, _ = command(monkeypatch, capsys, *check, data / "north")
    assert status == 1
    assert "lists north with another key than" in (told := " ".join(printed.split()))
    assert "which is that of south" in told
    (data / "north").rename(data / "mine")
    _, printed, _ = command(monkeypatch, capsys, *check, data / "mine")
    assert 'this node is south, which needs client="south"' in " ".join(printed.split())
