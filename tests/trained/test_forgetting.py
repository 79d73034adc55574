"""A client is taken out of a finished run: what remains is a run without it, bit for bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("protofed_flower", reason="needs protofed-flower")

import network
from network import FakeGrid, contents, killed, locally, nodes_of, over, wanted, write_folders
from protofed import api, load_run
from protofed.errors import ProtofedError
from protofed.experiments.ending import forgotten
from protofed.experiments.loading import _load_data
from protofed.experiments.running import run_experiment
from protofed.trained import forgetting
from support import SMALL_RUN, command, few, one_line, ordinary

CASES = {
    "fedncm": ("fedncm", {}),
    "fed3r": ("fed3r", {}),
    "fedcof": ("fedcof", {}),
    "fedlda": ("fedlda", {}),
    "fedlda, two rounds": ("fedlda", {"rounds": 2}),
    "fedlda, for all, float64": (
        "fedlda",
        {"method__personal": False, "execution__precision": "fp64", "wire__codec": "float64"},
    ),
}


@pytest.fixture(autouse=True)
def fresh():
    network.forget()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Folders of ann, bob and cid with training, test and validation samples."""
    root = write_folders(tmp_path / "data", ordinary())
    for folder in (root / "clients").iterdir():
        shutil.copy(folder / "test.npz", folder / "validation.npz")
    return root


def chosen(case: str, root: Path, **more):
    method, options = CASES[case]
    return wanted(method, root, **{"rounds": 1, "model__name": "identity", "model__options": {}, **options, **more})


def without_bob(root: Path) -> Path:
    rest = root.with_name("rest")
    shutil.copytree(root, rest)
    shutil.rmtree(rest / "clients" / "bob")
    return rest


def same_tensors(one: Path, other: Path) -> None:
    a, b = load_file(one), load_file(other)
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def nothing_of_bob(folder: Path) -> None:
    """Its name stands where it is said to be forgotten, and nowhere else."""
    assert not (folder / "clients" / "bob").exists()
    for path, content in contents(folder).items():
        if path.suffix == ".json":
            tree = json.loads(content)
            tree.pop("forgotten", None)
            rest = tree.pop("left_out", [])
            assert "forgotten on" in str(rest) or path.name not in ("federation.json", "nodes.json")
            content = json.dumps(tree).encode()
        if path.name != "report.html":
            assert b"bob" not in content, path


@few("case", CASES, 1)
def test_what_remains_is_a_run_without_the_client(case, root, tmp_path):
    run = locally(chosen(case, root), tmp_path / "run")
    expected = locally(chosen(case, without_bob(root)), tmp_path / "expected")
    (run.directory / "audit.json").write_text('{"client": "bob"}')  # what applications add
    (run.directory / "received.jsonl").write_text('{"client":"bob"}\n{"client":"ann"}\n')
    found = api.forget(run, "bob")
    assert found is not None
    assert found.names == ["ann", "cid"]
    for file in (
        "server.safetensors",
        "prototypes.safetensors",
        *(f"clients/{n}/state.safetensors" for n in ("ann", "cid")),
    ):
        same_tensors(found.directory / file, expected.directory / file)
    nothing_of_bob(found.directory)
    assert (found.directory / "received.jsonl").read_text() == '{"client":"ann"}\n'
    assert not (found.directory / "audit.json").exists()
    assert "forgotten on" in found.report.read_text()
    assert [r.accuracy for r in found.rounds] == [r.accuracy for r in expected.rounds]
    x = np.load(root / "clients" / "ann" / "test.npz")["x"]
    for rule in ("head", "global_model"):
        probabilities = [r.predict("ann", x, rule).probabilities for r in (found, expected)]
        assert np.array_equal(*probabilities)
    assert found.metrics().clients.keys() == {"ann", "cid"}
    # It goes on as a run of the others, and another can be forgotten too.
    again = locally_resumed(chosen(case, root), found.directory)
    assert again.names == ["ann", "cid"]
    assert api.forget(again, "cid").names == ["ann"]


def locally_resumed(experiment, out):
    return run_experiment(experiment, out, resume=True)


@few("case", CASES, 1)
def test_the_same_over_a_network(case, root, tmp_path, caplog):
    nodes = nodes_of(root, tmp_path / "state")
    run = over(FakeGrid(nodes), chosen(case, root), tmp_path / "run")
    assert api.forget(run, "bob") is None
    nothing_of_bob(run.directory)
    assert forgotten(run.directory).keys() == {"bob"}
    (checkpoint,) = (run.directory / "checkpoint").iterdir()
    now = load_file(checkpoint / "server.safetensors")
    network.forget()
    found = over(FakeGrid(nodes), chosen(case, root), run.directory, resume=True)  # bob comes back as well
    rest = without_bob(root)
    others = nodes_of(rest, tmp_path / "other")
    network.forget()
    expected = over(FakeGrid(others), chosen(case, rest), tmp_path / "expected")
    same_tensors(found.directory / "server.safetensors", expected.directory / "server.safetensors")
    server = load_file(expected.directory / "server.safetensors")
    assert all(torch.equal(now[n], server[n]) for n in server if not n.startswith(("hits.", "choice")))
    assert [r.accuracy for r in found.rounds] == [r.accuracy for r in expected.rounds]
    assert found.rounds[0].participants == ["ann", "cid"]
    nothing_of_bob(found.directory)
    assert load_run(found.directory).federation.left_out == {
        "bob": f"forgotten on {forgotten(found.directory)['bob']}"
    }


def test_a_simulation_of_flower_too(root, tmp_path):
    grid = FakeGrid({101: {"partition-id": 0, "num-partitions": 1}})
    run = over(grid, chosen("fedlda", root), tmp_path / "run", simulated=True)
    expected = locally(chosen("fedlda", without_bob(root)), tmp_path / "expected")
    found = api.forget(run.directory, "bob")
    same_tensors(found.directory / "server.safetensors", expected.directory / "server.safetensors")
    nothing_of_bob(found.directory)


@few("engine", ["local", "simulation", "network"], 1)
def test_a_client_that_was_admitted_by_name(engine, root, tmp_path):
    """The run without it is that of a list without it, and goes on with the list that was given."""
    given = chosen("fedlda", root, robust__weight=1, robust__admitted={"ann": 5, "bob": 4})
    rest = chosen("fedlda", without_bob(root), robust__weight=1, robust__admitted={"ann": 5})
    if engine == "network":
        grid = FakeGrid(nodes_of(root, tmp_path / "state"))
    else:
        grid = FakeGrid({101: {"partition-id": 0, "num-partitions": 1}})

    def run(**more):
        if engine == "local":
            return run_experiment(given, tmp_path / "run", **more)
        return over(grid, given, tmp_path / "run", simulated=engine == "simulation", **more)

    run()
    found = api.forget(tmp_path / "run", "bob")
    network.forget()
    found = run(resume=True) if found is None else found
    expected = locally(rest, tmp_path / "expected")
    same_tensors(found.directory / "server.safetensors", expected.directory / "server.safetensors")
    network.forget()
    assert run(resume=True).names == ["ann", "cid"]


@pytest.mark.slow
def test_killed_at_any_moment_the_old_run_or_the_new_one_is_there(root, tmp_path):
    """Whatever was begun is completed by the same command."""
    run = over(FakeGrid(nodes_of(root, tmp_path / "state")), chosen("fedncm", root), tmp_path / "run")
    kept = tmp_path / "kept"
    shutil.copytree(run.directory, kept)
    before = contents(run.directory)
    step, begun = 0, False
    while True:
        step += 1
        shutil.rmtree(run.directory)
        shutil.copytree(kept, run.directory)
        if not killed(step, run.directory, lambda: api.forget(run.directory, "bob")):
            break
        if forgotten(run.directory):
            begun = True
            with pytest.raises(ProtofedError, match="has not finished"):
                load_run(run.directory)
        else:
            assert not begun
            now = {
                path: content for path, content in contents(run.directory).items() if "checkpoint" not in path.parts
            }
            assert {p.name: c for p, c in now.items()} == {p.name: c for p, c in before.items()}
        api.forget(run.directory, "bob")
        nothing_of_bob(run.directory)
    assert begun
    assert step > 5


def test_an_interrupted_run_is_completed_by_resume(root, tmp_path, monkeypatch):
    run = locally(chosen("fed3r", root), tmp_path / "run")
    with monkeypatch.context() as patched:
        patched.setattr(forgetting, "run_experiment", lambda *_, **__: None)
        api.forget(run, "bob")
    found = locally_resumed(chosen("fed3r", root), run.directory)
    expected = locally(chosen("fed3r", without_bob(root)), tmp_path / "expected")
    same_tensors(found.directory / "server.safetensors", expected.directory / "server.safetensors")
    nothing_of_bob(found.directory)


def damaged(run) -> None:
    path = run.directory / "server.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "counts.ann/0": tensors["counts.ann/0"][:1]}, path)


def gone(run) -> None:
    shutil.rmtree(run.directory.parent / "data")
    _load_data.cache_clear()


def unnamed(run) -> None:
    path = run.directory / "server.safetensors"
    save_file({**load_file(path), "counts.ann/x": torch.zeros(1)}, path)


REFUSED = {
    "unknown": ("fedncm", {}, None, "bib", "unknown client 'bib': did you mean 'bob'"),
    "method": (
        "fedproto",
        {},
        None,
        "bob",
        "fedproto keeps no sums from which a client's could be taken out, as these do: fed3r, fedcof, "
        "fedlda, fedncm",
    ),
    "control": ("local_lda", {}, None, "bob", "local_lda keeps no sums"),
    "secure": (
        "fedncm",
        {"secure__aggregation": True},
        None,
        "bob",
        "shows its server the sum over all clients, not what bob added",
    ),
    "damaged": ("fedncm", {}, damaged, "bob", "server.safetensors: damaged (counts: k must be"),
    "a name that nobody sends": ("fedncm", {}, unnamed, "bob", "server.safetensors: damaged (invalid literal"),
    "no state": (
        "fedncm",
        {},
        lambda run: (run.directory / "server.safetensors").unlink(),
        "bob",
        "server.safetensors: damaged",
    ),
    "unfinished": (
        "fedncm",
        {},
        lambda run: (run.directory / "summary.json").unlink(),
        "bob",
        "finish it with --resume",
    ),
    "data gone": ("fedncm", {}, gone, "bob", "no such file or folder"),
}


@few("why", REFUSED, 3)
def test_what_cannot_be_taken_out_is_one_line_and_changes_nothing(why, root, tmp_path):
    method, options, damage, client, message = REFUSED[why]
    plain = {"rounds": 1, "model__name": "identity", "model__options": {}}
    run = locally(wanted(method, root, **plain, **options), tmp_path / "run")
    if damage is not None:
        damage(run)
    before = contents(run.directory)
    with one_line(ProtofedError, says=message):
        api.forget(run, client)
    assert contents(run.directory) == before


def test_one_that_never_sent_and_the_last_one(root, tmp_path):
    run = locally(chosen("fedncm", root, participation__fraction=0.3), tmp_path / "run")  # one of three is drawn
    (sender,) = run.rounds[0].participants
    (silent, _) = sorted({"ann", "bob", "cid"} - {sender})
    with pytest.raises(ProtofedError, match=f"client among those that have sent anything '{silent}'"):
        api.forget(run, silent)
    with pytest.raises(ProtofedError, match=f"{sender} is the only one that has sent anything"):
        api.forget(run, sender)


def test_as_typed(tmp_path, monkeypatch, capsys):
    options = [
        f"{name}={value}" for name, value in SMALL_RUN.items() if name not in ("rounds", "model.name", "model.d")
    ]
    typed = (
        "run",
        "quickstart",
        "method.name=fedlda",
        "encoder.name=identity",
        *options,
        "--out",
        tmp_path / "run",
    )
    assert command(monkeypatch, capsys, *typed)[0] == 0
    status, out, errors = command(monkeypatch, capsys, "forget", tmp_path / "run", "client-01")
    assert status == 0, errors
    assert "Forgotten: client-01. The classifier is that of the other 2." in out
    assert "reveal its class means by subtraction" in out
    status, _, errors = command(monkeypatch, capsys, "forget", tmp_path / "run", "client-01")
    assert status == 2
    assert "client-01 was forgotten on" in " ".join(errors.split())
    status, out, _ = command(monkeypatch, capsys, *typed, "--resume")
    assert status == 0
