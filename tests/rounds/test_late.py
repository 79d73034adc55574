"""Late answers: their weight by hand, and traces that cannot be."""

from __future__ import annotations

import json

import pytest
import torch

from protofed.errors import CheckpointError, ConfigError
from protofed.experiments.loading import load_data
from protofed.experiments.running import Progress, run_experiment
from protofed.methods.contract import Upload
from protofed.rounds.late import Mixing, Trace
from protofed.rounds.stage import Opened
from protofed.runs.records import RoundRecord
from support import assert_alike, build, experiment, outcome

pytestmark = pytest.mark.fast
NAMES = ["ann", "bob", "cid"]


def mixed(method, upload, broadcast, late, **options):
    federation = build(method, participation__after=1, **options)
    (stage,) = [stage for stage in federation.stages if isinstance(stage, Mixing)]
    record = RoundRecord(5, ["ann"], answers={"ann": 5 - late})
    (found,) = stage(iter([Upload("ann", upload)]), Opened(5, {}, broadcast), record)
    return found.payload


def test_rows_of_classes_move_towards_the_broadcast():
    upload = {"classes": torch.tensor([0, 2]), "prototypes": torch.tensor([[4.0, 0.0], [8.0, 8.0]])}
    broadcast = {"classes": torch.tensor([0, 1]), "prototypes": torch.tensor([[0.0, 2.0], [5.0, 5.0]])}
    found = mixed("fedproto", upload, broadcast, 3)
    assert found["prototypes"].tolist() == [[2.0, 1.0], [8.0, 8.0]], "w = (1 + 3)^-0.5 = 1/2; class 2 is new"
    assert found["classes"] is upload["classes"]
    assert mixed("fedproto", upload, broadcast, 0) is upload, "an answer in time stays as it is"
    assert mixed("fedproto", upload, None, 3) is upload
    assert upload["prototypes"].tolist() == [[4.0, 0.0], [8.0, 8.0]]


def test_a_broadcast_that_is_no_mean_of_uploads_is_not_mixed_with_them():
    """FedProto's Eq. 6 to the letter divides it once more by the number of clients."""
    with pytest.raises(ConfigError, match="not a mean of such uploads"):
        build("fedproto", participation__after=1, method__aggregation="paper")


def test_weights_move_towards_the_broadcast():
    federation = build("fedavg", participation__after=1)
    broadcast = federation.method.broadcast(federation.server, 1)
    upload = {name: tensor + 1 for name, tensor in broadcast.items()} | {"samples": torch.tensor(7)}
    found = mixed("fedavg", upload, broadcast, 1, participation__staleness=2.0)
    for name, tensor in broadcast.items():
        torch.testing.assert_close(found[name], tensor + 0.25)
    assert found["samples"] == 7


def written(path, *turns):
    path.write_text(
        "".join(json.dumps({"round": n, "participants": NAMES, **t}) + "\n" for n, t in enumerate(turns, 1))
    )
    return path


def test_a_trace_by_hand_is_repeated(tmp_path):
    trace = written(
        tmp_path / "trace.jsonl",
        {"answers": {"ann": 1, "bob": 1}, "missing": [{"client": "cid", "phase": "evaluation", "reason": "late"}]},
        {"answers": {"ann": 2, "cid": 1}},
        {},
    )
    options = {"participation__after": 2, "participation__trace": str(trace), "rounds": 3}
    federation = build("fedproto", **options)
    records = list(federation.run())
    assert [r.answers for r in records] == [{"ann": 1, "bob": 1}, {"ann": 2, "cid": 1}, dict.fromkeys(NAMES, 3)]
    assert records[0].accuracy.clients["head"][2] is None
    assert [m.client for m in records[1].missing] == ["bob"]


@pytest.mark.parametrize("executor", ["workers", "fused"])
@pytest.mark.parametrize("method", ["fedproto", "fedavg"])
def test_every_executor_repeats_a_trace(method, executor, tmp_path):
    turns = [{"ann": 1, "bob": 1}, {"ann": 2, "cid": 1}, {"bob": 2, "ann": 3}, dict.fromkeys(NAMES, 4)]
    trace = written(tmp_path / "trace.jsonl", *({"answers": turn} for turn in turns))
    options = {"participation__after": 2, "participation__trace": str(trace), "rounds": 4}
    exact = {"execution__precision": "fp64", "wire__codec": "float64"}

    def run(kind):
        return outcome(build(method, execution__executor=kind, **options, **exact))

    assert_alike(run(executor), run("sequential"), exact=executor == "workers")


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ([{}], "lacks round 2: participation.trace needs all 2 rounds"),
        ([{}, {"answers": {"dan": 1}}], "round 2: dan is not among the clients"),
        (
            [{}, {"answers": {"ann": 3}}],
            "round 2: ann answers for round 3, which is to come or is answered already",
        ),
        (
            [{}, {"answers": {"ann": 1}}],
            "round 2: ann answers for round 1, which is to come or is answered already",
        ),
        ([{}, {"answers": {"ann": 0}}], "line 2"),
        ([{}, {"answers": 5}], "line 2"),
    ],
)
def test_a_trace_that_cannot_be_is_refused(tmp_path, turns, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        Trace.read(written(tmp_path / "rounds.jsonl", *turns), 2, NAMES)
    assert "\n" not in str(caught.value)
    with pytest.raises(CheckpointError, match=message):
        Trace.read(tmp_path, 2, NAMES)


def test_a_trace_of_other_options_is_refused(tmp_path):
    trace = written(tmp_path / "trace.jsonl", {"participants": ["ann"]})
    federation = build("fedproto", participation__after=1, participation__trace=str(trace), rounds=1)
    with pytest.raises(CheckpointError, match="other participants than those drawn here"):
        list(federation.run())
    with pytest.raises(CheckpointError, match="missing"):
        Trace.read(tmp_path / "nothing", 1, NAMES)


class Stops(Progress):
    """Stops after two rounds."""

    def round(self, label, record):
        """Stop."""
        if record.round == 2:
            raise KeyboardInterrupt


def test_a_repetition_that_is_resumed_is_the_same(tmp_path):
    small = {"data__samples": 90, "data__clients": 3, "partition__alpha": 0.5}
    first, second, third = [c.name for c in load_data(experiment("fedavg", **small)).clients]
    both, names = {first: 1, second: 1}, [first, second, third]
    turns = [{"answers": both}, {"answers": dict.fromkeys(both, 2)}, {"answers": {first: 3, third: 1}}]
    trace = written(tmp_path / "trace.jsonl", *({**turn, "participants": names} for turn in turns))
    options = {"participation__after": 2, "participation__trace": str(trace), "rounds": 3}
    chosen = experiment("fedavg", **options, **small)
    whole = run_experiment(chosen, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run_experiment(chosen, tmp_path / "out", progress=Stops())
    assert list((tmp_path / "out" / "checkpoint").glob("*/sent.safetensors"))
    again = run_experiment(chosen, tmp_path / "out", resume=True)
    assert [r.losses for r in again.rounds] == [r.losses for r in whole.rounds]
    servers = [(tmp_path / name / "server.safetensors").read_bytes() for name in ("out", "whole")]
    assert servers[0] == servers[1]
