"""Errors in a method of one's own: which hook, at which clients, and what it should have returned."""

from __future__ import annotations

import itertools
import re
from contextlib import closing

import pytest

from protofed.errors import ConfigError
from protofed.experiments.assemble import assemble
from support import experiment, few, one_line, ordinary

SOURCE = """
import torch

from protofed.methods.fedproto import FedProto


class Own(FedProto):
    name = "own"
    summary = "its own"

    def HOOK
"""
NUMBERS = itertools.count()


def run(hook, tmp_path, executor="sequential"):
    source = tmp_path / f"own{next(NUMBERS)}.py"  # modules are remembered by name
    source.write_text(SOURCE.replace("HOOK", hook))
    chosen = {"execution__executor": executor, "execution__workers": 2, "rounds": 2}
    federation, _ = assemble(experiment(f"{source}:Own", **chosen), ordinary())
    with closing(federation.executor):
        list(federation.run())


CALLS = {
    "receive": "receive(self, local, message): raise ValueError('no')",
    "begin": "begin(self, local): torch.ones(3) + torch.ones(4)",
    "loss": "loss(self, model, batch, received, state): return {'a': (torch.ones(3) + torch.ones(4)).sum()}, None",
    "upload": "upload(self, local, statistics): return local.nothing",
    "scores": "scores(self, model, batch, received, state): return {'head': received['nothing']}",
}


@few("executor", ["sequential", "fused", "workers"], 2)
@pytest.mark.parametrize("hook", CALLS)
def test_an_error_names_hook_and_clients(hook, executor, tmp_path):
    with pytest.raises((ValueError, RuntimeError, AttributeError, KeyError)) as caught:
        run(CALLS[hook], tmp_path, executor)
    (note,) = caught.value.__notes__
    assert re.match(rf"raised by Own\.{hook} at (ann|bob|cid)", note), note  # workers begin with the longest visit
    assert "\n" not in note


SHAPES = {
    "loss(self, model, batch, received, state): return {'a': torch.ones(3)}, None": (
        r"^Own\.loss: the term a must be a scalar tensor, not one of shape \(3,\)$"
    ),
    "loss(self, model, batch, received, state): return {'a': 0.5}, None": (
        r"^Own\.loss: the term a must be a scalar tensor, not float$"
    ),
    "scores(self, model, batch, received, state): return dict.fromkeys(self.rules, torch.ones(len(batch.y)))": (
        r"^Own\.scores: the rule head must be of shape \(B, K\) = \(9, 4\), not one of shape \(9,\)$"
    ),
    "upload(self, local, statistics): return {'classes': torch.tensor([0]), 'prototypes': torch.ones(5)}": (
        r"^ann: prototypes: must have shape \('k', 'd'\), not \(5,\)$"
    ),
    "upload(self, local, statistics): return {'classes': torch.tensor([0]), 'prototypes': torch.ones(1, 3)}": (
        r"^ann: prototypes: d must be 5, but the shape is \(1, 3\)$"
    ),
}


@pytest.mark.parametrize("hook", SHAPES)
def test_what_a_hook_returns_is_compared_with_what_it_should(hook, tmp_path):
    with one_line(ConfigError if "upload" not in hook else Exception, SHAPES[hook]):
        run(hook, tmp_path)
