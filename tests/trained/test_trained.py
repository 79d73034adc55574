"""A life after training: models that classify and are exported, tables, and runs that go on."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save

import protofed
from protofed import load_run
from protofed.errors import CheckpointError, ConfigError, DataError, ModelError
from protofed.experiments import resolve
from protofed.experiments.loading import load_data
from protofed.trained.exporting import TOLERANCE
from support import command, few, one_line

SMALL = {
    "data.samples": 300,
    "data.clients": 3,
    "partition.alpha": 0.5,
    "rounds": 2,
    "evaluation.every": 1,
    "model.name": "small4",
    "model.d": 16,
    "execution.device": "cpu",
    "execution.executor": "sequential",
}


def train(out, method="fedproto", **overrides):
    dotted = {name.replace("__", "."): value for name, value in overrides.items()}
    return protofed.run("quickstart", {**SMALL, "method.name": method, **dotted}, out=out)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture(scope="module")
def data(run):
    return load_data(resolve(run.config))


# Predictions.


@few(
    ("method", "options"),
    [
        ("fedproto", {}),
        ("fixed_etf", {"method.softmax": "balanced"}),
        ("local", {"method.softmax": "balanced"}),
        ("fedavg", {"model.name": "mlp"}),
        ("gfpl", {}),
        ("tinyproto", {"transforms.mean": [0.3], "transforms.std": [0.4]}),
        ("beacon", {}),
        ("fml", {}),
    ],
    1,
)
def test_predictions_are_those_that_the_run_scored(method, options, tmp_path):
    """By every rule of every kind of method; and where a method has scores, their largest is its answer."""
    train(tmp_path / "run", method, **{name.replace(".", "__"): value for name, value in options.items()})
    loaded = protofed.load_run(tmp_path / "run")
    found = load_data(resolve(loaded.config))
    for number, client in enumerate(found.clients):
        trained = loaded.client(client.name)
        assert set(trained.rules) == set(loaded.rounds[-1].accuracy.weighted)
        for rule in trained.rules:
            predicted = trained.predict(client.test.x, rule)
            hits = float((predicted.labels == client.test.y.numpy()).mean())
            assert hits == pytest.approx(loaded.rounds[-1].accuracy.clients[rule][number]), rule
            assert (predicted.probabilities.argmax(1) == predicted.labels).all()
            assert predicted.probabilities.sum(1) == pytest.approx(np.ones(len(predicted)))


def test_the_validated_rule_is_the_one_that_served_the_client(run, data, tmp_path):
    """By its own validation samples, scored anew; without such samples there is none."""
    scored = train(tmp_path / "run", data__validation_fraction=0.3)
    held = load_data(resolve(scored.config)).clients
    chosen = set()
    for client in held:
        trained = scored.client(client.name)
        if len(client.validation) == 0:
            assert trained.validated == ""
            continue
        x, y = client.validation.x, client.validation.y.numpy()
        hits = {rule: float((trained.predict(x, rule).labels == y).mean()) for rule in trained.rules}
        assert hits[trained.rule("validated")] == max(hits.values())
        if hits[scored.main_rule] == max(hits.values()):
            assert trained.validated == scored.main_rule
        chosen.add(trained.validated)
    assert chosen - {scored.main_rule}
    name = data.clients[0].name
    with pytest.raises(ConfigError, match=rf"rule=validated: {name} was not scored on validation samples"):
        run.predict(name, data.clients[0].test.x[:2], "validated")


def test_probabilities_of_prototypes_are_softmax_of_squared_distances(run, data):
    """Snell et al. (2017), Eq. 2: p(y = k) ∝ exp(−‖f(x) − c_k‖²); naively, sample by sample."""
    client = data.clients[0]
    found, model = run.predict(client.name, client.test.x[:5], "prototypes"), run.model(client.name)
    assert found.rule == "global"
    prototypes = safe_open(run.directory / "server.safetensors", framework="pt")
    table, present = prototypes.get_tensor("prototypes").double(), prototypes.get_tensor("present")
    for row, x in zip(found.probabilities, client.test.x[:5], strict=True):
        feature = model.features(x[None])[0].double()
        weights = [
            float(torch.exp(-((feature - c) ** 2).sum())) if p else 0.0 for c, p in zip(table, present, strict=True)
        ]
        assert row == pytest.approx(np.array(weights) / sum(weights), rel=1e-4, abs=1e-12)


def test_a_model_is_an_ordinary_module_with_its_preprocessing(run, data):
    client = data.clients[0]
    model = run.model(client.name)
    assert isinstance(model, torch.nn.Module)
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())
    assert model.class_names == tuple("0123456789")
    x = client.test.x
    assert torch.equal(model(x).argmax(1), torch.from_numpy(run.predict(client.name, x).labels))
    if model.eight_bit:  # as torchvision's ToTensor makes them
        assert torch.allclose(model(x), model(x.float() / 255), atol=1e-5)
    with pytest.raises(DataError, match="samples have the shape 3×8×8"):
        model(torch.zeros(1, 3, 8, 8))


def test_samples_come_as_arrays_pictures_and_tables(run, data, tmp_path):
    from PIL import Image

    client = data.clients[0]
    x = client.test.x[:3]
    expected = run.predict(client.name, x).labels.tolist()
    assert run.predict(client.name, x.numpy()).labels.tolist() == expected
    assert run.predict(client.name, x[:, 0].numpy()).labels.tolist() == expected  # (n, H, W)
    assert run.predict(client.name, x.permute(0, 2, 3, 1).numpy()).labels.tolist() == expected
    assert run.predict(client.name, x[0]).labels.tolist() == expected[:1]
    pictures = [Image.fromarray(image.numpy()) for image in x[:, 0]]
    assert run.predict(client.name, pictures).labels.tolist() == expected
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, picture in enumerate(pictures):
        picture.save(folder / f"{number}.png")
    assert run.predict(client.name, folder).labels.tolist() == expected
    frame = run.predict(client.name, folder).to_frame()
    assert list(frame.columns[:3]) == ["class", "probability", "p(0)"]
    assert frame["class"].tolist() == [str(label) for label in expected]


def test_tables_are_prepared_as_in_the_run_and_matched_by_name(tmp_path):
    """Raw values in any order of columns give what the run scored on its standardised ones."""
    import pandas as pd

    small = {"method.name": "fedproto", "rounds": 2, "data.clients": 2, "data.standardise": "site"}
    done = protofed.run("hospital-tables", small, out=tmp_path / "run")
    client = load_data(resolve(done.config)).clients[0]
    names = [column.name for column in client.table.columns]
    means, scales = (torch.tensor([getattr(c, n) for c in client.table.columns]) for n in ("mean", "scale"))
    raw = client.test.x.double() * scales + means
    frame = pd.DataFrame(raw.numpy(), columns=names)
    expected = done.client(client.name).predict(client.test.x).probabilities
    frame["label"] = "benign"
    for given in (raw.numpy(), frame, frame[frame.columns[::-1]]):
        assert done.predict(client.name, given).probabilities == pytest.approx(expected, abs=1e-4)
    with pytest.raises(DataError, match=f"the table: lacks the column {names[3]!r}"):
        done.predict(client.name, frame.drop(columns=names[3]))
    frame.loc[2, names[1]] = float("nan")
    with pytest.raises(DataError, match=f"column {names[1]!r}, row 2 has no finite value"):
        done.predict(client.name, frame)
    with pytest.raises(DataError, match="but the run has samples of 30"):
        done.predict(client.name, raw[:, :5].numpy())


@pytest.fixture(scope="module")
def wards(tmp_path_factory):
    """A run on tables with categories and missing values; and the test samples of its first client."""
    root = tmp_path_factory.mktemp("wards")
    for name, words in (("Köln", "fmx"), ("north", "mf")):
        (root / "data" / "clients" / name).mkdir(parents=True)
        for split, n in (("train", 16), ("test", 9)):
            pulses = ["" if i == 3 else 9000 + i * i for i in range(n)]
            lines = (f"{i % 4},{words[i % len(words)]},{p},{i % 2}\n" for i, p in enumerate(pulses))
            text = "ward,sex,pulse,ill\n" + "".join(lines)
            (root / "data" / "clients" / name / f"{split}.csv").write_text(text)
    options = {
        "data.source": "path",
        "data.path": str(root / "data"),
        "data.label_column": "ill",
        "data.categories": {"ward": []},
        "data.missing": "indicator",
        "method.name": "fedproto",
        "model.name": "mlp",
        "model.options": {"hidden": [5]},
        "model.d": 4,
        "rounds": 2,
        "evaluation.metrics": False,
        "execution.executor": "sequential",
    }
    protofed.run("hospital-tables", options, out=root / "run")
    return protofed.load_run(root / "run"), options, root


def test_tables_are_read_by_the_names_of_their_columns(wards, monkeypatch, capsys):
    import pandas as pd

    run, _, root = wards
    file = root / "data" / "clients" / "Köln" / "test.csv"
    hits = run.predict("Köln", file, "head").labels == pd.read_csv(file)["ill"]
    assert hits.mean() == pytest.approx(run.rounds[-1].accuracy.clients["head"][0])
    frame = pd.DataFrame({"pulse": [9001.0], "sex": ["other"], "ward": [2]})
    with pytest.raises(DataError, match="unknown category 'other'"):
        run.predict("Köln", frame, "head")
    with pytest.warns(UserWarning, match="columns that the run did not have are not used: 'height', 'note'"):
        run.predict("Köln", frame.assign(sex=None, height=1.7, note="x"), "head")
    frame.assign(sex="f", height=1.7).to_csv(root / "new.csv", index=False)
    code, _, told = command(monkeypatch, capsys, "predict", root / "run", "Köln", root / "new.csv")
    assert code == 0
    assert told == f"warning: {root / 'new.csv'}: columns that the run did not have are not used: 'height'\n"


@pytest.mark.slow
@few("form", ["onnx", "torch_export", "safetensors"], 1)
def test_exported_models_of_tables_prepare_them(form, wards, tmp_path):
    """Raw columns, categories by number, NaN for missing: the probabilities of ``run.predict`` on this table."""
    import pandas as pd

    from protofed.data import Table

    run, _, root = wards
    table = pd.concat([pd.read_csv(f) for f in (root / "data" / "clients").glob("*/*.csv")])
    expected = run.predict("Köln", table, "head").probabilities
    kind = {"onnx": ".onnx", "torch_export": ".pt2", "safetensors": ".safetensors"}[form]
    path = run.export("Köln", tmp_path / f"model{kind}", rule="head")
    if form == "onnx":
        onnxruntime, onnx = pytest.importorskip("onnxruntime"), pytest.importorskip("onnx")
        facts = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    elif form == "torch_export":
        extra = {"protofed.json": ""}
        module = torch.export.load(path, extra_files=extra).module()
        facts = json.loads(extra["protofed.json"])
    else:
        with safe_open(path, framework="pt") as file:
            facts = json.loads(file.metadata()["protofed"])
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert (json.loads(facts["input_columns"]), facts["input_type"]) == (["ward", "sex", "pulse"], "float64")
    assert json.loads(facts["input_values"])["sex"] == {"0": "f", "1": "m", "2": "x"}
    described = json.loads(facts["table"])["columns"]
    raw = np.array(
        [
            [c["categories"].index(str(row[c["name"]])) if c["categories"] else row[c["name"]] for c in described]
            for _, row in table.iterrows()
        ],
        np.float64,
    )
    assert np.isnan(raw).any()
    if form == "onnx":
        found = onnxruntime.InferenceSession(path).run(["probabilities"], {"samples": raw})[0]
    elif form == "torch_export":
        found = module(torch.from_numpy(raw))[1].detach().numpy()
    else:
        model = run.model("Köln", "head")
        model.model.load_state_dict(weights, strict=False)
        assert torch.equal(
            model.stored(torch.from_numpy(raw)),
            Table.from_dict(json.loads(facts["table"])).apply(torch.from_numpy(raw)),
        )
        found = model(torch.from_numpy(raw)).softmax(-1).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_predict_writes_a_table(run, data, tmp_path, monkeypatch, capsys):
    from PIL import Image

    client = data.clients[1]
    Image.fromarray(client.test.x[0, 0].numpy()).save(tmp_path / "a.png")
    np.save(tmp_path / "b.npy", client.test.x[:2].numpy())
    files = [tmp_path / "a.png", tmp_path / "b.npy"]
    status, out, _ = command(monkeypatch, capsys, "predict", run.directory, client.name, *files, "--rule", "head")
    assert status == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["file"], row["row"]) for row in rows] == [
        (str(files[0]), ""),
        (str(files[1]), "0"),
        (str(files[1]), "1"),
    ]
    expected = run.predict(client.name, client.test.x[[0, 0, 1]], "head")
    assert [row["class"] for row in rows] == expected.classes
    assert float(rows[2]["p(3)"]) == pytest.approx(expected.probabilities[2, 3])
    status, _, _ = command(
        monkeypatch,
        capsys,
        "predict",
        run.directory,
        client.name,
        files[1],
        "--rule",
        "head",
        "--out",
        tmp_path / "t.csv",
    )
    assert status == 0
    assert (tmp_path / "t.csv").read_text().splitlines()[1:] == [
        line for line in out.splitlines() if line.startswith(str(files[1]))
    ]


def write_tables(root):
    rng = np.random.default_rng(0)
    for name in ("ann", "bob"):
        folder = root / "clients" / name
        folder.mkdir(parents=True)
        for part, n in (("train", 40), ("test", 10)):
            y = np.arange(n) % 3
            np.savez(folder / f"{part}.npz", x=(3 * np.eye(4)[y] + rng.normal(size=(n, 4))).astype("f4"), y=y)
    return root


def test_tables_by_columns(tmp_path):
    pd = pytest.importorskip("pandas")
    root = write_tables(tmp_path / "data")
    run = protofed.run(
        "quickstart",
        {"data.source": "path", "data.path": str(root), "model.name": "mlp", "model.d": 8, "rounds": 2}
        | {"method.name": "fedproto", "execution.device": "cpu"},
        out=tmp_path / "run",
    )
    x = np.load(root / "clients" / "ann" / "test.npz")["x"]
    table = pd.DataFrame(x, columns=list("abcd"))
    expected = run.predict("ann", x).labels.tolist()
    assert run.predict("ann", table).labels.tolist() == expected
    table.assign(label=1).to_csv(tmp_path / "t.csv", index=False)
    assert run.predict("ann", tmp_path / "t.csv").labels.tolist() == expected
    table.to_parquet(tmp_path / "t.parquet")
    assert run.predict("ann", tmp_path / "t.parquet").labels.tolist() == expected
    for wrong, message in (
        (table[["a", "b"]], "2 columns, but the model takes 4"),
        (table.assign(a="x"), "column 'a', row 0: 'x' is not a number"),
        (table.assign(b=[float("nan")] * 10), "column 'b', row 0 has no finite value"),
    ):
        with pytest.raises(DataError, match=message):
            run.predict("ann", wrong)
    (tmp_path / "a.png").write_bytes(b"none")
    with pytest.raises(DataError, match="takes 4 numbers, no images"):
        run.predict("ann", tmp_path / "a.png")


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.zeros((2, 9, 9), np.uint8), "of shape 2×9×9, but the model takes samples of 1×8×8"),
        (np.full((1, 8, 8), 300), "the model takes 8-bit images"),
        (np.full((1, 8, 8), np.nan), "the model takes 8-bit images|not finite"),
        ("nowhere.png", "nowhere.png: cannot be read"),
        ("nowhere.xyz", "no such file"),
        ({"a": 1}, "expected an array"),
    ],
)
def test_wrong_samples_are_one_line(run, samples, message):
    with one_line(DataError, message):
        run.predict("client-00", samples)


def test_images_of_another_size_are_scaled_on_request(run, tmp_path):
    from PIL import Image

    Image.fromarray(np.full((16, 16, 3), 200, np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"16×16 pixels, but the model takes 8×8: pass resize=8 \(--resize 8\)"):
        run.predict("client-00", tmp_path / "a.png")
    assert len(run.predict("client-00", tmp_path / "a.png", resize=8)) == 1


# Nothing in a run directory is trusted.


def test_unknown_names(run):
    with pytest.raises(DataError, match="unknown client 'client-0': did you mean"):
        run.model("client-0")
    with pytest.raises(ConfigError, match="unknown rule of fedproto 'etf'"):
        run.predict("client-00", np.zeros((8, 8), np.uint8), "etf")


def damaged(run, tmp_path, name, change):
    copy = tmp_path / "copy"
    shutil.copytree(run.directory, copy)
    path = copy / name
    change(path)
    return protofed.load_run(copy)


def rewrite(**changes):
    def change(path):
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def changed_server(tensors):
    def change(path):
        with safe_open(path, framework="pt") as file:
            kept = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        path.write_bytes(save({**kept, **tensors}))

    return change


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("server.safetensors", changed_server({"prototypes": torch.zeros(10, 3)}), "does not fit fedproto"),
        (
            "server.safetensors",
            changed_server({"prototypes": torch.zeros(12, 16), "present": torch.ones(12) > 0}),
            "does not fit fedproto .*12|gives 12 classes",
        ),
        ("server.safetensors", changed_server({"present": torch.zeros(2, 3, 4)}), "does not fit fedproto"),
        ("federation.json", rewrite(models={}), "federation.json: models"),
        ("federation.json", rewrite(input_shape=[2**40]), "input_shape"),
        ("clients/client-00/model.safetensors", lambda p: p.write_bytes(b"x" * 100), "cannot be read"),
        ("clients/client-00/model.safetensors", lambda p: p.write_bytes(p.read_bytes()[:40]), "cannot be read"),
        ("clients/client-00/model.safetensors", lambda p: p.unlink(), "missing|No such file"),
        ("clients/client-00/state.safetensors", lambda p: p.unlink(), "state.safetensors: missing"),
        ("clients/client-00/state.safetensors", lambda p: p.write_bytes(b"x" * 100), "cannot be read"),
        (
            "clients/client-00/state.safetensors",
            lambda p: p.write_bytes(save({}, {"protofed.from_server": "[" * 10**5})),
            "cannot be read .is nested too deeply",
        ),
    ],
)
def test_damaged_directories_are_one_line(run, tmp_path, name, change, message):
    loaded = damaged(run, tmp_path, name, change)
    with one_line(CheckpointError, message):
        loaded.model("client-00")


def test_a_model_that_is_announced_as_huge_takes_no_memory(run, tmp_path):
    def enlarge(path):
        tree = json.loads(path.read_text())
        tree["models"]["clients"]["client-00"]["d"] = 2**16
        tree["models"]["clients"]["client-00"]["options"] = {"hidden": [2**24, 2**24]}
        path.write_text(json.dumps(tree))

    loaded = damaged(run, tmp_path, "federation.json", enlarge)
    with pytest.raises(CheckpointError, match="does not fit the model of mlp"):
        loaded.model("client-00")


def test_an_unfinished_run_and_a_comparison_say_so(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run.directory, copy)
    (copy / "summary.json").unlink()
    with pytest.raises(CheckpointError, match="has not finished"):
        protofed.load_run(copy)
    (tmp_path / "comparison.json").write_text(json.dumps({"runs": [{"method": "m", "directory": "copy"}]}))
    with pytest.raises(CheckpointError, match=r"holds a comparison: load one of its runs, such as .*copy"):
        protofed.load_run(tmp_path)


def test_code_that_a_run_names_is_imported_only_on_request(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import torch\nclass Net(torch.nn.Module):\n"
        "    def __init__(self, num_classes):\n        super().__init__()\n"
        "        self.body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.ReLU())\n"
        "        self.out = torch.nn.Linear(8, num_classes)\n"
        "    def forward(self, x):\n        return self.out(self.body(x))\n"
    )
    package = tmp_path / "own_package_of_a_user"
    package.mkdir()
    shutil.copy(tmp_path / "mine.py", package / "__init__.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    for name in ("mine.py:Net", "own_package_of_a_user:Net"):
        out = tmp_path / "runs" / name.partition(":")[0]
        run = train(out, model__name=name, model__shared="", rounds=1)
        image = np.zeros((8, 8), np.uint8)
        assert run.predict("client-00", image).labels.shape == (1,)  # code that this process ran is trusted
        with pytest.raises(DataError, match=f"names code of its own .{name}.: pass trust_code=True"):
            load_run(out).model("client-00")
        assert load_run(out, trust_code=True).predict("client-00", image).labels.shape == (1,)
        for module in [n for n in sys.modules if n.startswith(("protofed_user_", "own_package_of_a_user"))]:
            del sys.modules[module]


# Exported models.


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "torch_export", "safetensors"])
def test_exported_models_equal_the_original(form, run, data, tmp_path):
    """On 200 real samples, to 1e-5, for every architecture of the group; with preprocessing and class names."""
    if form == "onnx":
        pytest.importorskip("onnx")
    suffix = {"onnx": ".onnx", "torch_export": ".pt2", "safetensors": ".safetensors"}[form]
    everything = torch.cat([c.test.x for c in data.clients] + [c.train.x for c in data.clients])[:200]
    assert len(everything) == 200
    for client in data.clients:
        path = run.export(client.name, tmp_path / f"{client.name}{suffix}")
        expected = run.predict(client.name, everything).probabilities
        if form == "onnx":
            runtime, onnx = pytest.importorskip("onnxruntime"), pytest.importorskip("onnx")
            session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
            found = session.run(["probabilities"], {"samples": everything.numpy()})[0]
            facts = {entry.key: entry.value for entry in onnx.load(str(path)).metadata_props}
        elif form == "torch_export":
            kept = {"protofed.json": ""}
            program = torch.export.load(path, extra_files=kept)
            found = program.module()(everything)[1].numpy()
            facts = json.loads(kept["protofed.json"])
        else:
            with safe_open(path, framework="pt") as file:
                facts = json.loads(file.metadata()["protofed"])
                weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            model = run.model(client.name)
            for parameter in [*model.parameters(), *model.received.buffers(), *model.state.buffers()]:
                parameter.zero_()
            model.model.load_state_dict(weights, strict=False)
            for name, tensor in model.received.tensors().items():
                tensor.copy_(weights.get(f"received.{name}", tensor))
            assert not any(name.startswith("state.") for name in weights)
            found = model(everything).softmax(-1).numpy()
        assert np.abs(found - expected).max() < TOLERANCE
        assert facts["rule"] == "global"
        assert json.loads(facts["class_names"]) == list("0123456789")
        assert json.loads(facts["input_shape"]) == [1, 8, 8]
        assert facts["input_type"] == "uint8"


def test_export_on_the_command_line(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ("export", run.directory, "client-01", "--format", "torch_export")
    status, out, _ = command(monkeypatch, capsys, *arguments)
    assert status == 0
    tests = run.clients[1].test
    assert out == (
        f"Written: client-01.pt2, by the rule global; equal to predict on {sum(tests)} test samples of client-01 "
        "and 200 random samples. Card: client-01.pt2.model-card.md\n"
    )
    card = Path("client-01.pt2.model-card.md").read_text()
    assert "\n# client-01 by fedproto\n" in card
    assert "- File: client-01.pt2;" in card
    assert f"The file is equal to predict on {sum(tests)} test samples of client-01 and 200 random" in card
    status, _, error = command(monkeypatch, capsys, *arguments[:-1], "tflite")
    assert status == 2
    assert "unknown format 'tflite'" in error


def test_a_model_that_cannot_be_traced_leaves_no_file(run, tmp_path, monkeypatch):
    from protofed.models import SplitModel

    forward = SplitModel.forward

    def depends_on_data(self, x):
        return forward(self, x if float(x.sum()) > 0 else -x)

    monkeypatch.setattr(SplitModel, "forward", depends_on_data)
    with one_line(ModelError, "the model cannot be exported as torch_export"):
        run.export("client-00", tmp_path / "m.pt2")
    assert list(tmp_path.iterdir()) == []


# Numbers.


def test_tables_of_rounds_and_clients(run):
    rounds, clients = run.to_frame(), run.clients_frame()
    assert rounds.index.tolist() == [1, 2]
    assert rounds.loc[2, "global"] == run.rounds[-1].accuracy.weighted["global"]
    assert rounds["bytes_up"].sum() == run.outcome.communication.bytes_total["up"]
    assert clients.index.tolist() == run.names
    assert clients["train"].sum() + clients["test"].sum() == 300
    assert clients.loc["client-01", "head"] == run.rounds[-1].accuracy.clients["head"][1]


def test_runs_are_shown_in_one_line_and_in_notebooks(run, tmp_path):
    line = repr(run)
    assert line.startswith("<Run fedproto on quickstart: ")
    assert "\n" not in line
    html = run._repr_html_()
    assert html.count("<tr") == 5  # a head, and four rules
    assert "<polyline" in html
    assert "<b>fedproto</b> on quickstart: " in html
    assert " of the clients' own test samples are right (global), after 2 rounds" in html
    comparison = protofed.compare("quickstart", ["local", "fedproto"], overrides=SMALL, out=tmp_path / "c")
    assert repr(comparison) == f"<Comparison of local, fedproto: 2 runs in {tmp_path / 'c'}>"
    assert comparison._repr_html_().count("<polyline") == 2
    again = protofed.load_comparison(comparison.directory)
    assert comparison.to_frame().equals(again.to_frame())
    assert comparison.answer.text == again.answer.text
    figure = protofed.figure("accuracy_rounds", comparison)
    assert type(figure).__name__ == "Figure"


def test_public_names_are_listed_before_their_first_use():
    assert {"run", "compare", "load_run", "figure", "TrainedRun"} <= set(dir(protofed))
    assert set(dir(protofed)) == set(protofed.__all__)


# Runs that go on.


@few(
    ("method", "options"),
    [
        ("fedproto", {}),
        ("fedtgp", {"evaluation.every": 2}),
        ("fedavg", {"model.name": "mlp", "training.momentum": 0.9}),
    ],
    1,
)
def test_a_longer_run_is_bit_for_bit_as_if_planned_so(method, options, tmp_path):
    overrides = {**SMALL, "method.name": method, **options}
    protofed.run("quickstart", {**overrides, "rounds": 5}, out=tmp_path / "whole")
    protofed.run("quickstart", {**overrides, "rounds": 2}, out=tmp_path / "cut")
    longer = protofed.run("quickstart", {**overrides, "rounds": 5}, out=tmp_path / "cut", resume=True)
    assert longer.outcome.rounds == 5
    files = [p.relative_to(tmp_path / "whole") for p in (tmp_path / "whole").rglob("*.safetensors")]
    assert len(files) == 8
    for file in files:
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "cut" / file).read_bytes(), file
    again = protofed.run("quickstart", {**overrides, "rounds": 5}, out=tmp_path / "cut", resume=True)
    assert again.summary == longer.summary


def test_an_extension_that_is_stopped_goes_on(run, tmp_path):
    class Stop(protofed.Progress):
        def round(self, label, record):
            if record.round == 3:
                raise KeyboardInterrupt

    overrides = {**SMALL, "method.name": "fedproto"}
    copy = tmp_path / "copy"
    shutil.copytree(run.directory, copy)
    with pytest.raises(KeyboardInterrupt):
        protofed.run("quickstart", {**overrides, "rounds": 4}, out=copy, resume=True, progress=Stop())
    resumed = protofed.run("quickstart", {**overrides, "rounds": 4}, out=copy, resume=True)
    assert [record.round for record in resumed.rounds] == [1, 2, 3, 4]
    assert resumed.rounds[1].accuracy == run.rounds[1].accuracy


def test_rounds_of_other_rules_are_not_extended(run, tmp_path):
    path = shutil.copytree(run.directory, tmp_path / "copy") / "rounds.jsonl"
    first, *rest = map(json.loads, path.read_text().splitlines())
    first["accuracy"].pop("global_own")
    path.write_text("".join(json.dumps(line) + "\n" for line in (first, *rest)))
    with pytest.raises(CheckpointError, match=r"rounds\.jsonl: round 2 was scored by other rules than round 1$"):
        protofed.run(
            "quickstart", {**SMALL, "method.name": "fedproto", "rounds": 4}, out=tmp_path / "copy", resume=True
        )


@few(
    ("method", "options", "message"),
    [
        ("fedproto", {"training.schedule": "cosine"}, "training.schedule=cosine spreads over all rounds"),
        ("fedproto", {"participation.newcomers": 1}, "participation.newcomers join in the last rounds"),
        ("fedkd", {"method.compress": "parameters"}, "what fedkd does in a round depends on their number"),
    ],
    1,
)
def test_a_schedule_that_depends_on_the_rounds_is_not_extended(method, options, message, tmp_path):
    overrides = {**SMALL, "method.name": method, "model.name": "mlp", **options}
    protofed.run("quickstart", overrides, out=tmp_path / "run")
    before = (tmp_path / "run" / "config.toml").read_bytes()
    with pytest.raises(ConfigError, match=f"rounds cannot change from 2 to 4, because {message}") as caught:
        protofed.run("quickstart", {**overrides, "rounds": 4}, out=tmp_path / "run", resume=True)
    assert "--from" in str(caught.value)
    assert (tmp_path / "run" / "config.toml").read_bytes() == before
    assert (tmp_path / "run" / "summary.json").exists()


def test_fewer_rounds_than_were_run_are_refused(run):
    with pytest.raises(ConfigError, match="holds 2 rounds: rounds=1 is fewer"):
        protofed.run(
            "quickstart", {**SMALL, "method.name": "fedproto", "rounds": 1}, out=run.directory, resume=True
        )


def test_clients_start_from_trained_ones(run, tmp_path):
    """Before its first step a client is what it was: with a learning rate of 0 it stays so."""
    started = train(tmp_path / "a", "protonorm", model__start=str(run.directory), training__lr=0.0, rounds=1)
    for name in run.names:
        old, new = (each.model(name).model.state_dict() for each in (run, started))
        assert all(torch.equal(old[key], new[key]) for key in old if not key.startswith("extras"))
    assert started.rounds[0].accuracy.clients["head"] == run.rounds[-1].accuracy.clients["head"]


@pytest.mark.slow
def test_a_method_that_sends_weights_starts_from_its_own_server(run, tmp_path):
    first = train(tmp_path / "a", "fedavg", model__name="mlp", rounds=2)
    second = train(tmp_path / "b", "fedavg", model__name="mlp", rounds=1, model__start=str(first.directory))
    longer = train(tmp_path / "c", "fedavg", model__name="mlp", rounds=3)
    low, high = (each.rounds[0].losses["total"] for each in (longer, second))
    assert high < low  # it does not begin anew
    other = train(tmp_path / "d", "local", model__name="mlp", rounds=1)
    with pytest.raises(ConfigError, match="fedavg begins with the server's weights"):
        train(tmp_path / "e", "fedavg", model__name="mlp", model__start=str(other.directory))
    with pytest.raises(CheckpointError, match="does not fit the model of client-00"):
        train(tmp_path / "f", "fedproto", model__d=8, model__start=str(run.directory))
    with pytest.raises(CheckpointError, match="nowhere"):
        train(tmp_path / "g", model__start=str(tmp_path / "nowhere"))
    assert not any((tmp_path / name).exists() for name in "efg")


@pytest.mark.slow
def test_a_run_ends_where_validation_no_longer_improves(tmp_path):
    chosen = {"data__validation_fraction": 0.2, "evaluation__patience": 2, "rounds": 40, "training__lr": 0.3}
    run = train(tmp_path / "run", **chosen)
    scores = [record.validation.weighted["global"] for record in run.rounds]
    best = scores.index(max(scores))
    assert len(scores) == best + 3 < 40
    assert "stopped early" in run.report.read_text()
    again = protofed.run(
        "quickstart",
        {**SMALL, "method.name": "fedproto", **{n.replace("__", "."): v for n, v in chosen.items()}}
        | {"evaluation.patience": 0, "rounds": len(scores) + 1},
        out=run.directory,
        resume=True,
    )
    assert len(again.rounds) == len(scores) + 1
    with pytest.raises(ConfigError, match=r"evaluation\.patience needs validation samples"):
        train(tmp_path / "b", evaluation__patience=2)
