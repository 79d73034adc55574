"""Several visits in one message, as in simulations: each part is answered by itself."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from protofed.errors import PayloadError
from protofed_flower.client_app import _answer
from protofed_flower.nodes import TRAIN, message, part, values_of


@pytest.fixture(autouse=True)
def task() -> None:
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


CONTEXT = Context(1, 1, {"partition-id": 0, "num-partitions": 1}, RecordDict(), {})


def act(node, values):
    if values.get("client") == "eve":
        raise PayloadError("state: damaged")
    return {"client": values["client"], "seconds": 1.0}


def test_a_part_that_fails_costs_only_its_client():
    asked = message([{"client": name} for name in ("ann", "eve", "cid")], 1, TRAIN)
    assert len({asked.content[part(n)]["nonce"] for n in range(3)}) == 1
    reply = _answer(asked, CONTEXT, act)
    assert values_of(reply, 0)["client"] == "ann"
    assert values_of(reply, 2)["client"] == "cid"
    with pytest.raises(PayloadError, match="node: refused, the request is not one of this version"):
        values_of(reply, 1)
    with pytest.raises(PayloadError, match="not an answer of protofed"):
        values_of(reply, 3)
