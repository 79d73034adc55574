"""What an operator is told before the first round: right settings pass, each mistake is named."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data.files import write_images, write_npz
from protofed import models
from support import command

pytest.importorskip("cryptography", reason="needs cryptography: install protofed-flower")

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from protofed.storage.snapshots import Snapshot
from protofed_flower import keys, trust
from protofed_flower.check import CheckRequest, CheckResult, check_node
from protofed_flower.state import ClientFolder

SMALL = ("model.name=mlp", "model.d=8", "execution.device=cpu")


def findings(**request: object) -> dict[str, CheckResult]:
    found = list(check_node(CheckRequest(**request)))
    assert all("\n" not in f.text for f in found)
    return {f.name: f for f in found}


def problem(name: str, **request: object) -> str:
    """Return the text of the one problem there is, which must be that of ``name``."""
    found = findings(**request)
    assert [f.name for f in found.values() if f.state == "problem"] == [name]
    return found[name].text


@pytest.fixture
def north(tmp_path) -> Path:
    write_images(tmp_path / "north" / "train", {"ant": 3, "cat": 2})
    write_images(tmp_path / "north" / "test", {"cat": 1})
    return tmp_path / "north"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    keys.create_keys(folder, 2)
    return folder


# The client's folder.


def test_a_folder_that_is_right(north):
    (north / "client.toml").write_text('model = "mlp"\nlr = 0.1\n')
    found = findings(client_dir=north, classes=("ant", "bee", "cat"))
    assert found["client-dir"].state == "ok"
    assert found["client-dir"].text == (
        "north: 5 training and 1 test samples of shape 1×4×4, 2 of 3 classes, client.toml: model = 'mlp', lr = 0.1"
    )
    others = [f for f in found.values() if f.name != "client-dir"]
    assert {f.state for f in others} == {"skipped"}
    assert found["key"].text == "no --key given"


def test_folders_that_are_wrong(north):
    assert "nowhere: no such folder" in problem("client-dir", client_dir=north / "nowhere")
    text = problem("client-dir", client_dir=north, classes=("aunt", "cat"))
    assert "unknown class 'ant': did you mean 'aunt'? Valid: aunt, cat" in text
    (north / "train" / "dog").mkdir()
    assert "dog: holds no images" in problem("client-dir", client_dir=north)
    (north / "train" / "dog").rmdir()
    (north / "client.toml").write_text("learning_rate = 1\n")
    assert "client.toml: unknown setting 'learning_rate'" in problem("client-dir", client_dir=north)
    (north / "client.toml").write_text('model = "cnn3"\n')
    assert "client.toml: unknown model 'cnn3'" in problem("client-dir", client_dir=north)
    (north / "client.toml").unlink()
    (north / "test").rename(north / "testing")
    assert "test.parquet: missing" in problem("client-dir", client_dir=north)


def test_numbered_classes_are_compared_with_the_names_in_the_files(tmp_path):
    for split in ("train", "test"):
        write_npz(tmp_path / f"{split}.npz", np.ones((2, 5)), [0, 1], class_names=["cat", "ant"])
    for classes in (("cat", "ant"), ("cat", "ant", "bee")):
        assert findings(client_dir=tmp_path, classes=classes)["client-dir"].state == "ok"
    text = problem("client-dir", client_dir=tmp_path, classes=("ant", "cat"))
    assert "its classes are cat, ant, but --classes says ant, cat" in text


def test_the_settings_of_a_node(north, tmp_path):
    path = tmp_path / "node.toml"
    path.write_text(
        'client = "ann"\nclient-dir = "north"\nstate-dir = "state"\n'
        '[allow]\nmethods = ["fedproto"]\nmodels = ["mlp"]\n'
    )
    found = findings(config=path, recipe="quickstart", overrides=("method.name=fedproto", *SMALL))
    assert {name for name, f in found.items() if f.state == "ok"} >= {"config", "client-dir", "model", "state-dir"}
    assert found["config"].text == f"{path}: allows fedproto"
    assert found["state-dir"].text == f"{tmp_path / 'state'}: does not exist yet, can be created"
    text = problem("recipe", config=path, recipe="quickstart", overrides=("method.name=fedavg", *SMALL))
    assert text.startswith("method.name=fedavg, but this node allows fedproto")
    other = findings(config=path, state_dir=tmp_path / "other")["state-dir"].text
    assert other.startswith(str(tmp_path / "other")), "an option goes before the file"
    for content, expected in (
        ("", "the node has no data"),
        ("nothing = 1", "unknown setting 'nothing'"),
        ("client-dir = ", "not valid TOML"),
        ('client-dir = "north"\n[allow]\nmethods = []', "[allow] allows nothing"),
        ('client-dir = "north"\nclient = "../x"', "use letters"),
    ):
        path.write_text(content)
        assert expected in problem("config", config=path)


# The model.


def test_a_model_that_fits(north):
    found = findings(client_dir=north, recipe="quickstart", overrides=("method.name=fedproto", *SMALL))
    assert found["recipe"].text == "quickstart: fedproto"
    assert found["model"].state == "ok"
    assert found["model"].text == "mlp, d=8: takes a sample, gives 2 logits"


def test_every_model_of_a_group_is_tried(tmp_path):
    write_images(tmp_path / "train", {"a": 2, "b": 1})
    write_images(tmp_path / "test", {"a": 1})
    own = ("method.name=fedproto", "execution.device=cpu")
    # 4×4 pixels are too few for the fourth model of the group.
    text = problem("model", client_dir=tmp_path, recipe="quickstart", overrides=own)
    assert "with model 4 of small4: cnn4 cannot take samples of shape 1×4×4" in text
    (tmp_path / "client.toml").write_text('model = "mlp"')
    assert findings(client_dir=tmp_path, recipe="quickstart", overrides=own)["model"].state == "ok"


@pytest.mark.parametrize(
    ("method", "toml", "expected"),
    [
        ("fedavg", 'model = "cnn2"', "fedavg shares weights and needs one architecture, but north has cnn2"),
        ("fedproto", "d = 5", "needs one d, but north has d=5 and the recipe has d=8"),
        ("fedproto", 'model = "resnet8"\nd = 8', None),
        ("fedproto", 'model = "support:Branches"', "north: Branches cannot take samples of shape 1×4×4"),
        ("fedproto", 'model = "nowhere:Net"', "cannot import model 'nowhere:Net'"),
    ],
)
def test_a_model_that_the_client_chose(method, toml, expected, north):
    (north / "client.toml").write_text(toml)
    request = {"client_dir": north, "recipe": "quickstart"}
    overrides = (f"method.name={method}", "model.shared=", *SMALL)
    if expected is None:
        assert findings(**request, overrides=overrides)["model"].state == "ok"
    else:
        assert expected in problem("model", **request, overrides=overrides)


# The state's folder.


def model(d: int = 8, K: int = 2) -> dict[str, torch.Tensor]:
    return models.build("mlp", input_shape=(1, 4, 4), num_classes=K, d=d, options={}).state_dict()


def test_the_state_folder(north, tmp_path):
    state = tmp_path / "state"
    request = {"state_dir": state, "client_dir": north, "recipe": "quickstart"}
    request["overrides"] = ("method.name=fedproto", *SMALL)
    assert findings(**request)["state-dir"].text == f"{state}: does not exist yet, can be created"
    state.mkdir(mode=0o700)
    assert findings(**request)["state-dir"].text == f"{state}: writable, holds 0 runs"
    client = ClientFolder(state / "north", "run1")  # as a node writes it
    client.commit(client.write(Snapshot(model(), {}, {}), 1), None, 1, set())
    assert findings(**request)["state-dir"].text == f"{state}: writable, holds 1 run"
    (state / "north" / "state.json").write_text("{}")  # as version 0.2 wrote it
    assert findings(**request)["state-dir"].text.endswith(
        "is of an older version: its files stay, and are not read"
    )


def test_a_state_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    assert "file: is a file" in problem("state-dir", state_dir=tmp_path / "file")
    assert "file: is a file" in problem("state-dir", state_dir=tmp_path / "file" / "below")

    def refuse(**_: object) -> None:  # the rights of a folder do not stop root, who may run the tests
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    for folder in (tmp_path, tmp_path / "new"):
        assert f"{tmp_path}: cannot be written to (Read-only" in problem("state-dir", state_dir=folder)


# The SuperLink.


@contextmanager
def server(folder: Path | None, certificate: str = "server.pem", key: str = "server.key") -> Iterator[int]:
    """Give the port of a server with the certificate in ``folder``; with None it speaks no TLS."""
    context = None
    if folder is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / certificate, folder / key)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:  # shut down below
                    return
                with connection, suppress(OSError):
                    connection.settimeout(5)
                    if context is None:
                        if connection.recv(100):
                            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    else:
                        with context.wrap_socket(connection, server_side=True) as wrapped:
                            wrapped.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def signed(folder: Path, host: str, start: int, end: int) -> None:
    """Put a certificate valid from day ``start`` to day ``end``, signed by the authority, into ``folder``."""
    ca = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    now = datetime.now(UTC)
    name = x509.IPAddress(ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
    made = keys.server_certificate(
        keys.Signed(key, ca), [name], now + timedelta(days=start), now + timedelta(days=end)
    )
    for file, (content, _) in keys._pem_files("special.pem", "special.key", made).items():
        (folder / file).write_bytes(content)


def test_a_superlink_that_can_be_trusted(made):
    with server(made) as port:
        for host in ("127.0.0.1", "localhost"):
            found = findings(superlink=f"{host}:{port}", root_certificates=made / "ca.crt")
            assert {f.name: f.state for f in found.values() if f.state != "skipped"} == {
                "superlink": "ok",
                "root-certificates": "ok",
                "tls": "ok",
            }
            assert found["tls"].text.startswith("certificate for 127.0.0.1, localhost, valid until 20")
        key = findings(superlink=f"{host}:{port}", root_certificates=made / "ca.crt", key=made / "node1")["key"]
        assert key.text.endswith(
            "does not admit this key (not registered, or revoked): ask the federation's authority"
        )
        alone = findings(superlink=f"127.0.0.1:{port}")
        assert alone["tls"] == CheckResult("tls", "skipped", "no --root-certificates given")


@pytest.mark.parametrize(
    ("hours", "state", "words"),
    [
        (0, "ok", "s apart from the SuperLink's"),
        (24, "problem", "1,440 minutes apart"),
        (-1, "problem", "60 minutes"),
    ],
)
def test_a_clock_that_is_off(made, monkeypatch, hours, state, words):
    monkeypatch.setattr(trust, "stated_time", lambda *_: datetime.now(UTC) + timedelta(hours=hours))
    with server(made) as port:
        found = findings(superlink=f"127.0.0.1:{port}", root_certificates=made / "ca.crt")["clock"]
    assert found.state == state
    assert words in found.text


def test_another_authority(made, tmp_path):
    keys.create_keys(tmp_path / "others", 1)
    with server(made) as port:
        text = problem("tls", superlink=f"127.0.0.1:{port}", root_certificates=tmp_path / "others" / "ca.crt")
    assert f"127.0.0.1:{port}: wrong CA: its certificate was issued by 'CN=protofed trial CA " in text
    assert "others/ca.crt holds 'CN=protofed trial CA " in text


@pytest.mark.parametrize(
    ("host", "start", "end", "expected"),
    [
        ("127.0.0.1", -20, -10, "its certificate: expired on 20"),
        ("127.0.0.1", 10, 20, "its certificate: not valid before 20"),
        ("10.0.0.5", -1, 20, "name mismatch: its certificate is for 10.0.0.5, not for 127.0.0.1"),
    ],
)
def test_a_certificate_that_is_refused(host, start, end, expected, tmp_path):
    keys.create_keys(tmp_path / "keys", 1)
    signed(tmp_path / "keys", host, start, end)
    with server(tmp_path / "keys", "special.pem", "special.key") as port:
        request = {"superlink": f"127.0.0.1:{port}", "root_certificates": tmp_path / "keys" / "ca.crt"}
        assert expected in problem("tls", **request)


def test_nobody_there_and_no_tls(made, monkeypatch):
    with server(made) as port:
        pass
    found = findings(superlink=f"127.0.0.1:{port}", root_certificates=made / "ca.crt")
    assert "connection refused, no server is listening" in found["superlink"].text
    assert found["tls"].state == "skipped"
    with server(None) as port:
        text = problem("tls", superlink=f"127.0.0.1:{port}", root_certificates=made / "ca.crt")
        assert "no TLS there" in text
    assert "the name nowhere.invalid cannot be resolved" in problem("superlink", superlink="nowhere.invalid:8443")

    def late(*_: object, **__: object) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(trust.socket, "create_connection", late)
    assert "no answer within 5 s" in problem("superlink", superlink="10.255.255.1:8443")


WRONG = ["127.0.0.1", "https://127.0.0.1:8443", ":8443", "a:b", "a:0", "a:99999", "a:" + "1" * 5000]


@pytest.mark.parametrize("address", WRONG)
def test_an_address_has_a_host_and_a_port(address):
    assert "expected HOST:PORT" in problem("superlink", superlink=address)


def test_addresses_of_version_6():
    assert trust.split_address("[::1]:8443") == ("::1", 8443)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("nothing.crt", "nothing.crt: cannot be read (No such file or directory)"),
        ("ca.key", "ca.key: holds a private key"),
        ("node1.pub", "node1.pub: not a certificate in PEM form"),
        ("server.pem", "server.pem: a server's certificate, not an authority's"),
    ],
)
def test_root_certificates_that_are_none(file, expected, made):
    assert expected in problem("root-certificates", root_certificates=made / file)


# The key.


def write_key(path: Path, key: Any, form: str = "OpenSSH") -> Path:
    kind = getattr(serialization.PrivateFormat, form)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption()))
    path.chmod(0o600)
    return path


def test_keys_that_are_right(made, tmp_path):
    assert findings(key=made / "node1")["key"].text == f"{made / 'node1'}: ECDSA secp384r1, node1.pub matches"
    key = write_key(tmp_path / "own", ec.generate_private_key(ec.SECP256R1()))
    assert findings(key=key)["key"].text == f"{key}: ECDSA secp256r1, no own.pub beside it"


def test_keys_that_are_wrong(made, tmp_path):
    (tmp_path / "text").write_text("no key\n")
    curve = ec.generate_private_key(ec.SECP384R1())
    cases = {
        "no such": (tmp_path / "none", "none: cannot be read (No such file or directory)"),
        "text": (tmp_path / "text", "text: not a private key in OpenSSH form"),
        "pem": (write_key(tmp_path / "pem", curve, form="PKCS8"), "pem: not a private key in OpenSSH form"),
        "public": (made / "node1.pub", "node1.pub: a public key: give the private one"),
        "type": (
            write_key(tmp_path / "ed", ed25519.Ed25519PrivateKey.generate()),
            "ed: a key of type Ed25519, but Flower needs ECDSA",
        ),
    }
    torn = write_key(tmp_path / "torn", curve)
    torn.write_bytes(torn.read_bytes()[:200] + b"\n-----END OPENSSH PRIVATE KEY-----\n")
    cases["torn"] = torn, "torn: a damaged or unknown private key"
    for path, expected in cases.values():
        assert expected in problem("key", key=path)


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_a_key_with_a_passphrase(tmp_path):
    path = tmp_path / "locked"
    command = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "secret", "-f", str(path)]
    subprocess.run(command, check=True)
    assert "locked: has a passphrase" in problem("key", key=path)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "secret", "-N", "", "-f", str(path)], check=True)
    assert findings(key=path)["key"].text.endswith("locked.pub matches")


def test_a_key_that_others_may_read_or_whose_public_key_is_not_its_own(tmp_path):
    keys.create_keys(tmp_path / "keys", 2)
    key = tmp_path / "keys" / "node1"
    for mode in (0o640, 0o604, 0o644):
        key.chmod(mode)
        assert f"node1: other users may read or change it (mode {mode:04o}): `chmod 600" in problem("key", key=key)
    key.chmod(0o600)
    (tmp_path / "keys" / "node2.pub").rename(tmp_path / "keys" / "node1.pub")
    assert "node1.pub: belongs to another private key" in problem("key", key=key)
    (tmp_path / "keys" / "node1.pub").write_text("nothing\n")
    assert "node1.pub: not a public key in OpenSSH form" in problem("key", key=key)


# The command.

CHECK = ("deploy", "check")


def test_the_command_prints_one_line_per_check(north, made, monkeypatch, capsys):
    options = ("--client-dir", north, "--key", made / "node1", "--classes", "ant, cat")
    status, printed, _ = command(monkeypatch, capsys, *CHECK, "method.name=fedproto", *SMALL, *options)
    assert status == 0
    lines = [line.split()[:2] for line in printed.splitlines()]
    assert lines == [
        ["skipped", "config"],
        ["ok", "recipe"],
        ["ok", "client-dir"],
        ["ok", "model"],
        ["skipped", "state-dir"],
        ["skipped", "superlink"],
        ["skipped", "root-certificates"],
        ["skipped", "tls"],
        ["skipped", "clock"],
        ["ok", "key"],
        ["skipped", "roster"],
    ]
    wrong = ("quickstart", "method.name=local", *options[:-1], "ant,[bold]")
    status, printed, _ = command(monkeypatch, capsys, *CHECK, *wrong)
    assert status == 1
    assert "unknown class 'cat': did you mean 'ant'? Valid: [bold], ant" in printed
    status, printed, _ = command(monkeypatch, capsys, *CHECK, "--key", made / "none")
    assert status == 1
    assert "skipped  recipe             no RECIPE given\n" in printed
