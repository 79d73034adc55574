"""A ClientApp is a new process for every message: it loads what a visit needs and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from deployment import write_trial
from protofed.config.architectures import FederationSummary
from protofed.config.schema import apply_overrides, load_recipe, resolve
from protofed_flower.admission import class_order
from protofed_flower.messages import Job
from protofed_flower.node import Node
from protofed_flower.sources import plan_text, source_of
from protofed_flower.summary import client_summaries, describe_federation

HEAVY = (
    *("torch._dynamo", "torch._inductor", "torch.onnx", "sympy", "triton", "torchvision", "PIL"),
    *("sklearn", "scipy", "pandas", "pyarrow", "datasets", "flwr_datasets"),
    *("matplotlib", "jinja2", "ray", "nicegui", "flwr.serverapp", "flwr.simulation"),
)
VISITS = """
import json, sys
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
before = set(sys.modules)
from protofed import __version__
from protofed_flower.client_app import app
for line in sys.stdin:
    kind, node, values = json.loads(line)
    record = ConfigRecord({**values, "version": __version__})
    asked = Message(RecordDict({"protofed": record}), dst_node_id=1, message_type=kind)
    reply = app(asked, Context(1, 1, node, RecordDict(), {}))
    assert "error" not in reply.content["protofed"], reply.content["protofed"]["error"]
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def loaded(requests: list[tuple[str, dict, dict]]) -> set[str]:
    """Return the modules that a process loads to answer requests, one after the other."""
    asked = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run([sys.executable, "-c", VISITS], input=asked, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.slow
def test_the_visits_of_a_folder_with_arrays_are_light(tmp_path):
    node = {"client-dir": str(write_trial(tmp_path) / "north"), "state-dir": str(tmp_path / "state")}
    overrides = {"method.name": "protonorm", "model.name": "cnn2", "rounds": 2}
    experiment = resolve(apply_overrides(load_recipe("quickstart"), overrides))
    config = plan_text(experiment)
    descriptions = Node(source_of(node), tmp_path / "state").describe(config)
    classes, _ = class_order(descriptions)
    (summary,) = client_summaries(
        experiment, FederationSummary.of(experiment, describe_federation(descriptions, classes))
    )
    job = Job("run", "north", 1, config, summary, deliver=False).to_values()
    found = loaded([("query", node, {"config": config}), ("train", node, job), ("evaluate", node, job)])
    assert {"torch", "protofed.models.layers"} <= found
    assert not found & set(HEAVY)
