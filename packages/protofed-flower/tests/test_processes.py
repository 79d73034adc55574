"""Real processes on loopback: the same numbers, and faults that cost nothing but time."""

from __future__ import annotations

import html
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from conftest import REPOSITORY
from deployment import BIN, Deployment, rounds_of, until
from network import contents, own_run, write_folders
from protofed import load_run, run
from protofed.methods import methods
from protofed_flower.identity import fingerprint
from protofed_flower.keys import create_keys
from protofed_flower.status import status
from support import client, federated, ordinary

PROBE = f"{REPOSITORY / 'tests' / 'probes.py'}:Probe"
DEPLOYED = ("fedproto", "fedtgp", "tinyproto", "protonorm", "gfpl", "fedavg", "fedmrl", "fedl2g", "fpl")
"""At least one method for every kind of message that a network trains with."""


def folders(root: Path, clients: int = 3) -> Path:
    """Write a federation folder of at most four clients."""
    everybody = [*ordinary().clients, client("dan", [2, 2, 2, 0, 0, 3])]
    return write_folders(root, federated(*everybody[:clients]))


def recipe(data: Path, method: str, rounds: int = 3, more: str = "") -> Path:
    """Write a tiny experiment."""
    path = data.parent / f"{method.rpartition(':')[2]}.toml"
    path.write_text(f"""rounds = {rounds}
[method]
name = "{method}"
[data]
classes = 4
source = "path"
path = "{data}"
[model]
name = "mlp"
d = 5
[training]
batch_size = 4
lr = 0.02
[execution]
threads = 1
{more}""")
    return path


def here(chosen: Path, out: Path, *words: str) -> Path:
    """Run on this machine with the command line."""
    command = [str(BIN / "protofed"), "run", str(chosen), "--out", str(out), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def same(expected: Path, found: Path, names: tuple[str, ...] = ("accuracy", "bytes", "parameters")) -> None:
    """Same participants and prototypes, and the same of what is named: accuracies, bytes and parameters."""
    names = ("round", "participants", *names)
    for a, b in zip(rounds_of(expected), rounds_of(found), strict=True):
        assert {n: a.get(n) for n in names} == {n: b.get(n) for n in names}
    a, b = (path / "prototypes.safetensors" for path in (expected, found))
    assert a.is_file() == b.is_file()
    if a.is_file():
        known, other = load_file(a), load_file(b)
        assert {n for n in known if n.startswith("global.")} <= other.keys()
        for name in known.keys() & other.keys():
            torch.testing.assert_close(other[name], known[name], rtol=1e-5, atol=1e-6)


def clients_of(data: Path) -> list[Path]:
    return sorted((data / "clients").iterdir())


def model_of(deployment: Deployment, number: int) -> Path:
    folder = deployment.data[number]
    return own_run(deployment.root / "state", folder.name) / "clients" / folder.name / "model.safetensors"


def absent(out: Path, name: str) -> list[int]:
    """Return the rounds in which a client's training is missing."""
    return [
        record["round"]
        for record in rounds_of(out)
        if any(m["client"] == name and m["phase"] == "training" for m in record["missing"])
    ]


@contextmanager
def begun(root: Path, method: str, rounds: int, until_round: int) -> Iterator[tuple[Deployment, Path, Path]]:
    """Bring a deployment of three up; yield it, its recipe and run directory once a run has come so far."""
    data = folders(root / "data")
    chosen, out = recipe(data, method, rounds), root / "run"
    with Deployment(root, clients_of(data)) as d:
        d.up()
        d.begin(chosen, out)
        until(lambda: len(rounds_of(out)) == until_round, 300, f"round {until_round}")
        yield d, chosen, out


@pytest.mark.slow  # run by .ci/run, beside the ordinary tests
def test_a_deployment_gives_the_numbers_of_a_local_run(tmp_path):
    """The short version for every day: a round of ProtoNorm over TLS with two authenticated nodes."""
    data = folders(tmp_path / "data", 2)
    chosen = recipe(data, "protonorm", 1)  # each message starts a process per node
    local = tmp_path / "local"
    run(chosen, out=local)
    create_keys(tmp_path / "others", 1)
    with Deployment(tmp_path, clients_of(data)) as d:
        d.up()
        d.begin(chosen, tmp_path / "remote")
        d.node(0, name="stranger", key=tmp_path / "others" / "node1")  # a key that nobody registered
        assert d.ended("stranger") != 0
        d.finish()
        assert all(model_of(d, n).is_file() for n in range(2))
        assert "ann: a run begins, in which this node keeps to method.name" in d.log("node1")
    same(local, tmp_path / "remote")
    assert (tmp_path / "remote" / "report.html").is_file()


@pytest.mark.slow
def test_the_life_of_runs_that_share_their_nodes(tmp_path):
    """Two runs at once; one again by the command of its report, to which a site comes late; one that goes on."""
    data, three = folders(tmp_path / "data", 2), folders(tmp_path / "three")
    first, second = recipe(data, "protonorm", 2), recipe(data, "fedproto", 2)
    expected = {name: here(path, tmp_path / f"local-{name}") for name, path in (("A", first), ("B", second))}
    test = data / "clients" / "ann" / "test.npz"
    with Deployment(tmp_path, clients_of(three)) as d:
        d.link()
        d.register()
        d.node(0)
        d.node(1)
        for name, path in (("A", first), ("B", second)):
            d.begin(path, tmp_path / name, clients=2)
        until(lambda: all((tmp_path / n / "report.html").is_file() for n in "AB"), 300, "the ends of both")
        d.finish()
        for name in "AB":
            same(expected[name], tmp_path / name)

        page = html.unescape((tmp_path / "B" / "report.html").read_text())
        command = re.search(r'<pre class="command" tabindex="0">flwr (run APP .*?)</pre>', page)[1]
        command = command.replace(" APP --stream", f" {tmp_path}/app")
        d.flwr(command.replace("clients=2", f'clients=2 out="{tmp_path}/again"'))
        until((tmp_path / "again" / "federation.json").is_file, 120, "the begin of the run")
        d.node(2)
        d.finish()
        same(expected["B"], tmp_path / "again")
        (left,) = json.loads((tmp_path / "again" / "federation.json").read_text())["left_out"]
        assert left["client"] == "cid"
        assert "came after the run had begun" in (tmp_path / "again" / "report.html").read_text()

        # At the node: one folder per run, as the commands take it.
        runs = {load_run(p).summary.method: p for p in (tmp_path / "state" / "ann" / "ann").iterdir()}
        assert len(list((tmp_path / "state" / "ann" / "ann").iterdir())) == 3
        mine = runs["protonorm"]
        assert protofed(f"predict {mine} ann {test}") == protofed(f"predict {expected['A']} ann {test}")

        before = contents(tmp_path / "A", tmp_path / "state")
        d.begin(recipe(data, "protonorm", 1), tmp_path / "A", resume=True)
        assert d.end() == "finished:failed"
        assert "A holds 2 rounds: rounds=1 is fewer" in d.flwr(f"log {d.newest()} trial --show")
        assert contents(tmp_path / "A", tmp_path / "state") == before
        longer = recipe(data, "protonorm", 4)
        d.begin(longer, tmp_path / "A", resume=True)
        d.finish()
    local = here(longer, tmp_path / "local-longer")
    same(local, tmp_path / "A")
    assert protofed(f"predict {mine} ann {test}") == protofed(f"predict {local} ann {test}")


def protofed(command: str) -> tuple[int, str]:
    """Return the status of a command and what it prints."""
    done = subprocess.run([str(BIN / "protofed"), *shlex.split(command)], capture_output=True, text=True)
    return done.returncode, done.stdout or done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("method", [*sorted(methods()), PROBE], ids=lambda name: name.rpartition(":")[2])
def test_a_simulation_on_ray_gives_the_numbers_of_the_local_engine(method, tmp_path):
    more = "[data.labels]\n0 = 'a'\n1 = 'b'\n2 = 'c'\n3 = 'd'\n" if method == "fedtsp" else ""
    chosen = recipe(folders(tmp_path / "data", 4), method, more=more)
    same(here(chosen, tmp_path / "local"), here(chosen, tmp_path / "ray", "--engine", "flower"))


@pytest.mark.slow
def test_every_kind_of_message_gives_the_same_numbers_over_a_network(tmp_path):
    data = folders(tmp_path / "data", 4)
    with Deployment(tmp_path, clients_of(data)) as d:
        d.up()
        for method in DEPLOYED:
            chosen = recipe(data, method, more='[robust]\nrule = "clip"')  # the default of a deployment alone
            d.begin(chosen, tmp_path / method)
            d.finish()
            same(here(chosen, tmp_path / f"local-{method}"), tmp_path / method)


@pytest.mark.slow
def test_a_node_killed_in_round_2_comes_back_with_its_own_model(tmp_path):
    with begun(tmp_path, "tinyproto", 6, until_round=1) as (d, _, out):
        state = model_of(d, 1)
        d.kill("node2")
        before = load_file(state)
        until(lambda: "bob" in str([r["missing"] for r in rounds_of(out)]), 300, "a round without bob")
        after = load_file(state)
        assert before.keys() == after.keys()
        assert all(torch.equal(before[n], after[n]) for n in before)

        def joined() -> bool:
            """Start it again for as long as Flower refuses a node that counts as online."""
            if "node2" not in d.processes or d.processes["node2"].poll() is not None:
                d.node(1)
            return len(rounds_of(out)) == 6

        until(joined, 900, "the rest of the run")
        d.finish()
    gone = absent(out, "bob")
    assert gone
    assert max(gone) < 6
    rounds = rounds_of(out)
    back = next(r for r in rounds if r["round"] > max(gone))
    # A model that began anew would be as bad as in round 1.
    assert back["losses"]["cross_entropy"] < rounds[0]["losses"]["cross_entropy"]


@pytest.mark.slow
def test_rounds_do_not_wait_for_a_node_that_is_slow(tmp_path):
    """bob trains for minutes, and Flower knows that it is alive: only the deadline ends the wait."""
    ann, _, cid = ordinary().clients
    bob = client("bob", [1, 2, 3] * 1000, [1, 2, 3], epochs=200, batch_size=1)
    data = write_folders(tmp_path / "data", federated(ann, bob, cid))
    chosen = recipe(data, "protonorm", 2, "[participation]\ndeadline_s = 60\n")
    out = tmp_path / "run"
    with Deployment(tmp_path, clients_of(data)) as d:
        d.up()
        d.begin(chosen, out)
        d.finish()
    rounds = rounds_of(out)
    assert absent(out, "bob") == [1, 2]
    assert {"client": "bob", "phase": "training", "reason": "no answer within 60 s"} in rounds[0]["missing"]
    assert all(record["seconds"]["total"] < 300 for record in rounds)
    for record in rounds:
        scored = record["accuracy"]["head"]["clients"]
        assert [accuracy is None for accuracy in scored] == [False, True, False]


@pytest.mark.slow
def test_a_server_killed_in_round_3_is_resumed_with_the_numbers_of_the_undisturbed_run(tmp_path):
    with begun(tmp_path, "fedtgp", 5, until_round=2) as (d, chosen, out):
        d.kill_server_app()  # of a method of which nothing is clipped
        assert d.end() == "finished:failed"
        assert 2 <= len(rounds_of(out)) < 5
        d.begin(chosen, out, resume=True)
        d.finish()
    same(here(chosen, tmp_path / "local"), out)


@pytest.mark.slow
def test_a_superlink_killed_and_started_again_with_its_database(tmp_path):
    with begun(tmp_path, "fedproto", 4, until_round=2) as (d, chosen, out):
        assert status(out).healthy
        d.kill("link")
        until(lambda: not status(out).healthy, 20, "a status that notices")
        d.link()  # no node is registered or started again
        d.begin(chosen, out, resume=True)
        d.finish()
        assert all(d.processes[f"node{n}"].poll() is None for n in (1, 2, 3))
    same(here(chosen, tmp_path / "local"), out)


@pytest.mark.slow
def test_an_impostor_with_a_registered_key_is_refused(tmp_path):
    """Four registered nodes; dan's says that it is bob, before bob's has come."""
    data = folders(tmp_path / "data", 4)
    others = clients_of(folders(tmp_path / "three"))
    with Deployment(tmp_path, clients_of(data)) as d:
        d.link()
        d.register()
        keys = {name: (d.keys / f"node{n}.pub").read_text() for n, name in ((1, "ann"), (2, "bob"), (3, "cid"))}
        (tmp_path / "roster.json").write_text(json.dumps(keys))
        d.data = [*others, clients_of(data)[3]]
        d.node(3, client="bob")
        for number in range(3):
            d.node(number)
        chosen = recipe(tmp_path / "three", "fedproto", 2)
        d.begin(chosen, tmp_path / "run", clients=3, more=f'roster="{tmp_path}/roster.json"')
        d.finish()
        kept = json.loads((tmp_path / "run" / "nodes.json").read_text())
        assert kept["keys"] == {name: fingerprint(key.encode()) for name, key in keys.items()}
    same(here(chosen, tmp_path / "local"), tmp_path / "run")
    (left,) = json.loads((tmp_path / "run" / "federation.json").read_text())["left_out"]
    assert left["reason"].startswith("says it is bob, whose key is SHA256:")


@pytest.mark.slow
@pytest.mark.parametrize("noise", [None, 0.5])
def test_secure_aggregation_over_a_deployment(noise, tmp_path):
    """Each stage is answered by a new process of the node; numbers as on one machine, but for secret noise."""
    data = folders(tmp_path / "data", 4)
    more = '[robust]\nrule = "none"\n[secure]\naggregation = true\n'
    if noise:
        more += f'[privacy]\nmode = "client"\nnoise = {noise}\n'
    chosen = recipe(data, "fedproto", 2, more)
    with Deployment(tmp_path, clients_of(data)) as d:
        d.up(secure=True)
        d.begin(chosen, tmp_path / "remote")
        d.finish()
    expected, found = rounds_of(here(chosen, tmp_path / "local")), rounds_of(tmp_path / "remote")
    for a, b in zip(expected, found, strict=True):
        assert noise or (a["accuracy"], a["parameters"]) == (b["accuracy"], b["parameters"])
        assert a.get("privacy") == b.get("privacy")
        assert b["missing"] == b["refused"] == []
    known, other = (load_file(tmp_path / side / "server.safetensors") for side in ("local", "remote"))
    assert all(torch.equal(known[name], other[name]) for name in known) is (noise is None)
