"""After the last round of a run over a network: it goes on or stays as it is; nodes use their models."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import tomli_w
from flwr.app import Message

from network import (
    FakeGrid,
    apart,
    contents,
    dying,
    forget,
    killed,
    locally,
    nodes_of,
    numbers,
    over,
    own_run,
    round_of,
    same_prototypes,
    training,
    wanted,
)
from protofed import load_run
from protofed.config.architectures import FederationSummary
from protofed.errors import ProtofedError
from protofed.experiments.running import run_experiment
from protofed_flower.ledger import NAME
from protofed_flower.messages import Job
from protofed_flower.node import Node
from protofed_flower.sources import Folder, plan_text
from protofed_flower.summary import client_summaries
from support import command, few, ordinary


class Begun:
    """A run of two rounds of three nodes, and everything that is on disk."""

    def __init__(self, folder: Path, root: Path, **options) -> None:
        self.folder, self.root = folder, root
        self.state, self.out = folder / "state", folder / "remote"
        self.options = options

    def wanted(self, rounds: int):
        return wanted("protonorm", self.root, rounds=rounds, **self.options)

    def run(self, rounds: int, tamper=None, **more):
        forget()
        return over(FakeGrid(nodes_of(self.root, self.state), tamper), self.wanted(rounds), self.out, **more)

    def contents(self) -> dict[Path, bytes]:
        return contents(self.folder)


@pytest.fixture
def finished(root, tmp_path) -> Begun:
    begun = Begun(tmp_path / "run", root)
    begun.run(2)
    return begun


def scored_in_round_2(node: int, message: Message) -> bool:
    return message.metadata.message_type == "evaluate" and round_of(message) == 2


def protofed(monkeypatch, capsys, *words: object) -> tuple[int, str]:
    """Call the command line in this process; return its status and what it prints."""
    monkeypatch.setenv("COLUMNS", "400")
    status, out, err = command(monkeypatch, capsys, *words)
    return status, out + err


# A finished run goes on, or nothing changes.


@pytest.mark.slow
@few("method", ["protonorm", "fedavg", "gfpl"], 1)
def test_a_finished_run_goes_on_as_if_it_had_been_planned_so(method, root, tmp_path):
    options = {"method__start": 2, "method__interval": 1} if method == "gfpl" else {}
    grid = FakeGrid(nodes_of(root, tmp_path / "state"))
    over(grid, wanted(method, root, rounds=2, **options), tmp_path / "remote")
    forget()
    more = wanted(method, root, rounds=4, **options)
    run = over(grid, more, tmp_path / "remote", resume=True)
    local = locally(more, tmp_path / "local")
    assert numbers(run) == numbers(local)
    same_prototypes(local.directory, run.directory)
    mine = load_run(own_run(tmp_path / "state", "ann"))
    assert len(mine.rounds) == 4
    assert mine.metrics().clients["ann"] == local.metrics().clients["ann"]


CANNOT = {
    "fewer rounds": (lambda b: None, 1, {}, "remote holds 2 rounds: rounds=1 is fewer"),
    "two nodes lost their states": (
        lambda b: [shutil.rmtree(b.state / name) for name in ("ann", "cid")],
        4,
        {},
        "1 clients have the state with which they ended the run, participation.min_clients=2 are needed: "
        "ann: node: refused, it lacks the client's state of this run",
    ),
    "too few nodes": (lambda b: shutil.rmtree(b.root / "clients" / "bob"), 4, {"drop": 2}, "2 are needed"),
    "of an older version": (lambda b: (b.out / "end.json").unlink(), 4, {}, "has no end.json: an older version"),
    "a damaged end": (lambda b: (b.out / "end.json").write_text("{"), 4, {}, "end.json: cannot be read"),
    "another server's state": (
        lambda b: (b.out / "server.safetensors").write_bytes(b"no"),
        4,
        {},
        "server.safetensors: cannot be read",
    ),
}


NOTED = {"nodes.json", "received.jsonl", "ledger.jsonl"}
"""Files in which server and nodes note each start: the number of its requests, and the messages."""


@few("why", CANNOT, 1)
def test_a_finished_run_that_cannot_go_on_stays_as_it_is(why, root, tmp_path):
    damage, rounds, how, message = CANNOT[why]
    begun = Begun(tmp_path / "run", root, participation__min_clients=2)
    begun.run(2)
    damage(begun)
    before = begun.contents()
    if "drop" in how:
        grid = FakeGrid(dict(list(nodes_of(root, begun.state).items())[:1]))
        with pytest.raises(ProtofedError, match=message) as caught:
            over(grid, begun.wanted(rounds), begun.out, resume=True)
    else:
        with pytest.raises(ProtofedError) as caught:
            begun.run(rounds, resume=True)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    found = begun.contents()
    changed = {p for p in before.keys() | found.keys() if before.get(p) != found.get(p)}
    assert {p.name for p in changed} <= NOTED


@pytest.mark.slow
def test_nothing_is_lost_if_no_node_completes_the_next_round(root, tmp_path):
    begun = Begun(tmp_path / "run", root, participation__deadline_s=0.01)
    begun.run(2)
    before = begun.contents()
    with pytest.raises(ProtofedError, match="round 3: fewer than"):
        begun.run(4, lambda node, message, reply: None if training(message) else reply, resume=True)
    assert load_run(begun.out).outcome.rounds == 2
    found = begun.contents()
    changed = {path for path, content in before.items() if found.get(path) != content}
    names = {path.name for path in changed if "generations" not in path.parts}
    assert names <= {*NOTED, "state.json"}, "the order of requests, and what nodes trained meanwhile"
    for name in ("ann", "bob", "cid"):
        mine = load_run(own_run(begun.state, name))
        assert len(mine.rounds) == 2
        assert mine.client(name)
    run = begun.run(4, resume=True)
    assert numbers(run) == numbers(locally(begun.wanted(4), tmp_path / "local"))


@pytest.mark.slow
def test_a_run_does_not_change_between_nodes_and_this_machine(finished, root, tmp_path, monkeypatch, capsys):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(tomli_w.dumps(finished.wanted(4).to_tree()))
    before = finished.contents()
    status, printed = protofed(monkeypatch, capsys, "run", recipe, "--out", finished.out, "--resume")
    assert (status, finished.contents()) == (2, before)
    assert "its clients are at the nodes of a network: continue it with flwr run" in printed
    unfinished = Begun(tmp_path / "unfinished", root)
    with pytest.raises(KeyboardInterrupt):
        unfinished.run(3, dying(scored_in_round_2))
    before = unfinished.contents()
    with pytest.raises(ProtofedError, match="its clients are at the nodes of a network"):
        run_experiment(unfinished.wanted(3), unfinished.out, resume=True)
    assert unfinished.contents() == before
    local = locally(finished.wanted(2), tmp_path / "local")
    before = contents(local.directory)
    with pytest.raises(ProtofedError, match="its clients are in this directory, not at the nodes of a network"):
        over(FakeGrid(nodes_of(root, tmp_path / "s")), finished.wanted(4), tmp_path / "local", resume=True)
    assert {p.name for p, c in contents(local.directory).items() if before.get(p) != c} <= NOTED


@pytest.mark.slow
@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_server_killed_at_any_change_of_a_run_that_goes_on(stride, root, tmp_path):
    """Whatever it was about to write, at least the finished run is there, and the rest follows."""
    base = Begun(tmp_path / "base", root)
    base.run(2)
    expected = numbers(locally(base.wanted(4), tmp_path / "local"))
    step, more = 1 - stride, True
    while more:
        step += stride
        begun = Begun(tmp_path / f"step-{step}", root)
        shutil.copytree(base.folder, begun.folder, symlinks=True)
        more = killed(step, begun.out, lambda begun=begun: begun.run(4, resume=True))
        lines = (begun.out / "rounds.jsonl").read_text().splitlines()
        assert len(lines) >= 2, step
        if (begun.out / "summary.json").is_file():
            assert load_run(begun.out).outcome.rounds == len(lines), step
        if stride > 1 or step % 4 == 1 or not more:  # takes much longer than the rest
            assert numbers(begun.run(4, resume=True)) == expected, step
            assert not [p for p in begun.out.rglob("*") if p.name.endswith(".partial")], step
        shutil.rmtree(begun.folder)
    assert step > 20


@pytest.mark.slow
@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_local_run_killed_at_any_change_when_it_goes_on(stride, root, tmp_path):
    before = wanted("protonorm", root, rounds=1, checkpoint__every=0)
    after = replace(before, rounds=2)
    expected = numbers(locally(after, tmp_path / "whole"))
    locally(before, tmp_path / "base")
    step, more = 1 - stride, True
    while more:
        step += stride
        out = tmp_path / f"step-{step}"
        shutil.copytree(tmp_path / "base", out)
        more = killed(step, out, lambda out=out: run_experiment(after, out, resume=True))
        assert len((out / "rounds.jsonl").read_text().splitlines()) >= 1, step
        assert numbers(run_experiment(after, out, resume=True)) == expected, step
        assert (out / "rounds.jsonl").read_text().count("\n") == 2
        shutil.rmtree(out)
    assert step > 20


# Models at the nodes.


@pytest.mark.slow
def test_the_models_are_used_where_they_are(finished, root, monkeypatch, capsys, tmp_path):
    typed = partial(protofed, monkeypatch, capsys)
    test = root / "clients" / "ann" / "test.npz"
    mine = own_run(finished.state, "ann")
    before = contents(finished.out)
    for words in (("predict", "ann", test), ("export", "ann", "--out", tmp_path / "a.safetensors"), ("metrics",)):
        status, printed = typed(words[0], finished.out, *words[1:])
        assert status == 2
        assert f"take STATE-DIR/CLIENT/{mine.name} in place of this folder" in printed
        status, printed = typed(words[0], mine, *words[1:])
        assert status == 0, printed
    for folder in (finished.out, mine):
        status, printed = typed("audit", folder)
        assert status == 2
        assert "an audit needs the data of all clients" in printed
    assert contents(finished.out) == before
    local = locally(finished.wanted(2), tmp_path / "local")
    assert typed("predict", mine, "ann", test) == typed("predict", local.directory, "ann", test)
    assert load_run(mine).measured.clients["ann"] == local.metrics().clients["ann"]
    status, printed = typed("report", mine, "--out", tmp_path / "report.html")
    assert status == 0, printed
    assert "only the server can repeat the run" in (tmp_path / "report.html").read_text()


def test_a_node_tells_of_itself_only(finished):
    text = "".join(p.read_text() for p in own_run(finished.state, "ann").iterdir() if p.is_file())
    assert "bob" not in text
    assert "cid" not in text


@few("at", ["broadcast", "trained"], 1)
def test_the_folder_of_a_run_is_complete_after_every_scored_round(at, root, tmp_path):
    """Also of a run whose server dies: nobody tells a node that it was the last round."""
    chosen = apart("fedproto", root, rounds=5, evaluation__at=at)
    grid = FakeGrid(
        nodes_of(root, tmp_path / "state"),
        dying(lambda node, message: training(message) and round_of(message) == 3),
    )
    with pytest.raises(KeyboardInterrupt):
        over(grid, chosen, tmp_path / "remote")
    local = locally(apart("fedproto", root, rounds=2, evaluation__at=at), tmp_path / "local")
    mine = load_run(own_run(tmp_path / "state", "bob"))
    assert [record.round for record in mine.rounds] == [1, 2]
    assert mine.metrics().clients["bob"] == local.metrics().clients["bob"]


@pytest.mark.slow
def test_a_later_run_leaves_the_models_of_earlier_ones(finished):
    earlier = own_run(finished.state, "ann")
    before = contents(earlier)
    forget()
    over(FakeGrid(nodes_of(finished.root, finished.state)), finished.wanted(3), finished.folder / "second")
    assert contents(earlier) == before
    assert len(list((finished.state / "ann" / "ann").iterdir())) == 2


def test_a_node_keeps_so_many_runs_and_says_so(finished):
    nodes = {number: {**node, "runs": 1} for number, node in nodes_of(finished.root, finished.state).items()}
    before = clients(finished.state)
    forget()
    with pytest.raises(
        ProtofedError, match="refused, it keeps as many runs as it may: have folders of old ones moved away"
    ):
        over(FakeGrid(nodes), finished.wanted(3), finished.folder / "second")
    assert clients(finished.state) == before


def clients(state: Path) -> dict[Path, bytes]:
    """Return the content of every file of a client; the ledger of its node grows with every message."""
    return {path: content for path, content in contents(state).items() if path.name != NAME}


def test_the_state_of_an_older_version_stays(root, tmp_path):
    """It lay in the client's folder itself."""
    old = tmp_path / "state" / "ann" / "ann"
    old.mkdir(parents=True)
    (old / "state.json").write_text(json.dumps({"version": 2, "run": "abc", "order": 1, "chain": [], "notes": {}}))
    (old / "model.safetensors").write_bytes(b"of version 0.2")
    before = contents(old)
    over(FakeGrid(nodes_of(root, tmp_path / "state")), wanted("fedproto", root, rounds=1), tmp_path / "remote")
    assert before.items() <= contents(old).items()


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_node_killed_at_any_change(stride, root, tmp_path):
    """It always shows one scored round, and answers afterwards as if nothing had been."""
    chosen = wanted("fedproto", root)
    (summary, *_) = client_summaries(chosen, FederationSummary.of(chosen, ordinary()))
    job = Job("run", "ann", 1, plan_text(chosen), summary)

    def visits(
        state: Path, round_number: int, after: str, message: bytes | None, order: int
    ) -> tuple[str, bytes | None]:
        """Let ann train and be scored; FedProto's uploads have the form of a broadcast of the same classes."""
        node = Node(Folder(root / "clients" / "ann", "ann"), state)
        asked = replace(job, round=round_number, order=order, after=after, saved=after, message=message)
        result, left = node.train(asked)
        delivered = replace(asked, order=order + 1, after=left.generation, message=result.message)
        return node.evaluate(delivered)[1].generation, result.message

    def shown(state: Path) -> tuple[int, bytes, bytes]:
        run = load_run(state / "ann" / "run")
        kept = run.directory / "clients" / "ann"
        run.client("ann")
        return run.rounds[-1].round, *((kept / f"{n}.safetensors").read_bytes() for n in ("model", "state"))

    after, message = visits(tmp_path / "base", 1, "", None, 1)
    first = shown(tmp_path / "base")
    shutil.copytree(tmp_path / "base", tmp_path / "whole", symlinks=True)
    visits(tmp_path / "whole", 2, after, message, 3)
    second = shown(tmp_path / "whole")
    assert first[1] != second[1]
    step, more = 1 - stride, True
    while more:
        step += stride
        state = tmp_path / f"step-{step}"
        shutil.copytree(tmp_path / "base", state, symlinks=True)
        more = killed(step, state, lambda state=state: visits(state, 2, after, message, 3))
        assert shown(state)[1:] in (first[1:], second[1:]), step
        visits(state, 2, after, message, 9)
        assert shown(state) == second, step
        assert len(list((state / "ann" / "run" / "generations").iterdir())) == 3, step
        assert not [p for p in state.rglob("*") if p.name.endswith(".partial")], step
        shutil.rmtree(state)
    assert step > 20


# Several runs, and sites that are late.


def test_a_late_site_is_named_once(root, tmp_path, caplog):
    nodes = nodes_of(root, tmp_path / "state")
    late = nodes.pop(103)

    def join(node, message, reply):
        if training(message):
            grid.nodes[103] = late
        if round_of(message) == 3 if message.metadata.message_type != "query" else False:
            grid.nodes.pop(103, None)  # goes, and comes back
        return reply

    grid = FakeGrid(nodes, join)
    run = over(grid, apart("fedproto", root, rounds=5), tmp_path / "remote")
    reason = "came after the run had begun: it can take part in the next one"
    (left,) = json.loads((run.directory / "federation.json").read_text())["left_out"]
    assert left == {"client": "cid", "reason": reason}
    assert [r.getMessage() for r in caplog.records].count(f"cid: left out: {reason}") == 1
    assert all(record.participants == ["ann", "bob"] for record in run.rounds)
