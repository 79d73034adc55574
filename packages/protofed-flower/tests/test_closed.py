"""A node does and tells only what its own house allows, whatever a server sends and whatever option is invented.

Attacks are built from the schema: a new option is attacked at every place as soon as it is declared.
"""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Iterator
from dataclasses import Field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from network import FakeGrid, forget, job_of, nodes_of, over, wanted
from protofed import methods
from protofed.config.remote import KINDS, check_plan, plan_of, read_plan, settable
from protofed.config.schema import SECTIONS
from protofed.data import DataOptions
from protofed.data.tables import SiteColumn
from protofed.errors import ConfigError, DataError, RefusalError, refusal
from protofed.models import architectures
from protofed.models.encoders import encoders
from protofed.options import Options, option_fields
from protofed_flower.messages import Expected, Job
from protofed_flower.node import Node
from protofed_flower.nodes import message
from protofed_flower.refusals import CODES, refusal_values, sentence_of
from protofed_flower.sources import Folder, plan_text
from support import experiment, few

CODE = "subprocess:Popen"
PATHS = ("/etc/passwd", "../x", "a/b", "C:\\x", "hf-hub:name", "a:b", "file.py:X", "package:x", "x\n", "x\0", "é")


def every() -> Iterator[tuple[str, type[Options]]]:
    """Yield all records of options of the library with the place of each in a plan."""
    yield from SECTIONS.items()
    for name in methods.methods():
        yield f"method {name}", methods.get(name).Options
    for name, entry in architectures.items():
        yield f"model.options {name}", entry.Options
    for name, entry in encoders.items():
        yield f"encoder.options {name}", entry.Options


RECORDS = dict(every())
FIELDS = [
    pytest.param(place, name, field, id=f"{place}.{name}")
    for place, record in RECORDS.items()
    for name, field in option_fields(record).items()
]


def nobody(kind: str, name: str) -> bool:
    return False


def plan_with(place: str, name: str, value: object) -> dict[str, Any]:
    """Return a plan that sets one option."""
    section, _, component = place.partition(" ")
    if section == "method":
        return {"method": {"name": component, name: value}}
    if component:
        section, table = section.split(".")
        return {section: {"name": component, table: {name: value}}}
    return {section: {name: value}}


def refused(plan: object, permits: Any = nobody) -> RefusalError:
    with pytest.raises(RefusalError) as error:
        check_plan(plan, permits)
    assert error.value.code in CODES
    return error.value


@pytest.mark.parametrize(("place", "name", "field"), FIELDS)
def test_every_option_says_who_may_set_it(place, name, field: Field):
    assert field.metadata.get("setter") in ("here", "server"), (
        f"declare {place}.{name} with option, remote or named"
    )
    kind = typing.get_type_hints(RECORDS[place])[field.name]
    if settable(field):
        texts = {str, tuple[str, ...], tuple[dict[str, Any], ...], dict[str, Any]} & {kind, *typing.get_args(kind)}
        numbers = place == "training" and name == "options"  # of an optimiser
        assert not texts or numbers or field.metadata.get("of", None) is not None, "a text: declare it with named"
    if "of" in field.metadata:
        assert field.metadata["of"] in KINDS


@pytest.mark.parametrize(("place", "name", "field"), FIELDS)
def test_no_option_takes_code_or_a_path_from_a_server(place, name, field):
    for value in (CODE, [CODE], {"name": CODE}, [{"name": CODE}], {"x": {"name": CODE}}, {CODE: 1}, *PATHS):
        refused(plan_with(place, name, value))
    for value in ({"options": {"args": ["touch", "/tmp/x"]}}, "x" * 200, [0] * 5000, float("nan"), 10**30):
        refused(plan_with(place, name, value))
    if not settable(field):
        for value in (1, True, None, "word", [], {}):
            assert refused(plan_with(place, name, value)).option in (
                place,
                f"{place}.{name}".replace(f" {place.split(' ')[-1]}", ""),
            )


def test_an_option_without_a_declaration_is_closed():
    """Fields that somebody adds by other means than this library's."""
    import dataclasses

    @dataclasses.dataclass(frozen=True)
    class New(Options):
        plain: int = 3
        other: str = dataclasses.field(default="", metadata={"doc": "x"})

    for field in option_fields(New).values():
        assert not settable(field)


@pytest.mark.parametrize(
    "plan",
    [
        {"variants": {}}, {"methods": {}}, {"compare": {}}, {"partition": {}}, {"attack": {}}, {"summary": {}},
        {"usual_rounds": True}, {"checkpoint": {}}, {"shift": {}}, {"method": []}, {"method": None},
        {"model": [1]}, {"stages": [CODE]}, {"stages": CODE}, {"recipe": "../x"}, {"seed": "\x1b"}, {"\x1b[": 1},
        {"model": {"members": [{"name": "cnn2", "options": {"a": {"b": {"c": {}}}}}]}},
    ],
)  # fmt: skip
def test_what_else_no_plan_may_hold(plan):
    error = refused(plan)
    assert "\x1b" not in error.option


def test_names_of_a_node_s_own_file_are_taken():
    def permits(kind, name):
        return (kind, name) in {("models", CODE), ("stages", "mine.py:Stage")}

    plan = {"model": {"name": CODE}, "stages": ["mine.py:Stage"]}
    check_plan(plan, permits)
    refused({"model": {"name": "mine.py:Stage"}}, permits)
    refused({"encoder": {"name": CODE}}, permits)


@few("method", methods.methods(), 3)
def test_a_plan_of_every_method_arrives_as_it_was_sent(method):
    chosen = experiment(method)
    found = read_plan(json.loads(plan_text(chosen)), DataOptions(), nobody)
    assert plan_of(found) == plan_of(chosen)
    assert found.method_options == chosen.method_options
    assert found.key == replace(chosen, data=DataOptions()).key


def test_files_are_sent_by_their_names_alone():
    options = {"channels": [2, 3], "weights": "/srv/server/start.safetensors"}
    plan = plan_of(experiment("fedproto", model__name="cnn2", model__options=options))
    assert plan["model"]["options"]["weights"] == "start.safetensors"
    assert "data" not in plan or set(plan["data"]) == {"classes"}


# A server that lies, over the network.

CANARIES = [f"canary{number}zebra" for number in range(40)]
NUMBERS = [918273.645 + 7.77 * number for number in range(40)]


@pytest.fixture(scope="module")
def watched(tmp_path_factory) -> Path:
    """A client whose table is full of names and numbers that must not leave."""
    root = tmp_path_factory.mktemp("canary")
    folder = root / "ann"
    folder.mkdir()
    rows = [
        f"{CANARIES[i]},{NUMBERS[i]},{'MF'[i % 2]}marker,2024-01-{i % 28 + 1:02d},class{'AB'[i % 2]}zebra"
        for i in range(40)
    ]
    text = "patient zebra,age zebra,sex zebra,day zebra,label\n" + "\n".join(rows) + "\n"
    for split in ("train", "test"):
        (folder / f"{split}.csv").write_text(text)
    return root


def configured(root: Path, state: Path, **more: Any) -> dict[str, Any]:
    data = {"drop": ["patient zebra"], "dates": {"day zebra": "day"}, "label_column": "label"}
    place = {"client-dir": str(root / "ann"), "state-dir": str(state), "least-samples": 0}
    return {**place, "data": data, **more}


def sent(node: dict[str, Any], kind: str, values: dict[str, Any]) -> bytes:
    """Return all that leaves a node in answer to a message."""
    grid = FakeGrid({1: node})
    (reply,) = grid.pull_messages(grid.push_messages([message(values, 1, kind)]))
    assert not reply.has_error()
    return b"".join(
        value if isinstance(value, bytes) else str(value).encode()
        for record in reply.content.values()
        for value in record.values()
    )


def assert_nothing_leaks(left: bytes) -> None:
    for canary in (rb"canary", rb"zebra", rb"marker", rb"918273", rb"\.645"):
        assert not re.search(canary, left), left
    for number in (rb"2024", rb"9182"):  # which occur inside digests in hexadecimal
        assert not re.search(rb"(?<![0-9a-f])" + number, left), left


SOURCES = (*PATHS, CODE, "patient zebra", "age zebra", "label", "x", "", 0, 1, -1, 10**9, True, None, [], {}, 0.5)
VALUES = st.sampled_from([*SOURCES, ["patient zebra"], {"patient zebra": []}, {"age zebra": [0, 1]}, "federated"])
NAMES = st.sampled_from(
    [f"{place}.{name}" for place, record in SECTIONS.items() for name in option_fields(record)]
    + ["method.name", "variants.v", "methods.fedproto", "rounds", "seed", "stages", "recipe"]
)
CHANGES = st.lists(st.tuples(NAMES, VALUES), max_size=3)
EXPECTED = st.sampled_from(
    [
        Expected().to_json(),
        Expected(("classAzebra", "classBzebra")).to_json(),
        Expected(("x", "y")).to_json(),
        Expected((), (SiteColumn("age zebra", "number"), SiteColumn("sex zebra", "category", ("Q",)))).to_json(),
        "{", "[]", '{"classes": 5}',
    ]
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(CHANGES, EXPECTED, st.sampled_from(["query", "train", "evaluate", "query.secure"]), st.booleans())
def test_nothing_of_the_data_leaves_a_node_whatever_a_server_sends(
    watched, tmp_path_factory, changes, expected, kind, job
):
    plan = json.loads(plan_text(experiment("fedproto", rounds=1)))
    for dotted, value in changes:
        section, _, name = dotted.partition(".")
        if name:
            plan[section] = {**plan.get(section, {}), name: value} if isinstance(plan.get(section, {}), dict) else 1
        else:
            plan[section] = value
    values: dict[str, Any] = {"config": json.dumps(plan), "expected": expected}
    if job:
        values = Job("run", "ann", 1, json.dumps(plan), "{}").to_values()
    left = sent(configured(watched, tmp_path_factory.mktemp("state") / "s"), kind, values)
    names = {"classAzebra", "classBzebra"} if "class" in expected and b"clients" in left else set()
    for name in (*names, "age zebra", "sex zebra"):  # what the server itself has sent
        left = left.replace(name.encode(), b"") if name in expected else left
    assert_nothing_leaks(left)


def test_names_leave_if_the_node_s_file_lets_them_out_and_no_value_ever(watched, tmp_path):
    plan = plan_text(experiment("fedproto", rounds=1))
    left = sent(configured(watched, tmp_path / "s", names=True), "query", {"config": plan})
    for name in (b"age zebra", b"classAzebra", b"Mmarker"):
        assert name in left
    for value in (b"canary", b"918273", b"2024"):
        assert value not in left
    expects = Expected((), (SiteColumn("age zebra", "number"), SiteColumn("height", "number"))).to_json()
    left = sent(configured(watched, tmp_path / "s", names=True), "query", {"config": plan, "expected": expects})
    assert b"columns" in left
    assert b"height" in left, "what does not fit is named"


def test_a_node_that_keeps_its_names_takes_those_that_are_expected(watched, tmp_path):
    plan = plan_text(experiment("fedproto", rounds=1))
    columns = (
        SiteColumn("day zebra", "number"),
        SiteColumn("sex zebra", "category", ("Fmarker", "Mmarker", "other")),
        SiteColumn("age zebra", "number"),
    )
    expects = Expected(("classBzebra", "classAzebra", "more"), columns).to_json()
    left = sent(configured(watched, tmp_path / "s"), "query", {"config": plan, "expected": expects})
    (described,) = json.loads(left[left.index(b"[{") : left.rindex(b"}]") + 2])
    assert described["classes"] == ["classBzebra", "classAzebra", "more"]
    assert described["train"] == [20, 20, 0]
    assert [c["name"] for c in described["table"]] == ["day zebra", "sex zebra", "age zebra"]


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"label_column": "patient zebra"}},
        {"data": {"categories": {"patient zebra": [], "age zebra": []}}},
        {"data": {"nothing": ["918273.645"], "unlabelled": "drop", "standardise": "federated"}},
        {"data": {"drop": ["age zebra"]}},
        {"data": {"train_samples": 1}},
        {"data": {"validation_fraction": 0.5}},
    ],
)
def test_how_data_are_read_is_not_for_a_server_to_say(changes, watched, tmp_path):
    """By label columns, categories and filters of rows, servers read tables before any training."""
    plan = json.loads(plan_text(experiment("fedproto", rounds=1))) | changes
    left = sent(configured(watched, tmp_path / "s"), "query", {"config": json.dumps(plan)})
    (option,) = changes["data"].keys() if len(changes["data"]) == 1 else [next(iter(changes["data"]))]
    assert f"data.{option}".encode() in left
    assert b"closed" in left
    assert_nothing_leaks(left)


def test_a_node_that_requires_noise_tells_nothing_by_its_refusals(watched, tmp_path):
    node = configured(watched, tmp_path / "s", privacy="sample", epsilon=1.0)
    node["data"] = {**node["data"], "dates": {"sex zebra": "day"}}  # a mistake of its own
    plan = plan_text(experiment("fedavg", rounds=1, privacy__mode="sample", privacy__noise=9.0))
    left = sent(node, "query", {"config": plan})
    assert b"data" in left
    assert_nothing_leaks(left)


@pytest.mark.parametrize(
    "section",
    [
        {"encoder": {"members": [{"name": CODE, "options": {"args": ["touch", "MARK"]}}]}},
        {"encoder": {"name": CODE, "options": {"args": ["touch", "MARK"]}}},
        {"model": {"name": CODE, "options": {"args": ["touch", "MARK"]}}},
        {"model": {"members": [{"name": CODE, "args": ["touch", "MARK"]}]}},
        {"method": {"name": "fml", "auxiliary": CODE, "auxiliary_options": {"args": ["touch", "MARK"]}}},
        {"methods": {"planted.py:X": {}}},
        {"variants": {"v": {"method": {"name": "planted.py:X"}}}},
        {"stages": ["planted.py:X"]},
    ],
)
@pytest.mark.parametrize("kind", ["query", "train"])
def test_a_server_runs_no_command_on_a_node(section, kind, root, tmp_path, monkeypatch):
    """The node's file allows the methods, and nothing of the kind."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "planted.py").write_text("from pathlib import Path\nPath('MARK').write_text('x')\n")
    allow = {"methods": ["fedproto", "fml", "fedkd", "fedmrl"], "models": ["mlp", "cnn2"]}
    node = {**nodes_of(root, tmp_path / "state")[101], "allow": allow}
    job = job_of(root)
    plan = {**json.loads(job.config), **section}
    values = {"config": json.dumps(plan)} if kind == "query" else replace(job, config=json.dumps(plan)).to_values()
    left = sent(node, kind, values)
    assert b"closed" in left or b"not allowed" in left
    assert not (tmp_path / "MARK").exists()


def test_a_node_imports_only_what_its_files_name_even_if_the_check_is_gone(root, tmp_path, monkeypatch):
    """The second lock: here, the first is taken away."""
    from protofed.config import remote

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(remote, "check_plan", lambda plan, permits: None)
    job = job_of(root)
    plan = {**json.loads(job.config), "model": {"name": CODE, "options": {"args": ["touch", "MARK"]}}}
    sent(nodes_of(root, tmp_path / "state")[101], "train", replace(job, config=json.dumps(plan)).to_values())
    assert not (tmp_path / "MARK").exists()


def test_the_architecture_follows_from_the_plan_and_a_client_s_own_file_wins(root, tmp_path):
    """What a node allows of a model cannot be passed by what the server assigns beside the plan."""
    job = job_of(root, model__options={"hidden": [7]})
    node = Node(Folder(root / "clients" / "ann", "ann", least=0), tmp_path / "state")
    assert "hidden=[7]" in node.architecture(job)
    assigned = {**json.loads(job.summary), "architectures": [{"name": "identity", "options": {}, "d": 6}]}
    values = sent(
        nodes_of(root, tmp_path / "s")[101], "train", replace(job, summary=json.dumps(assigned)).to_values()
    )
    assert b"request" in values
    (root / "clients" / "ann" / "client.toml").write_text('model = "tiny"\n')
    forget()
    own = Node(Folder(root / "clients" / "ann", "ann", least=0), tmp_path / "own")
    assert own.architecture(replace(job, order=1)) == "own"
    (builder, _, _) = own._build(replace(job, order=1))
    assert [str(a) for a in builder.summary.architectures] == ["tiny"]


def test_a_model_that_does_not_fit_in_memory_is_not_built(root, tmp_path):
    job = job_of(root)
    plan = json.loads(job.config)
    plan["model"]["options"] = {"hidden": [60_000] * 24}
    left = sent(nodes_of(root, tmp_path / "s")[101], "train", replace(job, config=json.dumps(plan)).to_values())
    assert b"model.options" in left
    refused({"model": {"name": "mlp", "options": {"hidden": [10**6]}}})


def test_secure_sums_of_unlike_clients_are_refused(root, tmp_path):
    """Raw class means of one client beside dead units of the others would be read from their sum."""
    unlike = {"secure__aggregation": True, "robust__rule": "none"}
    members = [{"name": "identity"}, {"name": "mlp", "hidden": [1]}, {"name": "mlp", "hidden": [1]}]
    chosen = wanted("fedproto", root, model__members=members, **unlike)
    node = Node(Folder(root / "clients" / "ann", "ann", least=0), tmp_path / "state")
    with pytest.raises(RefusalError, match="one architecture for all clients") as error:
        node.describe(plan_text(chosen))
    assert (error.value.code, error.value.option) == ("secure", "model.name")


def test_what_changes_data_is_for_simulations(root, tmp_path):
    with pytest.raises(ConfigError, match="shift changes data of simulations, and clients here have their own"):
        over(FakeGrid(nodes_of(root, tmp_path / "s")), wanted("fedproto", root, shift__gain=1.0), tmp_path / "run")


def test_nodes_score_their_own_samples_whatever_a_recipe_asks(root, tmp_path):
    """As `quickstart` does, which simulations score on everybody's; nothing else is on a node."""
    nodes = nodes_of(root, tmp_path / "s")
    run = over(FakeGrid(nodes), wanted("fedproto", root, evaluation__on="union", rounds=1), tmp_path / "run")
    assert run.config["evaluation"]["on"] == "own"
    assert run.rounds[-1].accuracy
    assert not run.rounds[-1].union


# Refusals.


def test_a_refusal_is_a_code_and_a_sentence_of_the_server():
    error = DataError("x.csv: column 'age', row 3: 'Person 3' is not a date")
    values = refusal_values("ann", error)
    assert values == {"error": "data", "option": "", "client": "ann"}
    assert "Person" not in sentence_of(values)
    values = refusal_values(3, refusal("columns", "data.columns", names=["age"]))
    assert sentence_of(values).startswith("refused, data.columns: its columns are not those expected here")
    assert sentence_of(values).endswith("(age)")
    assert refusal_values("", KeyError("Person 3"))["error"] == "fault"


@pytest.mark.parametrize(
    "values",
    [{}, {"error": 5}, {"error": "x" * 999}, {"error": "data", "option": "\x1b[2J"},
     {"error": "data", "names": "[["}, {"error": "data", "names": json.dumps(["\n"])},
     {"error": "data", "names": json.dumps(["x"] * 99)}],
)  # fmt: skip
def test_a_refusal_that_cannot_be_read_is_one_line(values):
    assert sentence_of(values).startswith("refused for a reason")
    assert sentence_of(values).isprintable()


def test_rare_classes_are_not_counted_for_the_server(root, tmp_path):
    node = Node(Folder(root / "clients" / "ann", "ann", least=5), tmp_path / "state")
    plain = Node(Folder(root / "clients" / "ann", "ann", least=0), tmp_path / "state")
    (shown,), (known,) = (n.describe(plan_text(wanted("fedproto", root))) for n in (node, plain))
    assert [n if n >= 5 else 0 for n in known.train] == list(shown.train)
    assert sum(known.test) == sum(shown.test)
    assert all(
        not test for train, test in zip(shown.train, shown.test, strict=True) if not train and any(shown.train)
    )


def test_a_run_whose_server_reads_tables_otherwise_is_told(tmp_path):
    root = tmp_path / "data"
    for name in ("ann", "bob"):
        folder = root / "clients" / name
        folder.mkdir(parents=True)
        for split in ("train", "test"):
            text = "a,b,label\n" + "".join(f"{i * 1.5},{i * i},{i % 2}\n" for i in range(12))
            (folder / f"{split}.csv").write_text(text)
    model = {"model__name": "mlp", "model__options": {"hidden": [7]}}
    chosen = wanted("fedproto", root, rounds=1, **model)
    nodes = nodes_of(root, tmp_path / "state")
    nodes[101]["data"] = {"missing": "indicator"}
    run = over(FakeGrid(nodes), chosen, tmp_path / "run")
    (left,) = json.loads((run.directory / "federation.json").read_text())["left_out"]
    assert left["client"] == "ann"
    assert "reads tables otherwise than this recipe" in left["reason"]
