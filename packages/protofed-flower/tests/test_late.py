"""Rounds that end before all clients have answered, over a network and repeated on one machine."""

from __future__ import annotations

import json

import pytest

from network import FakeGrid, dying, forget, locally, nodes_of, numbers, over, round_of, training, wanted
from protofed.errors import ConfigError

SLOW = 103
"""The node of ``cid``."""


class SlowGrid(FakeGrid):
    """Holds back answers of nodes until a later round.

    Args:
        until: Round whose requests must have been sent before a node answers that of another, by node and round;
            None for never.
    """

    def __init__(self, nodes, until, tamper=None):
        super().__init__(nodes, tamper)
        self.until, self.newest, self.trained = until, 0, []

    def push_messages(self, messages):
        messages = list(messages)
        for message in messages:
            if training(message):
                self.newest = max(self.newest, round_of(message))
                self.trained.append((message.metadata.dst_node_id, round_of(message)))
        return super().push_messages(messages)

    def pull_messages(self, message_ids):
        ready = []
        for number in message_ids:
            message = self.waiting.get(number)
            if message is not None and training(message):
                due = self.until.get((message.metadata.dst_node_id, round_of(message)), 0)
                if due is None or self.newest < due:
                    continue
            ready.append(number)
        return super().pull_messages(ready)


def late(method, root, **options):
    return wanted(method, root, **{"participation__after": 2, "rounds": 4, "robust__rule": "none"} | options)


def answers(run):
    return [record.answers for record in run.rounds]


def replayed(chosen, trace, out):
    options = chosen.to_tree()
    options["participation"]["trace"] = str(trace)
    from protofed.config.schema import resolve

    forget()
    return locally(resolve(options), out)


LATE = {(SLOW, 1): 3}
ON_TIME = None
EXPECTED = [{"ann": 1, "bob": 1}, {"ann": 2, "bob": 2}, {"ann": 3, "bob": 3, "cid": 1}, ON_TIME]


@pytest.mark.parametrize("method", ["fedproto", "fedavg"])
def test_a_late_answer_counts_once_and_the_trace_gives_the_same_numbers(root, tmp_path, method):
    chosen = late(method, root)
    grid = SlowGrid(nodes_of(root, tmp_path / "state"), LATE)
    remote = over(grid, chosen, tmp_path / "remote")
    assert answers(remote) == EXPECTED
    assert [r for node, r in grid.trained if node == SLOW] == [1, 4], "one open request at a time"
    reasons = [(a.phase, a.reason) for a in remote.rounds[1].missing]
    assert reasons == [(phase, "still trains for round 1") for phase in ("training", "evaluation")]
    local = replayed(chosen, tmp_path / "remote", tmp_path / "local")
    assert numbers(local, "answers") == numbers(remote, "answers")
    for name in ("server.safetensors", "prototypes.safetensors"):
        if (tmp_path / "remote" / name).exists() and name.startswith("server"):
            assert (tmp_path / "local" / name).read_bytes() == (tmp_path / "remote" / name).read_bytes()
    unweighted = replayed(late(method, root, participation__staleness=0.0), tmp_path / "remote", tmp_path / "plain")
    assert unweighted.rounds[-1].losses != local.rounds[-1].losses, "the weight of a late answer matters"


def test_without_late_answers_nothing_differs(root, tmp_path):
    remote = over(
        FakeGrid(nodes_of(root, tmp_path / "state")), late("fedproto", root, participation__after=3), tmp_path / "a"
    )
    forget()
    assert numbers(remote) == numbers(locally(late("fedproto", root), tmp_path / "b"))
    assert "answers" not in (tmp_path / "a" / "rounds.jsonl").read_text()


def test_a_client_that_never_answers_is_asked_once_and_the_others_go_on(root, tmp_path, caplog):
    chosen = late("fedproto", root, participation__deadline_s=0.5)
    never = {(SLOW, round_number): None for round_number in range(1, 5)}
    grid = SlowGrid(nodes_of(root, tmp_path / "state"), never)
    run = over(grid, chosen, tmp_path / "out")
    assert answers(run) == [{"ann": r, "bob": r} for r in (1, 2, 3, 4)]
    assert [r for node, r in grid.trained if node == SLOW] == [1]
    assert "not within" not in caplog.text
    local = replayed(chosen, tmp_path / "out", tmp_path / "local")
    assert numbers(local, "answers") == numbers(run, "answers")


def test_a_request_without_usable_answer_is_sent_again(root, tmp_path):
    lost = []

    def tamper(node, message, reply):
        if node == SLOW and training(message) and len(lost) < 2:
            lost.append(round_of(message))
            forget()
            raise_in = reply.content["protofed"]
            raise_in["error"] = "disk"
        return reply

    chosen = late("fedproto", root)
    grid = SlowGrid(nodes_of(root, tmp_path / "state"), {}, tamper)
    run = over(grid, chosen, tmp_path / "out")
    assert lost == [1, 1], "the request stays the same"
    assert answers(run)[:3] == [{"ann": 1, "bob": 1}, {"ann": 2, "bob": 2}, {"ann": 3, "bob": 3, "cid": 1}]
    assert any("its disk is full" in a.reason for a in run.rounds[0].missing)
    assert numbers(replayed(chosen, tmp_path / "out", tmp_path / "local")) == numbers(run)


@pytest.mark.parametrize("at", [2, 3])
def test_a_resumed_run_asks_again_for_what_was_open(root, tmp_path, at):
    chosen = late("fedavg", root)
    whole = over(SlowGrid(nodes_of(root, tmp_path / "state"), LATE), chosen, tmp_path / "whole")
    forget()
    kill = dying(lambda node, message: node == 101 and training(message) and round_of(message) == at)
    nodes = nodes_of(root, tmp_path / "again")
    with pytest.raises(KeyboardInterrupt):
        over(SlowGrid(nodes, LATE, kill), chosen, tmp_path / "out")
    (checkpoint,) = (tmp_path / "out" / "checkpoint").iterdir()
    assert json.loads((checkpoint / "state.json").read_text())["asked"] == {"cid": 1}
    forget()
    run = over(SlowGrid(nodes, LATE), chosen, tmp_path / "out", resume=True)
    assert numbers(run, "answers") == numbers(whole, "answers")
    assert numbers(replayed(chosen, tmp_path / "out", tmp_path / "local"), "answers") == numbers(whole, "answers")


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("fedlda", {"rounds": 1}, "a late upload cannot be mixed with a later broadcast of fedlda"),
        ("fedtgp", {}, "a late upload cannot be mixed with a later broadcast of fedtgp"),
        ("fedproto", {"method__classes": "own"}, "a later broadcast of fedproto, which is not a mean"),
        ("fedproto", {"participation__min_clients": 3}, "participation.after=2 ends a round before the 3 answers"),
        (
            "fedproto",
            {"secure__aggregation": True},
            "participation.after=2 does not go with secure.aggregation=true",
        ),
        ("fedproto", {"participation__after": 0, "participation__trace": "x"}, "participation.after: set it"),
    ],
)
def test_what_cannot_be_late_is_refused(root, tmp_path, method, options, message):
    with pytest.raises(ConfigError, match=message):
        locally(late(method, root, **options), tmp_path / "out")


def test_a_network_repeats_no_trace(root, tmp_path):
    chosen = late("fedproto", root, participation__trace=str(tmp_path))
    with pytest.raises(ConfigError, match=r"participation\.trace is for simulations"):
        over(FakeGrid(nodes_of(root, tmp_path / "state")), chosen, tmp_path / "out")
