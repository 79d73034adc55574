"""Optimisers without torch's compiler take the steps of torch's own."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import torch

from protofed.compute.optimizers import eager
from protofed.errors import ConfigError
from protofed.visits.client import LocalPlan

SPARSE, CLOSURE = "SparseAdam", "LBFGS"
NAMES = sorted(
    name
    for name in torch.optim.__all__
    if inspect.isclass(getattr(torch.optim, name, None)) and name not in ("Optimizer", SPARSE, CLOSURE)
)
SETTINGS = {"SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, "Adam": {"amsgrad": True}}


def stepped(kind: type[torch.optim.Optimizer], steps: int = 4, **settings) -> list[torch.Tensor]:
    """Return the weights after some steps down a fixed slope; two groups, one parameter without a gradient."""
    source = torch.Generator().manual_seed(3)
    first, second, idle = (torch.randn(3, 4, generator=source).requires_grad_() for _ in range(3))
    slope = torch.randn(3, 4, generator=source)
    optimizer = kind([first, idle], lr=0.05, **settings)
    optimizer.add_param_group({"params": [second], "lr": 0.01})
    for _ in range(steps):
        for parameter in (first, second):
            parameter.grad = (slope * parameter).detach()
        optimizer.step()
    return [p.detach() for p in (first, second, idle)]


@pytest.mark.parametrize("name", NAMES)
def test_the_steps_are_those_of_torch(name):
    kind = getattr(torch.optim, name)
    settings = SETTINGS.get(name, {})
    for mine, theirs in zip(stepped(eager(kind), **settings), stepped(kind, **settings), strict=True):
        assert torch.equal(mine, theirs)
    assert eager(kind) is eager(kind)
    assert issubclass(eager(kind), kind)


def test_a_step_is_recorded_only_where_the_optimiser_is_told_to():
    """The derivative of w - lr g with respect to w is 1."""
    for differentiable in (False, True):
        weight = torch.ones(2, requires_grad=True)
        parameter = weight.clone() if differentiable else torch.ones(2)
        optimizer = eager(torch.optim.SGD)([parameter], lr=0.1, differentiable=differentiable)
        parameter.grad = torch.ones(2)
        optimizer.step()
        assert parameter.requires_grad == differentiable
    assert torch.autograd.grad(parameter.sum(), weight)[0].tolist() == [1, 1]


def test_a_wrong_setting_is_still_refused():
    with pytest.raises(ConfigError, match="optimizer SGD: Invalid momentum value: -1"):
        LocalPlan(settings={"lr": 0.1, "momentum": -1})


@pytest.mark.slow
def test_training_does_not_import_the_compiler():
    code = """
import sys, torch
from protofed.visits.client import LocalPlan
weight = torch.ones(2, requires_grad=True)
for name in ("SGD", "Adam", "AdamW", "RMSprop"):
    optimizer = LocalPlan(optimizer=name).build([weight])
    weight.grad = torch.ones(2)
    optimizer.step()
print([name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
