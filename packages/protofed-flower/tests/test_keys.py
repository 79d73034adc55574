"""Certificates and keys for a trial, and that Flower itself takes them."""

from __future__ import annotations

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from protofed.errors import ConfigError

pytest.importorskip("cryptography", reason="needs cryptography: install protofed-flower")

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from protofed_flower.keys import create_keys
from support import assert_mistake, command, few

FILES = ["ca.crt", "ca.key", "node1", "node1.pub", "node2", "node2.pub", "roster.json"]
FILES += ["server.key", "server.pem"]


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_the_files_and_who_may_read_them(tmp_path):
    before = os.umask(0)  # modes must not depend on it
    try:
        made = create_keys(tmp_path / "deep" / "keys", 2)
    finally:
        os.umask(before)
    folder = tmp_path / "deep" / "keys"
    assert sorted(p.name for p in made) == FILES == sorted(p.name for p in folder.iterdir())
    assert folder.stat().st_mode & 0o777 == 0o700
    for path in made:
        private = path.suffix == ".key" or path.name in ("node1", "node2")
        assert path.stat().st_mode & 0o777 == (0o600 if private else 0o644), path
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["keys"]


def test_node_keys_are_openssh_keys_on_a_curve_that_flower_takes(tmp_path):
    create_keys(tmp_path / "keys", 2)
    seen = set()
    for name in ("node1", "node2"):
        key = serialization.load_ssh_private_key((tmp_path / "keys" / name).read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert key.curve.name == "secp384r1"
        public = (tmp_path / "keys" / f"{name}.pub").read_bytes()
        assert serialization.load_ssh_public_key(public) == key.public_key()
        assert public.endswith(f" {name}\n".encode())
        seen.add(public)
    assert len(seen) == 2


def test_the_server_certificate_is_for_the_hosts_and_signed_by_the_authority(tmp_path):
    create_keys(tmp_path / "keys", 1, ["10.0.0.5", "::1", "link.example.org"], days=30)
    ca, server = certificate(tmp_path / "keys" / "ca.crt"), certificate(tmp_path / "keys" / "server.pem")
    server.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["link.example.org"]
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address(a) for a in ("10.0.0.5", "::1")]
    for found in (ca, server):
        assert found.not_valid_before_utc < datetime.now(UTC)
        assert abs(found.not_valid_after_utc - datetime.now(UTC) - timedelta(days=30)) < timedelta(minutes=1)
    key = serialization.load_pem_private_key((tmp_path / "keys" / "server.key").read_bytes(), None)
    assert key.public_key() == server.public_key()


def test_nothing_is_overwritten(tmp_path):
    target = tmp_path / "keys"
    target.mkdir()
    create_keys(target, 1)  # an empty directory may be there
    before = {p.name: p.read_bytes() for p in target.iterdir()}
    with pytest.raises(ConfigError, match=r"keys is not empty: keys are never overwritten"):
        create_keys(target, 1)
    assert {p.name: p.read_bytes() for p in target.iterdir()} == before
    with pytest.raises(ConfigError, match=r"node1 is a file"):
        create_keys(target / "node1", 1)
    with pytest.raises(ConfigError, match=r"inside: cannot be written"):
        create_keys(target / "node1" / "inside", 1)


@pytest.mark.parametrize("failing", ["open", "rename"])
def test_nothing_half_written_stays(failing, tmp_path, monkeypatch):
    real, calls = getattr(os, failing), []

    def fail(*arguments: object, **more: object) -> object:
        calls.append(arguments)
        if failing == "rename" or "node1" in str(arguments[0]):
            raise OSError(28, "No space left on device")
        return real(*arguments, **more)

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(ConfigError, match="No space left on device"):
        create_keys(tmp_path / "keys", 1)
    assert calls
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_what_is_what(tmp_path, monkeypatch, capsys):
    arguments = ("deploy", "keys", tmp_path / "k", "--nodes", 3, "--host", "10.0.0.5", "--host", "link.org")
    status, printed, _ = command(monkeypatch, capsys, *arguments)
    assert status == 0
    for part in ("ca.crt", "server.pem", "10.0.0.5, link.org", "365 days", "node1 … node3", "For trials only"):
        assert part in printed
    assert (tmp_path / "k" / "node3.pub").is_file()
    status, _, error = command(monkeypatch, capsys, *arguments)
    assert_mistake(status, error, "is not empty")


@few("host", ["10.0.0.5:8443", "https://link.org", "a b", "", "10.0.0.300", "-a.org"], 5)
def test_a_host_is_a_name_or_an_address(host, tmp_path, monkeypatch, capsys):
    arguments = ("deploy", "keys", tmp_path / "k", "--nodes", 1, "--host", host)
    status, _, error = command(monkeypatch, capsys, *arguments)
    assert_mistake(status, error, "expected an IP address or a DNS name, without a port")
    assert list(tmp_path.iterdir()) == []
