"""The archive of a site: the same bytes every time, no secret, and files that the programs they are for accept."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'protofed[flower]'")

from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

import protofed
from protofed.apps.flower.allow import Allowed
from protofed.apps.flower.authority import approve
from protofed.apps.flower.keys import create_keys
from protofed.apps.flower.kit import create_kit
from protofed.apps.flower.policy import Policy
from protofed.apps.flower.settings import node_settings
from protofed.errors import ConfigError
from protofed.methods import methods
from protofed.models import architectures
from protofed.wire.codec import codecs
from support import command

FILES = {"Dockerfile", "Dockerfile.dockerignore", "README.txt", "ca.crt", "compose.yaml", "node.toml"}
FILES |= {"protofed-node.service"}
LINK = "link.example.org:8443"


@pytest.fixture(scope="module")
def fed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kit") / "fed"
    create_keys(folder, 0, federation="hospitals")
    return folder


@pytest.fixture
def kit(fed, tmp_path) -> Path:
    """The unpacked archive of a site whose name has a space."""
    create_kit(fed, "Köln 2", LINK, tmp_path / "kit.tar.gz")
    with tarfile.open(tmp_path / "kit.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "protofed"


def test_the_same_bytes_and_no_secret(fed, tmp_path):
    for name in ("one", "two"):
        create_kit(fed, "north", LINK, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    with tarfile.open(tmp_path / "one") as archive:
        members = archive.getmembers()
        found = {member.name: archive.extractfile(member).read() for member in members}
    assert found.keys() == {f"protofed/{name}" for name in FILES}
    assert {(m.mtime, m.uid, m.gid, m.mode) for m in members} == {(0, 0, 0, 0o644)}
    assert found["protofed/ca.crt"] == (fed / "ca.crt").read_bytes()
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


def service(kit: Path) -> dict[str, str]:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str
    unit.read(kit / "protofed-node.service")
    return dict(unit["Service"])


def expected(kit: Path, words: list[str], folder: str) -> None:
    """Check the arguments of ``flower-supernode`` by its own parser."""
    found = _parse_args_run_supernode().parse_args(words)
    assert found.superlink == LINK
    assert found.root_certificates == f"{folder}ca.crt"
    assert found.auth_supernode_private_key == f"{folder}keys/Köln 2"
    assert found.node_config == 'config="/srv/protofed/node.toml"'


def test_the_unit(kit, tmp_path):
    options = service(kit)
    assert (options["NoNewPrivileges"], options["ProtectSystem"]) == ("yes", "strict")
    assert (options["StateDirectory"], options["StateDirectoryMode"]) == ("protofed", "0700")
    assert options["User"] == options["Group"] == "protofed"
    program, *words = shlex.split(options["ExecStart"].replace("\\\n", " "))
    assert program == "/opt/protofed/bin/flower-supernode"
    expected(kit, words, "/srv/protofed/")
    if shutil.which("systemd-analyze"):
        unit = tmp_path / "protofed-node.service"  # of a machine that has the program
        unit.write_text((kit / "protofed-node.service").read_text().replace(program, "/bin/true"))
        done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_container(kit):
    yaml = pytest.importorskip("yaml")
    node = yaml.safe_load((kit / "compose.yaml").read_text())["services"]["node"]
    expected(kit, node["command"], "")
    assert node["read_only"] is True
    assert (node["cap_drop"], node["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
    assert node["volumes"] == ["/srv/protofed:/srv/protofed:ro", "/var/lib/protofed:/var/lib/protofed"]
    wheel = f"protofed-{protofed.__version__}-py3-none-any.whl"
    lines = (kit / "Dockerfile").read_text()
    assert f"COPY {wheel} /tmp/" in lines
    assert f"/tmp/{wheel}[flower]" in lines
    assert json.loads(re.search("^ENTRYPOINT (.*)$", lines, re.MULTILINE).group(1)) == ["flower-supernode"]
    assert (kit / "Dockerfile.dockerignore").read_text().splitlines()[1:] == ["*", "!*.whl"]


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
        ("no\nrth", LINK, "--site: name 'no rth': use letters"),
        ("north", "https://link.org:1", "expected HOST:PORT without https://"),
        ("north", "li\nnk:8443", "--superlink 'li\\nnk': expected an IP address or a DNS name"),
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
