"""The contract of methods: enough for a new one on every executor, and clear about what it no longer is."""

from __future__ import annotations

import ast
import json
import re
from contextlib import closing
from pathlib import Path

import pytest
import torch

import protofed
from conftest import REPOSITORY
from protofed.analysis import load_run
from protofed.errors import CheckpointError, ConfigError
from protofed.experiments.assemble import assemble
from protofed.experiments.running import run_experiment
from protofed.methods import Method, get, methods
from protofed.methods.traits import _REMOVED
from protofed.runs.rules import KNOWN_RULES, find_rule
from protofed.storage.snapshots import flatten
from support import experiment, few, one_line, ordinary

ROOT = Path(protofed.__file__).parent
CONTRACT = ROOT / "methods" / "contract.py"


def test_the_contract_is_short():
    text = CONTRACT.read_text()
    hooks = [
        n
        for n, v in vars(Method).items()
        if n[0] != "_" and (callable(v) or isinstance(v, (property, classmethod)))
    ]
    assert len(text.splitlines()) <= 350
    assert len(set(hooks) - {"rules", "sends", "Options"}) <= 20
    assert not re.search("privacy|noisy|robust|attack", text.split("class Method")[1].replace("or noisy ones", ""))


@few("executor", ["fused", "workers"], 1)
def test_a_method_of_thirty_lines_runs_on_every_executor(executor):
    written = (Path(__file__).parent.parent / "nested.py").read_text().split("\nclass ")[1].splitlines()
    assert len([line for line in written if line.strip()]) <= 30
    found = []
    for name in ("sequential", executor):
        chosen = {"execution__precision": "fp64", "wire__codec": "float64", "execution__workers": 2}
        federation, _ = assemble(
            experiment("nested:Nested", execution__executor=name, rounds=8, **chosen), ordinary()
        )
        with closing(federation.executor):
            records = [record.to_dict() for record in federation.run()]
            clients = federation.executor.clients
            tensors = {f"{c}.{n}": t for c in clients for n, t in flatten(clients.snapshot(c)).items()}
        found.append((records, tensors))
    (records, tensors), (others, theirs) = found
    assert [r["accuracy"] for r in records] == [r["accuracy"] for r in others]
    assert records[-1]["accuracy"]["both"]["weighted"] > 0.5
    for name, tensor in tensors.items():
        torch.testing.assert_close(theirs[name], tensor, rtol=1e-6, atol=1e-8)


@few("name", sorted(_REMOVED), 3)
def test_a_method_for_0_2_is_told_what_to_change(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(f"old_{name}.py").write_text(
        "from protofed.methods.fedproto import FedProto\n\n\n"
        f"class Old(FedProto):\n    name = 'old'\n    summary = 'old'\n    {name} = None\n"
    )
    with one_line(ConfigError, rf"^Old\.{name} is of protofed 0\.2, whose"):
        get(f"old_{name}.py:Old")


MINE = """from dataclasses import dataclass

from protofed.methods.fedproto import FedProto, FedProtoOptions


@dataclass(frozen=True)
class MineOptions(FedProtoOptions):
    factor: float = {factor}


class Mine(FedProto):
    name = "mine"
    summary = "mine"
    Options = MineOptions

    def begin(self, *given):
        self.factor = self.options.factor
        return super().begin(*given)
"""


def test_a_file_of_the_same_name_or_another_content_is_another_method(tmp_path):
    """Files called alike in two folders, and one that is edited between two runs, as in a notebook."""
    files = [tmp_path / name / "mine.py" for name in ("a", "b")]
    for factor, file in enumerate(files):
        file.parent.mkdir()
        file.write_text(MINE.format(factor=float(factor)))
    first, second = (get(f"{file}:Mine") for file in files)
    assert (first.Options().factor, second.Options().factor) == (0.0, 1.0)
    assert get(f"{files[0]}:Mine") is first
    files[0].write_text(MINE.format(factor=2.0))
    assert get(f"{files[0]}:Mine").Options().factor == 2.0
    with pytest.raises(ConfigError, match=r"^.*b/mine\.py:Mine and .*a/mine\.py:Mine are both called Mine-seed0"):
        protofed.compare("quickstart", [f"{file}:Mine" for file in reversed(files)], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_method_of_a_file_is_the_same_in_processes(tmp_path):
    """With options of its own, which processes receive as an object."""
    (tmp_path / "mine.py").write_text(MINE.format(factor=1.0))
    found = []
    for executor in ("sequential", "workers"):
        chosen = experiment(
            f"{tmp_path}/mine.py:Mine", rounds=2, execution__executor=executor, execution__threads=1
        )
        federation, _ = assemble(chosen, ordinary())
        with closing(federation.executor):
            found.append([record.accuracy for record in federation.run()])
            assert federation.executor.description()["executor"] == executor
    assert found[0] == found[1]


def test_a_run_describes_its_rules(tmp_path):
    small = {"data__source": "digits", "data__samples": 60, "data__clients": 2, "model__options": {}, "rounds": 1}
    directory = run_experiment(experiment("nested:Nested", **small), tmp_path / "run").directory
    run = load_run(directory)
    assert (run.rules, run.main_rule, run.federation.open_rule) == (("both", "small"), "both", "small")
    assert (run.rule("both").text, run.rule("small").title) == ("its class by all features", "Shared network")
    path = directory / "federation.json"
    told = json.loads(path.read_text())
    for wrong in ([{"name": "both"}], "both", [{**told["rules"][0], "place": -1}], told["rules"] * 40):
        path.write_text(json.dumps({**told, "rules": wrong}))
        with pytest.raises(CheckpointError, match=r"federation\.json: .*rule"):
            load_run(directory)
    path.write_text(json.dumps({name: value for name, value in told.items() if name != "rules"}))
    assert load_run(directory).rule("small") == find_rule("small")


def test_declared_rules_are_known_in_older_runs():
    for kind in (methods().get(name) for name in methods()):
        for rule in kind.traits(kind.Options()).rules:
            if rule.name in KNOWN_RULES:
                assert find_rule(rule.name).title == rule.title


OWN = ("methods", "protofed_lab/demo", "runs/rules.py")
"""What may name methods and rules: themselves, the demonstration, and what older runs lack."""
WORDS = {"global", "head", "local", "nearest"}
"""Names of rules that mean other things as well, such as an engine or a part of a model."""
DEFAULTS = {
    "api.py": {"fedproto"},  # the method of a recipe that names none
    "config/schema.py": {"fedproto", "fedlda", "expert"},  # and what is no more
    "trained/estimator.py": {"fedlda"},  # the method of an estimator that names none
    "sites/trying.py": {"fedlda", "local_lda", "beacon"},  # that are compared
}


def test_nothing_outside_a_method_s_file_names_it_or_its_rules():
    kinds = [methods().get(name) for name in methods()]
    names = {*methods(), *(rule.name for kind in kinds for rule in kind.traits(kind.Options()).rules)}
    quoted = re.compile(rf"""["']({"|".join(names - WORDS)})["']""")
    for path in sorted([*ROOT.rglob("*.py"), *REPOSITORY.glob("packages/*/src/**/*.py")]):
        place, text = path.as_posix().rpartition("/src/")[2].removeprefix("protofed/"), path.read_text()
        if not place.startswith(OWN) and quoted.search(text):
            found = {n.value for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant)} & names
            assert found - WORDS <= DEFAULTS.get(place, set()), place
