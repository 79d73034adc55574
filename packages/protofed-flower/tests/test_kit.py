"""The archives of site and server: the same bytes every time, no secret, files that their programs accept."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import tarfile
import tomllib
from pathlib import Path

import pytest
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

import protofed
from deployment import BIN, Programs, free_port
from protofed.errors import ConfigError
from protofed.methods import methods
from protofed.models import architectures
from protofed.wire.codec import codecs
from protofed_flower import trust
from protofed_flower.allow import Allowed
from protofed_flower.authority import approve
from protofed_flower.keys import create_keys
from protofed_flower.kit import create_kit
from protofed_flower.policy import Policy
from protofed_flower.settings import node_settings
from support import command

FILES = {"Dockerfile", "Dockerfile.dockerignore", "README.txt", "ca.crt", "compose.yaml", "node.toml"}
FILES |= {"protofed-node.service"}
SERVER_FILES = {"Dockerfile", "Dockerfile.dockerignore", "README.txt", "ca.crt", "compose.yaml", "config.toml"}
SERVER_FILES |= {"protofed-superlink.service", "server.pem"}
LINK = "link.example.org:8443"


@pytest.fixture(scope="module")
def fed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kit") / "fed"
    create_keys(folder, 0, ["link.example.org", "127.0.0.1"], federation="hospitals")
    return folder


@pytest.fixture
def kit(fed, tmp_path) -> Path:
    """The unpacked archive of a site whose name has a space."""
    return unpacked(fed, "Köln 2", tmp_path) / "protofed"


@pytest.fixture
def server(fed, tmp_path) -> Path:
    """The unpacked archive of the server."""
    return unpacked(fed, None, tmp_path) / "protofed-server"


def unpacked(fed: Path, site: str | None, folder: Path, superlink: str = LINK) -> Path:
    """Write an archive, and unpack it beside itself."""
    file = folder / f"{site or 'server'}.tar.gz"
    create_kit(fed, site, superlink, file)
    with tarfile.open(file) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize(
    ("site", "folder", "files"), [("north", "protofed", FILES), (None, "protofed-server", SERVER_FILES)]
)
def test_the_same_bytes_and_no_secret(site, folder, files, fed, tmp_path):
    for name in ("one", "two"):
        create_kit(fed, site, LINK, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    with tarfile.open(tmp_path / "one") as archive:
        members = archive.getmembers()
        found = {member.name: archive.extractfile(member).read() for member in members}
    assert found.keys() == {f"{folder}/{name}" for name in files}
    assert {(m.mtime, m.uid, m.gid, m.mode) for m in members} == {(0, 0, 0, 0o644)}
    for name in files & {"ca.crt", "server.pem"}:
        assert found[f"{folder}/{name}"] == (fed / name).read_bytes()
    assert not any(b"PRIVATE KEY" in content for content in found.values())
    assert not any(re.search(rb"(?<!\$)\{[a-z]+\}", content) for content in found.values()), (
        "a field without a value"
    )


def test_the_settings_of_the_node(kit):
    found = node_settings({"config": str(kit / "node.toml")})
    assert (found["client"], found["key"]) == ("Köln 2", str(kit / "keys" / "Köln 2"))
    assert found["authority"] == str(kit / "ca.crt")
    allowed = Allowed.of(found)
    assert allowed is not None
    for names, registry in (
        (allowed.methods, methods()),
        (allowed.models, architectures),
        (allowed.codecs, codecs),
    ):
        assert all(registry.get(name) for name in names)


def test_every_commented_setting_is_known(kit):
    text = re.sub(r"^# (?=[a-z-]+ = )", "", (kit / "node.toml").read_text(), flags=re.MULTILINE)
    (kit / "node.toml").write_text(text.replace("epsilon = 8.0", "epsilon = 4.0"))
    found = Policy.of(node_settings({"config": str(kit / "node.toml")}))
    assert (found.mode, found.epsilon) == ("sample", 4.0)


def service(unit: Path) -> dict[str, str]:
    """Return the options of a unit, which systemd accepts if this machine has it."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read(unit)
    options = dict(parser["Service"])
    if shutil.which("systemd-analyze"):
        copy = unit.with_name("copy.service")  # of a program that this machine has
        text = re.sub(r"/opt/protofed/bin/[a-z-]+", "/bin/true", unit.read_text())
        copy.write_text(text)
        done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return options


def started(options: dict[str, str]) -> list[str]:
    """Return the words of the command that a unit starts."""
    return shlex.split(options["ExecStart"].replace("\\\n", " "))


def compose(folder: Path) -> dict:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((folder / "compose.yaml").read_text())["services"]


def expected(kit: Path, words: list[str], folder: str) -> None:
    """Check the arguments of ``flower-supernode`` by its own parser."""
    found = _parse_args_run_supernode().parse_args(words)
    assert found.superlink == LINK
    assert found.root_certificates == f"{folder}ca.crt"
    assert found.auth_supernode_private_key == f"{folder}keys/Köln 2"
    assert found.node_config == 'config="/srv/protofed/node.toml"'


def test_the_unit(kit):
    options = service(kit / "protofed-node.service")
    assert (options["NoNewPrivileges"], options["ProtectSystem"]) == ("yes", "strict")
    assert (options["StateDirectory"], options["StateDirectoryMode"]) == ("protofed", "0700")
    assert options["User"] == options["Group"] == "protofed"
    program, *words = started(options)
    assert [program, *words[:2]] == ["/opt/protofed/bin/protofed", "deploy", "node"]
    expected(kit, words[2:], "/srv/protofed/")


def test_the_log_says_why_a_node_may_have_ended(kit, monkeypatch, capsys):
    """Flower's own words for a key that was revoked are ``Connection attempt failed``."""
    program, *words = shlex.split(service(kit / "protofed-node.service")["ExecStopPost"].replace("\\\n", " "))
    assert program == "-/opt/protofed/bin/protofed"  # its status does not count
    monkeypatch.chdir(kit)
    _, out, _ = command(monkeypatch, capsys, *words)
    assert f"{LINK}" in out.replace("\n", "")
    assert {"config", "superlink", "root-certificates", "key", "roster"} <= {
        line.split()[1] for line in out.splitlines()
    }
    assert "not admit the node: its key was" in (kit / "README.txt").read_text()


def contained(folder: Path, name: str, program: list[str], place: str) -> dict:
    """Check what the containers of node and server share; return the service."""
    found = compose(folder)[name]
    assert found["read_only"] is True
    assert found["logging"] == {"driver": "local"}
    assert (found["cap_drop"], found["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
    assert found["volumes"] == [f"/srv/{place}:/srv/{place}:ro", f"/var/lib/{place}:/var/lib/{place}"]
    wheels = f"protofed*-{protofed.__version__}-py3-none-any.whl"  # of protofed and of protofed-flower
    lines = (folder / "Dockerfile").read_text()
    assert f"COPY {wheels} /tmp/" in lines
    assert "pip install --no-cache-dir /tmp/protofed*.whl" in lines
    assert json.loads(re.search("^ENTRYPOINT (.*)$", lines, re.MULTILINE).group(1)) == program
    assert (folder / "Dockerfile.dockerignore").read_text().splitlines()[1:] == ["*", "!*.whl"]
    return found


def test_the_container(kit):
    expected(kit, contained(kit, "node", ["protofed", "deploy", "node"], "protofed")["command"], "")


def test_the_server_has_one_command(server, kit):
    options = service(server / "protofed-superlink.service")
    program, *words = started(options)
    assert program == "/opt/protofed/bin/flower-superlink"
    found = _parse_args_run_superlink().parse_args(words)
    assert (found.host, found.port, found.enable_supernode_auth) == ("0.0.0.0", 8443, True)
    assert found.runtime_dependency_install is False
    assert found.database == "/var/lib/protofed-server/state.db"
    container = contained(server, "superlink", ["flower-superlink"], "protofed-server")
    assert container["command"] == words
    assert container["ports"] == ["8443:8443"]
    own = {"User", "Group", "WorkingDirectory", "StateDirectory", "Environment", "ExecStart", "ExecStopPost"}
    own |= {"RestartSec"}
    node = service(kit / "protofed-node.service")
    assert {k: v for k, v in options.items() if k not in own} == {k: v for k, v in node.items() if k not in own}
    assert options["User"] == options["Group"] == options["StateDirectory"] == "protofed-server"


def test_the_key_of_the_server_is_brought_by_hand(server):
    text = (server / "README.txt").read_text()
    assert "install -o protofed-server -g protofed-server -m 600 /media/usb/server.key ." in text
    assert "Nodes reach the server as link.example.org:8443." in text
    found = tomllib.loads((server / "config.toml").read_text())["superlink"]
    assert found[found["default"]] == {
        "address": "127.0.0.1:8443",
        "root-certificates": "/srv/protofed-server/ca.crt",
    }


@pytest.mark.slow
def test_the_server_listens_with_tls(fed, tmp_path):
    """The unit's command, in folders of this test; its own processes reach it by the address that is tried here."""
    port = free_port()
    server = unpacked(fed, None, tmp_path, f"link.example.org:{port}") / "protofed-server"
    shutil.copy(fed / "server.key", server)
    state = tmp_path / "state"
    state.mkdir()
    line = shlex.join(started(service(server / "protofed-superlink.service")))
    for old, new in (
        ("/opt/protofed/bin", BIN),
        ("/srv/protofed-server", server),
        ("/var/lib/protofed-server", state),
    ):
        line = line.replace(old, str(new))
    with Programs(tmp_path, state / "flwr") as programs:
        programs.start("link", line)
        programs.wait_for_link(port)
        authorities = trust.read_authorities(server / "ca.crt")
        shown = trust.handshake("127.0.0.1", port, server / "ca.crt", authorities)
        assert shown == trust.load_certificate(server / "server.pem")
        assert (state / "state.db").exists()


def test_the_certificate_of_the_server_fits(fed, tmp_path):
    reason = "but nodes reach the SuperLink as other.example.org, and its own processes as 127.0.0.1: have a"
    with pytest.raises(ConfigError, match=reason):
        create_kit(fed, None, "other.example.org:8443", tmp_path / "kit.tar.gz")
    create_keys(tmp_path / "new", 0, ["link.example.org"])
    with pytest.raises(ConfigError, match=r"--host link\.example\.org --host 127\.0\.0\.1$"):
        create_kit(tmp_path / "new", None, LINK, tmp_path / "kit.tar.gz")
    shutil.copy(fed / "server.pem", tmp_path / "new")
    with pytest.raises(ConfigError, match=r"server\.pem: not issued by the authority in ca\.crt"):
        create_kit(tmp_path / "new", None, LINK, tmp_path / "kit.tar.gz")
    assert not (tmp_path / "kit.tar.gz").exists()


def test_the_commands_of_the_readme(kit, fed, tmp_path, monkeypatch, capsys):
    """Those of protofed, in order, in the folder where the archive was unpacked."""
    shutil.copytree(fed, tmp_path / "fed")
    blocks = re.sub(r"\\\n\s+", " ", (kit / "README.txt").read_text())
    lines = [
        line.split("/opt/protofed/bin/protofed ")[1] for line in blocks.splitlines() if "bin/protofed " in line
    ]
    request, check = map(shlex.split, lines)
    settings = (kit / "node.toml").read_text()
    (kit / "node.toml").write_text(settings.replace("/var/lib/protofed", str(tmp_path / "var")))
    monkeypatch.chdir(kit)
    assert command(monkeypatch, capsys, *request)[0] == 0
    approve(tmp_path / "fed", [kit / "keys" / "Köln 2.request"], 365)
    shutil.copy(tmp_path / "fed" / "roster.json", kit)
    shutil.copy(tmp_path / "fed" / "sites" / "Köln 2.crt", kit / "keys")
    status, out, _ = command(monkeypatch, capsys, *check)
    states = {line.split()[1]: line.split()[0] for line in out.splitlines()}
    assert status == 1
    assert {name for name, state in states.items() if state == "problem"} == {"client-dir", "superlink"}
    assert {states[name] for name in ("config", "key", "roster", "root-certificates", "state-dir")} == {"ok"}
    assert "this node is Köln 2" in out


@pytest.mark.parametrize(
    ("site", "superlink", "reason"),
    [
        ("../x", LINK, "--site: name '../x': use letters"),
        ("north", "https://link.org:1", "expected HOST:PORT without https://"),
        ("north", "$(id):8443", "--superlink '$(id)': expected an IP address or a DNS name"),
    ],
)
def test_names_that_do_not_belong_in_a_file(site, superlink, reason, fed, tmp_path):
    with pytest.raises(ConfigError) as error:
        create_kit(fed, site, superlink, tmp_path / "kit.tar.gz")
    assert reason in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_kit_is_not_overwritten_and_needs_an_authority(fed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ("deploy", "kit", fed, "--site", "north", "--superlink", LINK)
    status, out, _ = command(monkeypatch, capsys, *words)
    assert (status, out) == (
        0,
        "north.tar.gz: for the administrator of north, who begins with README.txt; it holds no secret\n",
    )
    status, _, error = command(monkeypatch, capsys, *words)
    assert status == 2
    assert "north.tar.gz is there already: kits are never overwritten" in error
    (tmp_path / "ca.crt").write_bytes((fed / "ca.key").read_bytes())
    status, _, error = command(monkeypatch, capsys, *words[:2], tmp_path, *words[3:], "--out", "x")
    assert (status, error.count("\n")) == (2, 1)
    assert "ca.crt: holds a private key" in error
    assert not (tmp_path / "x").exists()
