"""Tables over a network: the columns and sums that nodes state, and the numbers of the simulation."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from network import FakeGrid, locally, nodes_of, numbers, over, own_run, wanted
from notes import write_notes
from protofed import load_run
from protofed.analysis.one_class import one_class
from protofed.analysis.report.facts import choices
from protofed.data import Table, load
from protofed.data.tables import SiteColumn
from protofed.errors import ConfigError, DataError, FederationError, PayloadError
from protofed.runs.loading import load_run as read_run
from protofed_flower.admission import admit
from protofed_flower.messages import Description, description_values, read_descriptions
from protofed_flower.sources import Folder
from support import experiment, few

MODEL = {"model__name": "mlp", "model__options": {"hidden": [7]}}


def rows(n: int, age: float, words: str) -> str:
    pulses = ["?" if i == 3 else i for i in range(n)]
    return "".join(f"{age + 1.3 * i * i},{words[i % len(words)]},{p},{i % 3}\n" for i, p in enumerate(pulses))


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    """Three clients with 14 samples for training each; one has a category of its own, and other columns' order."""
    root = tmp_path / "data"
    for name, age, words in (("ann", 20.0, "fm"), ("bob", 50.0, "fmx"), ("Köln", 1000.0, "mf")):
        folder = root / "clients" / name
        folder.mkdir(parents=True)
        for split, n in (("train", 14), ("test", 5)):
            text = "age,sex,pulse,label\n" + rows(n, age, words)
            if name == "bob":
                text = "".join(",".join([*line.split(",")[1:3], line.split(",")[0], line.split(",")[3]]) + "\n"
                               for line in text.splitlines())  # fmt: skip
            (folder / f"{split}.csv").write_text(text)
    return root


@pytest.mark.filterwarnings("ignore:.*another unit")  # of Köln's ages
@few("standardise", ["auto", "federated", "none"], 1)
def test_a_network_gives_the_numbers_of_the_simulation(standardise, sites, tmp_path):
    options = {"data__standardise": standardise, "data__missing": "indicator"}
    chosen = wanted("fedproto", sites, rounds=2, **options, **MODEL)
    local, remote = (
        locally(chosen, tmp_path / "a"),
        over(FakeGrid(nodes_of(sites, tmp_path / "state")), chosen, tmp_path / "b"),
    )
    assert len(local.rounds) == 2
    for one, other in zip(local.rounds, remote.rounds, strict=True):
        assert one.losses == other.losses
        assert one.accuracy == other.accuracy
    here, there = (json.loads((tmp_path / d / "federation.json").read_text()) for d in "ab")
    assert here["table"] == there["table"]
    assert here["input_shape"] == there["input_shape"] == [6]
    assert Table.from_dict(here["table"]).inputs[:3] == ("age", "sex=f", "sex=m")
    own = [Table.from_dict(c["table"]) for c in here["clients"] if "table" in c]
    assert len(own) == (0 if standardise == "federated" else 3)
    assert not any("table" in c for c in there["clients"]), "what a site keeps to itself is not told"
    assert any("data.standardise=" in note for note in there["notes"])
    rows = {"age": [30.0, 60.0], "sex": ["f", "m"], "pulse": [60, None]}
    for name in local.names:
        mine = load_run(own_run(tmp_path / "state", name))
        assert mine.metrics().clients[name] == local.metrics().clients[name]
        found, known = (run.predict(name, pd.DataFrame(rows)).probabilities for run in (mine, local))
        np.testing.assert_array_equal(found, known)


@pytest.mark.filterwarnings("ignore:.*another unit")
@few("more", [{}, {"execution__executor": "workers", "execution__workers": 2}], 1)
def test_closed_forms_choose_a_standardisation_alike_over_a_network(more, sites, tmp_path):
    options = {"data__standardise": "federated", "data__missing": "mean", "encoder__name": "random"}
    chosen = wanted("fedlda", sites, **options, encoder__dim=8, rounds=1, **more)
    assert chosen.data.standardise == "chosen"
    local = locally(chosen, tmp_path / "a")
    remote = over(FakeGrid(nodes_of(sites, tmp_path / "state")), chosen, tmp_path / "b")
    assert [r.accuracy for r in local.rounds] == [r.accuracy for r in remote.rounds]
    here, there = (json.loads((tmp_path / d / "federation.json").read_text()) for d in "ab")
    assert here["input_shape"] == there["input_shape"] == [16]
    assert here["encoder"] == there["encoder"]
    assert not here["table"]["beside"]
    assert not any("table" in c for c in there["clients"]), "what a site keeps to itself is not told"
    rows = {"age": [30.0, 60.0], "sex": ["f", "m"], "pulse": [60, None]}
    for name in local.names:
        mine = load_run(own_run(tmp_path / "state", name))
        found, known = (run.predict(name, pd.DataFrame(rows)).probabilities for run in (mine, local))
        np.testing.assert_array_equal(found, known)
    assert "standardised" in choices(local)


def describe(sites: Path, name: str, **options: object) -> Description:
    chosen = experiment("fedproto", **MODEL, **options)
    (found,) = Folder(sites / "clients" / name, name, least=0, names=True).describe(chosen)
    return found


def test_a_site_states_no_more_than_it_is_asked_for(sites):
    plain = describe(sites, "ann", data__missing="mean")
    assert [asdict(c) for c in plain.table] == [
        asdict(SiteColumn("age", "number")),
        asdict(SiteColumn("sex", "category", ("f", "m"))),
        asdict(SiteColumn("pulse", "number")),
    ]
    full = describe(sites, "ann", data__missing="indicator", data__standardise="federated")
    values = [20 + 1.3 * i * i for i in range(14)]
    assert full.table[0].number == 14
    assert full.table[0].mean == pytest.approx(np.mean(values))
    assert full.table[0].squares == pytest.approx(14 * np.var(values))
    assert full.table[2].missing
    assert full.table[2].number == 13
    assert read_descriptions(description_values([full])) == [full]


def test_few_values_are_not_stated(sites):
    """A mean of a few values would almost be these values."""
    text = "age,sex,pulse,label\n" + rows(9, 1, "fm").replace("?", "3")
    (sites / "clients" / "ann" / "train.csv").write_text(text)
    with pytest.raises(DataError, match=r"ann: column 'age' has 9 values.*data.standardise=site"):
        describe(sites, "ann", data__standardise="federated", data__missing="mean")
    describe(sites, "ann", data__missing="mean")


def test_withheld_counts_are_not_stated(sites):
    (sites / "clients" / "ann" / "client.toml").write_text('counts = "coarse"')
    with pytest.raises(ConfigError, match=r"ann: counts=coarse, but data.standardise=federated"):
        describe(sites, "ann", data__missing="mean", data__standardise="federated")


GOOD = SiteColumn("age", "number", (), False, 5, 1.0, 2.0)


@pytest.mark.parametrize(
    "change",
    [
        {"name": 3}, {"name": "a\n"}, {"kind": "prose"}, {"categories": ["x"]}, {"missing": 1}, {"number": -1},
        {"number": 7}, {"number": 2**60}, {"number": 1.0}, {"mean": 1e31}, {"mean": float("nan")},
        {"squares": -1e-9}, {"squares": float("inf")}, {"more": 1},
        {"kind": "category", "categories": [str(i) for i in range(300)]},
    ],
)  # fmt: skip
def test_what_a_node_states_is_read_strictly(change):
    d = Description("ann", ("0", "1"), False, (3, 3), (1, 1), 0, (1,), table=(GOOD,))
    assert read_descriptions(description_values([d])) == [d]
    item = {**asdict(d), "table": [{**asdict(GOOD), **change}]}
    with pytest.raises(PayloadError, match="clients: not a description"):
        read_descriptions({"clients": json.dumps([item])})
    for table in ([asdict(GOOD)] * 2, [], "age", [[1]]):
        with pytest.raises(PayloadError, match="clients: not a description"):
            read_descriptions({"clients": json.dumps([{**asdict(d), "table": table}])})


def site(name: str, *columns: SiteColumn, shape: tuple[int, ...] | None = None) -> Description:
    table = columns or None
    return Description(name, ("0", "1"), False, (3, 3), (1, 1), 0, shape or (len(columns),), table=table)


def test_clients_with_other_columns_are_left_out():
    sex = SiteColumn("sex", "category", ("f", "m"))
    good = [site(n, GOOD, sex) for n in "abc"]
    other = site("d", replace(GOOD, name="ages"), sex)
    number = site("e", GOOD, SiteColumn("sex", "number"))
    undeclared = site("f", GOOD, replace(sex, categories=("f", "q")))
    none = site("g", shape=(2,))
    chosen = experiment("fedproto", **MODEL, data__categories={"sex": ["m", "f"]})
    admission = admit(chosen, [*good, other, number, undeclared, none])
    assert [d.name for d in admission.clients] == ["a", "b", "c"]
    for name, problem in (
        ("d", "lacks the column 'age', which a has: all sites need the same columns"),
        ("e", "column 'sex' holds numbers, but categories at a"),
        ("f", "column 'sex': unknown category 'q'"),
        ("g", "holds no table, but a does"),
    ):
        assert admission.left_out[name].startswith(problem)
    many = [site(n, replace(sex, categories=tuple(f"{n}{i}" for i in range(200)))) for n in "ab"]
    assert admit(experiment("fedproto", **MODEL), many).left_out == {
        "b": "brings the categories of column 'sex' to more than 256: leave it out by data.drop=sex"
    }


def relabel(sites: Path, name: str, label: int) -> None:
    for split in ("train", "test"):
        path = sites / "clients" / name / f"{split}.csv"
        head, *lines = path.read_text().splitlines()
        path.write_text("\n".join([head, *(f"{line.rpartition(',')[0]},{label}" for line in lines)]) + "\n")


def test_a_constant_label_is_refused_and_a_client_of_one_class_is_named(sites, tmp_path):
    """Over a network as in one place, whose error a simulation of nodes shares."""
    chosen = wanted("fedproto", sites, rounds=1, data__missing="mean", **MODEL)
    relabel(sites, "ann", 1)
    note = "Of one class alone: ann (if that is not meant, set data.label_column)."
    over(FakeGrid(nodes_of(sites, tmp_path / "state")), chosen, tmp_path / "run")
    assert note in json.loads((tmp_path / "run" / "federation.json").read_text())["notes"]
    told = one_class([read_run(tmp_path / "run")])
    assert told.startswith(
        "Trained on one class alone: ann (1). Always giving that class is right on 100.0% of its own"
    )
    assert note in load(replace(chosen.data, source="path", path=str(sites)), "iid", None, 0).remarks()
    for name in ("bob", "Köln"):
        relabel(sites, name, 1)
    withheld = json.loads((tmp_path / "run" / "federation.json").read_text())
    withheld["clients"][1]["counts"] = "none"
    (tmp_path / "run" / "federation.json").write_text(json.dumps(withheld))
    told = one_class([read_run(tmp_path / "run")])
    assert told == "Trained on one class alone: ann (1). So its accuracy says nothing about other classes."
    with pytest.raises(DataError, match="the label column is constant"):
        load(replace(chosen.data, source="path", path=str(sites)), "iid", None, 0)
    with pytest.raises(FederationError) as caught:
        over(FakeGrid(nodes_of(sites, tmp_path / "other")), chosen, tmp_path / "refused")
    told = str(caught.value)
    assert told.count("the label column is constant (all samples of all clients are") == 3
    assert all(f"{name}: the label" in told for name in ("ann", "bob", "Köln"))
    assert "\n" not in told
    assert not (tmp_path / "refused" / "rounds.jsonl").exists()


def test_grey_images_are_turned_to_colour_over_a_network(tmp_path):
    """As in the simulation, so that both give the same numbers."""
    root, rng = tmp_path / "data", np.random.default_rng(0)
    for name, channels in (("ann", 1), ("bob", 3), ("cid", 1)):
        folder = root / "clients" / name
        folder.mkdir(parents=True)
        for split, n in (("train", 8), ("test", 4)):
            x = rng.integers(0, 255, (n, channels, 6, 6), dtype=np.uint8)
            np.savez(folder / f"{split}.npz", x=x, y=np.arange(n) % 3)
    chosen = wanted("fedproto", root, rounds=1, **MODEL)
    local = locally(chosen, tmp_path / "a")
    remote = over(FakeGrid(nodes_of(root, tmp_path / "state")), chosen, tmp_path / "b")
    assert local.rounds[0].losses == remote.rounds[0].losses
    assert local.rounds[0].accuracy == remote.rounds[0].accuracy
    for run in "ab":
        note = json.loads((tmp_path / run / "federation.json").read_text())["notes"][-1]
        assert note.startswith("Grey images were converted to colour")
        assert "ann" in note
        assert "bob" not in note


def named(sites: Path, name: str, words: dict[str, str], column: int) -> None:
    """Give the values of a column of one client other names."""
    for split in ("train", "test"):
        path = sites / "clients" / name / f"{split}.csv"
        head, *lines = (line.split(",") for line in path.read_text().splitlines())
        for line in lines:
            line[column] = words.get(line[column], line[column])
        path.write_text("\n".join(",".join(line) for line in [head, *lines]) + "\n")


def test_names_of_sites_are_compared_before_training(sites, tmp_path):
    """A site with other words for the same is left out with a proposal, which gives the numbers of a simulation."""
    for name in ("ann", "bob", "Köln"):
        named(sites, name, {"0": "healthy", "1": "benign", "2": "malignant"}, -1)
    named(sites, "Köln", {"f": "Female", "m": "Male"}, 1)
    named(sites, "Köln", {"healthy": "Healthy", "benign": "B", "malignant": "M"}, -1)
    options = {"data__missing": "mean", "participation__min_clients": 2}
    chosen = wanted("fedproto", sites, rounds=1, **options, **MODEL)
    over(FakeGrid(nodes_of(sites, tmp_path / "state")), chosen, tmp_path / "run")
    described = json.loads((tmp_path / "run" / "federation.json").read_text())
    assert [client["name"] for client in described["clients"]] == ["ann", "bob"]
    (left_out,) = described["left_out"]
    assert left_out["client"] == "Köln"
    for part in (
        "column 'sex' has 'Female', 'Male' beside 'f', 'm'",
        "has the classes 'B', 'Healthy', 'M' beside 'benign', 'healthy', 'malignant'",
        'set data.categories.sex={Female = "f", Male = "m"}',
        'set data.labels={B = "benign", Healthy = "healthy", M = "malignant"}',
    ):
        assert part in left_out["reason"]
    with pytest.raises(DataError, match=r"Köln/train.csv and 1 more: column 'sex' has 'Female', 'Male'"):
        load(replace(chosen.data, source="path", path=str(sites)), "iid", None, 0)
    options |= {
        "data__categories": {"sex": {"Female": "f", "Male": "m"}},
        "data__labels": {"B": "benign", "Healthy": "healthy", "M": "malignant"},
    }
    chosen = wanted("fedproto", sites, rounds=1, **options, **MODEL)
    local = locally(chosen, tmp_path / "a")
    remote = over(FakeGrid(nodes_of(sites, tmp_path / "other")), chosen, tmp_path / "b")
    assert local.rounds[0].losses == remote.rounds[0].losses
    assert local.rounds[0].accuracy == remote.rounds[0].accuracy
    here, there = (json.loads((tmp_path / d / "federation.json").read_text()) for d in "ab")
    assert here["class_names"] == there["class_names"] == ["benign", "healthy", "malignant"]
    assert here["table"] == there["table"]


def test_a_column_to_drop_may_be_at_one_site_of_a_network(sites, tmp_path, caplog):
    for split in ("train", "test"):
        path = sites / "clients" / "ann" / f"{split}.csv"
        path.write_text("".join(f"{i},{line}\n" if i else f"crp,{line}\n"
                                for i, line in enumerate(path.read_text().splitlines())))  # fmt: skip
    chosen = wanted("fedproto", sites, rounds=1, data__drop=["crp"], data__missing="mean", **MODEL)
    run = over(FakeGrid(nodes_of(sites, tmp_path / "state")), chosen, tmp_path / "run")
    assert run.names == ["Köln", "ann", "bob"]
    assert numbers(run) == numbers(locally(chosen, tmp_path / "local"))
    told = [r.getMessage() for r in caplog.records if "data.drop" in r.getMessage()]
    assert sorted(told) == [f"{name}: Not in the data (data.drop): crp." for name in ("Köln", "bob")]


def test_an_identifier_is_refused_by_the_node_that_holds_it(sites):
    path = sites / "clients" / "ann" / "train.csv"
    head, *lines = path.read_text().splitlines()
    rows = [f"{line},{10**6 + 7919 * i}" for i, line in enumerate(lines)]
    path.write_text("\n".join([f"{head},patient_id", *rows]) + "\n")
    path.with_name("test.csv").write_text(path.read_text())
    with pytest.raises(DataError, match=r"column 'patient_id' looks like an identifier.* data.drop=patient_id"):
        describe(sites, "ann", data__missing="mean")
    marked = site("d", GOOD, SiteColumn("nr", "identifier"))
    others = [site(n, GOOD, SiteColumn("nr", "number")) for n in "abc"]
    admission = admit(experiment("fedproto", **MODEL), [*others, marked])
    assert list(admission.left_out) == ["d"]


def test_one_hostile_site_leaves_out_nobody_but_itself():
    """Neither many spellings nor many abbreviations of one site outvote the others."""
    names = ("benign", "malignant")
    good = [Description(n, names, True, (3, 3), (1, 1), 0, (4,)) for n in "abc"]
    odd = ("BENIGN", "Malignant", "B", "m\u200b", "ma", "benign.")
    hostile = Description("x", odd, True, (1,) * 6, (1,) * 6, 0, (4,))
    admission = admit(experiment("fedproto", **MODEL), [hostile, *good])
    assert [d.name for d in admission.clients] == ["a", "b", "c"]
    assert admission.left_out["x"].isprintable()


@pytest.mark.slow
def test_every_node_reads_its_own_tokens(tmp_path):
    sites = write_notes(tmp_path / "data", n=14)
    tokens = {"data__text": ("note",), "data__text_as": "tokens", "data__text_length": 12}
    closed = {"encoder__name": "hashing", "encoder__dim": 32, "model__name": "identity"}
    for number, (method, model) in enumerate((("fedlda", closed), ("fedavg", {"model__name": "text_cnn"}))):
        chosen = wanted(method, sites, **tokens, **model)
        local = locally(chosen, tmp_path / f"a{number}")
        remote = over(FakeGrid(nodes_of(sites, tmp_path / f"state{number}")), chosen, tmp_path / f"b{number}")
        assert local.rounds[-1].accuracy == remote.rounds[-1].accuracy
    found = describe(sites, "site0", **tokens)
    assert [c.kind for c in found.table[1:]] == ["token"] * 12
    assert read_descriptions(description_values([found])) == [found]


@pytest.mark.slow
def test_every_node_embeds_its_own_texts(tmp_path):
    pytest.importorskip("tokenizers", reason="wordllama is not installed: pip install 'protofed[text]'")
    sites = write_notes(tmp_path / "data", n=14)
    chosen = wanted("fedlda", sites, data__text=("note",), encoder__name="identity", model__name="identity")
    local = locally(chosen, tmp_path / "a")
    remote = over(FakeGrid(nodes_of(sites, tmp_path / "state")), chosen, tmp_path / "b")
    assert local.rounds[-1].accuracy == remote.rounds[-1].accuracy
    found = describe(sites, "site0", data__text=("note",), data__standardise="federated")
    assert [(c.kind, c.number) for c in found.table[1:]] == [("text", 0)] * 256, "nothing is stated of texts"
    assert read_descriptions(description_values([found])) == [found]
    others = describe(sites, "site1", data__text=("note",)), describe(sites, "site2", data__text=("note",))
    renamed = tuple(replace(c, name=c.name.replace("[wordllama ", "[wordllama 0")) for c in found.table)
    left_out = admit(wanted("fedlda", sites, data__text=("note",)), [replace(found, table=renamed), *others])
    assert "site0" in str(left_out)
    assert "install the version of wordllama that the others have" in str(left_out)
