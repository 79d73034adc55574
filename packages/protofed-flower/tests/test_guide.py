"""``docs/deployment.md`` works: its commands are executed as written, on other ports, in an empty folder."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

import protofed
from conftest import REPOSITORY
from deployment import Programs, free_port, rounds_of, until

GUIDE = REPOSITORY / "docs" / "deployment.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PORTS = ("18443", "9101", "9102", "9103", "9104")
STAYS = ("flower-superlink", "protofed deploy node")
INSTALLS = (
    "uv build --wheel\nuv build --wheel --package protofed-flower\n"
    f"pip install dist/protofed*-{protofed.__version__}-py3-none-any.whl"
)


@dataclass
class Guide:
    """The console blocks of the guide by the number of their section, 0 for the introduction."""

    sections: dict[int, list[str]]
    ports: dict[str, int]

    @classmethod
    def read(cls) -> Guide:
        ports = {port: free_port() for port in PORTS}
        sections: dict[int, list[str]] = {}
        for number, section in enumerate(re.split(r"^## ", GUIDE.read_text(), flags=re.MULTILINE)):
            if number and not section.startswith(f"{number}. "):
                assert not BLOCK.search(section), f"commands after the numbered steps: {section[:40]}"
                continue
            for block in BLOCK.findall(section):
                for port, free in ports.items():
                    block = block.replace(port, str(free))
                sections.setdefault(number, []).append(block)
        return cls(sections, ports)


class Terminals(Programs):
    """Runs blocks of the guide, each in a shell of its own that knows nothing of the others."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, folder / "trial" / "server")
        self.user = folder / "home"
        self.shell = f"env -u FLWR_HOME HOME={self.user} bash -euo pipefail -c"

    def run(self, block: str, seconds: float = 300) -> str:
        """Run a block to its end; return what it prints."""
        assert not any(program in block for program in STAYS)
        command = [*shlex.split(self.shell), block]
        done = subprocess.run(
            command, cwd=self.root, env=self.environment, capture_output=True, text=True, timeout=seconds
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def stay(self, name: str, block: str) -> None:
        """Start a block that stays in the foreground."""
        assert any(program in block for program in STAYS)
        self.start(name, f"{self.shell} {shlex.quote(block)}")

    def start_and_kill(self, block: str, out: Path) -> None:
        """Run a block, and kill the ServerApp once the first round is complete."""
        self.start("run", f"{self.shell} {shlex.quote(block)}")
        until(lambda: len(rounds_of(out)) >= 1, 900, "the first round", pause=0.5)
        self.kill_server_app()
        assert self.end() == "finished:failed"
        self.kill("run")


def test_the_guide_has_all_steps_and_installs_what_there_is():
    guide = Guide.read()
    assert list(guide.sections) == list(range(9))
    assert guide.sections[0] == [f"{INSTALLS}\n"]
    assert (REPOSITORY / "packages/protofed-flower/pyproject.toml").is_file()
    text = "".join(block for blocks in guide.sections.values() for block in blocks)
    assert "flwr run ." not in text, "an app that holds the trial would be sent to all nodes"


@pytest.mark.slow
def test_the_commands_between_organisations(tmp_path):
    kit, unpack, approve, check, request, renew, again, revoke = Guide.read().sections[7][1:]
    with Terminals(tmp_path) as terminals:
        terminals.run(Guide.read().sections[1][0])
        terminals.run(Guide.read().sections[7][0])
        terminals.run(kit)
        fingerprint = re.search("SHA256:\\S+(?=:)", terminals.run(unpack)).group()
        assert f"north: {fingerprint}: hand on nothing" in terminals.run(approve)
        findings = terminals.run(check)
        assert [line.split()[1] for line in findings.splitlines() if line.startswith("ok")] == [
            "config",
            "client-dir",
            "state-dir",
            "root-certificates",
            "key",
            "roster",
        ]
        assert "north.crt is the authority's" in findings
        new = re.search("SHA256:\\S+(?=:)", terminals.run(request)).group()
        assert f"the key {fingerprint} is replaced" in terminals.run(renew)
        assert "server.pem: for the SuperLink, anew" in terminals.run(again)
        assert f"the key {new} is revoked" in terminals.run(revoke)
    record = json.loads((tmp_path / "federation" / "revoked.json").read_text())
    assert {key: entry["why"] for key, entry in record.items()} == {fingerprint: "replaced", new: "revoked"}


@pytest.mark.slow
def test_the_commands_of_the_guide(tmp_path):
    """A run; one that is killed, and the SuperLink too, and resumed; a fourth that starts as the first did."""
    guide, trial = Guide.read(), tmp_path / "trial"
    (data,), (keys,), (link, register), (check, *nodes), (app, first, second, listing, use), (resume,) = (
        guide.sections[number] for number in range(1, 7)
    )
    with Terminals(tmp_path) as terminals:
        terminals.run(data)
        terminals.run(keys)
        terminals.stay("link", link)
        terminals.wait_for_link(guide.ports["18443"])
        terminals.run(register)
        findings = terminals.run(check)
        assert "problem" not in findings
        for number, block in enumerate(nodes, start=1):
            terminals.stay(f"node{number}", block)
        terminals.run(app)
        bundled = (trial / "app" / "pyproject.toml").read_text()

        log = terminals.run(first, 1200)
        assert "complete, report trial/protonorm/report.html" in log
        assert (trial / "protonorm" / "report.html").is_file()
        assert len(rounds_of(trial / "protonorm")) == 3
        for name in ("north", "south", "west"):
            (own,) = (trial / "state" / name / name).iterdir()
            assert (own / "clients" / name / "model.safetensors").is_file()
        assert "class,probability" in terminals.run(use)
        assert json.loads(terminals.run(listing))["runs"][0]["status"] == "finished:completed"

        terminals.start_and_kill(second, trial / "tinyproto")
        done = len(rounds_of(trial / "tinyproto"))
        assert 1 <= done < 3
        terminals.kill("link")
        terminals.stay("link", link)
        terminals.wait_for_link(guide.ports["18443"])
        log = terminals.run(resume, 1200)
        assert f"rounds {done + 1} to 3" in log
        assert "complete, report trial/tinyproto/report.html" in log
        rounds = rounds_of(trial / "tinyproto")
        assert [record["round"] for record in rounds] == [1, 2, 3]

        log = terminals.run(first.replace("trial/protonorm", "trial/again"), 1200)
        assert "complete, report trial/again/report.html" in log
        assert all(terminals.processes[f"node{number}"].poll() is None for number in (1, 2, 3))
    assert (trial / "app" / "pyproject.toml").read_text() == bundled
    for number in (1, 2, 3):
        sent = trial / f"node{number}" / "apps"
        assert {path.name for path in sent.rglob("*") if path.is_file()} == {"pyproject.toml"}
    assert not (terminals.user / ".flwr").exists(), "Flower writes nothing outside the folder of the trial"


@pytest.mark.slow
def test_changes_in_operation(tmp_path):
    """A fourth site during a run, a new key for it during the next, and a server of a later version, taken back.

    In place of the installation, the server finds the later version in another folder; the nodes keep theirs.
    """
    guide, trial = Guide.read(), tmp_path / "trial"
    (request, register, east, four, renew, exchange, resume, version) = guide.sections[8]
    link, registers = guide.sections[3]
    with Terminals(tmp_path) as terminals:
        for block in (guide.sections[1][0], guide.sections[2][0], guide.sections[5][0]):
            terminals.run(block)
        terminals.stay("link", link)
        terminals.wait_for_link(guide.ports["18443"])
        terminals.run(registers)
        for number, block in enumerate(guide.sections[4][1:], start=1):
            terminals.stay(f"node{number}", block)

        terminals.run(guide.sections[5][1].replace("--stream ", "").replace("rounds=3", "rounds=15"))
        until(lambda: len(rounds_of(trial / "protonorm")) >= 1, 300, "the first round")
        terminals.run(request)
        node = re.search(r"\b(\d{15,20})\b", terminals.run(register)).group()
        terminals.stay("node4", east)
        terminals.finish()
        (left,) = json.loads((trial / "protonorm" / "federation.json").read_text())["left_out"]
        assert (left["client"], "the next one" in left["reason"]) == ("east", True)

        terminals.run(four)
        until(lambda: len(rounds_of(trial / "four")) >= 2, 300, "the second round")
        terminals.run(renew)
        terminals.run(exchange.replace("RUN", terminals.newest()).replace("NODE", node))
        done = len(rounds_of(trial / "four"))
        assert 2 <= done < 8
        terminals.kill("node4")
        terminals.stay("node4", east.replace("trial/east/east", "trial/east-2/east"))
        log = terminals.run(resume, 900)
        assert f"rounds {done + 1} to 8" in log
        rounds = rounds_of(trial / "four")
        assert [record["round"] for record in rounds] == list(range(1, 9))
        assert all(record["participants"] == ["east", "north", "south", "west"] for record in rounds)

        later = tmp_path / "later" / "protofed"
        shutil.copytree(Path(protofed.__file__).parent, later, ignore=shutil.ignore_patterns("__pycache__"))
        (later / "__init__.py").write_text(
            (later / "__init__.py").read_text().replace(protofed.__version__, "99.0")
        )
        terminals.kill("link")
        terminals.environment["PYTHONPATH"] = str(later.parent)
        assert "99.0" in terminals.run(version.splitlines()[1])
        terminals.stay("link", link)
        terminals.wait_for_link(guide.ports["18443"])
        longer = resume.replace("rounds=8", "rounds=9")
        log = terminals.run(longer, 300)
        expected = f"runs protofed {protofed.__version__}, this server 99.0: install one version on both"
        assert expected in log
        assert len(rounds_of(trial / "four")) == 8
        terminals.kill("link")
        del terminals.environment["PYTHONPATH"]
        terminals.stay("link", link)
        terminals.wait_for_link(guide.ports["18443"])
        assert "rounds 9 to 9" in terminals.run(longer, 300)
        assert len(rounds_of(trial / "four")) == 9
