"""Whatever one node says: it is named and left out, and the others' numbers are those of a run without it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Error, Message

import protofed
from network import (
    FakeGrid,
    apart,
    dying,
    forget,
    locally,
    nodes_of,
    numbers,
    over,
    reply_with,
    training,
    wanted,
    write_folders,
)
from protofed.analysis.report import write_report
from protofed.errors import CheckpointError, ConfigError, FederationError
from protofed.experiments.assemble import assemble
from protofed.experiments.ending import read_server
from protofed.untrusted import claims, limits
from protofed_flower.nodes import RECORD
from support import client, federated, few, one_line, ordinary

HONEST = (101, 102, 103)
HOSTILE = 104
SIX = {"classes": list("012345"), "train": [1] * 6, "test": [1] * 6}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three honest clients, and one whose words are another's; its name comes first."""
    return write_folders(tmp_path / "data", federated(*ordinary().clients, client("zoe", [0, 1, 2, 3])))


@pytest.fixture(scope="session")
def honest(tmp_path_factory) -> dict[str, list[dict]]:
    """The rounds of honest clients alone, by method."""
    base = tmp_path_factory.mktemp("honest")
    found = {}
    for method in ("fedproto", "fedavg", "local"):
        forget()
        here = write_folders(base / method / "data", ordinary())
        grid = FakeGrid(nodes_of(here, base / method / "state"))
        found[method] = numbers(over(grid, wanted(method, here, rounds=2), base / method / "run"), "missing")
    return found


def says(**changes: Any):
    """The hostile node's description, with something else in it."""

    def tamper(node: int, message: Message, reply: Message) -> Message:
        values = dict(reply.content[RECORD])
        if node == HOSTILE and message.metadata.message_type == "query" and "clients" in values:
            found = json.loads(values["clients"])
            found[0] |= changes
            values["clients"] = json.dumps(found)
        return reply_with(message, values)

    return tamper


def answers(text: Any):
    """The hostile node's whole answer to the first question."""

    def tamper(node: int, message: Message, reply: Message) -> Message:
        if node == HOSTILE and message.metadata.message_type == "query":
            return reply_with(message, {**reply.content[RECORD], "clients": text})
        return reply

    return tamper


DESCRIPTIONS = {
    # Names.
    "no name": (says(name=""), "use letters"),
    "a path": (says(name="../../etc/cron"), "use letters"),
    "a new line": (says(name="zoe\nadmin"), "use letters"),
    "an escape sequence": (says(name="\x1b[2Jzoe"), "use letters"),
    "right to left": (says(name="zoe\u202eoez"), "use letters"),
    "half a character": (answers('[{"name": "\\ud800"}]'), "unpaired surrogate"),
    "a long name": (says(name="z" * 65), "at most 64"),
    "many bytes": (says(name="𠀀" * 60), "at most 64 of 200"),
    "a name of a megabyte": (says(name="z" * 10**6), "at most 256"),
    "a name that is a number": (says(name=5), "expected a name"),
    "another's name": (says(name="ann"), "says it is ann, which is already at node 101"),
    "another's name in wide letters": (says(name="ａｎｎ"), "which reads as ann"),
    # Classes and counts.
    "a count of 10^12": (says(train=[10**12, 0, 0, 0]), "must be from 0 to"),
    "counts of 2^30 each": (says(train=[2**30] * 4), "samples, at most"),
    "a count of 10^4000": (says(train=[10**4000, 0, 0, 0]), "too large a number"),
    "a negative count": (says(train=[-1, 0, 0, 0]), "must be from 0 to"),
    "too few counts": (says(train=[1]), "1 counts do not fit 4 classes"),
    "counts that are a table": (says(train={"0": 1}), "expected a list, not a dict"),
    "classes twice": (says(classes=list("0012")), "occurs more than once"),
    "70,000 classes": (says(classes=[str(i) for i in range(70_000)]), "at most 65536 entries, not a list of 70000"),
    "a class name of a megabyte": (says(classes=["0", "1", "2", "x" * 10**6]), "at most 128"),
    "a class with a new line": (says(classes=["0", "1", "2", "3\n"]), "expected printable text"),
    "classes of other names": (says(classes=["0", "1", "2", "x"]), "class 3 is 'x', for most others '3'"),
    "classes that are named": (says(named=True), "names its classes, but the federation numbers them"),
    "more classes than there are": (says(**SIX), "has 6 classes, at most 4"),
    "validation without end": (says(validation=10**10), "validation: must be from 0"),
    "coarse counts that are not": (says(counts="coarse", train=[3, 0, 0, 0]), "not coarse counts"),
    "no counts that are some": (says(counts="none", train=[2, 0, 0, 0]), "not none counts"),
    "another kind of counts": (says(counts="all"), "counts: must be exact, coarse, none or even, not 'all'"),
    # Samples.
    "another shape": (says(input_shape=[7]), r"samples are \(7,\), but those of most clients are \(6,\)"),
    "five dimensions": (says(input_shape=[1] * 5), "at most 4 entries, not a list of 5"),
    "a side of 10^9": (says(input_shape=[10**9]), r"input_shape\[0\]: must be from 1"),
    "a sample of 2^48 numbers": (says(input_shape=[2**16] * 3), "numbers per sample, at most"),
    # Settings.
    "code": (says(settings={"model": "os:abort"}), "only the recipe may name code"),
    "an unknown architecture": (says(settings={"model": "cnn99"}), "unknown model 'cnn99'"),
    "a d of 10^9": (says(settings={"d": 10**9}), "d: must be from 1 to 65536"),
    "another d": (says(settings={"d": 9}), "has d=9, most clients have d=5, but the method exchanges features"),
    "a model with a d of its own": (says(settings={"model": "identity"}), "has d=6, most clients have d=5, but"),
    "epochs without end": (says(settings={"epochs": 10**9}), "epochs: must be from 1 to 1000"),
    "a batch of nothing": (says(settings={"batch_size": 0}), "batch_size: must be from 1"),
    "a learning rate of NaN": (says(settings={"lr": float("nan")}), "NaN is not a JSON number"),
    "a negative learning rate": (says(settings={"lr": -1}), "lr: must be above 0"),
    "an unknown setting": (says(settings={"optimizer": "os"}), "unknown setting 'optimizer'"),
    "settings that are none": (says(settings=[1]), "settings: expected a table"),
    "a place without end": (says(place=10**9), "place: must be from 0"),
    "an unknown field": (says(path="/etc"), "unknown description 'path'"),
    # The text itself.
    "nothing": (answers(""), "not JSON"),
    "a number": (answers(5), "expected text, not 5"),
    "bytes": (answers(b"[]"), "expected text"),
    "nothing in a list": (answers("[null]"), "expected a table"),
    "deeply nested": (answers("[" * 10**5), "nested too deeply"),
    "six megabytes": (answers("[" + "0," * 3 * 10**6 + "0]"), "characters, at most"),
    "a number of 5,000 digits": (answers("[" + "9" * 5000 + "]"), "not JSON"),
    "a million clients": (answers("[" + ",".join(["{}"] * 10**5) + "]"), "at most 1 entry, not a list of 100000"),
}


@few("attack", DESCRIPTIONS, 2)
def test_a_hostile_description_is_named_and_left_out(attack, root, honest, tmp_path):
    tamper, reason = DESCRIPTIONS[attack]
    grid = FakeGrid(nodes_of(root, tmp_path / "state"), tamper)
    chosen = wanted("fedproto", root, rounds=1, data__classes=4)
    run = over(grid, chosen, tmp_path / "run")
    assert numbers(run, "missing") == honest["fedproto"][:1]
    (left,) = json.loads((run.directory / "federation.json").read_text())["left_out"]
    assert left["client"] in ("node 104", "zoe")
    check_reason(left["reason"], reason)


def check_reason(text: str, expected: str) -> None:
    assert len(text) <= limits.REASON
    assert text.isprintable()
    assert re.search(expected, text), text


SAME_ARCHITECTURE = {
    "a model of its own": (says(settings={"model": claims.PRIVATE}), "has its own model, but the method"),
    "another architecture": (says(settings={"model": "cnn2"}), "has cnn2, most clients have mlp"),
    "another d": (says(settings={"d": 4}), "has d=4, most clients have d=5, but the method shares weights"),
    "no counts": (says(counts="none", train=[1] * 4, test=[1] * 4), "fedavg needs numbers of samples"),
    "coarse counts": (says(counts="coarse", train=[1] * 4, test=[1] * 4), "fedavg needs numbers of samples"),
}


@few("attack", SAME_ARCHITECTURE, 1)
@pytest.mark.parametrize("first", [True, False])
def test_who_differs_from_most_is_left_out_wherever_it_sorts(attack, first, root, honest, tmp_path):
    tamper, reason = SAME_ARCHITECTURE[attack]
    nodes = nodes_of(root, tmp_path / "state")
    nodes[HOSTILE]["client"] = "aaa" if first else "zzz"
    run = over(FakeGrid(nodes, tamper), wanted("fedavg", root, rounds=2), tmp_path / "run")
    assert numbers(run, "missing") == honest["fedavg"]
    (left,) = json.loads((run.directory / "federation.json").read_text())["left_out"]
    assert left["client"] == nodes[HOSTILE]["client"]
    check_reason(left["reason"], reason)


SIZES = {
    "none": {},
    "a negative number": {"sizes": json.dumps({"parameters": -1, "extras": {}, "d": 5})},
    "another d": {"sizes": json.dumps({"parameters": 1, "extras": {}, "d": 6})},
    "many networks": {"sizes": json.dumps({"parameters": 1, "extras": {f"n{i}": 1 for i in range(99)}, "d": 5})},
    "a network with a path": {"sizes": json.dumps({"parameters": 1, "extras": {"../x": 1}, "d": 5})},
    "an error": {"error": "no\x1b[0m module\nnamed evil " + "x" * 9999},
}


@few("attack", SIZES, 1)
def test_sizes_that_cannot_be_are_left_out(attack, root, honest, tmp_path):
    def tamper(node, message, reply):
        if node == HOSTILE and message.metadata.message_type == "query":
            if "client" in message.content[RECORD]:
                return reply_with(message, SIZES[attack])
            return says(settings={"model": claims.PRIVATE})(node, message, reply)
        return reply

    run = over(
        FakeGrid(nodes_of(root, tmp_path / "state"), tamper), wanted("local", root, rounds=2), tmp_path / "run"
    )
    assert numbers(run, "missing") == honest["local"]
    (left,) = json.loads((run.directory / "federation.json").read_text())["left_out"]
    assert left["client"] == "zoe"
    assert left["reason"].isprintable()
    assert len(left["reason"]) <= limits.REASON
    write_report([run.directory], tmp_path / "report.html")
    report = (tmp_path / "report.html").read_text()
    assert "Clients left out" in report
    assert "\x1b" not in report


def test_a_first_client_whose_model_cannot_be_is_not_built_by_the_server(root, tmp_path):
    """Heads are averaged, from the first client's; the hostile one comes first, and lies about its model."""

    def tamper(node, message, reply):
        if node == HOSTILE and message.metadata.message_type == "query":
            if "client" in message.content[RECORD]:
                return reply_with(message, {"sizes": json.dumps({"parameters": 7, "extras": {}, "d": 5})})
            return says(settings={"model": "cnn2"})(node, message, reply)
        return reply

    nodes = nodes_of(root, tmp_path / "state")
    nodes[HOSTILE]["client"] = "aaa"
    run = over(FakeGrid(nodes, tamper), wanted("lg_fedavg", root, rounds=2), tmp_path / "run")
    for record in run.rounds:
        assert not record.missing, "its node follows its own file"
        assert None not in record.accuracy.clients["head"]


ANSWERS = {
    "another type": lambda v: {**v, "message": "text"},
    "no losses": lambda v: {n: x for n, x in v.items() if n != "losses"},
    "deeply nested losses": lambda v: {**v, "losses": "[" * 10_000 + "]" * 10_000},
    "losses of a gigabyte": lambda v: {**v, "losses": json.dumps({"a": "x" * 10**6})},
    "a loss of 10^400": lambda v: {**v, "losses": '{"a": 1' + "0" * 400 + "}"},
    "a loss with an escape sequence": lambda v: {**v, "losses": json.dumps({"\x1b[2J": 1.0})},
    "an error with control characters": lambda v: {"error": "\x1b[31mred\x07\n" * 999},
}


@few("attack", ANSWERS, 1)
def test_a_hostile_answer_becomes_a_reason(attack, root, tmp_path):
    def tamper(node, message, reply):
        if node == 103 and message.metadata.message_type == "train":
            return reply_with(message, ANSWERS[attack](dict(reply.content[RECORD])))
        return reply

    run = over(FakeGrid(nodes_of(root, tmp_path / "s"), tamper), apart("fedproto", root, rounds=2), tmp_path / "r")
    for record in run.rounds:
        (missing,) = record.missing
        assert missing.client == "cid"
        assert missing.reason.isprintable()
        assert len(missing.reason) <= limits.REASON


@pytest.mark.parametrize("loss", [1e305, -1e300, float("nan")])
def test_a_loss_that_no_file_can_have_is_known_as_such(loss, root, tmp_path):
    """The mean is unknown, its client named, and the run can be read and go on."""

    def tamper(node, message, reply):
        values = dict(reply.content[RECORD])
        if node == HOSTILE and "losses" in values:
            values["losses"] = json.dumps({**json.loads(values["losses"]), "cross_entropy": loss})
        return reply_with(message, values)

    grid = FakeGrid(nodes_of(root, tmp_path / "state"), tamper)
    run = over(grid, wanted("fedproto", root, rounds=2), tmp_path / "run")
    read = protofed.load_run(run.directory)
    for record in read.rounds:
        assert record.losses["cross_entropy"] is None
        assert record.not_finite == {"zoe": ["cross_entropy"]}
        assert not record.missing


@few("kind", [RecursionError, MemoryError, ValueError, KeyError, UnicodeError], 1)
def test_an_answer_that_flower_cannot_take_apart_costs_only_its_sender(kind, root, honest, tmp_path):
    class Raising(FakeGrid):
        def pull_messages(self, message_ids):
            replies = super().pull_messages(message_ids)
            if any(r.metadata.src_node_id == HOSTILE for r in replies):
                raise kind("\x1b[2Jbad\nobject")
            return replies

    run = over(Raising(nodes_of(root, tmp_path / "s")), wanted("fedproto", root, rounds=2), tmp_path / "run")
    assert numbers(run, "missing") == honest["fedproto"]
    (left,) = json.loads((run.directory / "federation.json").read_text())["left_out"]
    assert left["client"] == "node 104"
    assert kind.__name__ in left["reason"]
    assert left["reason"].isprintable()


def test_a_node_that_says_nothing_holds_nobody_up(root, honest, tmp_path):
    def silent(node, message, reply):
        return None if node == HOSTILE else reply

    grid = FakeGrid(nodes_of(root, tmp_path / "state"), silent)
    run = over(grid, wanted("fedproto", root, rounds=2), tmp_path / "run", clients=3)
    assert numbers(run, "missing") == honest["fedproto"]


def test_too_few_that_fit_end_the_run_in_one_line_that_names_the_others(root, tmp_path):
    grid = FakeGrid(nodes_of(root, tmp_path / "state"), says(input_shape=[7]))
    chosen = wanted("fedproto", root, participation__min_clients=4)
    with one_line(FederationError, r"3 clients fit, .*=4 are needed: zoe: samples are \(7,\)"):
        over(grid, chosen, tmp_path / "run")
    grid.tamper = answers("")
    with pytest.raises(FederationError, match="4 are needed: ann, bob, cid; without node 104: clients: not"):
        over(grid, chosen, tmp_path / "run2")


def test_a_recipe_that_does_not_suit_the_method_is_nobodys_fault(root, tmp_path):
    grid = FakeGrid(nodes_of(root, tmp_path / "state"))
    chosen = wanted("fedavg", root, model__name="small4", model__options={})
    with pytest.raises(ConfigError, match=r"fedavg shares weights and needs one architecture.*set model\.shared"):
        over(grid, chosen, tmp_path / "run")


def test_the_record_of_nodes_is_read_as_strictly(root, tmp_path):
    grid = FakeGrid(nodes_of(root, tmp_path / "state"))

    def second(node, message):
        return message.metadata.message_type == "train" and message.content[RECORD]["round"] == 2

    grid.tamper = dying(second)
    with pytest.raises(KeyboardInterrupt):
        over(grid, apart("fedproto", root), tmp_path / "run")
    path = tmp_path / "run" / "nodes.json"
    kept = json.loads(path.read_text())
    for damage in (
        {"run": "../x"},
        {"clients": [{**kept["clients"][0], "train": [10**12, 0, 0, 0]}]},
        {"keys": {"ann": "none"}},
    ):
        path.write_text(json.dumps({**kept, **damage}))
        with one_line(CheckpointError, r"nodes\.json: damaged \("):
            over(grid, apart("fedproto", root), tmp_path / "run", resume=True)


def test_an_error_of_flower_is_no_answer_and_is_asked_again(root, tmp_path):
    lost = []

    def flicker(node, message, reply):
        if node == 102 and message.metadata.message_type == "query" and not lost:
            lost.append(node)
            return Message(Error(code=5, reason="unavailable"), reply_to=message)
        return reply

    grid = FakeGrid(nodes_of(root, tmp_path / "state"), flicker)
    run = over(grid, wanted("fedproto", root, rounds=1), tmp_path / "run", clients=3)
    assert "bob" not in run.rounds[0].participants
    (left,) = json.loads((run.directory / "federation.json").read_text())["left_out"]
    assert left == {"client": "bob", "reason": "came after the run had begun: it can take part in the next one"}


@pytest.mark.slow
@few("weight", [16.0, 0.0], 1)
def test_a_node_that_overstates_its_samples_weighs_what_the_same_client_weighs_locally(weight, root, tmp_path):
    """zoe's description and its uploads both state 2^30 samples."""
    chosen = wanted("fedavg", root, robust__weight=weight)
    federation, _ = assemble(chosen)
    codec, schema = federation.codec, federation.method.upload_schema
    assert schema is not None
    describe = says(train=[2**28] * 4)

    def lie(node: int, message: Message, reply: Message) -> Message:
        values = dict(reply.content[RECORD])
        if node != HOSTILE or not training(message):
            return describe(node, message, reply)
        upload = codec.decode(values["message"], schema)
        upload["samples"] = torch.full_like(upload["samples"], 2**30)
        return reply_with(message, {**values, "message": codec.encode(upload, schema)})

    remote = over(FakeGrid(nodes_of(root, tmp_path / "state"), lie), chosen, tmp_path / "remote")
    lies = {"attack__kind": "counts", "attack__clients": ["zoe"], "attack__samples": 2**30}
    local = locally(wanted("fedavg", root, robust__weight=weight, **lies), tmp_path / "local")
    for name in ("participants", "accuracy"):
        assert [getattr(r, name) for r in remote.rounds] == [getattr(r, name) for r in local.rounds]
    expected, found = read_server(local.directory), read_server(remote.directory)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-7)
    assert [r.robust.capped for r in remote.rounds] == [{"zoe": ["samples"]} if weight else {}] * 3


def test_admitted_clients_are_those_of_the_roster(root, tmp_path, caplog):
    """A name that the roster lacks is a mistake; without a roster, the client may be absent."""
    chosen = wanted("fedavg", root, rounds=1, robust__admitted={"zoee": 50})
    over(FakeGrid(nodes_of(root, tmp_path / "state")), chosen, tmp_path / "run")
    assert "robust.admitted: zoee is not among the clients of this run (ann, bob, cid, zoe)" in caplog.text
    roster = tmp_path / "roster.json"
    roster.write_text(json.dumps({"zoe": "SHA256:" + "A" * 43}))
    with one_line(ConfigError, r"unknown client in robust.admitted .*'zoee'.* Valid: zoe"):
        over(FakeGrid(nodes_of(root, tmp_path / "s")), chosen, tmp_path / "other", roster=str(roster))
