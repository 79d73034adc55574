"""The benchmarks: that what they compare is comparable, and that they run as a user calls them."""

from __future__ import annotations

import json
import textwrap
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import test_cli
from benchmarks import felt
from benchmarks.__main__ import app
from benchmarks.bare import BareLoop
from benchmarks.ours import Rounds
from benchmarks.scaling import alike
from benchmarks.timing import Timings, Variant, take_turns
from benchmarks.until import Course
from protofed.cli import main as cli
from protofed.experiments.hardware import Hardware
from protofed.experiments.loading import load_data
from protofed.visits.batches import normalise
from support import assert_mistake, experiment, few

DIGITS = {
    "data__source": "digits",
    "data__clients": 4,
    "data__samples": 160,
    "data__validation_fraction": 0.2,
    "partition__alpha": 0.5,
    "model__name": "small4",
    "model__options": {},
    "model__d": 16,
    "training__batch_size": 16,
    "execution__precision": "fp64",
    "wire__codec": "float64",
    # Scored with the prototypes that the round began with, as the bare loop is.
    "evaluation__at": "trained",
    "rounds": 3,
}


@few("reduced", [False, True], 1)
@few(
    ("method", "options"),
    [
        ("local", {}),
        ("fedproto", {"method__lambda": 5.0, "method__gamma": 2.0}),
        ("fedproto", {"method__prototypes": "during", "training__epochs": 2, "training__momentum": 0.9}),
    ],
    2,
)
def test_the_bare_loop_computes_the_same_as_a_round(method, options, reduced):
    chosen = experiment(method, **{**DIGITS, **options})
    hardware = Hardware.of(chosen.execution)
    with closing(Rounds(chosen, hardware)) as ours:
        loop = BareLoop(chosen, ours.federated, hardware, reduced=reduced)
        ours.run()
        loop.load(ours.federation)
        for round_number in (2, 3):
            loop.prepare(ours.federation.server, round_number)
            loop.run()
            record = ours.run()
            assert (loop.table is not None) == (method == "fedproto")
            for client in loop.clients:
                kept = ours.federation.executor.clients.snapshot(client.name)
                assert kept.model.keys() == client.model.state_dict().keys()
                for name, tensor in client.model.state_dict().items():
                    torch.testing.assert_close(tensor, kept.model[name], rtol=1e-9, atol=1e-11)
                if method == "fedproto":
                    own = loop.prototypes[client.name]
                    torch.testing.assert_close(own, kept.state["prototypes"], rtol=1e-9, atol=1e-11)
            scored = {"head"} if method == "local" else {"head", "local", "global", "global_own"}
            assert loop.correct.keys() == scored
            for rule in scored:
                found = sum(
                    round_half(share * len(getattr(client, part)))
                    for accuracy, part in ((record.accuracy, "test"), (record.validation, "validation"))
                    for share, client in zip(accuracy.clients[rule], ours.federated.clients, strict=True)
                    if share is not None
                )
                assert loop.correct[rule] == found


def inside(*arguments):
    """Call ``python -m benchmarks`` in this process; see :func:`test_cli.inside`."""
    return test_cli.inside(*arguments, main=partial(cli.main, app))


def round_half(number: float) -> int:
    return int(number + 0.5)


def test_overhead(tmp_path, monkeypatch, capsys):
    status, output, error = inside(
        *(monkeypatch, capsys, tmp_path, "overhead", "--cases", "fedproto-small4", "--rounds", "2"),
        *("--threads", "1", "--processes", "1", "--json", "found.json", "data.samples=200", "data.clients=3"),
    )
    assert (status, error) == (0, "")
    for part in ("fedproto-small4", "1 thread", "/ bare", "bare loop, reduced", "sequential"):
        assert part in output
    found = json.loads(Path("found.json").read_text())
    assert found["machine"]["cores"] >= 1
    assert found["machine"]["torch"] == torch.__version__
    (figures,) = found["overhead"]
    assert {name: len(by["1"]) for name, by in figures["seconds"].items()} == dict.fromkeys(
        ("sequential", "bare loop", "bare loop, reduced"), 2
    )
    assert figures["ratios"]["bare loop"]["bare loop"] == 1
    assert figures["ratios"]["sequential"]["bare loop"] > 0


@pytest.mark.slow
def test_scaling(tmp_path, monkeypatch, capsys):
    status, output, error = inside(
        *(monkeypatch, capsys, tmp_path, "scaling", "--clients", "2,4", "--rounds", "1"),
        *("--per-client", "12", "--json", "found.json", "data.source=spiral", "model.name=mlp", "model.d=8"),
        "execution.clients_in=disk",
    )
    assert (status, error) == (0, "")
    assert "mlp on spiral, 12 samples per client" in output
    figures = json.loads(Path("found.json").read_text())["scaling"]
    assert [row["clients"] for row in figures] == [2, 4]
    assert all(row["clients_in"] == "disk" and len(row["seconds"]) == 1 for row in figures)
    assert all(row["peak_memory_bytes"] >= row["memory_before_bytes"] > 0 for row in figures)
    assert all(row["start"] > 0 and row["report"] > 0 for row in figures)
    assert all(row["report_bytes"] > 10_000 and row["checkpoint_bytes"] > 1000 for row in figures)


def test_clients_of_scaling_are_alike_and_more_than_the_data():
    chosen = experiment(data__source="digits", data__test_fraction=0.25)
    federated = alike(chosen, clients=200, per_client=40)
    assert {(len(c.train), len(c.test)) for c in federated.clients} == {(30, 10)}
    assert federated.input_shape == (1, 8, 8)
    assert not torch.equal(federated.clients[0].train.x, federated.clients[1].train.x)


def test_variants_take_turns_and_keep_the_number_of_threads():
    done: list[str] = []
    before = torch.get_num_threads()
    variants = [
        Variant(name, 1, lambda name=name: done.append(f"prepare {name}"), lambda name=name: done.append(name))
        for name in "ab"
    ]
    timings = take_turns(variants, 2, lambda text: None)
    assert [name for name in done if len(name) == 1] == list("abbaab")
    assert done[:2] == ["prepare a", "a"]
    assert torch.get_num_threads() == before
    assert {key: len(values) for key, values in timings.seconds.items()} == {("a", 1): 2, ("b", 1): 2}


def test_ratios_are_medians_over_rounds_with_the_best_threads():
    timings = Timings({("a", 1): [1, 2, 30], ("a", 2): [9, 9, 9], ("b", 1): [2, 2, 10], ("b", 2): [1, 1, 10]})
    assert (timings.best("a"), timings.best("b")) == (1, 2)
    assert timings.ratio("a", "b") == 2
    assert timings.ratio("a", "b", threads=1) == 1
    assert timings.ratio("a", "b", threads=3) is None
    assert timings.ratio("a", "c") is None


MAIN = """
import argparse, json
from pathlib import Path
import numpy as np
import calmsize
from flcore.servers.serverbase import Server
from flcore.trainmodel.models import BaseHeadSplit

parser = argparse.ArgumentParser()
for name in ("dev", "data", "m", "algo", "ncl", "nc", "lbs", "lr", "ls", "fd", "gr", "eg", "lam", "se", "mart"):
    parser.add_argument(f"-{name}")
args = parser.parse_args()
BaseHeadSplit(args)
first = np.load(f"../dataset/{args.data}/train/0.npz", allow_pickle=True)["data"].tolist()
seen = Path(__file__).with_name("seen")
np.savez(seen, x=first["x"], y=first["y"], args=json.dumps(vars(args)))
if args.lr == "0.5":
    raise RuntimeError("no such rate")
for i in range(int(args.gr) + 1):
    if args.lr != "0.25":
        print(f"Averaged Test Accuracy: {0.3 * i:.4f}")
    print("-" * 50, 100.0 if i == 0 else 0.5)
Server().save_results()
print("not reached")
raise SystemExit(1)
"""


@pytest.fixture
def htfllib(tmp_path) -> Path:
    """Return what looks like HtFLlib to us and notes what it was given."""
    files = {
        "main.py": MAIN,
        "flcore/servers/serverproto.py": "",
        "flcore/servers/serverbase.py": "class Server: pass",
        "flcore/trainmodel/models.py": """
            class BaseHeadSplit:
                def __init__(self, args, cid=0):
                    self.base = args.models[cid]
        """,
    }
    for name, text in files.items():
        path = tmp_path / "htfllib" / "system" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return tmp_path / "htfllib"


@pytest.mark.slow
def test_peer(htfllib, tmp_path, monkeypatch, capsys):
    clients_of_images(tmp_path / "clients")
    arguments = ["peer", "--peer", "htfllib", "--cases", "fedproto-cnn2", "--rounds", "2"]
    arguments += ["--threads", "1", "--processes", "1", "data.path=.", "--json", "found.json"]
    status, output, error = inside(monkeypatch, capsys, tmp_path, *arguments)
    assert (status, error) == (0, "")
    assert "HtFLlib / this" in output
    (figures,) = json.loads(Path("found.json").read_text())["peer"]
    assert figures["seconds"]["HtFLlib"] == {"1": [0.5, 0.5]}
    assert len(figures["seconds"]["sequential"]["1"]) == 2
    assert figures["steps"] == {"HtFLlib": 2, "protofed": 4}
    assert figures["ratios"]["sequential"] == pytest.approx(0.5 / figures["medians"]["sequential"])
    with np.load(htfllib / "system" / "seen.npz") as file:
        seen = dict(file)
    given = json.loads(str(seen["args"]))
    assert given["models"] == ["FedAvgCNN(in_features=1, num_classes=args.num_classes, dim=64)"]
    found = [given[name] for name in ("algo", "nc", "lbs", "lam", "gr")]
    assert found == ["FedProto", "2", "32", "10.0", "2"]
    ours = load_data(experiment(data__source="path", data__path=str(tmp_path))).clients[0].train
    assert np.array_equal(seen["x"], normalise(ours.x, torch.float32).numpy())
    assert np.array_equal(seen["y"], ours.y.numpy())

    status, _, error = inside(monkeypatch, capsys, tmp_path, *arguments, "training.lr=0.5")
    assert status == 2
    why = "main.py ended with status 1 after 0 of 3 rounds: RuntimeError: no such rate"
    assert error == f"error: --peer htfllib: {why}\n"


def clients_of_images(folder: Path) -> None:
    """Write two clients with images of four classes."""
    for client in ("ann", "bob"):
        for part, n in (("train", 40), ("test", 5)):
            folder.joinpath(client).mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng(n).integers(0, 256, (n, 1, 16, 16), dtype=np.uint8)
            np.savez(folder / client / part, x=pixels, y=np.arange(n) % 4)


def test_what_was_measured_before_an_error_is_kept(tmp_path, monkeypatch, capsys):
    codes = {"good": "print('Federating helps', flush=True)", "bad": "raise SystemExit('no such thing')"}
    rows = {n: felt.Row("", lambda folder, code=code: felt._python(code)) for n, code in codes.items()}
    monkeypatch.setattr(felt, "ROWS", rows)
    status, output, error = inside(monkeypatch, capsys, tmp_path, "felt", "--json", "found.json")
    assert status == 2
    assert "no such thing" in error
    assert "What people wait for" in output
    (figures,) = json.loads(Path("found.json").read_text())["felt"]
    assert figures["row"] == "good"
    assert figures["cpu_seconds"] + 0.05 > figures["first_cpu_seconds"] >= 0  # counted in ticks of the clock
    assert figures["seconds"] >= figures["first_seconds"] > 0


@pytest.mark.slow
def test_until(htfllib, tmp_path, monkeypatch, capsys):
    clients_of_images(tmp_path / "clients")
    arguments = ["until", "--cases", "fedproto-cnn2", "--threads", "1", "data.path=.", "--limit", "4"]
    theirs = ["--peer", "htfllib", "--json", "found.json", "--target", "0.5", "--seeds"]
    status, output, error = inside(monkeypatch, capsys, tmp_path, *arguments, *theirs, "3,4", "--figure", "course")
    assert (status, error) == (0, "")
    assert "Drawn: course.png, course.svg" in output
    drawn = Path("course.svg").read_text()
    assert "fedproto-cnn2, protofed" in drawn
    assert "fedproto-cnn2, HtFLlib" in drawn
    assert "mathdefault" not in drawn
    assert "Until 50 % of all test samples" in output
    found = json.loads(Path("found.json").read_text())
    assert found["options"] == ["data.path=."]
    (figures,) = found["until"]
    ours, peers = figures["runs"]["protofed"], figures["runs"]["HtFLlib"]
    assert [run["seed"] for run in ours] == [3, 4]
    for run in peers:  # 0.3, 0.6, 0.9 after rounds 1, 2, 3; their mean is 0.6
        assert run["accuracy"] == [0.3, 0.6, 0.9, 1.2]
        assert (run["rounds_until"], run["steps_until"], run["bytes_until"]) == (3, 6, None)
        assert run["seconds_until"] == 101.0  # those of the rounds before the score
    for run in ours:
        assert len(run["accuracy"]) == len(run["seconds"]) == len(run["bytes"]) <= 4
        assert run["seconds"] == sorted(run["seconds"])
        if round_number := run["rounds_until"]:
            assert (len(run["accuracy"]), run["steps_until"]) == (round_number, 4 * round_number)
            assert run["bytes_until"] == run["bytes"][-1]

    status, _, error = inside(monkeypatch, capsys, tmp_path, *arguments, *theirs, "3", "training.lr=0.25")
    assert status == 2
    assert error.endswith("htfllib: 0 accuracies in 5 rounds: another version of HtFLlib?\n")


def test_a_lucky_round_is_not_enough():
    course = Course([0.2, 0.95, 0.5, 0.93, 0.94, 0.95], [1, 2, 3, 4, 5, 6], [], 7)
    assert course.reached(0.93) == 6
    assert course.figures(0.93)["steps_until"] == 42
    never = course.figures(0.96)
    assert {never[f"{what}_until"] for what in ("rounds", "seconds", "steps", "bytes")} == {None}


@few(
    ("arguments", "expected"),
    [
        (["overheads"], "did you mean 'overhead'?"),
        (["overhead", "--cases", "fedtgp-cnn2"], "the bare loop is for local and fedproto only"),
        (["overhead", "rounds=3"], "rounds=3: bench sets this itself: use --rounds"),
        (["overhead", "execution.executor=workers"], "leave it out"),
        (["scaling", "--clients", "0"], "--clients must be positive numbers"),
        (["scaling", "--json", "nowhere/found.json"], "no such folder"),
        (["peer"], "needs --peer DIR"),
        (["until", "--target", "93"], "--target must be a fraction of the test samples, e.g. 0.93, not 93"),
        (["felt", "--cases", "fist"], "did you mean 'first'?"),
        (["felt", "--figure", "x"], "--figure: only until has a picture, not felt"),
        (["peer", "--peer", "."], "not a checkout of HtFLlib (system/main.py is missing)"),
    ],
    9,
)
def test_mistakes_are_one_line(arguments, expected, tmp_path, monkeypatch, capsys):
    status, _, error = inside(monkeypatch, capsys, tmp_path, *arguments)
    assert_mistake(status, error, expected)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model.name=mlp", "unknown model of the peer 'mlp'"),
        ("training.momentum=0.9", "training.momentum=0.9: the peer supports only 0.0"),
    ],
)
def test_what_the_peer_cannot_do_is_said_first(htfllib, override, expected, tmp_path, monkeypatch, capsys):
    arguments = ["peer", "--peer", "htfllib", "--cases", "fedproto-cnn2", override]
    status, _, error = inside(monkeypatch, capsys, tmp_path, *arguments)
    assert (status, error.count("\n")) == (2, 1)
    assert expected in error
