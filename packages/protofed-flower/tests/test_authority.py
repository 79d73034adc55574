"""Keys made at sites and approved by an authority: requests, rosters, revocation, dates, and who may read what."""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from flwr.cli.supernode.register import try_load_public_key
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from network import FakeGrid, contents, nodes_of, over, wanted
from protofed.errors import CheckpointError, ConfigError, OutputError
from protofed_flower import held, keys, trust
from protofed_flower.authority import approve, read_request, revoke
from protofed_flower.check import CheckRequest, CheckResult, check_node
from protofed_flower.folder import make_private
from protofed_flower.gathering import Gathering
from protofed_flower.identity import read_roster
from protofed_flower.keys import create_keys, create_request
from protofed_flower.roster import read_signed, sign_roster
from support import command, few


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """An authority without sites, and the request of north."""
    folder = tmp_path_factory.mktemp("authority")
    create_keys(folder / "fed", 0, days=400, federation="hospitals")
    create_request(folder / "north", "north")
    return folder


@pytest.fixture
def fed(made, tmp_path) -> Path:
    shutil.copytree(made / "fed", tmp_path / "fed")
    return tmp_path / "fed"


@pytest.fixture
def north(made) -> Path:
    return made / "north" / "north.request"


def request(folder: Path, name: str) -> Path:
    create_request(folder, name)
    return folder / f"{name}.request"


def printed(program: str, *words: object) -> str:
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


# Requests.


def test_the_key_stays_where_only_its_owner_reads_it(tmp_path):
    before = os.umask(0)
    try:
        create_request(tmp_path / "keys", "Köln 2")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "keys").iterdir()}
    assert modes == {"Köln 2": 0o600, "Köln 2.request": 0o644}
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    assert b"PRIVATE" not in (tmp_path / "keys" / "Köln 2.request").read_bytes()
    with pytest.raises(ConfigError, match="is not empty: keys are never overwritten"):
        create_request(tmp_path / "keys", "other")


@pytest.mark.parametrize(
    ("site", "reason"),
    [("../x", "--site: name '../x': use letters"), ("é" * 40, "80 bytes, but a certificate's name has at most 64")],
)
def test_a_site_without_a_valid_name(site, reason, tmp_path):
    with pytest.raises(ConfigError) as error:
        create_request(tmp_path / "keys", site)
    assert reason in str(error.value)
    assert not (tmp_path / "keys").exists()


def test_other_programs_read_what_is_made(fed, north):
    """OpenSSL verifies request and certificate, OpenSSH prints the same fingerprint, and Flower takes the key."""
    (approved,), _ = approve(fed, [north], 30)
    assert "verify OK" in printed("openssl", "req", "-in", north, "-noout", "-verify")
    assert "OK" in printed("openssl", "verify", "-CAfile", fed / "ca.crt", fed / "sites" / "north.crt")
    assert approved.fingerprint in printed("ssh-keygen", "-lf", fed / "sites" / "north.pub")
    assert try_load_public_key(fed / "sites" / "north.pub")


def signed(path: Path, key, *names: str) -> Path:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    csr = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    path.write_bytes(csr.public_bytes(serialization.Encoding.PEM))
    return path


def forged(path: Path, north: Path) -> Path:
    """Ask with the signature of north for the name of another, of equal length."""
    der = base64.b64decode(b"".join(north.read_bytes().splitlines()[1:-1])).replace(b"north", b"forth")
    body = base64.encodebytes(der).decode()
    path.write_text(f"-----BEGIN CERTIFICATE REQUEST-----\n{body}-----END CERTIFICATE REQUEST-----\n")
    return path


def large(path: Path) -> Path:
    with path.open("wb") as file:
        file.truncate(100_000_000)
    return path


def text(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda p, n: p, "No such file or directory"),
        (lambda p, n: text(p, n.read_bytes()[:300]), "not a certificate request, such as"),
        (lambda p, n: text(p, n.with_name("north").read_bytes()), "holds a private key, which never leaves a site"),
        (lambda p, n: large(p), "has 100000000 bytes, more than 16384"),
        (lambda p, n: text(p, n.read_bytes()), "asks for the name north: rename the file to north.request"),
        (lambda p, n: forged(p, n), "its signature fails"),
        (lambda p, n: signed(p, ec.generate_private_key(ec.SECP256K1()), "x"), "its key is not one that Flower"),
        (lambda p, n: signed(p, ec.generate_private_key(ec.SECP256R1()), "x", "y"), "is not one common name"),
        (lambda p, n: signed(p, ec.generate_private_key(ec.SECP256R1()), "../x"), "name '../x': use letters"),
    ],
)
def test_a_request_that_is_refused_changes_nothing(make, reason, fed, north, tmp_path):
    before = contents(fed)
    path = make(tmp_path / "x.request", north)
    with pytest.raises(ConfigError) as error:
        approve(fed, [north, path], 30)
    assert f"x.request: {reason}" in str(error.value) or reason in str(error.value)
    assert "\n" not in str(error.value)
    assert contents(fed) == before


def test_a_pipe_is_not_waited_for(fed, tmp_path):
    os.mkfifo(tmp_path / "x.request")
    with pytest.raises(ConfigError, match="is not an ordinary file"):
        approve(fed, [tmp_path / "x.request"], 30)


def mutate(path: Path, changed: Path, data: st.DataObject) -> None:
    """Write a PEM file anew, with up to three bytes of its content changed."""
    first, *body, last = path.read_bytes().splitlines()
    before = base64.b64decode(b"".join(body))
    der = bytearray(before)
    for _ in range(data.draw(st.integers(1, 3))):
        der[data.draw(st.integers(0, len(der) - 1))] ^= data.draw(st.integers(1, 255))
    assume(bytes(der) != before)
    changed.parent.mkdir(exist_ok=True)
    changed.write_bytes(b"%b\n%b%b\n" % (first, base64.encodebytes(bytes(der)), last))


@given(st.data())
@settings(max_examples=150, deadline=None)
@pytest.mark.filterwarnings("ignore")  # of cryptography, about numbers that certificates should not have
def test_a_changed_certificate_is_refused_or_has_the_same_key(made, data):
    fed, key = made / "fed", made / "north" / "north"
    changed = made / "changed" / "ca.crt"
    mutate(fed / "ca.crt", changed, data)
    for read in (
        lambda: trust.check_issued(changed, key, fed / "ca.crt"),
        lambda: read_signed(fed / "roster.json", changed),
    ):
        try:
            read()
        except ConfigError:
            continue
        # A change beside the key, for which the operator's file is trusted.
        before, after = trust.load_certificate(fed / "ca.crt"), trust.load_certificate(changed)
        assert before.public_key() == after.public_key()


@given(st.data())
@settings(max_examples=150, deadline=None)
@pytest.mark.filterwarnings("ignore")
def test_a_changed_request_is_refused_in_one_line_or_the_same(made, data):
    path = made / "north" / "north.request"
    changed = made / "changed" / "north.request"
    mutate(path, changed, data)
    try:
        found = read_request(changed)
    except ConfigError as error:
        found = str(error)
    same = found == read_request(path)  # a changed bit of the last character may mean nothing
    assert same or "\n" not in found


# Approval.


def test_an_approved_site_is_in_the_roster_and_has_a_certificate(fed, north, tmp_path):
    south = request(tmp_path / "south", "south")
    (first, second), end = approve(fed, [north, south], 30)
    assert (first.name, second.name, first.replaced) == ("north", "south", "")
    found = read_signed(fed / "roster.json", fed / "ca.crt")
    assert (found.federation, tuple(found.keys), found.until) == (
        "hospitals",
        ("north", "south"),
        end.replace(microsecond=0),
    )
    assert found.keys["north"] == trust.load_key(north.with_name("north")).public_key()
    assert read_roster(fed / "roster.json").keys == {"north": first.fingerprint, "south": second.fingerprint}
    until = trust.check_issued(fed / "sites" / "north.crt", north.with_name("north"), fed / "ca.crt")
    assert abs(until - datetime.now(UTC) - timedelta(days=30)) < timedelta(minutes=1)


def test_nothing_outlives_the_authority(fed, north):
    _, end = approve(fed, [north], 400)  # as many as `keys` was given, a moment later
    authority = x509.load_pem_x509_certificate((fed / "ca.crt").read_bytes())
    certificate = x509.load_pem_x509_certificate((fed / "sites" / "north.crt").read_bytes())
    assert end == authority.not_valid_after_utc == certificate.not_valid_after_utc


def test_more_days_than_the_authority_has_are_refused_in_one_line(fed, north):
    before = contents(fed)
    with pytest.raises(ConfigError, match=r"^--days 1095: the authority's certificate ends on .*: at most 399, or"):
        approve(fed, [north], 1095)
    assert contents(fed) == before


def test_no_name_of_a_site_reaches_the_authoritys_own_files(fed, tmp_path):
    own = {path.name: path.read_bytes() for path in fed.iterdir() if path.name != "roster.json"}
    approve(fed, [request(tmp_path / name, name) for name in ("ca", "server", "roster")], 30)
    assert {name: (fed / name).read_bytes() for name in own} == own


def test_a_site_that_is_there_needs_renew(fed, north, tmp_path):
    (first,), _ = approve(fed, [north], 30)
    before, new = contents(fed), request(tmp_path / "new", "north")
    for path in (north, new):
        with pytest.raises(ConfigError, match=f"is in the roster with the key {re.escape(first.fingerprint)}"):
            approve(fed, [path], 30)
    assert contents(fed) == before
    (same,), _ = approve(fed, [north], 60, renew=True)
    assert same.replaced == ""
    (second,), _ = approve(fed, [new], 30, renew=True)
    assert second.replaced == first.fingerprint != second.fingerprint
    with pytest.raises(ConfigError, match=r"was replaced on 20.* \(of north\): have the site make a new one"):
        approve(fed, [north], 30, renew=True)
    with pytest.raises(ConfigError, match="south is not in the roster: leave out --renew"):
        approve(fed, [request(tmp_path / "south", "south")], 30, renew=True)


def test_requests_that_do_not_go_together(fed, north, tmp_path):
    before = contents(fed)
    other, twin = request(tmp_path / "other", "north"), request(tmp_path / "twin", "North")
    key = trust.load_key(north.with_name("north"))
    with pytest.raises(ConfigError, match="north is in the roster"):
        approve(fed, [north, other], 30)
    with pytest.raises(ConfigError, match="names 'north' and 'North' read the same"):
        approve(fed, [north, twin], 30)
    with pytest.raises(ConfigError, match="north and alias have the same key"):
        approve(fed, [north, signed(tmp_path / "alias.request", key, "alias")], 30)
    assert contents(fed) == before


def test_without_requests_the_period_of_roster_and_server_begins_anew(fed, north):
    approve(fed, [north], 30)
    before = x509.load_pem_x509_certificate((fed / "server.pem").read_bytes())
    approved, end = approve(fed, [], 200)
    after = x509.load_pem_x509_certificate((fed / "server.pem").read_bytes())
    after.verify_directly_issued_by(x509.load_pem_x509_certificate((fed / "ca.crt").read_bytes()))
    assert (approved, after.public_key(), after.serial_number != before.serial_number) == (
        [],
        before.public_key(),
        True,
    )
    assert trust.host_names(after) == trust.host_names(before) == "127.0.0.1, localhost"
    assert read_signed(fed / "roster.json", fed / "ca.crt").until == end.replace(microsecond=0)
    assert list(read_roster(fed / "roster.json").keys) == ["north"]


def test_an_expired_roster_can_be_signed_anew(fed, north):
    approve(fed, [north], 30)
    key = trust.load_signer(fed / "ca.key")
    line, now = (fed / "sites" / "north.pub").read_text(), datetime.now(UTC)
    old = sign_roster({"north": line}, key, "hospitals", now - timedelta(days=9), now - timedelta(days=2))
    (fed / "roster.json").write_bytes(old)
    with pytest.raises(ConfigError, match="expired on"):
        read_roster(fed / "roster.json")
    approve(fed, [], 30)
    assert list(read_signed(fed / "roster.json", fed / "ca.crt").keys) == ["north"]


@few("file", ["north.pub", "north.crt", "roster.json"], 1)
def test_a_disk_that_is_full_leaves_whole_files(file, fed, north, monkeypatch):
    before, real = contents(fed), os.replace

    def fail(source: object, target: Path) -> None:
        if Path(target).name == file:
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OutputError, match="No space left on device"):
        approve(fed, [north], 30)
    after = contents(fed)
    assert {path: after[path] for path in before} == before
    assert not any(path.name.endswith(".partial") for path in after)
    monkeypatch.undo()
    approve(fed, [north], 30)
    assert list(read_roster(fed / "roster.json").keys) == ["north"]


def test_two_authorities_at_once(fed, north):
    fcntl = pytest.importorskip("fcntl")
    with (fed / "ca.key").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another process is changing the roster"):
            approve(fed, [north], 30)


def damaged(name: str, content: bytes | None, fed: Path) -> str:
    saved = (fed / name).read_bytes() if (fed / name).exists() else b""
    if content is None:
        large(fed / name)
    else:
        (fed / name).write_bytes(content)
    with pytest.raises((ConfigError, CheckpointError)) as error:
        approve(fed, [], 30)
    (fed / name).write_bytes(saved)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_files_of_the_authority_that_are_damaged_or_of_another(fed, tmp_path):
    create_keys(tmp_path / "other", 1)
    other = {path.name: path.read_bytes() for path in (tmp_path / "other").iterdir()}
    assert "roster.json: roster: not JSON" in damaged("roster.json", (fed / "roster.json").read_bytes()[:99], fed)
    assert "roster.json: not signed by" in damaged("roster.json", other["roster.json"], fed)
    assert "roster.json: has 100000000 bytes" in damaged("roster.json", None, fed)
    assert "ca.crt: is not the certificate of ca.key" in damaged("ca.crt", other["ca.crt"], fed)
    assert "ca.key: not an ECDSA private key in PEM form" in damaged("ca.key", other["node1"], fed)
    assert "server.pem: not of this authority" in damaged("server.pem", other["server.pem"], fed)
    (fed / "server.pem").unlink()
    for content in (b"", b"{", b"[]", b'{"SHA256:x": {"client": "north"}}'):
        assert "revoked.json: " in damaged("revoked.json", content, fed)


# Revocation.


def test_a_revoked_site(fed, north):
    approve(fed, [north], 30)
    print_ = revoke(fed, "north", 30)
    assert list(read_signed(fed / "roster.json", fed / "ca.crt").keys) == []
    record = json.loads((fed / "revoked.json").read_text())
    assert (list(record), record[print_]["client"], record[print_]["why"]) == ([print_], "north", "revoked")
    assert not list((fed / "sites").iterdir())
    with pytest.raises(ConfigError, match=rf"the key {re.escape(print_)} was revoked on 20.* \(of north\)"):
        approve(fed, [north], 30)
    with pytest.raises(ConfigError, match=r"roster\.json: unknown site 'north'"):
        revoke(fed, "north", 30)


def test_a_revoked_site_returns_with_another_key_only(fed, north, tmp_path):
    approve(fed, [north], 30)
    revoke(fed, "north", 30)
    (again,), _ = approve(fed, [request(tmp_path / "new", "north")], 30)
    assert read_roster(fed / "roster.json").keys == {"north": again.fingerprint}


def pem(folder: Path, name: str) -> bytes:
    key = serialization.load_ssh_public_key((folder / "sites" / f"{name}.pub").read_bytes())
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def test_the_server_does_not_admit_a_revoked_site_and_a_node_keeps_its_state_to_itself(caplog, root, fed, tmp_path):
    names = ("ann", "bob", "cid")
    approve(fed, [request(tmp_path / name, name) for name in names], 30)
    nodes = nodes_of(root, tmp_path / "state")
    shown = {number: pem(fed, name) for number, name in zip(nodes, names, strict=True)}
    revoke(fed, "bob", 30)
    chosen = wanted("fedproto", root, rounds=1, participation__min_clients=2)
    run = over(FakeGrid(nodes, keys=shown), chosen, tmp_path / "run", roster=str(fed / "roster.json"))
    (left,) = json.loads((run.directory / "federation.json").read_text())["left_out"]
    assert left == {"client": "node 102", "reason": "says it is bob, which the roster does not list"}
    assert run.rounds[0].participants == ["ann", "cid"]
    folder = tmp_path / "state" / "ann"
    assert {path.stat().st_mode & 0o777 for path in (folder, folder / "ann")} == {0o700}
    folder.chmod(0o750)
    chosen = wanted("fedproto", root, rounds=1, participation__min_clients=1)
    run = over(FakeGrid(nodes, keys=shown), chosen, tmp_path / "again", roster=str(fed / "roster.json"))
    reasons = {
        left["client"]: left["reason"]
        for left in json.loads((run.directory / "federation.json").read_text())["left_out"]
    }
    assert "refused, its own settings have a mistake" in str(reasons)
    assert f"{folder}: other users may read or change it (mode 0750): `chmod 700 {folder}`" in caplog.text


# Modes.


@few("mode", [0o604, 0o640, 0o660, 0o666, 0o610], 2)
def test_keys_that_others_may_read(mode, fed, north, tmp_path):
    (fed / "ca.key").chmod(mode)
    with pytest.raises(
        ConfigError, match=rf"ca.key: other users may .* \(mode {mode:04o}\): `chmod 600 .*/ca.key`"
    ):
        approve(fed, [north], 30)
    (fed / "ca.key").chmod(0o600)
    approve(fed, [north], 30)
    key = Path(shutil.copy(north.with_name("north"), tmp_path / "a key"))
    key.chmod(mode)
    with pytest.raises(
        ConfigError, match=rf"a key: other users may .* \(mode {mode:04o}\): `chmod 600 '.*/a key'`"
    ):
        trust.load_key(key)
    node = {"client-dir": "north", "state-dir": "s", "roster": str(fed / "roster.json")}
    with pytest.raises(ConfigError, match="a key: other users may"):
        held.peers_of({**node, "authority": str(fed / "ca.crt"), "key": str(key)}, "north")


def test_new_folders_are_private_and_older_ones_stay(tmp_path):
    (tmp_path / "open").mkdir(mode=0o755)
    make_private(tmp_path / "open" / "a" / "b")
    modes = [
        path.stat().st_mode & 0o777 for path in (tmp_path / "open", tmp_path / "open/a", tmp_path / "open/a/b")
    ]
    assert modes == [0o755, 0o700, 0o700]


# Dates.


def checked(**request: object) -> dict[str, CheckResult]:
    return {finding.name: finding for finding in check_node(CheckRequest(**request))}


def test_what_ends_soon_is_a_warning(fed, north, tmp_path, monkeypatch, capsys, caplog):
    approve(fed, [north], 29)
    shutil.copy(north.with_name("north"), tmp_path / "north")
    shutil.copy(fed / "sites" / "north.crt", tmp_path / "north.crt")
    (tmp_path / "north").chmod(0o600)
    given = {"key": tmp_path / "north", "authority": fed / "ca.crt", "roster": fed / "roster.json"}
    found = checked(**given, root_certificates=fed / "ca.crt")
    assert {name: found[name].state for name in ("key", "roster", "root-certificates")} == {
        "key": "warning",
        "roster": "warning",
        "root-certificates": "ok",
    }
    assert found["key"].text.endswith("ends in 28 days, ask for a new one")
    assert found["roster"].text.endswith("ends in 28 days, ask for a new one; this node is north")
    words = [word for option, value in given.items() for word in (f"--{option}", value)]
    status, out, _ = command(monkeypatch, capsys, "deploy", "check", *words)
    assert (status, out.count("warning ")) == (0, 2)
    with caplog.at_level(logging.WARNING, "protofed"):
        held.log_ends({name: str(path) for name, path in given.items()})
        Gathering(
            roster=str(fed / "roster.json"), certificates=(str(fed / "ca.crt"), str(tmp_path / "north.crt"))
        ).log_ends()
    assert [record.message.split(": ")[0] for record in caplog.records] == [
        str(fed / "roster.json"),
        str(fed / "roster.json"),
        str(tmp_path / "north.crt"),
    ]
    assert all("ends in 28 days, ask for a new one" in record.message for record in caplog.records)
    caplog.clear()
    approve(fed, [north], 60, renew=True)
    held.log_ends({name: str(path) for name, path in given.items()})
    Gathering(roster=str(fed / "roster.json")).log_ends()
    held.log_ends({})
    assert not caplog.records


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(-9, -1, "expired on 20"), (1, 9, "compare the clocks of the two machines, set the wrong one, or wait")],
)
def test_a_certificate_of_another_time(start, end, expected, fed, north, tmp_path, caplog):
    now, key = datetime.now(UTC), north.with_name("north")
    authority = keys.Signed(trust.load_signer(fed / "ca.key"), trust.read_authorities(fed / "ca.crt")[0])
    dates = now + timedelta(days=start), now + timedelta(days=end)
    public = trust.load_key(key).public_key()
    (tmp_path / "north").write_bytes(key.read_bytes())
    (tmp_path / "north").chmod(0o600)
    (tmp_path / "north.crt").write_bytes(keys.node_certificate(authority, "north", public, *dates))
    found = checked(key=tmp_path / "north", authority=fed / "ca.crt")["key"]
    assert found.state == "problem"
    assert expected in found.text
    assert f"this machine's clock says {now:%Y-%m-%d}" in found.text
    Gathering(certificates=(str(tmp_path / "north.crt"), str(tmp_path / "north"))).log_ends()
    assert [expected in record.message for record in caplog.records] == [True, False]
    assert caplog.records[1].message.endswith("north: not a certificate in PEM form (-----BEGIN CERTIFICATE-----)")


def test_a_certificate_of_another_federation_or_key(fed, north, tmp_path):
    approve(fed, [north], 60)
    create_keys(tmp_path / "other", 0, federation="others")
    other = request(tmp_path / "keys", "north")
    approve(tmp_path / "other", [other], 60)
    certificate, key = tmp_path / "keys" / "north.crt", tmp_path / "keys" / "north"

    def problem() -> str:
        found = checked(key=key, authority=fed / "ca.crt")["key"]
        assert found.state == "problem"
        return found.text

    certificate.write_bytes((tmp_path / "other" / "sites" / "north.crt").read_bytes())
    assert "north.crt: of another federation, issued by 'CN=protofed others CA" in problem()
    certificate.write_bytes((fed / "sites" / "north.crt").read_bytes())
    assert "north.crt: is for another key than" in problem()
    for content in (b"", certificate.read_bytes()[:200]):
        certificate.write_bytes(content)
        assert "north.crt: not a certificate in PEM form" in problem()
    large(certificate)
    assert "north.crt: has 100000000 bytes, more than" in problem()


# The commands.
